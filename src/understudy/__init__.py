"""Understudy: a PyTorch training runtime in which any machine of a running job can be replaced live."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from understudy.worker.entry import run
    from understudy.worker.flags import LiveFlag
    from understudy.worker.job import Job
    from understudy.worker.step import Shard, Step

__version__ = version("understudy")

__all__ = ["Job", "LiveFlag", "Shard", "Step", "__version__", "run"]

_HOMES = {"run": "entry", "Job": "job", "LiveFlag": "flags", "Shard": "step", "Step": "step"}


def __getattr__(name: str) -> Any:
    """The rest of the surface brings torch along, so it is loaded when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.worker.{_HOMES[name]}"), name)

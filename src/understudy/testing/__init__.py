"""Tools for tests of training code that runs under Understudy, ours and yours. Production code never imports them.

- `LocalWorkers`, `run_workers`: workers as local processes, without a controller, for tests of collectives.
- `FakeClock`: a clock that moves only when a test says so.
- `faults`: faults inside workers and agents of a running job; `understudy run --chaos` loads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .clock import FakeClock
from .faults import AGENT_FAULTS, WORKER_FAULTS, InjectedError

if TYPE_CHECKING:
    from .local_workers import LocalWorker, LocalWorkers, WorkerHandle, first_roster, run_workers

__all__ = [
    "AGENT_FAULTS",
    "WORKER_FAULTS",
    "FakeClock",
    "InjectedError",
    "LocalWorker",
    "LocalWorkers",
    "WorkerHandle",
    "first_roster",
    "run_workers",
]


def __getattr__(name: str) -> Any:
    """Load local workers when they are asked for: an agent that loads the faults does not need torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import local_workers

    return getattr(local_workers, name)

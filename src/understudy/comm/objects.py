"""Collectives of Python objects in a rehearsal.

torch exchanges sizes, allocates memory of these sizes, and exchanges pickles. Sizes and pickles cannot be made up, so
while one of these functions runs in a rehearsal, the sandbox answers from the recording or says that it does not know.
Objects that all roles give may be those of this role, given as often as there are roles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import torch.distributed as dist

from .endpoint import Endpoint
from .group import RoleGroup
from .sandbox import ObjectExchange, Unanswered

_FROM_ALL = ("all_gather_object", "gather_object")
_NAMES = (*_FROM_ALL, "broadcast_object_list", "scatter_object_list", "send_object_list", "recv_object_list")


def _rehearsed(name: str, end: Endpoint, call: Callable[[], Any]) -> Any:
    """Call torch's function. Raises Unanswered if it needs objects that are not known."""
    exchange = end.exchange = ObjectExchange()
    try:
        return call()
    except Exception:
        if not exchange.unknown:
            raise
    finally:
        end.exchange = None
    if name not in _FROM_ALL:
        raise Unanswered(
            f"{name} in group {end.name}: the objects of the other roles are not known in this rehearsal, because no "
            "recording of the job's first steps has them; let --recording-limit be large enough for one, and call "
            f"{name} on all roles of the group alike, before the first step or in every step"
        )
    end.exchange = ObjectExchange(alone=True)
    try:
        return call()
    finally:
        end.exchange = None


def _answered(name: str, real: Callable[..., Any]) -> Any:
    parameters = signature(real)

    @wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        group = parameters.bind(*args, **kwargs).arguments.get("group") or dist.group.WORLD
        if isinstance(group, RoleGroup) and group.endpoint.rehearsing:
            return _rehearsed(name, group.endpoint, lambda: real(*args, **kwargs))
        return real(*args, **kwargs)

    call.answered = True  # type: ignore[attr-defined]
    return call


def answer_objects() -> None:
    """Let sandboxes know when torch exchanges objects. Code that has imported one of these functions by its name before
    keeps torch's."""
    for name in _NAMES:
        real = getattr(dist.distributed_c10d, name)
        if not hasattr(real, "answered"):
            for module in (dist, dist.distributed_c10d):
                setattr(module, name, _answered(name, real))

"""Tools for tests of training code that runs under Understudy, ours and yours. Production code never imports them.

- `LocalWorkers`, `run_workers`: workers as local processes, without a controller, for tests of collectives.
- `FakeClock`: a clock that moves only when a test says so.
- `faults`: faults inside workers and agents of a running job; `understudy run --chaos` loads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from understudy.testing.clock import FakeClock
    from understudy.testing.faults import AGENT_FAULTS, WORKER_FAULTS, InjectedError
    from understudy.testing.local_workers import LocalWorker, LocalWorkers, WorkerHandle, first_roster, run_workers

_HOMES = {
    "AGENT_FAULTS": "faults",
    "FakeClock": "clock",
    "InjectedError": "faults",
    "LocalWorker": "local_workers",
    "LocalWorkers": "local_workers",
    "WORKER_FAULTS": "faults",
    "WorkerHandle": "local_workers",
    "first_roster": "local_workers",
    "run_workers": "local_workers",
}

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
    """Load a name when it is asked for: an agent that loads the faults does not need torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

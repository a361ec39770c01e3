"""The thread that reports the waits of a worker."""

from __future__ import annotations

from typing import Any, cast

from understudy.comm.topology import GroupKey
from understudy.protocol.messages import Stalled, WorkerSpec
from understudy.testing.simulation.scheduler import Scheduler, SimProcess
from understudy.worker.protocol import WorkerProtocol
from understudy.worker.watch import Watch

SPEC = WorkerSpec("w0", "m0", 0, "job", b"secret", "train.py", (), 1, (("dp", 2),))


class Group:
    key = GroupKey((0, 1))


class Waits:
    """A fabric in which one operation began at a moment and may be over."""

    generation = 1

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self.over = False

    def longest_wait(self) -> tuple[Any, int, str, float] | None:
        return None if self.over else (Group(), 1, "all_reduce", self._process.monotonic())


def told(*, frozen: bool) -> list[float]:
    """The times at which a worker reports a wait. The operation begins at 0; the other thread sees its end at 9.1."""
    scheduler = Scheduler(0)
    process = SimProcess(scheduler, "w0")
    fabric, said = Waits(process), list[float]()

    def send(message: object) -> None:
        if isinstance(message, Stalled) and message.roles:
            said.append(scheduler.now)

    Watch(SPEC, cast(Any, fabric), WorkerProtocol("w0"), send, process)
    if frozen:
        scheduler.at(2.5, process.freeze)
        scheduler.at(9.0, process.thaw)
    scheduler.at(9.1, lambda: setattr(fabric, "over", True))
    scheduler.at(20.0, scheduler.stop)
    scheduler.run()
    return said


def test_a_long_wait_is_told() -> None:
    assert told(frozen=False) == [6.0]


def test_a_process_that_was_stopped_looks_again_first() -> None:
    assert told(frozen=True) == []

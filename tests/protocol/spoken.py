"""One message of every kind that workers and their agents exchange."""

from __future__ import annotations

from understudy.protocol.messages import (
    Arm,
    Cancel,
    Copied,
    Done,
    Failed,
    Finish,
    FromWorker,
    Halt,
    Halted,
    Here,
    Leave,
    Prepare,
    Prepared,
    Progress,
    Rehearse,
    Resume,
    Stop,
    Telemetry,
    ToWorker,
    Tracked,
)
from understudy.protocol.roster import Roster, WorkerAddress
from understudy.protocol.samples import Sample

W0 = WorkerAddress("w0", "m0", port=4)
ROSTER = Roster.of(1, [(0, "w0")], [W0])
SAID: list[FromWorker | Telemetry] = [
    Here(W0),
    Tracked(0, (0, 1), 1 << 40),
    Prepared(2, 0.25),
    Halted(1, 2, 3, True, True, False, "eof", "w1 is gone", "w1"),
    Done(5, "ab", True),
    Failed(3, "ValueError: ü", "…\n" * 50),
    Progress(1, 2, 0.5, {"loss": 1.5}, True),
    Progress(1, 2, 0.5, sample=Sample("w0", 1, 2, 0.25, odd="repeated")),
    Copied(1, 4, 1 << 20, 0.5, 0.01),
]
HEARD: list[ToWorker] = [
    Rehearse(1),
    Prepare(ROSTER),
    Resume(ROSTER, 3),
    Arm(2),
    Cancel(2),
    Halt(1, "w1 is gone"),
    Finish(),
    Leave(),
    Stop(),
]

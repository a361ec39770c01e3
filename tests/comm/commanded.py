"""Workers that run the operations that a test names, one after the other, and report how each ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from tests.comm.helpers import all_gather, all_reduce, broadcast
from tests.comm.stepping import kill
from understudy.comm.endpoint import Endpoint
from understudy.comm.faults import Fault
from understudy.comm.links.pairs import Receive, Send
from understudy.comm.ops import Op
from understudy.comm.sandbox import Echo
from understudy.protocol.roster import Roster
from understudy.testing.local_workers import LocalWorker, LocalWorkers, WorkerHandle, first_roster

LARGE = 2_000_000


def _message(endpoint: Endpoint, job: Send | Receive) -> None:
    endpoint.message(job)
    assert job.done.wait(60)


def _exchange(endpoint: Endpoint, kind: str) -> None:
    blocks = [torch.ones(1000) for _ in range(endpoint.size)]
    outs = [torch.ones(1000) for _ in range(endpoint.size)]
    op = Op("all_to_all", inputs=blocks, outputs=outs) if kind == "all_to_all" else Op("barrier")
    endpoint.run(op)


OPERATIONS: dict[str, Callable[[Endpoint, int], object]] = {
    "small all_reduce": lambda end, _: all_reduce(end, torch.ones(10)),
    "large all_reduce": lambda end, _: all_reduce(end, torch.ones(LARGE)),
    "another all_reduce": lambda end, _: all_reduce(end, torch.ones(11)),
    "all_reduce of doubles": lambda end, _: all_reduce(end, torch.ones(10, dtype=torch.float64)),
    "maximum": lambda end, _: all_reduce(end, torch.ones(10), dist.ReduceOp.MAX),
    "broadcast": lambda end, peer: broadcast(end, torch.ones(10), peer),
    "large broadcast": lambda end, peer: broadcast(end, torch.ones(LARGE), peer),
    "all_gather": lambda end, _: all_gather(end, torch.ones(100_000)),
    "all_to_all": lambda end, _: _exchange(end, "all_to_all"),
    "barrier": lambda end, _: _exchange(end, "barrier"),
    "recv": lambda end, peer: _message(end, Receive(peer, 0, torch.ones(10))),
    "recv from anybody": lambda end, _: _message(end, Receive(None, 0, torch.ones(10))),
    "large send": lambda end, peer: _message(end, Send(peer, 0, torch.ones(10 * LARGE))),
}


def act(worker: LocalWorker, role: int | None, roles: Sequence[int]) -> None:
    """Words: a Roster to enter, ("do", operation, peer), ("interrupt", reason), "sum", None to end. Each is answered:
    by "entered", "going" and the generation's fault, a sum; an interrupt is not."""
    fabric = worker.fabric
    if role is None:
        worker.enter(worker.hear())
    else:
        fabric.assume(role, Echo())
    end = fabric.group(roles)
    worker.tell("here")
    while (word := worker.hear()) is not None:
        if isinstance(word, Roster):
            worker.enter(word)
            worker.tell("entered")
        elif word == "sum":
            value = all_reduce(end, torch.full((10,), 10.0**end.rank, dtype=torch.float64))
            assert fabric.fault is None, fabric.fault
            worker.tell(float(value[0]))
        elif word[0] == "interrupt":
            fabric.interrupt(word[1])
        else:
            worker.tell("going")
            OPERATIONS[word[1]](end, word[2])
            worker.tell(fabric.fault)


class CommandedWorkers:
    """Actors in role order under one roster."""

    def __init__(self, local: LocalWorkers, machines: Sequence[int]) -> None:
        self.local = local
        self.machines = [f"m{machine}" for machine, count in enumerate(machines) for _ in range(count)]
        self.roles = tuple(range(len(self.machines)))
        self.handles = [self._hire(machine, None) for machine in self.machines]
        self.roster = first_roster(self.handles)
        for handle in self.handles:
            handle.tell(self.roster)
        for handle in self.handles:
            assert handle.hear() == "here"

    def _hire(self, machine: str, role: int | None) -> WorkerHandle:
        (handle,) = self.local.start(machine, 1, act, role, self.roles)
        return handle

    def start(self, operation: str, by: Sequence[int], peer: int = 0) -> None:
        """These roles begin an operation."""
        for role in by:
            self.handles[role].tell(("do", operation, peer))
        for role in by:
            assert self.handles[role].hear() == "going"

    def faults(self, by: Sequence[int]) -> list[Fault]:
        """Why the operations of these roles have ended."""
        heard = [self.handles[role].hear(60) for role in by]
        assert all(isinstance(one, Fault) for one in heard), heard
        return heard

    def recover(self, dead: int | None = None) -> None:
        """A fresh roster, with a joiner on the same machine in the dead one's role; all sums are right again."""
        changes = {}
        if dead is not None:
            self.handles[dead] = self._hire(self.machines[dead], dead)
            assert self.handles[dead].hear() == "here"
            changes[dead] = self.handles[dead].worker
        self.roster = self.roster.successor(changes, fresh=True)
        for word, answer in ((self.roster, "entered"), ("sum", float("1" * len(self.roles)))):
            for handle in self.handles:
                handle.tell(word)
            for handle in self.handles:
                heard = handle.hear()
                assert heard == answer, heard

    def kill(self, role: int) -> None:
        kill(self.handles[role])

    def pids(self, roles: Sequence[int]) -> list[int]:
        return [pid for role in roles if (pid := self.handles[role].process.pid) is not None]

    def end(self) -> None:
        for handle in self.handles:
            handle.tell(None)
        for handle in self.handles:
            handle.result()

"""Workers that do what they are told, one thing after the other, and say how each ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from tests.comm.helpers import all_gather, all_reduce, broadcast
from tests.comm.parts import kill
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
    endpoint.submit(op, _nothing, wait=True)


def _nothing() -> None:
    pass


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


def act(player: LocalWorker, role: int | None, roles: Sequence[int]) -> None:
    """Words: a Roster to enter, ("do", operation, peer), ("interrupt", reason), "sum", None to end. Each is answered:
    by "entered", "going" and the generation's fault, a sum; an interrupt is not."""
    fabric = player.fabric
    if role is None:
        player.enter(player.hear())
    else:
        fabric.assume(role, Echo())
    end = fabric.group(roles)
    player.tell("here")
    while (word := player.hear()) is not None:
        if isinstance(word, Roster):
            player.enter(word)
            player.tell("entered")
        elif word == "sum":
            value = all_reduce(end, torch.full((10,), 10.0**end.rank, dtype=torch.float64))
            assert fabric.fault is None, fabric.fault
            player.tell(float(value[0]))
        elif word[0] == "interrupt":
            fabric.interrupt(word[1])
        else:
            player.tell("going")
            OPERATIONS[word[1]](end, word[2])
            player.tell(fabric.fault)


class Scene:
    """Actors in role order under one roster."""

    def __init__(self, local: LocalWorkers, machines: Sequence[int]) -> None:
        self.local = local
        self.machines = [f"m{machine}" for machine, count in enumerate(machines) for _ in range(count)]
        self.roles = tuple(range(len(self.machines)))
        self.hands = [self._hire(machine, None) for machine in self.machines]
        self.roster = first_roster(self.hands)
        for hand in self.hands:
            hand.tell(self.roster)
        for hand in self.hands:
            assert hand.hear() == "here"

    def _hire(self, machine: str, role: int | None) -> WorkerHandle:
        (hand,) = self.local.start(machine, 1, act, role, self.roles)
        return hand

    def start(self, operation: str, by: Sequence[int], peer: int = 0) -> None:
        """These roles begin an operation."""
        for role in by:
            self.hands[role].tell(("do", operation, peer))
        for role in by:
            assert self.hands[role].hear() == "going"

    def faults(self, by: Sequence[int]) -> list[Fault]:
        """Why the operations of these roles have ended."""
        heard = [self.hands[role].hear(60) for role in by]
        assert all(isinstance(one, Fault) for one in heard), heard
        return heard

    def recover(self, dead: int | None = None) -> None:
        """A fresh roster, with a newcomer on the same machine in the dead one's role; all sums are right again."""
        changes = {}
        if dead is not None:
            self.hands[dead] = self._hire(self.machines[dead], dead)
            assert self.hands[dead].hear() == "here"
            changes[dead] = self.hands[dead].worker
        self.roster = self.roster.successor(changes, fresh=True)
        for word, answer in ((self.roster, "entered"), ("sum", float("1" * len(self.roles)))):
            for hand in self.hands:
                hand.tell(word)
            for hand in self.hands:
                heard = hand.hear()
                assert heard == answer, heard

    def kill(self, role: int) -> None:
        kill(self.hands[role])

    def pids(self, roles: Sequence[int]) -> list[int]:
        return [pid for role in roles if (pid := self.hands[role].process.pid) is not None]

    def end(self) -> None:
        for hand in self.hands:
            hand.tell(None)
        for hand in self.hands:
            hand.result()

"""The programs of worker processes, and how a test directs them. Nothing heavy is imported here: every process does."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from tests.comm.helpers import all_reduce, eventually
from understudy.comm.endpoint import Endpoint
from understudy.comm.links.pairs import Receive, Send
from understudy.comm.network import NetworkFabric
from understudy.comm.sandbox import Echo
from understudy.protocol.roster import Roster, WorkerAddress
from understudy.testing.local_workers import LocalWorker, LocalWorkers, WorkerHandle

Groups = Sequence[tuple[int, ...]]


class Census(NamedTuple):
    """What a process holds."""

    descriptors: int
    threads: int
    mappings: int


def census() -> Census:
    gc.collect()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return Census(descriptors, threading.active_count(), Path("/proc/self/maps").read_text().count("understudy-arena"))


class Ended(NamedTuple):
    """How a part ended: after so many steps, and in which generation."""

    steps: int
    generation: int


# -- in the worker processes -------------------------------------------------------------------------------------------


class Steps:
    """All-reduces step after step in several groups, votes after each, and follows every roster it hears of.

    Words from the parent: a Roster to prepare, ("cancel", generation), "census", "stop". News to the parent:
    ("prepared", generation), ("failed", generation, why), ("switched", generation), a Census.
    """

    def __init__(self, worker: LocalWorker, groups: Groups, elements: Sequence[int]) -> None:
        self.player, self.fabric = worker, worker.fabric
        role = self.fabric.role
        assert role is not None
        self.role = role
        self.world = self.fabric.group(groups[0])
        self.others = [self.fabric.group(roles) for roles in groups[1:] if role in roles]
        self.elements = elements
        self.step = 0
        self.stopping = False
        self._preparing: dict[int, Future[None]] = {}

    def run(self) -> Ended:
        while not self.stopping:
            self.hear()
            self.one_step()
            if self.vote():
                break
        return Ended(self.step, self.fabric.generation)

    def hear(self) -> None:
        while self.player.told():
            word = self.player.hear()
            if isinstance(word, Roster):
                self._preparing[word.generation] = self.fabric.prepare(word)
            elif word == "census":
                self.player.tell(census())
            elif word == "stop":
                self.stopping = True
            else:
                _, generation = word
                self.fabric._membership.cancel(generation)
        for generation, future in list(self._preparing.items()):
            if future.done():
                del self._preparing[generation]
                error = future.exception()
                news = ("prepared", generation) if error is None else ("failed", generation, str(error))
                self.player.tell(news)

    def one_step(self) -> None:
        self.step += 1
        for endpoint in (self.world, *self.others):
            for elements in self.elements:
                check_sum(endpoint, self.fabric.roster, self.step, elements)
        pass_on(self.world, self.fabric.roster, self.step)
        assert self.fabric.fault is None, self.fabric.fault

    def vote(self) -> bool:
        """True where it is over for this worker."""
        ballot = torch.tensor([self.fabric.prepared, 0 if self.stopping else 1, self.step])
        mine = ballot.clone()
        all_reduce(self.world, ballot, dist.ReduceOp.MIN)
        assert self.fabric.fault is None, self.fabric.fault
        assert ballot[2] == mine[2], "steps differ"
        self.stopping = not ballot[1]
        agreed = int(ballot[0])
        if agreed > self.fabric.generation:
            self.fabric.switch(agreed)
            if self.fabric.role is None:
                return True
            self.player.tell(("switched", agreed))
            self.agree_on_step()
        return False

    def agree_on_step(self) -> None:
        """A joiner learns where the others are."""
        where = torch.tensor([self.step])
        all_reduce(self.world, where, dist.ReduceOp.MAX)
        assert self.fabric.fault is None, self.fabric.fault
        self.step = int(where)


def value_of(role: int, step: int) -> float:
    return float((role + 1) * 1000 + step % 997)


def check_sum(endpoint: Endpoint, roster: Roster | None, step: int, elements: int) -> None:
    """One all-reduce: only these live roles in this step can give its result."""
    role = endpoint.key.roles[endpoint.rank]
    value = torch.full((elements,), value_of(role, step), dtype=torch.float64)
    all_reduce(endpoint, value)
    live = [r for r in endpoint.key.roles if roster is None or roster.seats[r] is not None]
    expected = sum(value_of(r, step) for r in live)
    if not bool((value == expected).all()):
        raise AssertionError(f"role {role}, step {step}, {endpoint.name}: {value.unique().tolist()}, not {expected}")


def pass_on(endpoint: Endpoint, roster: Roster | None, step: int) -> None:
    """A message to the next live role and one from the last."""
    assert roster is not None
    live = [rank for rank, role in enumerate(endpoint.key.roles) if roster.seats[role] is not None]
    if len(live) == 1:
        return
    here = live.index(endpoint.rank)
    after, before = live[(here + 1) % len(live)], live[here - 1]
    got = torch.zeros(100, dtype=torch.float64)
    jobs: list[Send | Receive] = [
        Send(after, step, torch.full((100,), value_of(endpoint.rank, step), dtype=torch.float64)),
        Receive(before, step, got),
    ]
    for job in jobs:
        endpoint.message(job)
    for job in jobs:
        assert job.done.wait(60)
    if endpoint.poison is not None and endpoint.poison.fault is None:
        right = bool((got == value_of(before, step)).all())
        assert right, f"rank {endpoint.rank}, step {step}: {got.unique().tolist()}"


def stay(worker: LocalWorker, groups: Groups, elements: Sequence[int]) -> Ended:
    """Play from the first generation on."""
    worker.enter(worker.hear())
    return Steps(worker, groups, elements).run()


def join(worker: LocalWorker, role: int, groups: Groups, elements: Sequence[int]) -> Ended:
    """Rehearse a role in the sandbox, then take it over."""
    worker.fabric.assume(role, Echo())
    part = Steps(worker, groups, elements)
    for endpoint in (part.world, *part.others):
        all_reduce(endpoint, torch.ones(1000))
    worker.tell("rehearsed")
    roster = worker.hear()
    worker.fabric.prepare(roster).result()
    worker.tell(("prepared", roster.generation))
    worker.fabric.switch(roster.generation)
    worker.tell(("switched", roster.generation))
    part.agree_on_step()
    return part.run()


def lives(worker: LocalWorker, groups: Groups, elements: Sequence[int]) -> None:
    """One worker after the other in one process: each rehearses the role it is given, plays until it is released and
    closes its fabric. Words: a role, or "census" between two lives. News: the worker, what `join` says, its end."""
    first, number = worker.fabric, 0
    known = first._rendezvous
    inherited: dict[str, Any] = {"job": known._job, "secret": known._secret, "limit": known.limit}
    while (role := worker.hear()) is not None:
        if role == "census":
            worker.tell(census())
            continue
        number += 1
        worker.fabric = NetworkFabric(f"{first.uid}.{number}", f"{first.uid}.{number}", **inherited)
        worker.tell(worker.fabric.worker)
        worker.tell(join(worker, role, groups, elements))
        worker.fabric.close()
    worker.fabric = first


# -- in the test -------------------------------------------------------------------------------------------------------


class SteppingWorkers:
    """Workers in role order under one roster, and the joiners that are to replace them."""

    def __init__(
        self, local: LocalWorkers, machines: Sequence[int], groups: Groups | None = None, elements: Sequence[int] = (1,)
    ) -> None:
        self.local = local
        self.cells = [machine for machine, count in enumerate(machines) for _ in range(count)]
        self.groups = groups or [tuple(range(len(self.cells)))]
        self.elements = elements
        self._machines = 0
        self.handles: list[WorkerHandle | None] = []
        for count in machines:
            self.handles += local.start(self._machine(), count, stay, self.groups, elements)
        self.roster = Roster.of(
            1,
            [(role, handle.uid) for role, handle in enumerate(self.live)],
            [handle.worker for handle in self.live],
            cells=self.cells,
        )
        for handle in self.live:
            handle.tell(self.roster)

    def _machine(self) -> str:
        self._machines += 1
        return f"m{self._machines - 1}"

    @property
    def live(self) -> list[WorkerHandle]:
        return [handle for handle in self.handles if handle is not None]

    def hire(self, roles: Sequence[int]) -> dict[int, WorkerHandle]:
        """Joiners for these roles, on one new machine, rehearsed."""
        machine = self._machine()
        hired = {role: self.local.start(machine, 1, join, role, self.groups, self.elements)[0] for role in roles}
        for handle in hired.values():
            assert handle.hear() == "rehearsed"
        return hired

    def propose(
        self, changes: dict[int, WorkerHandle | None], *, number: int | None = None, fresh: bool = False
    ) -> Roster:
        """The next roster, told to all workers that it concerns; not yet the current one."""
        workers: dict[int, WorkerAddress | None] = {
            role: None if handle is None else handle.worker for role, handle in changes.items()
        }
        roster = self.roster.successor(workers, generation=number, fresh=fresh)
        for handle in (*self.live, *(handle for handle in changes.values() if handle is not None)):
            handle.tell(roster)
        return roster

    def follow(self, roster: Roster, changes: dict[int, WorkerHandle | None]) -> list[Ended]:
        """That roster is the current one: how the leavers ended."""
        leavers = [handle for role in changes if (handle := self.handles[role]) is not None]
        for role, handle in changes.items():
            self.handles[role] = handle
        self.roster = roster
        ended = [result_of(handle) for handle in leavers]
        for handle in self.live:
            wait_for(handle, "switched", roster.generation)
        return ended

    def replace(self, roles: Sequence[int]) -> list[Ended]:
        changes: dict[int, WorkerHandle | None] = dict(self.hire(roles))
        return self.follow(self.propose(changes), changes)

    def stop(self) -> list[Ended]:
        for handle in self.live:
            handle.tell("stop")
        return [result_of(handle) for handle in self.live]


def hear_of(handle: WorkerHandle, generation: int, limit: float = 30.0) -> tuple[str, str]:
    """What a worker has to say of a generation, and why; what it still says of earlier ones is passed over."""
    while True:
        kind, number, *why = handle.hear(limit)
        if number == generation:
            return kind, why[0] if why else ""
        assert number < generation


def wait_for(handle: WorkerHandle, news: str, generation: int) -> None:
    """Until it has prepared, or switched to, that generation."""
    while (heard := hear_of(handle, generation)) != (news, ""):
        assert heard == ("prepared", ""), heard


def wait_for_census(handle: WorkerHandle) -> Census:
    while not isinstance(heard := handle.hear(), Census):
        assert heard[0] == "prepared", heard
    return heard


def result_of(handle: WorkerHandle) -> Ended:
    """How its part ended, whatever it said before."""
    while True:
        kind, what = handle._connection.recv() if handle._connection.poll(30) else ("nothing for 30 s", None)
        if isinstance(what, Ended):
            if kind == "done":
                handle.process.join(10)
            return what
        assert kind == "message", (kind, what)


def asleep(processes: Iterable[int]) -> None:
    """Wait until the main thread of each of them has been found sleeping several times in a row."""
    for pid in processes:
        seen = 0

        def sleeps(pid: int = pid) -> bool:
            nonlocal seen
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
            seen = seen + 1 if state == "S" else 0
            return seen >= 5

        eventually(sleeps, limit=10)


def kill(handle: WorkerHandle) -> None:
    assert handle.process.pid is not None
    os.kill(handle.process.pid, signal.SIGKILL)

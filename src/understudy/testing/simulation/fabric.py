"""One simulated worker's end of the network. State travels over real socket pairs, by the code of `worker/transfer`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from math import inf
from typing import cast

from understudy.comm.endpoint import Endpoint, GroupTransport
from understudy.comm.faults import Fault, LinkFailed, PrepareFailed, SwitchRefused
from understudy.comm.group import RoleGroup
from understudy.comm.links.link import Link
from understudy.comm.sandbox import Sandbox
from understudy.comm.topology import GroupKey, LinkId
from understudy.protocol.roster import Roster, RosterError, WorkerAddress

from .network import SETUP_S, Network, SharedGeneration
from .scheduler import SimProcess, Task

_WORD = 7
"""Bytes in a number that roles tell one another."""
_NOTHING = 1 << 60
"""Greater than any such number."""


def _nothing(self: object, *args: object, **options: object) -> None:
    """What a simulated fabric or process does when it is told something that only matters outside the simulation."""


class Preparation:
    """A generation that one worker prepares, or plays in."""

    def __init__(self, shared: SharedGeneration, follows: Preparation | None) -> None:
        self.shared, self.follows = shared, follows
        self.future: Future[None] = Future()
        self.ready = False
        self.rounds = 0

    @property
    def number(self) -> int:
        return self.shared.roster.generation


class SimFabric:
    """Stands in for a `NetworkFabric`, and for the group of all roles: a `Fabric` and a `VoteGroup`."""

    endpoint: Endpoint
    """Of the group of all roles, once there is one."""

    def __init__(self, network: Network, process: SimProcess, uid: str, machine: str) -> None:
        self.network, self.process, self.uid, self.machine = network, process, uid, machine
        self._scheduler = network.scheduler
        self.worker = WorkerAddress(uid, machine)
        self.role: int | None = None
        self._current: Preparation | None = None
        self._prepared: dict[int, Preparation] = {}
        self._highest = 0
        self._doing: tuple[int, float] | None = None
        self._blocked: dict[Task, None] = {}
        self._calls: list[Callable[[], None]] = []
        self._expecting: dict[tuple[str, int], Callable[[Link], None]] = {}
        self._sockets: list[socket.socket] = []
        network.fabrics[uid] = self
        process.at_death.append(self._died)
        process.start(self._serve, "io")

    # -- waiting -------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Let the threads that wait here look again."""
        for task in list(self._blocked):
            self._scheduler.ready(task)

    def _until(self, predicate: Callable[[], bool], seconds: float = inf) -> bool:
        task, deadline = self._scheduler.current, self._scheduler.now + seconds

        def look() -> float | None:
            self._blocked.pop(task, None)
            left = deadline - self._scheduler.now
            if predicate() or left <= 0:
                return None
            self._blocked[task] = None
            return left

        self.process.check()
        self._scheduler.wait_while(look)
        return predicate()

    def _serve(self) -> None:
        """The thread of the event loop: runs callbacks one after another."""
        while True:
            self._until(lambda: bool(self._calls))
            self._calls.pop(0)()

    def _call(self, action: Callable[[], None]) -> None:
        self._calls.append(action)
        self.wake()

    # -- what is -------------------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return 0 if self._current is None else self._current.number

    @property
    def roster(self) -> Roster | None:
        return None if self._current is None else self._current.shared.roster

    @property
    def prepared(self) -> int:
        healthy = (
            each.number
            for each in self._prepared.values()
            if each.ready and each.follows is self._current and self._fault_in(each) is None
        )
        return max(healthy, default=self.generation)

    @property
    def fault(self) -> Fault | None:
        return None if self._current is None else self._fault_in(self._current)

    @property
    def lost_mates(self) -> bool:
        return False

    def _fault_in(self, preparation: Preparation) -> Fault | None:
        return preparation.shared.faults.get(self.uid)

    def endpoints(self) -> list[Endpoint]:
        return []

    def longest_wait(self) -> tuple[Endpoint, int, str, float] | None:
        if self._doing is None:
            return None
        number, since = self._doing
        return self.endpoint, number, "all_reduce", self._scheduler.now - since

    # -- membership ----------------------------------------------------------------------------------------------------

    def prepare(self, roster: Roster) -> Future[None]:
        self.process.check()
        if roster.generation <= self._highest:
            raise RosterError(f"generation {roster.generation} is not after {self._highest}")
        role = roster.role_of(self.uid)
        if role is not None and self.role is not None and role != self.role:
            raise RosterError(f"generation {roster.generation} gives role {role} to {self.uid}, which has {self.role}")
        listed = roster.worker(self.uid)
        if listed is not None and listed != self.worker:
            raise RosterError(f"generation {roster.generation} lists {self.uid} at another address than its own")
        shared = self.network.generation(roster)
        preparation = Preparation(shared, self._current)
        self._highest = roster.generation
        self._prepared[roster.generation] = preparation
        shared.open(self.uid)
        return preparation.future

    def opened(self, shared: SharedGeneration) -> None:
        """All links of a generation are open."""
        self._call(partial(self._complete, shared))

    def not_opened(self, shared: SharedGeneration, why: str) -> None:
        self._call(partial(self._fail, shared.roster.generation, why))

    def _complete(self, shared: SharedGeneration) -> None:
        preparation = self._prepared.get(shared.roster.generation)
        if preparation is None or preparation.shared is not shared:
            return
        fault = self._fault_in(preparation)
        if fault is not None:
            self._fail(preparation.number, str(fault))
        elif preparation.follows is not self._current:
            self._fail(preparation.number, f"generation {self.generation} was entered meanwhile")
        else:
            preparation.ready = True
            preparation.future.set_result(None)

    def _fail(self, number: int, why: str) -> None:
        preparation = self._prepared.pop(number, None)
        if preparation is not None and not preparation.future.done():
            self._forget(number)
            preparation.shared.close(self.uid)
            preparation.future.set_exception(PrepareFailed(f"generation {number} could not be prepared: {why}"))

    def _forget(self, number: int) -> None:
        for key in [key for key in self._expecting if key[1] == number]:
            del self._expecting[key]

    def abandon(self, generation: int) -> None:
        preparation = self._prepared.get(generation)
        if preparation is not None:
            self._call(partial(self._give_up, preparation))

    def _give_up(self, preparation: Preparation) -> None:
        if self._prepared.get(preparation.number) is preparation:
            del self._prepared[preparation.number]
            self._forget(preparation.number)
            preparation.shared.left.add(self.uid)
            preparation.shared.close(self.uid)
            if not preparation.future.done():
                preparation.future.set_exception(PrepareFailed("it was cancelled"))

    def switch(self, generation: int) -> None:
        self.process.check()
        new, old = self._prepared.get(generation), self._current
        if new is None or not new.ready:
            raise SwitchRefused(f"{self.uid} has not prepared generation {generation}")
        if new.follows is not old:
            raise SwitchRefused(f"generation {generation} was prepared to follow another one than {self.generation}")
        interrupted = old is not None and self._fault_in(old) is not None
        if interrupted and not new.shared.roster.fresh and self._fault_in(new) is None:
            raise SwitchRefused(f"generation {self.generation} was interrupted; {generation} is not fresh")
        self._current = new
        del self._prepared[generation]
        new.follows = None
        self.role = new.shared.roster.role_of(self.uid)
        self._retire(old)
        self.network.judge.entered(self.uid, new.shared.roster)

    def withdraw(self) -> None:
        old, self._current = self._current, None
        self._retire(old)

    def _retire(self, old: Preparation | None) -> None:
        """Leave a generation in good order, and give up what was prepared to follow it."""
        if old is not None:
            old.shared.left.add(self.uid)
        for preparation in list(self._prepared.values()):
            if preparation.follows is not self._current:
                self._call(partial(self._give_up, preparation))

    def interrupt(self, reason: str, who: str = "") -> None:
        self.process.check()
        if self._current is not None:
            self._current.shared.poison(Fault("interrupt", reason, who, self.uid, 0.0), self.uid)

    # -- rehearsals ----------------------------------------------------------------------------------------------------

    def assume(self, role: int, sandbox: Sandbox | None = None, mates: Roster | None = None) -> None:
        if self._current is not None:
            raise RuntimeError(f"{self.uid} has been in a generation; only a joiner changes its role")
        for preparation in list(self._prepared.values()):
            self._give_up(preparation)
        self.role = role

    def become(self, role: int, groups: dict[str, tuple[int, ...]]) -> None:
        self.assume(role)

    end_rehearsal = vouch = record = _nothing

    # -- votes ---------------------------------------------------------------------------------------------------------

    def least(self, numbers: list[int]) -> list[int]:
        """The minimum over all roles of the generation; undefined if it is poisoned meanwhile."""
        self.process.check()
        current = self._current
        if current is None or current.shared.roster.role_of(self.uid) is None:
            raise RuntimeError(f"{self.uid} has no role in a generation")
        number, current.rounds = current.rounds, current.rounds + 1
        if self._fault_in(current) is None:
            ballot = current.shared.give(self.uid, number, numbers)
            self._doing = number, self._scheduler.now
            self._until(lambda: self.uid in ballot.told or self._fault_in(current) is not None)
            self._doing = None
            if self.uid in ballot.told and ballot.least is not None:
                if self.network.random.random() < 0.5:  # the result is there, and the thread has not looked at it yet
                    self.process.sleep(self.network.delay())
                return list(ballot.least)
        return [number - self.network.random.randint(0, 3) for number in numbers]

    # -- links for state -----------------------------------------------------------------------------------------------

    def expect_state(self, generation: int, take: Callable[[Link], None]) -> None:
        self._expect("state", generation, take)

    def expect_copy(self, generation: int, take: Callable[[Link], None]) -> None:
        self._expect("copy", generation, take)

    def _expect(self, kind: str, generation: int, take: Callable[[Link], None]) -> None:
        self._expecting[kind, generation] = take
        for fabric in self.network.fabrics.values():
            fabric.wake()

    def dial_state(self, roster: Roster, taker: str, count: int) -> list[Link]:
        return self._dial("state", roster, taker, range(count))

    def dial_copy(self, roster: Roster, keeper: str, count: int, *, attempt: int = 0) -> Future[list[Link]]:
        future: Future[list[Link]] = Future()

        def dial() -> None:
            try:
                links = self._dial("copy", roster, keeper, range(attempt * count, (attempt + 1) * count))
            except LinkFailed as error:
                failed = error
                self._call(lambda: future.set_exception(failed))
            else:
                self._call(lambda: future.set_result(links))

        self.process.start(dial, "dial")
        return future

    def _dial(self, kind: str, roster: Roster, target: str, rails: range) -> list[Link]:
        """Connections to a worker, once it expects them."""
        other, generation = self.network.fabrics.get(target), roster.generation
        key = kind, generation

        def refused() -> bool:
            return other is None or other.process.dead or other.generation > generation

        found = self._until(lambda: refused() or (other is not None and key in other._expecting), SETUP_S)
        if other is None or refused() or not found:
            raise LinkFailed(f"{kind} link to {target} cannot be opened")
        links = []
        for rail in rails:
            mine, theirs = socket.socketpair()
            identity = LinkId("state" if kind == "state" else "copy", "", rail, self.uid, target)
            self._sockets.append(mine)
            other._sockets.append(theirs)
            links.append(Link(mine, identity, target, target))
            self.network.later(other._arrived, key, Link(theirs, identity, self.uid, self.uid))
        return links

    def _arrived(self, key: tuple[str, int], link: Link) -> None:
        take = self._expecting.get(key)
        if self.process.dead or take is None:
            link.close()
        else:
            self._call(partial(take, link))

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave in good order."""
        for preparation in [*self._prepared.values(), *filter(None, [self._current])]:
            preparation.shared.left.add(self.uid)
            preparation.shared.close(self.uid)

    def _died(self) -> None:
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._sockets.clear()
        self.network.died(self.uid)
        for fabric in self.network.fabrics.values():
            fabric.wake()


class SimTrainingProcess:
    """A `TrainingProcess` without torch.distributed."""

    pid = 0
    waits_known = True

    def __init__(self, fabric: SimFabric) -> None:
        self._fabric = fabric

    def group(self, roles: Sequence[int], *, recorded: bool = True) -> RoleGroup:
        raise RuntimeError("scripts of the simulation make no groups")

    def install(self, roles: int) -> Endpoint:
        fabric, transport = self._fabric, cast(GroupTransport, None)
        assert fabric.role is not None
        fabric.endpoint = Endpoint(GroupKey(tuple(range(roles))), fabric.role, transport, lambda endpoint: None)
        return fabric.endpoint

    def least(self, numbers: list[int]) -> list[int]:
        return self._fabric.least(numbers)

    def gather(self, data: bytes) -> list[bytes]:
        roster, role = self._fabric.roster, self._fabric.role
        assert roster is not None
        assert role is not None
        longest = -self.least([-len(data)])[0]
        if self._poisoned():
            return []
        words = -(-longest // _WORD)
        numbers = [_NOTHING] * (len(roster.seats) * (words + 1))
        padded, start = data.ljust(words * _WORD, b"\0"), role * (words + 1)
        numbers[start] = len(data)
        for word in range(words):
            numbers[start + 1 + word] = int.from_bytes(padded[word * _WORD : (word + 1) * _WORD], "big")
        found = self.least(numbers)
        if self._poisoned():
            return []
        told = []
        for seat, start in zip(roster.seats, range(0, len(found), words + 1), strict=True):
            size, *rest = found[start : start + words + 1]
            told.append(b"" if seat is None else b"".join(n.to_bytes(_WORD, "big") for n in rest)[:size])
        return told

    def _poisoned(self) -> bool:
        return self._fabric.fault is not None

    uninstall = role_changed = announce = _nothing

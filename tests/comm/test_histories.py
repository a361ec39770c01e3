"""Random histories of a job, each from its seed: replacements, cancellations, interrupts, deaths, vacancies, groups
that come late, in any order. After every event all groups give the right sums and messages arrive."""

from __future__ import annotations

import gc
import logging
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.comm.helpers import Ensemble, all_reduce, at_once, endpoint_of, fault_of, receive, send, sums
from understudy.comm.endpoint import Endpoint
from understudy.comm.faults import PrepareFailed, SwitchRefused
from understudy.comm.network import NetworkFabric
from understudy.comm.sandbox import Echo
from understudy.comm.topology import GroupKey
from understudy.protocol.roster import Roster

LAYOUTS = [[1, 1, 1], [2, 1, 1], [2, 2], [3], [1, 2, 1, 1]]
SIZES = [1, 5, 30_000, 200_000]


class History:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.story: list[str] = []
        self.ensemble = Ensemble()
        machines = self.random.choice(LAYOUTS)
        self.cells = [cell for cell, count in enumerate(machines) for _ in range(count)]
        self.homes = [f"m{cell}" for cell in range(len(machines))]
        """Where each cell lives at present."""
        self.groups = [GroupKey(tuple(range(len(self.cells))))]
        self.number = 1
        self.seats: list[NetworkFabric | None] = [self.joiner(role) for role in range(len(self.cells))]
        self.roster = Roster.of(
            1, [(f.role or 0, f.uid) for f in self.live], [f.worker for f in self.live], cells=self.cells
        )
        self.prepare(self.roster, self.live)
        self.switch(self.live)

    @property
    def live(self) -> list[NetworkFabric]:
        return [fabric for fabric in self.seats if fabric is not None]

    def joiner(self, role: int) -> NetworkFabric:
        (fabric,) = self.ensemble.hire(self.homes[self.cells[role]])
        fabric.assume(role, Echo())
        for key in self.groups:
            if role in key.roles:
                fabric.group(key.roles)
        return fabric

    def next(self, changes: dict[int, NetworkFabric | None], *, fresh: bool = False) -> Roster:
        self.number += 1
        return self.roster.successor(
            {role: None if fabric is None else fabric.worker for role, fabric in changes.items()},
            generation=self.number,
            fresh=fresh,
        )

    def prepare(self, roster: Roster, fabrics: list[NetworkFabric]) -> None:
        futures = [fabric.prepare(roster) for fabric in self.shuffled(fabrics)]
        if self.random.random() < 0.5 and all(fabric.fault is None for fabric in self.live) and self.number > 1:
            self.check()
        for future in futures:
            future.result(10)

    def shuffled(self, fabrics: list[NetworkFabric]) -> list[NetworkFabric]:
        return self.random.sample(fabrics, len(fabrics))

    def switch(self, fabrics: list[NetworkFabric]) -> None:
        for fabric in self.shuffled(fabrics):
            fabric.switch(self.number)

    def seat(self, changes: dict[int, NetworkFabric | None], roster: Roster) -> None:
        for role, fabric in changes.items():
            leaver, self.seats[role] = self.seats[role], fabric
            if leaver is not None:
                leaver.close()
        self.roster = roster

    # -- what may happen -----------------------------------------------------------------------------------------------

    def events(self) -> list[Callable[[], None]]:
        vacant = [role for role, fabric in enumerate(self.seats) if fabric is None]
        found = [
            self.replace,
            self.replace,
            self.give_up,
            self.joiner_dies,
            self.interrupted,
            self.death,
            self.death_in_the_middle_of_a_switch,
            self.late_group,
        ]
        if len(self.live) > 2:
            found.append(self.vacate)
        if vacant:
            found += [self.refill] * 3
        return found

    def move(self) -> dict[int, NetworkFabric | None]:
        """Joiners for all live roles of a cell, on a new machine."""
        cell = self.cells[self.random.choice([role for role, fabric in enumerate(self.seats) if fabric is not None])]
        self.homes[cell] = f"m{self.number}-{cell}"
        roles = [role for role, of in enumerate(self.cells) if of == cell and self.seats[role] is not None]
        return {role: self.joiner(role) for role in roles}

    def replace(self) -> None:
        self.change(self.move())

    def change(self, changes: dict[int, NetworkFabric | None]) -> None:
        roster = self.next(changes)
        everybody = [*self.live, *(fabric for fabric in changes.values() if fabric is not None)]
        self.prepare(roster, everybody)
        self.switch(everybody)
        self.seat(changes, roster)

    def give_up(self) -> None:
        homes = list(self.homes)
        changes = self.move()
        roster = self.next(changes)
        joiners = [fabric for fabric in changes.values() if fabric is not None]
        futures = [fabric.prepare(roster) for fabric in self.shuffled([*self.live, *joiners])]
        if self.random.random() < 0.5:
            for future in futures:
                future.result(10)
        for fabric in self.shuffled([*self.live, *joiners]):
            fabric._membership.cancel(self.number)
        for future in futures:
            with suppress(PrepareFailed):
                future.result(10)
        for fabric in joiners:
            fabric.close()
        self.homes = homes

    def joiner_dies(self) -> None:
        homes = list(self.homes)
        changes = self.move()
        roster = self.next(changes)
        joiners = [fabric for fabric in changes.values() if fabric is not None]
        preparing = [*self.live, *joiners]
        dead = self.random.choice(joiners)
        if self.random.random() < 0.5:
            preparing.remove(dead)
        futures = [fabric.prepare(roster) for fabric in self.shuffled(preparing)]
        if dead in preparing and self.random.random() < 0.5:
            for future in futures:
                future.result(10)
        cut(dead)
        self.check()
        for fabric in preparing:
            if fabric is not dead:
                fabric._membership.cancel(self.number)
        for future in futures:
            with suppress(PrepareFailed):
                future.result(10)
        for fabric in joiners:
            fabric.close()
        self.homes = homes

    def blocked(self, without: NetworkFabric, then: Callable[[], None]) -> None:
        """All but one are in an operation, or in several; then something happens, and all return."""
        others = [fabric for fabric in self.live if fabric is not without]
        size = self.random.choice(SIZES)
        started = [threading.Event() for _ in others]

        def run(fabric: NetworkFabric, event: threading.Event) -> None:
            event.set()
            all_reduce(endpoint_of(fabric), torch.ones(size))

        def act() -> None:
            for event in started:
                assert event.wait(5)
            then()

        at_once(*[partial(run, fabric, event) for fabric, event in zip(others, started, strict=True)], act)

    def interrupted(self) -> None:
        idle, by = self.random.choice(self.live), self.random.choice(self.live)
        self.blocked(idle, lambda: by.interrupt("a test"))
        self.recover({})

    def recover(self, changes: dict[int, NetworkFabric | None]) -> None:
        roster = self.next(changes, fresh=True)
        staying = [fabric for role, fabric in enumerate(self.seats) if fabric is not None and role not in changes]
        everybody = [*staying, *(fabric for fabric in changes.values() if fabric is not None)]
        for fabric in staying:
            fault_of(fabric)

        def come(fabric: NetworkFabric) -> None:
            fabric.prepare(roster).result(10)
            fabric.switch(roster.generation)

        at_once(*[partial(come, fabric) for fabric in self.shuffled(everybody)])
        self.seat(changes, roster)

    def death(self) -> None:
        role = self.random.choice([role for role, fabric in enumerate(self.seats) if fabric is not None])
        dead = self.seats[role]
        assert dead is not None
        self.blocked(dead, lambda: cut(dead))
        refill = len(self.live) < 3 or self.random.random() < 0.7
        self.recover({role: self.joiner(role) if refill else None})

    def death_in_the_middle_of_a_switch(self) -> None:
        """A worker dies while some have switched and some have not: the leaver, a joiner or a stayer."""
        changes = self.move()
        roster = self.next(changes)
        joiners = [fabric for fabric in changes.values() if fabric is not None]
        everybody = self.shuffled([*self.live, *joiners])
        self.prepare(roster, everybody)
        half = everybody[: self.random.randrange(len(everybody) + 1)]
        for fabric in half:
            fabric.switch(self.number)
        dead = self.random.choice(everybody)
        cut(dead)
        for fabric in everybody:
            if fabric not in half and fabric is not dead:
                with suppress(SwitchRefused):
                    fabric.switch(self.number)
        self.seat(changes, roster)
        for fabric in self.live:
            if fabric is not dead:
                fabric.interrupt("somebody has died")
        role = roster.role_of(dead.uid)
        self.recover({} if role is None else {role: self.joiner(role)})

    def vacate(self) -> None:
        role = self.random.choice([role for role, fabric in enumerate(self.seats) if fabric is not None])
        changes: dict[int, NetworkFabric | None] = {role: None}
        roster = self.next(changes)
        self.prepare(roster, self.live)
        self.switch(self.live)
        self.seat(changes, roster)

    def refill(self) -> None:
        role = self.random.choice([role for role, fabric in enumerate(self.seats) if fabric is None])
        self.change({role: self.joiner(role)})

    def late_group(self) -> None:
        if len(self.groups) > 4:
            return
        roles = self.random.sample(range(len(self.cells)), self.random.randint(1, len(self.cells)))
        self.groups.append(GroupKey(tuple(roles), sum(key.roles == tuple(roles) for key in self.groups)))
        at_once(*[partial(fabric.group, roles) for fabric in self.live if fabric.role in roles])

    # -- what must hold ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        for key in self.groups:
            ends = [endpoint_of(fabric, str(key)) for fabric in self.live if fabric.role in key.roles]
            if ends:
                expected = sum(10.0**end.rank for end in ends)
                assert sums(ends, self.random.choice(SIZES)) == [expected] * len(ends), key
        ends = [endpoint_of(fabric) for fabric in self.live]
        if len(ends) > 1 and self.random.random() < 0.7:
            talk(*self.random.sample(ends, 2))
        for fabric in self.live:
            assert fabric.fault is None, fabric.fault

    def run(self, events: int) -> None:
        for _ in range(events):
            event = self.random.choice(self.events())
            self.story.append(event.__name__)
            event()
            self.check()


def talk(a: Endpoint, b: Endpoint) -> None:
    value, got = torch.full((1000,), 5.0), torch.zeros(1000)
    at_once(partial(send, a, value, b.rank), partial(receive, b, got, a.rank))
    assert bool((got == 5).all())


def cut(fabric: NetworkFabric) -> None:
    """As the end of its process would: every connection ends, without a farewell."""

    def end() -> None:
        for gen in fabric._membership._generations():
            for control in gen.control.values():
                control.alive = False

    fabric._io.soon(end)
    fabric.close()


def _live_through(seed: int, events: int) -> None:
    history = History(seed)
    with history.ensemble:
        try:
            history.run(events)
        except BaseException as error:
            error.add_note(f"seed {seed}, cells {history.cells}: {', '.join(history.story)}")
            raise


@pytest.mark.parametrize("seed", range(6))
def test_a_history(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "understudy.comm")  # a kept record holds an error's frames, and they hold arenas
    before, threads = descriptors(), threading.active_count()
    _live_through(seed, 12)
    assert threading.active_count() == threads
    assert sorted(descriptors().values()) == sorted(before.values())


def descriptors() -> dict[str, str]:
    """What this process has open, by number."""
    gc.collect()
    found = {}
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found[fd.name] = str(fd.readlink())
    return found

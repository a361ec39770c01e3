"""Simulates weeks of failures, slow machines and maintenance under the steward.

`steward.decide`, the function that decides in a running job, decides here as well. Events come at random, observations
at fixed times; observations that cannot change anything are left out. One slow machine slows the whole job, and further
slow machines slow it no more. A place without a standby is vacant until a machine comes.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from math import ceil

import msgspec
import numpy as np

from understudy.planning.failures import FailureClock, Failures
from understudy.planning.outcome import Mean, mean_of
from understudy.planning.setting import DAY, HOUR, WEEK
from understudy.planning.simulation.jump import Progress, seeds, silent
from understudy.protocol.settings import StewardSettings
from understudy.steward.decide import (
    FreeStandby,
    Observed,
    ReleaseStandby,
    ReplaceSlow,
    RequestStandbys,
    StewardMemory,
    Suspect,
    decide,
)

SPARSE = 60
"""One of this many observations is made while the steward waits for a limit of minutes or hours to pass."""
_ONE = np.zeros(1, dtype=np.intp)
"""The only run of the failure clock."""


class StewardScenario(msgspec.Struct, frozen=True):
    """A job and what happens to its machines. `failures`: how often they fail, become slow and are maintained."""

    machines: int
    failures: Failures
    arrival: float = 900.0
    """Seconds from a request until the machine is a ready standby."""
    planned: float = 16.0
    """Standstill of a planned replacement, in seconds."""
    lasting: float = DAY
    """Mean seconds for which a slow machine stays slow if it is not replaced."""
    mistaken: float = 0.0
    """Mean seconds until one machine is taken for slow by mistake; 0: never."""
    mistake: float = 60.0
    """Mean seconds for which a mistake lasts."""
    notice: float = HOUR
    """Seconds between the announcement and the start of maintenance."""
    interval: float = 1.0
    """Seconds between two observations."""


class StewardCounts(msgspec.Struct):
    """Counts and times of one run."""

    replaced: int = 0
    """Machines replaced because they were slow or taken for slow."""
    falsely: int = 0
    """Replaced machines that were not slow."""
    slowed: float = 0.0
    """Machine-seconds lost to slow machines."""
    paused: float = 0.0
    """Machine-seconds lost by replacing slow machines."""
    standing_by: float = 0.0
    """Machine-seconds of standbys."""
    vacant: float = 0.0
    """Machine-seconds of vacant places."""
    requested: int = 0
    released: int = 0
    at_most: int = 0
    """Largest number of machines requested within an hour."""
    missed: int = 0
    """Failures and announced maintenances without a free standby."""
    failed: int = 0
    maintained: int = 0
    became_slow: int = 0


def simulate(
    scenario: StewardScenario,
    settings: StewardSettings,
    *,
    runs: int = 20,
    horizon: float = 4 * WEEK,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, Mean]:
    """Means over `runs` runs, by field of `StewardCounts`: per week, except `at_most`.

    The same seed gives the same slow machines, mistakes and maintenance with any settings.
    """
    all_counts = [_Run(scenario, settings, horizon, own).run() for own in seeds(seed, runs, progress)]
    weeks, means = horizon / WEEK, {}
    for name in StewardCounts.__struct_fields__:
        values = np.array([float(getattr(counts, name)) for counts in all_counts])
        means[name] = mean_of(values if name == "at_most" else values / weeks)
    return means


class _Run:
    def __init__(
        self, scenario: StewardScenario, settings: StewardSettings, horizon: float, seed: np.random.SeedSequence
    ) -> None:
        self.scenario, self.settings, self.horizon = scenario, settings, horizon
        failing, slowing, mistaking, maintaining = (np.random.default_rng(each) for each in seed.spawn(4))
        self.clock = FailureClock(scenario.failures, 1, scenario.machines, failing)
        self.counts, self.memory = StewardCounts(), StewardMemory()
        self.now = 0.0
        self.names: dict[int, str] = {}
        """Place → name of the machine that took it later."""
        self.since: dict[int, float] = {}
        self.slow: dict[int, int] = {}
        """Place → number of its spell of slowness."""
        self.suspects: dict[int, int] = {}
        """Place → number of its spell of slowness, or of the mistake."""
        self.free: dict[str, float] = {f"s{number}": 0.0 for number in range(settings.pool or 0)}
        self.coming = 0
        self.vacant: deque[int] = deque()
        self.drains: deque[tuple[int, float]] = deque()
        self.requests: deque[float] = deque()
        self.next = 0.0
        """Time of the next observation."""
        self._joiners = count()
        self._spells = count()
        self._order = count()
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self._schedule_all(slowing, scenario.failures.straggling, self._slows, scenario.lasting)
        self._schedule_all(mistaking, scenario.mistaken, self._mistaken, scenario.mistake)
        self._schedule_all(maintaining, scenario.failures.maintenance, self._maintain, 0.0)

    def _schedule_all(
        self, rng: np.random.Generator, every: float, what: Callable[[int, float], None], lasts: float
    ) -> None:
        """Schedules events of one kind until the horizon, each at a random machine."""
        if not every:
            return
        number = int(rng.poisson(self.horizon * self.scenario.machines / every))
        dates, places = rng.random(number) * self.horizon, rng.integers(0, self.scenario.machines, number)
        spells = rng.standard_exponential(number) * lasts
        for at, place, spell in zip(dates.tolist(), places.tolist(), spells.tolist(), strict=True):
            self._at(at, partial(what, place, spell))

    def _at(self, moment: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (moment, next(self._order), action))

    def run(self) -> StewardCounts:
        while True:
            event = self.queue[0][0] if self.queue else self.horizon
            failure = float(self.clock.first()[0])
            at = min(event, failure, self.next, self.horizon)
            self._pass(at)
            if at >= self.horizon:
                return self.counts
            if at == failure:
                self._fail()
            elif at == event:
                heapq.heappop(self.queue)[2]()
            else:
                self._observe()
                continue
            self._serve()
            self.next = self._next_observation(self.now)

    def _pass(self, to: float) -> None:
        """Advances the time, and counts slowed, standby and vacant machine-seconds."""
        passed, counts, slow = to - self.now, self.counts, self.scenario.failures.slow
        if self.slow:
            counts.slowed += passed * self.scenario.machines * slow / (1 + slow)
        counts.standing_by += passed * len(self.free)
        counts.vacant += passed * len(self.vacant)
        self.now = to

    # -- events --------------------------------------------------------------------------------------------------------

    def _fail(self) -> None:
        place = int(self.clock.failing(_ONE)[0])
        self.counts.failed += 1
        self._forget(place)
        self.clock.disable(_ONE, np.array([place]))
        self.drains = deque(drain for drain in self.drains if drain[0] != place)
        self.counts.missed += not self.free
        self.vacant.append(place)

    def _slows(self, place: int, lasts: float) -> None:
        if place in self.slow or place in self.vacant:
            return
        spell = self.slow[place] = next(self._spells)
        self.counts.became_slow += 1
        self._at(self.now + self.scenario.failures.noticed, lambda: self._noticed(place, spell))
        self._at(self.now + lasts, lambda: self._over(place, spell))

    def _noticed(self, place: int, spell: int) -> None:
        if self.slow.get(place) == spell:
            self.suspects[place] = spell

    def _mistaken(self, place: int, lasts: float) -> None:
        if place not in self.suspects and place not in self.vacant:
            spell = self.suspects[place] = next(self._spells)
            self._at(self.now + lasts, lambda: self._over(place, spell))

    def _over(self, place: int, spell: int) -> None:
        for known in (self.slow, self.suspects):
            if known.get(place) == spell:
                del known[place]

    def _maintain(self, place: int, _: float) -> None:
        if place in self.vacant or any(place == other for other, _ in self.drains):
            return
        self.counts.maintained += 1
        self.counts.missed += not self.free
        self.drains.append((place, self.now + self.scenario.notice))

    def _come(self) -> None:
        self.coming -= 1
        self.free[f"c{next(self._joiners)}"] = self.now

    def _serve(self) -> None:
        """Puts standbys into vacant places, then into places to be drained.

        Requests a machine, as the controller does, for every vacant place without a standby or an expected machine.
        """
        while self.free and (self.vacant or self.drains):
            self._fill(self.vacant.popleft() if self.vacant else self.drains.popleft()[0])
        if len(self.vacant) > self.coming:
            self._ask(len(self.vacant) - self.coming)

    def _fill(self, place: int) -> None:
        """Puts the standby that has waited longest into the place."""
        joiner = min(self.free, key=lambda name: (self.free[name], name))
        del self.free[joiner]
        self._forget(place)
        self.names[place], self.since[place] = joiner, self.now
        self.clock.renew(_ONE, np.array([place]), np.array([self.now]))

    def _forget(self, place: int) -> None:
        self.slow.pop(place, None)
        self.suspects.pop(place, None)

    def _ask(self, number: int) -> None:
        self.counts.requested += number
        self.coming += number
        for _ in range(number):
            self.requests.append(self.now)
            self._at(self.now + self.scenario.arrival, self._come)
        self._recent()
        self.counts.at_most = max(self.counts.at_most, sum(self.now - at < HOUR for at in self.requests))

    def _recent(self) -> None:
        keep = max(HOUR, self.settings.arrival)
        while self.requests and self.now - self.requests[0] >= keep:
            self.requests.popleft()

    # -- the steward ---------------------------------------------------------------------------------------------------

    def _observe(self) -> None:
        self._recent()
        decision = decide(self._observed(), self.settings, self.memory)
        self.memory = decision.memory
        for action in decision.actions:
            match action:
                case ReplaceSlow(machine):
                    self._replace(int(machine.partition(".")[0]))
                case RequestStandbys(number):
                    self._ask(number)
                case ReleaseStandby(machine):
                    del self.free[machine]
                    self.counts.released += 1
        self.next = self._next_observation(self.now if decision.actions else self._idle_until())

    def _replace(self, place: int) -> None:
        self.counts.replaced += 1
        self.counts.falsely += place not in self.slow
        if self.settings.mode == "act":
            self.counts.paused += self.scenario.planned * self.scenario.machines
            self._fill(place)

    def _observed(self) -> Observed:
        slowness = 1 + self.scenario.failures.slow
        return Observed(
            self.now,
            training=True,
            standbys=tuple(FreeStandby(name, True, since) for name, since in self.free.items()),
            expected=self.coming,
            vacant=len(self.vacant),
            suspects=tuple(
                Suspect(f"{place}.{self.names.get(place, '')}", slowness, "slow", self.since.get(place, 0.0))
                for place in self.suspects
            ),
            drains=len(self.drains),
            requests=tuple(self.requests),
        )

    def _next_observation(self, moment: float) -> float:
        """The first observation at or after this moment."""
        interval = self.scenario.interval
        return max(self.now // interval + 1, ceil(moment / interval)) * interval

    def _idle_until(self) -> float:
        """The time until which the steward cannot act unless an event happens; observations before it are skipped."""
        sparse = self.now + SPARSE * self.scenario.interval
        until = self.horizon
        if self.settings.pool is not None:
            needed = self.settings.pool + len(self.vacant) + len(self.drains)
            if len(self.free) + self.coming < needed:
                ready = self.requests[-1] + self.settings.cool_down if self.requests else self.now
                until = ready if ready > self.now else sparse
            elif len(self.free) > needed and self.memory.plenty is not None:
                until = self.memory.plenty + self.settings.cool_down
        if self.suspects and self.settings.mode != "off":
            young = min(self.memory.slow.values()) < self.settings.looks
            until = min(until, self.now if young else sparse)
        return until

"""Weeks of failures, slow machines and maintenance under the steward: the very function that decides in a running job.

Events come at random, looks at fixed times; while there is nothing to decide, the looks in between are left out.
A machine that is slow holds everybody up, whoever else is slow. Who has no standby is masked until one comes.
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
from understudy.steward.decide import (
    DrainDemand,
    FreeStandby,
    Observed,
    ReleaseStandby,
    ReplaceSlow,
    RequestStandbys,
    StewardMemory,
    StewardSettings,
    Suspect,
    decide,
)

SPARSE = 60
"""Looks of which one is taken where only a limit of an hour, or of minutes, can pass."""
_ONE, _FIRST = np.zeros(1, dtype=np.intp), np.zeros(1, dtype=np.intp)


class StewardScenario(msgspec.Struct, frozen=True):
    """A job and what happens to its machines. `failures` says how often they fail, become slow and are maintained."""

    machines: int
    failures: Failures
    arrival: float = 900.0
    """From a request until the machine is a standby that is ready."""
    planned: float = 16.0
    """Seconds for which everybody stands still when a machine is replaced by plan."""
    lasting: float = DAY
    """Mean time for which a slow machine stays slow if nobody does anything about it."""
    mistaken: float = 0.0
    """Mean time of one machine until it is taken for slow by mistake; 0: never."""
    mistake: float = 60.0
    """Mean time for which it is."""
    notice: float = HOUR
    """How long before it begins maintenance is announced."""
    look: float = 1.0
    """Between two looks."""


class StewardCounts(msgspec.Struct):
    """What one run has seen."""

    replaced: int = 0
    """Slow machines, or what was taken for one."""
    falsely: int = 0
    """Of these, those that were not slow."""
    slowed: float = 0.0
    """Machine-seconds lost because somebody was slow."""
    paused: float = 0.0
    """Machine-seconds lost by replacing slow machines."""
    standing_by: float = 0.0
    """Machine-seconds of standbys."""
    vacant: float = 0.0
    """Machine-seconds for which a place was not filled."""
    requested: int = 0
    released: int = 0
    at_most: int = 0
    """Machines asked for in any one hour."""
    missed: int = 0
    """Failures and announcements for which no standby was there."""
    failed: int = 0
    maintained: int = 0
    became_slow: int = 0


class StewardMeans(msgspec.Struct, frozen=True):
    """Means over runs, by the name of what is counted; by week, but for the most in an hour."""

    means: dict[str, Mean]
    runs: int
    weeks: float


def simulate(
    scene: StewardScenario,
    settings: StewardSettings,
    *,
    runs: int = 20,
    horizon: float = 4 * WEEK,
    seed: int = 0,
    progress: Callable[[float], None] = lambda done: None,
) -> StewardMeans:
    """The same seed gives the same slow machines, mistakes and maintenance, whatever the settings are."""
    accounts = []
    for number, own in enumerate(np.random.SeedSequence(seed).spawn(runs)):
        accounts.append(_Run(scene, settings, horizon, own).run())
        progress((number + 1) / runs)
    weeks = horizon / WEEK
    means = {}
    for name in msgspec.structs.fields(StewardCounts):
        values = np.array([float(getattr(account, name.name)) for account in accounts])
        means[name.name] = mean_of(values if name.name == "at_most" else values / weeks)
    return StewardMeans(means, runs, weeks)


class _Run:
    def __init__(
        self, scene: StewardScenario, settings: StewardSettings, horizon: float, seed: np.random.SeedSequence
    ) -> None:
        self.scene, self.settings, self.horizon = scene, settings, horizon
        failing, slowing, mistaking, maintaining = (np.random.default_rng(each) for each in seed.spawn(4))
        self.clock = FailureClock(scene.failures, 1, scene.machines, failing)
        self.account, self.memory = StewardCounts(), StewardMemory()
        self.now, self.paid = 0.0, 0.0
        self.names: dict[int, str] = {}
        """Place → who came there later."""
        self.since: dict[int, float] = {}
        self.slow: dict[int, int] = {}
        """Place → which spell of slowness."""
        self.suspects: dict[int, int] = {}
        """Place → which spell, or mistake."""
        self.free: dict[str, float] = {f"s{number}": 0.0 for number in range(settings.pool or 0)}
        self.coming = 0
        self.vacant: deque[int] = deque()
        self.drains: deque[tuple[int, float]] = deque()
        self.requests: deque[float] = deque()
        self.next = 0.0
        """The time of the next look that may matter."""
        self._comers = count()
        self._spells = count()
        self._order = count()
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sow(slowing, scene.failures.straggling, self._slows, scene.lasting)
        self._sow(mistaking, scene.mistaken, self._mistaken, scene.mistake)
        self._sow(maintaining, scene.failures.maintenance, self._maintain, 0.0)

    def _sow(self, rng: np.random.Generator, every: float, what: Callable[[int, float], None], lasts: float) -> None:
        """Events of one kind from now to the horizon, each at a random machine."""
        if not every:
            return
        number = int(rng.poisson(self.horizon * self.scene.machines / every))
        dates, places = rng.random(number) * self.horizon, rng.integers(0, self.scene.machines, number)
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
                return self.account
            if at == failure:
                self._fail()
            elif at == event:
                heapq.heappop(self.queue)[2]()
            else:
                self._look()
                continue
            self._serve()
            self.next = self._next_look(self.now)

    def _pass(self, to: float) -> None:
        """Time passes: who is slow holds up everybody else, and standbys wait."""
        passed, account = to - self.now, self.account
        slow = self.scene.failures.slow
        if self.slow:
            account.slowed += passed * self.scene.machines * slow / (1 + slow)
        account.standing_by += passed * len(self.free)
        account.vacant += passed * len(self.vacant)
        self.now = to

    # -- what happens --------------------------------------------------------------------------------------------------

    def _fail(self) -> None:
        place = int(self.clock.who(_ONE)[0])
        self.account.failed += 1
        self._forget(place)
        self.clock.silence(_ONE, _FIRST + place)
        self.drains = deque(drain for drain in self.drains if drain[0] != place)
        self.account.missed += not self.free
        self.vacant.append(place)

    def _slows(self, place: int, lasts: float) -> None:
        if place in self.slow or place in self.vacant:
            return
        spell = self.slow[place] = next(self._spells)
        self.account.became_slow += 1
        self._at(self.now + self.scene.failures.noticed, lambda: self._noticed(place, spell))
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
        self.account.maintained += 1
        self.account.missed += not self.free
        self.drains.append((place, self.now + self.scene.notice))

    def _come(self) -> None:
        self.coming -= 1
        self.free[f"c{next(self._comers)}"] = self.now

    def _serve(self) -> None:
        """Standbys go where a place is vacant, then where somebody has to leave; where none is left for a vacant place
        and none comes, one is asked for, as the controller does."""
        while self.free and (self.vacant or self.drains):
            self._seat(self.vacant.popleft() if self.vacant else self.drains.popleft()[0])
        if len(self.vacant) > self.coming:
            self._ask(len(self.vacant) - self.coming)

    def _seat(self, place: int) -> None:
        """The standby that has waited longest takes a place."""
        comer = min(self.free, key=lambda name: (self.free[name], name))
        del self.free[comer]
        self._forget(place)
        self.names[place], self.since[place] = comer, self.now
        self.clock.renew(_ONE, _FIRST + place, np.array([self.now]))

    def _forget(self, place: int) -> None:
        self.slow.pop(place, None)
        self.suspects.pop(place, None)

    def _ask(self, number: int) -> None:
        self.account.requested += number
        self.coming += number
        for _ in range(number):
            self.requests.append(self.now)
            self._at(self.now + self.scene.arrival, self._come)
        self._recent()
        lately = sum(self.now - at < HOUR for at in self.requests)
        self.account.at_most = max(self.account.at_most, lately)

    def _recent(self) -> None:
        keep = max(HOUR, self.settings.arrival)
        while self.requests and self.now - self.requests[0] >= keep:
            self.requests.popleft()

    # -- the steward ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
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
                    self.account.released += 1
        self.next = self._next_look(self.now if decision.actions else self._idle_until())

    def _replace(self, place: int) -> None:
        self.account.replaced += 1
        self.account.falsely += place not in self.slow
        if self.settings.mode == "act":
            self.account.paused += self.scene.planned * self.scene.machines
            self._seat(place)

    def _observed(self) -> Observed:
        return Observed(
            self.now,
            training=True,
            standbys=tuple(FreeStandby(name, True, since) for name, since in self.free.items()),
            expected=self.coming,
            vacant=len(self.vacant),
            suspects=tuple(
                Suspect(
                    f"{place}.{self.names.get(place, '')}",
                    1 + self.scene.failures.slow,
                    "slow",
                    self.since.get(place, 0.0),
                )
                for place in self.suspects
            ),
            drains=tuple(DrainDemand(1, by) for _, by in self.drains),
            requests=tuple(self.requests),
        )

    def _next_look(self, moment: float) -> float:
        """The first that is not before this moment."""
        look = self.scene.look
        return max(self.now // look + 1, ceil(moment / look)) * look

    def _idle_until(self) -> float:
        """When something may be found to do although nothing happens before. Where only a limit of minutes, or of an
        hour, can pass, most looks are left out."""
        sparse = self.now + SPARSE * self.scene.look
        until = self.horizon
        if self.settings.pool is not None:
            needed = self.settings.pool + len(self.vacant) + len(self.drains)
            if len(self.free) + self.coming < needed:
                ready = self.requests[-1] + self.settings.cool_down if self.requests else self.now
                until = ready if ready > self.now else sparse
            elif len(self.free) > needed and self.memory.plenty is not None:
                until = self.memory.plenty + self.settings.cool_down
        if self.suspects and self.settings.mode != "off":
            young = min(self.memory.slow.values()) < self.settings.patience
            until = min(until, self.now if young else sparse)
        return until

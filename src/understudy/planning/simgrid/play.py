"""One run in SimGrid, for whatever interpreter has it: standard library, SimGrid and what is beside this.

    python -m acts.play FOLDER      reads scene.json and platform.xml there, writes played.json

`acts` is a link to this package under another name: under its own it would stand before SimGrid's module.

A single actor conducts: SimGrid's Python holds the interpreter's lock when an activity is given to another host, and a
second actor that runs at the same instant would wait for ever.

Whom to mask, how long the others then compute and what is a wipe-out are read from tables that the runtime's functions
have filled: they depend on nothing but numbers that are known beforehand. What is left to chance, such as whether a
lost unit needs a patch, has been drawn beforehand too.
"""

from __future__ import annotations

import heapq
import json
import sys
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

from .machines import Machines
from .scene import BLINK, PLATFORM, PLAYED, SCENE, Played, Scene

INSTANT = 1e-9
OPTIONS = (
    "--log=root.thres:warning",
    "--cfg=network/model:CM02",
    "--cfg=network/TCP-gamma:0",
    "--cfg=network/crosstraffic:0",
    "--cfg=surf/precision:1e-9",
    "--cfg=maxmin/precision:1e-9",
)
"""Messages take their size divided by the bandwidth and nothing else; dates are exact to a nanosecond."""


class Conductor:
    """Trains step by step, and answers whatever happens meanwhile."""

    def __init__(self, simgrid: Any, scene: Scene) -> None:
        self.scene, self.all = scene, Machines(simgrid, scene.machines)
        self.per_unit = scene.machines // scene.units
        self.end = min(scene.horizon, scene.known)

        self.there = [inf] * scene.machines
        self.due: list[tuple[float, str, int]] = []
        self.free = [0.0] * scene.standbys
        self.repairs, self.draws = iter(scene.repairs), iter(scene.draws)

        self.done, self.computed, self.synced = 0, 0.0, 0.0
        self.saved = (0, 0.0, 0.0)
        self.trained, self.saving = 0.0, 0.0
        self.gone = [0] * scene.units
        self.missing = 0
        self.struck, self.patched = (-1, 0.0), False
        self.holds: list[tuple[float, str]] = []
        self.ready = [0.0] * scene.units
        self.wasted: dict[str, float] = {}
        self.failures = self.restarts = 0

        for machine in range(scene.machines):
            self.appear(machine, 0.0)
        for kind, dates in (("maintain", scene.maintained), ("slow", scene.slowed)):
            for date in dates:
                self.expect(date, kind)

    @property
    def now(self) -> float:
        return self.all.now

    @property
    def resume(self) -> float:
        """When training goes on."""
        return self.holds[-1][0] if self.holds else self.now

    def waste(self, cause: str, seconds: float) -> None:
        self.wasted[cause] = self.wasted.get(cause, 0.0) + seconds

    def useful(self, state: tuple[int, float, float]) -> float:
        done, computed, synced = state
        return done * (self.scene.compute + self.scene.sync) + computed * self.scene.compute + synced * self.scene.sync

    def conduct(self) -> None:
        while self.now < self.end - INSTANT and not (self.scene.steps and self.done >= self.scene.steps):
            if self.all.fallen:
                self.fail(self.all.fallen.pop(0))
            elif self.due and self.due[0][0] <= self.now + INSTANT:
                self.happen(*heapq.heappop(self.due)[1:])
            elif self.holds:
                self.stand_still()
            elif self.trained >= self.scene.period - INSTANT and not (self.computed or self.synced):
                self.save()
            elif self.computed < 1.0:
                self.compute()
            else:
                self.sum_up()
        self.all.leave()

    def played(self) -> Played:
        finished = bool(self.scene.steps) and self.done >= self.scene.steps
        return Played(
            self.now,
            self.useful((self.done, self.computed, self.synced)),
            self.wasted,
            self.failures,
            self.restarts,
            self.all.activities,
            not finished and self.scene.known < self.scene.horizon,
        )

    def stand_still(self) -> None:
        until, cause = self.holds[0]
        begin = self.now
        if self.wait(until - begin, []):
            self.holds.pop(0)
        self.waste(cause, self.now - begin)

    def compute(self) -> None:
        scene, begin = self.scene, self.now
        load = scene.loads[self.missing]
        seconds = (1.0 - self.computed) * scene.compute * load
        activities = self.all.compute(self.working(), seconds)
        if activities is None:
            self.hold(self.now + BLINK, "STALLED")
            return
        whole = self.wait(seconds, activities)
        spent = self.now - begin
        self.computed = 1.0 if whole else self.computed + spent / (scene.compute * load)
        self.waste("STRAGGLING", spent * (1 - 1 / scene.pace))
        self.waste("REDUNDANT", spent * (1 / scene.pace - 1 / scene.loads[0]))
        self.waste("DEGRADED", spent * (1 / scene.loads[0] - 1 / load))
        self.trained += spent

    def sum_up(self) -> None:
        """Gradients go round the machines, and the step is done."""
        begin, left = self.now, (1.0 - self.synced) * self.scene.sync
        if left > INSTANT:
            whole = self.wait(left, self.all.sum_up(self.working(), left))
            spent = self.now - begin
            self.trained += spent
            if not whole:
                self.synced += spent / self.scene.sync
                return
        self.done, self.computed, self.synced = self.done + 1, 0.0, 0.0

    def save(self) -> None:
        begin, left = self.now, self.scene.save - self.saving
        whole = left <= INSTANT or self.wait(left, self.all.save(left))
        spent = self.now - begin
        self.waste("SAVING", spent)
        self.saving += spent
        if whole:
            self.saved = (self.done, 0.0, 0.0)
            self.trained = self.saving = 0.0

    def working(self) -> list[int]:
        return [machine for machine in range(self.scene.machines) if not self.gone[machine // self.per_unit]]

    def wait(self, seconds: float, activities: list[Any]) -> bool:
        """True when the activities, which take so long, are over; False if something else happens first."""
        return self.all.wait(seconds, min(self.end, self.due[0][0] if self.due else inf), activities)

    def expect(self, date: float, kind: str, number: int = 0) -> None:
        heapq.heappush(self.due, (date, kind, number))

    def happen(self, kind: str, number: int) -> None:
        if kind == "appear":
            if self.there[number] <= self.now + INSTANT:
                self.all.enter(number)
        elif kind == "fail":
            self.fail(number)
        elif kind == "join":
            self.enter(number)
        elif kind == "maintain":
            self.hold(self.now + self.scene.planned, "PLANNED")
        else:
            self.hold(self.resume + self.scene.slowness + self.scene.planned, "STRAGGLING")

    def appear(self, machine: int, date: float) -> None:
        """From this date on there is a machine in the place again, and it can fail."""
        self.there[machine] = date
        if date < inf:
            self.expect(max(date, self.now + BLINK if self.now else 0.0), "appear", machine)

    def hold(self, until: float, cause: str) -> None:
        """Nobody trains before this date."""
        if until > self.resume + INSTANT:
            self.holds.append((until, cause))

    def fail(self, machine: int) -> None:
        scene = self.scene
        self.failures += 1
        if any(cause == "RESTARTING" and until > self.now + INSTANT for until, cause in self.holds):
            self.fail_while_restarting(machine)
        elif scene.answer == "restart":
            served = self.fetch(0.0)
            self.appear(machine, served)
            self.go_back(scene.stall, served, "WAITING")
        elif scene.answer == "replace":
            self.replace(machine, scene.stall)
        else:
            self.lose(machine)
        if not self.gone[machine // self.per_unit]:
            self.hold(self.now + BLINK, "STALLED")

    def fail_while_restarting(self, machine: int) -> None:
        """All begin anew, or the failed unit does; what fails while it waits is missed only when training goes on."""
        unit, again = machine // self.per_unit, self.now + self.scene.restart
        if self.scene.restart_anew or self.ready[unit] > self.now:
            self.ready[unit] = again
            self.appear(machine, self.now)
            self.hold(again, "RESTARTING")
        else:
            self.there[machine] = self.resume
            self.expect(self.resume, "fail", machine)
            self.failures -= 1  # it counts then

    def fetch(self, cold: float) -> float:
        """When there is a machine for the place; the broken one will be a standby once it is repaired."""
        if not self.free:
            return self.now + cold
        soonest = min(self.free)
        self.free[self.free.index(soonest)] = self.now + next(self.repairs)
        return max(self.now, soonest)

    def replace(self, machine: int, stall: float) -> None:
        served = self.fetch(self.scene.cold)
        self.appear(machine, served)
        self.hold(served, "WAITING")
        self.hold(served + stall, "STALLED")

    def lose(self, machine: int) -> None:
        scene, unit = self.scene, machine // self.per_unit
        fresh = not self.gone[unit]
        if scene.refills:
            ready = bool(self.free) and min(self.free) <= self.now
            if fresh and not scene.masks[self.missing + 1][ready]:
                self.replace(machine, scene.recover)
                return
            joins = self.fetch(scene.cold) + scene.refill
            self.expect(joins, "join", unit)
            self.appear(machine, joins)
        else:
            self.appear(machine, inf)
            if not fresh:
                return
        self.gone[unit] += 1
        if not fresh:
            return
        self.hold(self.now + self.masking(), "STALLED")
        self.missing += 1
        if self.wiped(unit):
            self.go_back(scene.restart, self.now, "WAITING")
        elif scene.restart_after and self.missing >= scene.restart_after:
            self.saved = (self.done, self.computed, self.synced)
            self.go_back(scene.restart, self.now + scene.save, "SAVING")

    def masking(self) -> float:
        """Seconds to go on without one more. Failures within one step are noticed and made up for together."""
        step, at = self.struck
        noticed = self.now >= self.resume - INSTANT or self.now <= at + INSTANT
        same = step == self.done and noticed and not self.scene.redo
        paid = same and self.patched
        drawn = next(self.draws) < self.scene.shares[self.missing]
        self.struck, self.patched = (self.done, self.now), drawn or paid
        return (0.0 if same else self.scene.stall) + (self.scene.patch if drawn and not paid else 0.0)

    def wiped(self, unit: int) -> bool:
        if not self.scene.holders:
            return self.missing >= self.scene.units
        return any(all(self.gone[holder] for holder in holders) for holders in self.scene.holders[unit])

    def go_back(self, cost: float, begin: float, before: str) -> None:
        """Everybody starts again from what was saved; whoever was missing is there again."""
        self.restarts += 1
        self.waste("REPEATED", self.useful((self.done, self.computed, self.synced)) - self.useful(self.saved))
        self.done, self.computed, self.synced = self.saved
        self.trained = self.saving = 0.0
        self.missing, self.gone = 0, [0] * self.scene.units
        self.struck = (-1, 0.0)
        self.due = [item for item in self.due if item[1] != "join"]
        heapq.heapify(self.due)
        self.holds.clear()
        self.hold(begin, before)
        self.hold(begin + cost, "RESTARTING")
        self.ready = [begin + cost] * self.scene.units
        for machine, date in enumerate(self.there):
            if date == inf:
                self.appear(machine, begin)

    def enter(self, unit: int) -> None:
        self.gone[unit] -= 1
        if not self.gone[unit]:
            self.missing -= 1
            self.hold(self.resume + self.scene.join, "JOINING")


def main(folder: Path) -> None:
    import simgrid

    scene = Scene(**json.loads((folder / SCENE).read_text(encoding="utf-8")))
    engine = simgrid.Engine([sys.argv[0], *OPTIONS])
    engine.load_platform(str(folder / PLATFORM))
    conductor = Conductor(simgrid, scene)

    def conduct() -> None:
        conductor.conduct()
        (folder / PLAYED).write_text(json.dumps(asdict(conductor.played())), encoding="utf-8")

    simgrid.Actor.create("conductor", simgrid.Host.by_name("controller"), conduct)
    engine.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""One run in SimGrid. Imports only the standard library and SimGrid, so that any interpreter can run it.

    python -m understudy_simgrid.script FOLDER      reads input.json and platform.xml in FOLDER, writes result.json

`understudy_simgrid` is a link to this package: under its own name, `simgrid`, the package would hide SimGrid's module.

Machines are hosts that compute. Their failures come from state profiles in the platform; gradients and checkpoints are
messages. Each machine keeps a message to the controller open, its lifeline, which breaks when the machine fails.

A single actor runs the whole training: SimGrid's Python holds the interpreter's lock when an activity is given to
another host, and a second actor that runs at the same instant would wait for ever.

The runtime's functions have filled the tables that say whether to mask, how long the live members compute, and what is
a wipe-out. Random numbers, such as whether a lost member needs a patch, are drawn before the run as well.
"""

from __future__ import annotations

import heapq
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time, the input is made of plain namespaces with the same fields and without methods
    from understudy.planning.simgrid.prepare import PreparedRun

INPUT, PLATFORM, RESULT = "input.json", "platform.xml", "result.json"
SPEED = 1e9
"""Operations per second of every host and bytes per second of every link. Amounts are seconds times this speed."""
BLINK = 1e-3
"""Seconds for which a failed host is off. The run decides when a machine takes its place."""
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
LIFELINE = 2**63
"""Bytes of the message that is a machine's lifeline: never delivered within a run."""


class SimgridMachines:
    """Activities on hosts and links.

    Only machines with a lifeline get activities: a failure in a place without a machine must not be seen.
    """

    def __init__(self, simgrid: Any, count: int) -> None:
        self.sg = simgrid
        self.hosts = [simgrid.Host.by_name(f"m{number}") for number in range(count)]
        self.controller, self.storage = simgrid.Host.by_name("controller"), simgrid.Host.by_name("storage")
        self.lifelines: dict[int, Any] = {}
        self.failed: list[int] = []

    @property
    def now(self) -> float:
        return float(self.sg.Engine.clock)

    def enter(self, machine: int) -> None:
        """Opens the machine's lifeline: its failures are seen from now on."""
        if machine not in self.lifelines:
            self.lifelines[machine] = self.sg.Comm.sendto_async(self.hosts[machine], self.controller, LIFELINE)

    def leave(self) -> None:
        """Closes all lifelines at the end of the run."""
        for lifeline in self.lifelines.values():
            lifeline.cancel()

    def compute(self, machines: Sequence[int], seconds: float) -> list[Any] | None:
        """Starts a computation on each machine. None: a host is off and its failure is not noticed yet."""
        started: list[Any] = []
        try:
            for host in self._seen(machines):
                activity = self.sg.this_actor.exec_init(seconds * SPEED)
                activity.host = host
                started.append(activity.start())
        except self.sg.HostFailureException:
            for activity in started:
                activity.cancel()
            return None
        return started

    def sum_up(self, machines: Sequence[int], seconds: float) -> list[Any]:
        """Starts the messages of an all-reduce around the ring of these machines."""
        ring = self._seen(machines)
        following = [self.controller] if len(ring) == 1 else [*ring[1:], *ring[:1]]
        return [self._send(one, other, seconds) for one, other in zip(ring, following, strict=True)]

    def _seen(self, machines: Sequence[int]) -> list[Any]:
        return [self.hosts[machine] for machine in machines if machine in self.lifelines]

    def save(self, seconds: float) -> list[Any]:
        """Starts the message of a checkpoint."""
        return [self._send(self.controller, self.storage, seconds)]

    def _send(self, one: Any, other: Any, seconds: float) -> Any:
        return self.sg.Comm.sendto_async(one, other, max(1, round(seconds * SPEED)))

    def wait(self, seconds: float, until: float, activities: list[Any]) -> bool:
        """Waits for activities of `seconds`. Returns False if a machine fails or `until` comes first.

        A machine that fails at the instant in which the activities end has completed them; its lifeline breaks then.
        """
        now = self.now
        self._watch(max(min(seconds, until - now), 0.0))
        if not self.failed and now + seconds <= until:
            over = [self._over(activity) for activity in activities]
            if not all(over):
                self._watch(BLINK)
            return True
        for activity in activities:
            activity.cancel()
        return False

    def _over(self, activity: Any) -> bool:
        try:
            activity.wait()
        except (self.sg.HostFailureException, self.sg.NetworkFailureException):
            return False
        return True

    def _watch(self, seconds: float) -> None:
        """Waits until the time is over or a lifeline breaks, and puts failed machines into `failed`."""
        if not self.lifelines:
            self.sg.this_actor.sleep_for(seconds)
            return
        try:
            self.sg.Comm.wait_any_for(list(self.lifelines.values()), seconds)
        except self.sg.NetworkFailureException:
            self.failed = sorted(machine for machine, line in self.lifelines.items() if line.state_str == "FAILED")
            for machine in self.failed:
                del self.lifelines[machine]


class SimgridRun:
    """Trains step by step and handles failures, joins and maintenance."""

    def __init__(self, simgrid: Any, inputs: PreparedRun) -> None:
        self.inputs, self.strategy = inputs, inputs.strategy
        self.work, self.durations = inputs.setting.work, inputs.setting.durations
        self.restart = self.durations.restart + self.durations.outside
        machines = inputs.setting.cluster.machines
        self.all, self.per_member = SimgridMachines(simgrid, machines), machines // inputs.members
        self.end = min(inputs.horizon, inputs.known)

        self.there = [inf] * machines
        self.due: list[tuple[float, str, int]] = []
        self.free = [0.0] * self.strategy.standbys
        self.repairs, self.draws = iter(inputs.repairs), iter(inputs.draws)

        self.done, self.computed, self.synced = 0, 0.0, 0.0
        self.saved = (0, 0.0, 0.0)
        self.trained, self.saving = 0.0, 0.0
        self.gone = [0] * inputs.members
        self.missing = 0
        self.struck, self.patched = (-1, 0.0), False
        self.holds: list[tuple[float, str]] = []
        self.ready = [0.0] * inputs.members
        self.wasted: defaultdict[str, float] = defaultdict(float)
        """Seconds by kind of waste."""
        self.failures = self.restarts = 0

        for machine in range(machines):
            self.appear(machine, 0.0)
        for kind, dates in (("maintain", inputs.maintained), ("slow", inputs.slowed)):
            for date in dates:
                self.expect(date, kind)

    @property
    def now(self) -> float:
        return self.all.now

    @property
    def resume(self) -> float:
        """When training goes on."""
        return self.holds[-1][0] if self.holds else self.now

    def useful(self, state: tuple[int, float, float]) -> float:
        """Useful seconds of a state: steps done, and shares of the current step."""
        done, computed, synced = state
        return done * (self.work.compute + self.work.sync) + computed * self.work.compute + synced * self.work.sync

    def train(self) -> None:
        """Trains until all steps are done or the time is over."""
        while self.now < self.end - INSTANT and not (self.work.steps and self.done >= self.work.steps):
            if self.all.failed:
                self.fail(self.all.failed.pop(0))
            elif self.due and self.due[0][0] <= self.now + INSTANT:
                self.happen(*heapq.heappop(self.due)[1:])
            elif self.holds:
                self.stand_still()
            elif self.trained >= self.strategy.period - INSTANT and not (self.computed or self.synced):
                self.save()
            elif self.computed < 1.0:
                self.compute()
            else:
                self.sum_up()
        self.all.leave()

    def result(self) -> dict[str, Any]:
        """The fields of `SimgridResult`."""
        finished = bool(self.work.steps) and self.done >= self.work.steps
        return {
            "seconds": self.now,
            "useful": self.useful((self.done, self.computed, self.synced)),
            "wasted": self.wasted,
            "failures": self.failures,
            "restarts": self.restarts,
            "beyond": not finished and self.inputs.known < self.inputs.horizon,
        }

    def stand_still(self) -> None:
        """Waits for the end of the first standstill."""
        until, cause = self.holds[0]
        begin = self.now
        if self.wait(until - begin, []):
            self.holds.pop(0)
        self.wasted[cause] += self.now - begin

    def compute(self) -> None:
        """Computes the rest of the current step."""
        inputs, begin = self.inputs, self.now
        load = inputs.loads[self.missing]
        seconds = (1.0 - self.computed) * self.work.compute * load
        activities = self.all.compute(self.working(), seconds)
        if activities is None:
            self.hold(self.now + BLINK, "STALLED")
            return
        whole = self.wait(seconds, activities)
        spent = self.now - begin
        self.computed = 1.0 if whole else self.computed + spent / (self.work.compute * load)
        self.wasted["STRAGGLING"] += spent * (1 - 1 / inputs.pace)
        self.wasted["REDUNDANT"] += spent * (1 / inputs.pace - 1 / inputs.loads[0])
        self.wasted["DEGRADED"] += spent * (1 / inputs.loads[0] - 1 / load)
        self.trained += spent

    def sum_up(self) -> None:
        """Sums gradients around the machines and completes the step."""
        begin, left = self.now, (1.0 - self.synced) * self.work.sync
        if left > INSTANT:
            whole = self.wait(left, self.all.sum_up(self.working(), left))
            spent = self.now - begin
            self.trained += spent
            if not whole:
                self.synced += spent / self.work.sync
                return
        self.done, self.computed, self.synced = self.done + 1, 0.0, 0.0

    def save(self) -> None:
        """Writes a checkpoint."""
        begin, left = self.now, self.durations.save - self.saving
        whole = left <= INSTANT or self.wait(left, self.all.save(left))
        spent = self.now - begin
        self.wasted["SAVING"] += spent
        self.saving += spent
        if whole:
            self.saved = (self.done, 0.0, 0.0)
            self.trained = self.saving = 0.0

    def working(self) -> list[int]:
        """Machines of members that are not missing."""
        return [machine for machine in range(len(self.there)) if not self.gone[machine // self.per_member]]

    def wait(self, seconds: float, activities: list[Any]) -> bool:
        """Waits for activities of `seconds`. Returns False if another event comes first."""
        return self.all.wait(seconds, min(self.end, self.due[0][0] if self.due else inf), activities)

    def expect(self, date: float, kind: str, number: int = 0) -> None:
        """Schedules an event."""
        heapq.heappush(self.due, (date, kind, number))

    def happen(self, kind: str, number: int) -> None:
        """Handles a scheduled event."""
        if kind == "appear":
            if self.there[number] <= self.now + INSTANT:
                self.all.enter(number)
        elif kind == "fail":
            self.fail(number)
        elif kind == "join":
            self.enter(number)
        elif kind == "maintain":
            self.hold(self.now + self.strategy.planned, "PLANNED")
        else:
            self.hold(self.resume + self.inputs.slowness + self.strategy.planned, "STRAGGLING")

    def appear(self, machine: int, date: float) -> None:
        """Puts a machine into the place at this date; from then on it can fail."""
        self.there[machine] = date
        if date < inf:
            self.expect(max(date, self.now + BLINK if self.now else 0.0), "appear", machine)

    def hold(self, until: float, cause: str) -> None:
        """Training stands still until this date; the time added to the standstill counts as `cause`."""
        if until > self.resume + INSTANT:
            self.holds.append((until, cause))

    def fail(self, machine: int) -> None:
        """Handles the failure of a machine by the strategy."""
        self.failures += 1
        if any(cause == "RESTARTING" and until > self.now + INSTANT for until, cause in self.holds):
            self.fail_while_restarting(machine)
        elif self.strategy.answer == "restart":
            served = self.fetch(0.0)
            self.appear(machine, served)
            self.go_back(self.strategy.stall, served, "WAITING")
        elif self.strategy.answer == "replace":
            self.replace(machine, self.strategy.stall)
        else:
            self.lose(machine)
        if not self.gone[machine // self.per_member]:
            self.hold(self.now + BLINK, "STALLED")

    def fail_while_restarting(self, machine: int) -> None:
        """Begins the restart again: all of it, or the failed member's own.

        A failure of a member that has restarted and waits counts only when training goes on.
        """
        member, again = machine // self.per_member, self.now + self.restart
        if self.strategy.restart_anew or self.ready[member] > self.now:
            self.ready[member] = again
            self.appear(machine, self.now)
            self.hold(again, "RESTARTING")
        else:
            self.there[machine] = self.resume
            self.expect(self.resume, "fail", machine)
            self.failures -= 1  # counted when training goes on

    def fetch(self, cold: float) -> float:
        """When a machine is available for the vacant place. The failed machine becomes a standby after its repair."""
        if not self.free:
            return self.now + cold
        soonest = min(self.free)
        self.free[self.free.index(soonest)] = self.now + next(self.repairs)
        return max(self.now, soonest)

    def replace(self, machine: int, stall: float) -> None:
        """Replaces a machine while training waits."""
        served = self.fetch(self.durations.cold)
        self.appear(machine, served)
        self.hold(served, "WAITING")
        self.hold(served + stall, "STALLED")

    def lose(self, machine: int) -> None:
        """Masks a member, or replaces the machine if that costs less."""
        inputs, member = self.inputs, machine // self.per_member
        fresh = not self.gone[member]
        if self.strategy.refills:
            ready = bool(self.free) and min(self.free) <= self.now
            if fresh and not inputs.masks[self.missing + 1][ready]:
                self.replace(machine, self.strategy.recover)
                return
            joins = self.fetch(self.durations.cold) + self.strategy.refill
            self.expect(joins, "join", member)
            self.appear(machine, joins)
        else:
            self.appear(machine, inf)
            if not fresh:
                return
        self.gone[member] += 1
        if not fresh:
            return
        self.hold(self.now + self.masking(), "STALLED")
        self.missing += 1
        if self.wiped(member):
            self.go_back(self.restart, self.now, "WAITING")
        elif self.strategy.restart_after and self.missing >= self.strategy.restart_after:
            self.saved = (self.done, self.computed, self.synced)
            self.go_back(self.restart, self.now + self.durations.save, "SAVING")

    def masking(self) -> float:
        """Seconds to continue without one more member. Failures within one step are noticed and patched together."""
        step, at = self.struck
        noticed = self.now >= self.resume - INSTANT or self.now <= at + INSTANT
        same = step == self.done and noticed and not self.strategy.redo
        paid = same and self.patched
        drawn = next(self.draws) < self.inputs.shares[self.missing]
        self.struck, self.patched = (self.done, self.now), drawn or paid
        return (0.0 if same else self.strategy.stall) + (self.inputs.patch if drawn and not paid else 0.0)

    def wiped(self, member: int) -> bool:
        """Whether a shard of this member has no live holder."""
        if not self.inputs.holders:
            return self.missing >= self.inputs.members
        return any(all(self.gone[holder] for holder in holders) for holders in self.inputs.holders[member])

    def go_back(self, cost: float, begin: float, before: str) -> None:
        """Restarts the job from the last checkpoint; missing members are back."""
        self.restarts += 1
        self.wasted["REPEATED"] += self.useful((self.done, self.computed, self.synced)) - self.useful(self.saved)
        self.done, self.computed, self.synced = self.saved
        self.trained = self.saving = 0.0
        self.missing, self.gone = 0, [0] * self.inputs.members
        self.struck = (-1, 0.0)
        self.due = [item for item in self.due if item[1] != "join"]
        heapq.heapify(self.due)
        self.holds.clear()
        self.hold(begin, before)
        self.hold(begin + cost, "RESTARTING")
        self.ready = [begin + cost] * self.inputs.members
        for machine, date in enumerate(self.there):
            if date == inf:
                self.appear(machine, begin)

    def enter(self, member: int) -> None:
        """Lets a machine join a member."""
        self.gone[member] -= 1
        if not self.gone[member]:
            self.missing -= 1
            self.hold(self.resume + self.strategy.join, "JOINING")


def main(folder: Path) -> None:
    """Runs the case in `folder` and writes its result there."""
    import simgrid

    text = (folder / INPUT).read_text(encoding="utf-8")
    inputs: Any = json.loads(text, object_hook=lambda fields: SimpleNamespace(**fields))
    engine = simgrid.Engine([sys.argv[0], *OPTIONS])
    engine.load_platform(str(folder / PLATFORM))
    run = SimgridRun(simgrid, inputs)

    def act() -> None:
        run.train()
        (folder / RESULT).write_text(json.dumps(run.result()), encoding="utf-8")

    simgrid.Actor.create("training", simgrid.Host.by_name("controller"), act)
    engine.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

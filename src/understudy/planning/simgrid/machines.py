"""The machines in SimGrid, and waiting for them. Standard library and `scene` beside this only.

Machines are hosts that compute, their failures come from state profiles in the platform, gradients and checkpoints are
messages. Each machine keeps a message to the controller open, its lifeline, which breaks when the machine fails: who
waits for activities waits for the first lifeline that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .scene import BLINK, SPEED

LIFELINE = 2**63


class Machines:
    """What is done on hosts and links; who takes part is said by the conductor.

    Of these only machines with a lifeline are given something to do: the others would take as long, and a failure in a
    place where nobody stands yet is nobody's.
    """

    def __init__(self, simgrid: Any, count: int) -> None:
        self.sg = simgrid
        self.hosts = [simgrid.Host.by_name(f"m{number}") for number in range(count)]
        self.controller, self.storage = simgrid.Host.by_name("controller"), simgrid.Host.by_name("storage")
        self.lifelines: dict[int, Any] = {}
        self.fallen: list[int] = []
        self.activities = 0

    @property
    def now(self) -> float:
        return float(self.sg.Engine.clock)

    def enter(self, machine: int) -> None:
        """From now on the machine's failure is seen."""
        if machine not in self.lifelines:
            self.lifelines[machine] = self.sg.Comm.sendto_async(self.hosts[machine], self.controller, LIFELINE)

    def leave(self) -> None:
        for lifeline in self.lifelines.values():
            lifeline.cancel()

    def compute(self, machines: Sequence[int], seconds: float) -> list[Any] | None:
        """Computation on every one of them; None where a host is off just now, unnoticed."""
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
        """Messages around the ring of these machines."""
        ring = self._seen(machines)
        following = [self.controller] if len(ring) == 1 else [*ring[1:], *ring[:1]]
        return [self._send(one, other, seconds) for one, other in zip(ring, following, strict=True)]

    def _seen(self, machines: Sequence[int]) -> list[Any]:
        return [self.hosts[machine] for machine in machines if machine in self.lifelines]

    def save(self, seconds: float) -> list[Any]:
        return [self._send(self.controller, self.storage, seconds)]

    def _send(self, one: Any, other: Any, seconds: float) -> Any:
        return self.sg.Comm.sendto_async(one, other, max(1, round(seconds * SPEED)))

    def wait(self, seconds: float, until: float, activities: list[Any]) -> bool:
        """True when the activities, which take so long, are over; False if a machine fails or `until` comes first.

        What fails in the very instant in which they are over has done its part; its lifeline breaks right then.
        """
        self.activities += len(activities)
        now = self.now
        self._watch(max(min(seconds, until - now), 0.0))
        if not self.fallen and now + seconds <= until:
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
        """Until the time is over, or a lifeline breaks: then the machine is among the fallen."""
        if not self.lifelines:
            self.sg.this_actor.sleep_for(seconds)
            return
        try:
            self.sg.Comm.wait_any_for(list(self.lifelines.values()), seconds)
        except self.sg.NetworkFailureException:
            self.fallen = sorted(machine for machine, line in self.lifelines.items() if line.state_str == "FAILED")
            for machine in self.fallen:
                del self.lifelines[machine]

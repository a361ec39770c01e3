"""What is modelled: a cluster, the work it does, and what interruptions cost there. All times are in seconds."""

from __future__ import annotations

import msgspec

HOUR = 3600.0
DAY = 24 * HOUR
WEEK = 7 * DAY


class Cluster(msgspec.Struct, frozen=True):
    """`machines` that fail one by one, the same number in each of `replicas` copies of the model."""

    machines: int
    replicas: int
    gpus_per_machine: int = 8
    domain: int = 1
    """Machines that stand together (a rack, a switch) and may fail together."""

    @property
    def gpus(self) -> int:
        return self.machines * self.gpus_per_machine

    @property
    def machines_per_replica(self) -> int:
        return self.machines // self.replicas


class Work(msgspec.Struct, frozen=True):
    """A step at full strength: everybody computes, then gradients are summed."""

    compute: float
    sync: float = 0.0
    steps: int = 0
    """How many there are to do; 0: no end, look at a stretch of time instead."""

    @property
    def step(self) -> float:
        return self.compute + self.sync

    def stretched(self, load: float) -> float:
        """How many times as long a step takes in which a replica computes `load` shards instead of one."""
        return (self.compute * load + self.sync) / self.step


class Durations(msgspec.Struct, frozen=True):
    """What interruptions cost, in seconds during which nobody trains unless said otherwise."""

    detect: float = 0.5
    """From a death until everybody has stopped waiting for it."""
    shrink: float = 0.1
    """To agree on going on without a replica."""
    hand_over: float = 0.5
    """To put a standby that is ready into the place of a dead machine."""
    planned: float = 0.2
    """To put a standby into the place of a machine that works, at a step boundary."""
    join: float = 0.5
    """Everybody's pause when a vacant replica is refilled, at a step boundary."""
    refill: float = 60.0
    """From a death until the standby can be joined, while the others train."""
    cold: float = 221.0
    """To get a machine that is not a standby to the same point: start, load, compile, connect."""
    save: float = 60.0
    """To write a checkpoint."""
    restart: float = 900.0
    """To start a whole job again from a checkpoint."""
    outside: float = 0.0
    """What the infrastructure adds to every interruption in which training stops, whatever the system."""


class Setting(msgspec.Struct, frozen=True):
    """Everything that does not depend on how failures are dealt with."""

    cluster: Cluster
    work: Work
    durations: Durations = Durations()

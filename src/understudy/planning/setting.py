"""What is modelled: a cluster, the work it does, and what interruptions cost there. All times are in seconds."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

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


class StepWork(msgspec.Struct, frozen=True):
    """A step at full strength: everybody computes, then gradients are summed."""

    compute: float
    sync: float = 0.0
    steps: int = 0
    """How many there are to do; 0: no end, look at a stretch of time instead."""
    jitter: float = 0.0
    """Standard deviation of one shard's computation, as a share of it. Everybody waits for the slowest."""

    @property
    def step(self) -> float:
        return self.compute + self.sync

    def stretched(self, load: float, live: int = 1) -> float:
        """How many times as long a step takes if each of `live` members computes `load` shards instead of one."""
        slowest = load + self.jitter * sqrt(load) * mean_largest(live) if self.jitter else load
        return (self.compute * slowest + self.sync) / self.step


def mean_largest(count: int) -> float:
    """Mean of the largest of so many standard normal numbers, after Blom: within 0.02 of it."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


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
    work: StepWork
    durations: Durations = Durations()

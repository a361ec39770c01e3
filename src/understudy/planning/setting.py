"""The modelled job: a cluster, its work, and what interruptions cost. All times are in seconds."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import msgspec

HOUR = 3600.0
DAY = 24 * HOUR
WEEK = 7 * DAY


class Cluster(msgspec.Struct, frozen=True):
    """`machines`, divided evenly among `replicas` copies of the model."""

    machines: int
    replicas: int
    gpus_per_machine: int = 8
    domain: int = 1
    """Machines that share a rack or a switch and may fail together."""

    @property
    def gpus(self) -> int:
        return self.machines * self.gpus_per_machine

    @property
    def machines_per_replica(self) -> int:
        return self.machines // self.replicas


class StepWork(msgspec.Struct, frozen=True):
    """The time of a step at full strength: all replicas compute, then gradients are summed."""

    compute: float
    sync: float = 0.0
    steps: int = 0
    """Steps of the job; 0: the job has no end, and a fixed time is simulated."""
    jitter: float = 0.0
    """Standard deviation of a shard's computing time, as a share of its mean. A step waits for the slowest replica."""

    @property
    def step(self) -> float:
        return self.compute + self.sync

    def stretched(self, load: float, live: int = 1) -> float:
        """How many times as long a step takes if each of `live` members computes `load` shards instead of one."""
        slowest = load + self.jitter * sqrt(load) * mean_largest(live) if self.jitter else load
        return (self.compute * slowest + self.sync) / self.step


def mean_largest(count: int) -> float:
    """Mean of the largest of `count` standard normal numbers, by Blom's formula; the error is below 0.02."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


class Durations(msgspec.Struct, frozen=True):
    """What interruptions cost, in seconds. Training stands still meanwhile, unless a field says otherwise."""

    detect: float = 0.5
    """From a worker's death until the survivors have stopped waiting for it."""
    shrink: float = 0.1
    """To agree on continuing without a replica."""
    hand_over: float = 0.5
    """To put a ready standby into the roles of a dead machine."""
    planned: float = 0.2
    """To put a standby into the roles of a working machine, at a step boundary."""
    join: float = 0.5
    """Pause at the step boundary at which a vacant replica is refilled."""
    refill: float = 60.0
    """From a machine's death until its standby can join. The other replicas train meanwhile."""
    cold: float = 221.0
    """To make a machine ready that is not a standby: start, load, compile, connect."""
    save: float = 60.0
    """To write a checkpoint."""
    restart: float = 900.0
    """To restart the whole job from a checkpoint."""
    outside: float = 0.0
    """Time that the infrastructure adds to every interruption in which training stops, with any strategy."""


class PlanningSetting(msgspec.Struct, frozen=True):
    """Everything that does not depend on the strategy against failures."""

    cluster: Cluster
    work: StepWork
    durations: Durations = Durations()

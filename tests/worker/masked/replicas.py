"""Replicas in threads of one process, with gradients that are made up: for tests of how they are summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from tests.comm.helpers import Ensemble, at_once, enter
from understudy.comm.endpoint import Endpoint
from understudy.comm.group import RoleGroup
from understudy.comm.network import NetworkFabric
from understudy.masking.assignment import assign
from understudy.masking.placement import parse
from understudy.protocol.roster import Roster
from understudy.worker.masked.gradients import SumInterrupted, Synchroniser
from understudy.worker.masked.partial_sums import PartialSums
from understudy.worker.masked.shard_plan import ShardPlan, still_good

SHAPES = ((3, 5), (7,), (), (64,), (2, 2, 2), (33,))
UNUSED, SELDOM = 2, 4
"""The parameter without a gradient in any micro-shard, and the one with a gradient in odd ones only."""
LIMIT = 100
"""Bytes of a bucket, so that there are several."""


def gradient(number: int, member: int) -> torch.Tensor | None:
    if member == UNUSED or (member == SELDOM and number % 2 == 0):
        return None
    numbers = torch.Generator().manual_seed(100 * number + member)
    return torch.randn(SHAPES[member], generator=numbers)


def expected(count: int, replicas: int) -> list[torch.Tensor | None]:
    """In double precision."""
    found: list[torch.Tensor | None] = []
    for member, shape in enumerate(SHAPES):
        parts = [grad for number in range(count) if (grad := gradient(number, member)) is not None]
        total = torch.zeros(shape, dtype=torch.float64)
        for part in parts:
            total += part
        found.append(total / replicas if parts else None)
    return found


class Replica:
    """One replica: its parameters, its end of the group, and what it has computed."""

    def __init__(self, fabric: NetworkFabric, endpoint: Endpoint) -> None:
        self.fabric = fabric
        self.parameters = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        self.group = RoleGroup(endpoint)
        self.twins = Synchroniser(self.group, self.parameters, frozenset(), lambda: fabric.fault is None, limit=LIMIT)
        self.sums: PartialSums | None = None
        self.computed: list[int] = []

    @property
    def number(self) -> int:
        return self.group.endpoint.rank

    def compute(self, plan: ShardPlan) -> None:
        """What is still to be computed, as a script would."""
        sums = self.sums
        if sums is None or not still_good(sums.done, plan):
            sums = self.sums = PartialSums(0, plan.assignment.q, self.parameters) if sums is None else sums
            sums.forget()
        for number in plan.mine[len(sums.done) :]:
            sums.load(plan.segment(number))
            for member, parameter in enumerate(self.parameters):
                grad = gradient(number, member)
                if grad is not None:
                    parameter.grad = grad if parameter.grad is None else parameter.grad + grad
            self.computed.append(number)
            sums.add(number, {"loss": 0.1 * number})

    def step(self, plan: ShardPlan) -> dict[str, float] | None:
        """What was logged; None where it was interrupted."""
        self.compute(plan)
        assert self.sums is not None
        try:
            means = self.twins.run(self.sums, plan)
        except SumInterrupted:
            return None
        self.sums = None  # what the script has in its hands is not used again
        return means

    def gradients(self) -> list[torch.Tensor | None]:
        return [None if parameter.grad is None else parameter.grad.clone() for parameter in self.parameters]

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


class Replicas:
    """Units 0, 1, … in one ensemble, two on each machine."""

    def __init__(self, ensemble: Ensemble, replicas: int, *, machines: Sequence[str] = ()) -> None:
        names = machines or [f"m{replica // 2}" for replica in range(replicas)]
        self.roster, fabrics, endpoints = ensemble.start(*names)
        self.replicas = [Replica(fabric, end) for fabric, end in zip(fabrics, endpoints, strict=True)]
        self.live = tuple(range(replicas))

    def vacate(self, replicas: Sequence[int]) -> None:
        """Go on without these, in a fresh generation."""
        roster: Roster = self.roster.successor(dict.fromkeys(replicas), fresh=True)
        self.roster, self.live = roster, tuple(replica for replica in self.live if replica not in replicas)
        enter(roster, [self.replicas[replica].fabric for replica in self.live])

    def plan(self, replica: int, placement: str, q: int, *, deterministic: bool) -> ShardPlan:
        assignment = assign(parse(placement, len(self.replicas)), q, self.live)
        return ShardPlan(assignment, replica, deterministic)

    def step(self, placement: str, q: int, *, deterministic: bool) -> list[dict[str, float] | None]:
        def one(replica: int) -> Callable[[], dict[str, float] | None]:
            plan = self.plan(replica, placement, q, deterministic=deterministic)
            return lambda: self.replicas[replica].step(plan)

        return at_once(*[one(replica) for replica in self.live])

    def gradients(self) -> list[list[torch.Tensor | None]]:
        return [self.replicas[replica].gradients() for replica in self.live]

    def clear(self) -> None:
        for replica in self.replicas:
            replica.clear()

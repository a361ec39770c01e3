"""A step that goes on although replicas are missing: which micro-shards this one computes, what is kept when the step
is interrupted, and the gradient of all of them in the end.

A unit is a whole model replica. Roles that hold the same state are one of each unit; they are a group, in which a
role's rank is the number of its unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from torch import nn

from understudy.masking.assignment import assign
from understudy.masking.placement import PlacementError, parse
from understudy.worker.rng import seed_everything
from understudy.worker.runtime import JobError, Unsound, WorkerRuntime

from .apart import Apart, check_suitable, managed, trained
from .buckets import local_gradient
from .gradients import NONE, Miscounted, SumInterrupted, Synchroniser
from .segments import ShardPlan, still_good
from .share import Share

AFTER = -1
"""Stands for a micro-shard where random numbers are drawn after the last one."""


class Masking:
    """One role's side of masked steps, from the first boundary on."""

    def __init__(self, runtime: WorkerRuntime, averaged: Sequence[nn.Module], over: tuple[int, ...]) -> None:
        spec = runtime.spec
        self._runtime, self._spec = runtime, spec
        same = runtime.twins()
        if spec.roles % len(same):
            raise JobError(
                f"--mask: {len(same)} of {spec.roles} roles hold the same state; that is no whole number of units"
            )
        check_suitable(runtime.tracked, same, averaged, over)
        try:
            self._placement = parse(spec.mask, len(same))
        except PlacementError as error:
            raise JobError(f"--mask: {error}") from None
        self.same = same
        self._parameters = trained(runtime.tracked)
        by_framework = managed(runtime.tracked)
        self._managed = frozenset(n for n, parameter in enumerate(self._parameters) if id(parameter) in by_framework)
        self._group = runtime.process.group(same, recorded=False)
        self._twins = Synchroniser(self._group, self._parameters, self._managed, lambda: not self._faulty())
        self._apart = Apart(runtime.tracked, runtime.fabric.endpoints, same)
        self._share: Share | None = None
        self._plan: ShardPlan | None = None
        self._agreed = 0
        """The generation in which the roles of each unit have agreed on what is kept."""
        self._under_way = False
        """Whether the script computes a micro-shard."""
        self._finished = -1
        """The step whose gradients are complete and in the script's hands."""
        self._quiet = False
        """Whether the last micro-shard was computed without a word to anybody."""

    @property
    def unit(self) -> int:
        return self._group.endpoint.rank

    def live(self) -> tuple[int, ...]:
        """The units that take part; in a rehearsal all of them."""
        roster = self._runtime.fabric.roster
        return tuple(unit for unit, role in enumerate(self.same) if roster is None or roster.seats[role] is not None)

    # -- a step --------------------------------------------------------------------------------------------------------

    def run(self, step: int, micro: int, values: dict[str, float]) -> Iterator[tuple[int, int]]:
        """(unit, part) of each micro-shard that this unit computes now. What is put into `values` while one is computed
        is logged with it; afterwards they hold the means over all micro-shards of the step. Leaves with Repeat where
        the step cannot go on."""
        if self._finished == step:
            raise JobError(
                f"step {step}: step.shards() was used twice; with --mask a step has one loop over its shards"
            )
        self._check_clean(step)
        plan = self._planned(micro)
        share = self._share
        if share is None or (share.step, share.micro) != (step, micro):
            share = self._share = Share(step, micro, self._parameters)
        self._agree(share, plan)
        copies = self._spec.keep_gradients == "copy"
        self._apart.start()
        try:
            for number in plan.mine[len(share.done) :]:
                if self._faulty() and not (self._quiet and plan.own(number)):
                    self._leave()
                share.load(plan.segment(number), copy=copies)
                unit, part = divmod(number, micro)
                values.clear()
                said, deferred = self._submitted(), self._apart.deferred
                self._under_way = True
                yield unit, part
                self._under_way = False
                self._quiet = self._submitted() == said
                if self._faulty():
                    self._runtime.failed_in_step()  # at once: what is decided meanwhile need not wait for this one
                    if not self._quiet:
                        share.spoil()
                        self._leave()
                self._check_deferred(step, deferred)
                share.add(number, dict(values), copy=copies)
        finally:
            self._apart.end()
        values.clear()
        values |= self._synchronise(share, plan)
        seed_everything(self._spec.seed, step, self.same[0], AFTER)

    def seed(self, step: int, number: int) -> None:
        """Random numbers for a micro-shard: those that any other unit would have for it."""
        seed_everything(self._spec.seed, step, number, self.same[0])

    def _planned(self, micro: int) -> ShardPlan:
        """Who computes what in this attempt; the same as in the last one as long as nobody comes or goes."""
        live, plan = self.live(), self._plan
        if plan is None or (plan.assignment.q, plan.live, plan.unit) != (micro, live, self.unit):
            assignment = assign(self._placement, micro, live)
            if assignment.lost:
                raise JobError(f"--mask: {assignment.reason}")
            plan = self._plan = ShardPlan(assignment, self.unit, self._spec.deterministic)
        return plan

    def _agree(self, share: Share, plan: ShardPlan) -> None:
        """After an interruption: what is kept of the step counts where all roles of a unit have kept the same, and it
        is the beginning of what that unit is to compute now. All roles ask it at the same place."""
        roster = self._runtime.fabric.roster
        if roster is None or not roster.fresh or self._agreed == roster.generation:
            share.forget()
            share.totals.clear()  # of an attempt that nobody else remembers
            return
        kept = len(share.done) if still_good(share.done, plan) else 0
        numbers = [NONE] * (2 * plan.units)
        numbers[plan.unit], numbers[plan.units + plan.unit] = kept, -kept
        least = self._runtime.least(numbers)
        if self._faulty():
            self._leave()
        self._agreed = roster.generation
        if least[plan.unit] != -least[plan.units + plan.unit] or not kept:
            share.forget()

    def _synchronise(self, share: Share, plan: ShardPlan) -> dict[str, float]:
        share.store()
        if self._faulty():
            self._leave()
        self._twins.divides = self._apart.divides
        try:
            means = self._twins.run(share, plan, check=self._runtime.fabric.roster is not None)
        except SumInterrupted:
            self._leave()
        except Miscounted as error:
            raise JobError(f"step {share.step}: {error}") from None
        self._share, self._finished = None, share.step
        return means

    # -- interruptions -------------------------------------------------------------------------------------------------

    def _faulty(self) -> bool:
        protocol = self._runtime.protocol
        if self._runtime.rehearsing:
            return False
        return self._runtime.fabric.fault is not None or protocol.halted or protocol.repeating

    def _leave(self) -> NoReturn:
        """The step is interrupted: say so, and wait for what is decided."""
        self._runtime.failed_in_step()
        self._runtime.verdict()
        raise JobError("a step counts although its gradients are not complete; this is a defect of understudy")

    def interrupted(self, error: BaseException) -> None:
        """The step is undone and begun again: take what is sound out of the parameters before they are restored."""
        self._apart.end()
        share, under_way, self._under_way = self._share, self._under_way, False
        self._finished = -1
        if share is None:
            return  # complete ones were in the script's hands, which may have changed them
        if under_way:
            share.spoil()
        share.store()
        if isinstance(error, Unsound) or self._spec.keep_gradients == "none":
            self._share = None

    def begin(self) -> None:
        self._finished = -1

    def applied(self) -> None:
        self._share, self._finished = None, -1

    # -- checks --------------------------------------------------------------------------------------------------------

    def _submitted(self) -> int:
        return sum(endpoint.submitted for endpoint in self._runtime.fabric.endpoints())

    def _check_clean(self, step: int) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None and bool(local_gradient(parameter.grad).count_nonzero()):
                raise JobError(
                    f"step {step}: there are gradients before step.shards() begins; with --mask a step's gradients are "
                    "those of its shards: call optim.zero_grad() before it, and backward only in the loop"
                )

    def _check_deferred(self, step: int, before: int) -> None:
        if self._managed and self._apart.deferred == before:
            raise JobError(
                f"step {step}: FSDP2 has not reduced its gradients with a shard; with --mask do not call "
                "set_requires_gradient_sync(False) or set_requires_all_reduce(False), and call backward for each shard"
            )

"""A masked step: the micro-shards that this replica computes, the sums that are kept when the step is interrupted, and
the gradient of all micro-shards in the end.

The roles that hold the same state are one role of each replica. They form a group in which a role's rank is the number
of its replica.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from torch import nn

from understudy.masking.assignment import assign
from understudy.masking.placement import PlacementError, parse
from understudy.worker.runtime import JobError, Unsound, WorkerRuntime
from understudy.worker.step import seed_everything

from .deferral import DeferredReduction, check_suitable, managed, trained
from .gradients import NONE, Miscounted, SumInterrupted, Synchroniser
from .partial_sums import PartialSums, local_gradient
from .shard_plan import ShardPlan, still_good

AFTER = -1
"""Seeds random numbers that are drawn after the last micro-shard."""


class Masking:
    """One role's side of masked steps, from the first boundary on."""

    def __init__(self, runtime: WorkerRuntime, averaged: Sequence[nn.Module], over: tuple[int, ...]) -> None:
        spec = runtime.spec
        self._runtime, self._spec = runtime, spec
        same = runtime.twins()
        if spec.roles % len(same):
            raise JobError(
                f"--mask: {len(same)} of {spec.roles} roles hold the same state; that is no whole number of replicas"
            )
        check_suitable(runtime.tracked, same, averaged, over)
        try:
            self._placement = parse(spec.settings.masking.mask, len(same))
        except PlacementError as error:
            raise JobError(f"--mask: {error}") from None
        self.same = same
        self._parameters = trained(runtime.tracked)
        by_framework = managed(runtime.tracked)
        self._managed = frozenset(n for n, parameter in enumerate(self._parameters) if id(parameter) in by_framework)
        self._group = runtime.process.group(same, recorded=False)
        self._synchroniser = Synchroniser(self._group, self._parameters, self._managed, lambda: not self._faulty())
        self._deferral = DeferredReduction(runtime.tracked, runtime.fabric.endpoints, same)
        self._sums: PartialSums | None = None
        self._plan: ShardPlan | None = None
        self._agreed = 0
        """The generation in which the roles of each replica have agreed on the kept sums."""
        self._under_way = False
        """Whether the script is computing a micro-shard."""
        self._finished = -1
        """The step of which the script has the complete gradients; -1: none."""
        self._quiet = False
        """Whether the last micro-shard was computed without communication."""

    @property
    def replica(self) -> int:
        return self._group.endpoint.rank

    def live(self) -> tuple[int, ...]:
        """The live replicas; all of them in a rehearsal."""
        roster = self._runtime.fabric.roster
        present = [roster is None or roster.seats[role] is not None for role in self.same]
        return tuple(replica for replica, live in enumerate(present) if live)

    # -- a step --------------------------------------------------------------------------------------------------------

    def run(self, step: int, micro: int, values: dict[str, float]) -> Iterator[tuple[int, int]]:
        """(replica, part) of each micro-shard that this replica computes now.

        `values` collects what is logged with the micro-shard under way, and holds the means over all micro-shards of
        the step afterwards. Raises Repeat if the step cannot continue."""
        if self._finished == step:
            raise JobError(
                f"step {step}: step.shards() was used twice; with --mask a step has one loop over its shards"
            )
        self._check_clean(step)
        plan = self._planned(micro)
        sums = self._sums
        if sums is None or (sums.step, sums.micro) != (step, micro):
            sums = self._sums = PartialSums(step, micro, self._parameters)
        self._agree(sums, plan)
        copies = self._spec.settings.masking.keep_gradients == "copy"
        self._deferral.start()
        try:
            for number in plan.mine[len(sums.done) :]:
                if self._faulty() and not (self._quiet and plan.own(number)):
                    self._leave()
                sums.load(plan.segment(number), copy=copies)
                replica, part = divmod(number, micro)
                values.clear()
                said, deferred = self._runtime.submitted, self._deferral.deferred
                self._under_way = True
                yield replica, part
                self._under_way = False
                self._quiet = self._runtime.submitted == said
                if self._faulty():
                    self._runtime.failed_in_step()  # reported at once, so that the decision does not wait
                    if not self._quiet:
                        sums.spoil()
                        self._leave()
                self._check_deferred(step, deferred)
                sums.add(number, dict(values), copy=copies)
        finally:
            self._deferral.end()
        values.clear()
        values |= self._synchronise(sums, plan)
        seed_everything(self._spec.settings.training.seed, step, self.same[0], AFTER)

    def seed(self, step: int, number: int) -> None:
        """Seed the random numbers of a micro-shard: the same in every replica that computes it."""
        seed_everything(self._spec.settings.training.seed, step, number, self.same[0])

    def _planned(self, micro: int) -> ShardPlan:
        """The plan of this attempt; that of the last one as long as the live replicas are the same."""
        live, plan = self.live(), self._plan
        if plan is None or (plan.assignment.q, plan.live, plan.replica) != (micro, live, self.replica):
            assignment = assign(self._placement, micro, live)
            if assignment.lost:
                raise JobError(f"--mask: {assignment.reason}")
            plan = self._plan = ShardPlan(assignment, self.replica, self._spec.settings.masking.deterministic)
        return plan

    def _agree(self, sums: PartialSums, plan: ShardPlan) -> None:
        """After an interruption: keep the sums if all roles of this replica have kept the same micro-shards, and these
        are the first ones of the new plan. All roles call this at the same place."""
        roster = self._runtime.fabric.roster
        if roster is None or not roster.fresh or self._agreed == roster.generation:
            sums.forget()
            sums.totals.clear()  # of an attempt that the other replicas have forgotten
            return
        kept = len(sums.done) if still_good(sums.done, plan) else 0
        numbers = [NONE] * (2 * plan.replicas)
        numbers[plan.replica], numbers[plan.replicas + plan.replica] = kept, -kept
        least = self._runtime.process.least(numbers)
        if self._faulty():
            self._leave()
        self._agreed = roster.generation
        if least[plan.replica] != -least[plan.replicas + plan.replica] or not kept:
            sums.forget()

    def _synchronise(self, sums: PartialSums, plan: ShardPlan) -> dict[str, float]:
        sums.store()
        if self._faulty():
            self._leave()
        self._synchroniser.divides = self._deferral.divides
        try:
            means = self._synchroniser.run(sums, plan, check=self._runtime.fabric.roster is not None)
        except SumInterrupted:
            self._leave()
        except Miscounted as error:
            raise JobError(f"step {sums.step}: {error}") from None
        self._sums, self._finished = None, sums.step
        return means

    # -- interruptions -------------------------------------------------------------------------------------------------

    def _faulty(self) -> bool:
        protocol = self._runtime.protocol
        if self._runtime.rehearsing:
            return False
        return self._runtime.fabric.fault is not None or protocol.halted or protocol.repeating

    def _leave(self) -> NoReturn:
        """Report that the step is interrupted and wait for the controller's decision."""
        self._runtime.failed_in_step()
        self._runtime.verdict()
        raise JobError("a step with incomplete gradients counts; this is a defect of understudy")

    def interrupted(self, error: BaseException) -> None:
        """The step is repeated: take the sums out of the parameters before these are restored."""
        self._deferral.end()
        sums, under_way, self._under_way = self._sums, self._under_way, False
        self._finished = -1
        if sums is None:
            return  # the script had complete gradients and may have changed them
        if under_way:
            sums.spoil()
        sums.store()
        if isinstance(error, Unsound) or self._spec.settings.masking.keep_gradients == "none":
            self._sums = None

    def begin(self) -> None:
        self._finished = -1

    def applied(self) -> None:
        self._sums, self._finished = None, -1

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check_clean(self, step: int) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None and bool(local_gradient(parameter.grad).count_nonzero()):
                raise JobError(
                    f"step {step}: there are gradients before step.shards() begins; with --mask a step's gradients are "
                    "those of its shards: call optim.zero_grad() before it, and backward only in the loop"
                )

    def _check_deferred(self, step: int, before: int) -> None:
        if self._managed and self._deferral.deferred == before:
            raise JobError(
                f"step {step}: FSDP2 has not reduced its gradients with a shard; with --mask do not call "
                "set_requires_gradient_sync(False) or set_requires_all_reduce(False), and call backward for each shard"
            )

"""Mistakes in the protocol that the simulation notices: each is a small change of production code, and some seed of a
few hundred breaks a rule with it. Without these tests a simulation that checks nothing would pass, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from understudy.controller.core import actions, failure, judgement, settlement, signals
from understudy.controller.core.events import Event as ControllerEvent
from understudy.controller.core.events import Reported
from understudy.controller.core.judgement import Situation, Verdict
from understudy.controller.core.state import JobState
from understudy.controller.server.controller import Connection, Controller
from understudy.protocol.frames import Register
from understudy.protocol.messages import Halt
from understudy.protocol.sessions import Inbox
from understudy.protocol.vote import VoteOutcome, outcome_of
from understudy.state.inventory import take_inventory
from understudy.state.undo import Undo
from understudy.testing.simulation import Rule, RuleBroken, SimJob, setting_of
from understudy.testing.simulation.fabric import SimTrainingProcess
from understudy.testing.simulation.host import SimLedger
from understudy.worker import runtime
from understudy.worker.instructions import Next, SwitchTo
from understudy.worker.protocol import MESSAGES, STEPS, WorkerProtocol
from understudy.worker.redundancy import Redundancy
from understudy.worker.states import Event, ProposalState, StepState, WorkerState
from understudy.worker.transfer.copies import CopyKeeper

SEEDS = range(300)
Mutate = Callable[[pytest.MonkeyPatch], None]
MUTATIONS: dict[str, tuple[Mutate, set[Rule], dict[str, Any]]] = {}


def mutation(*rules: Rule, **setting: Any) -> Callable[[Mutate], Mutate]:
    """A mutation, and the rules of which it breaks one; `setting`: how the jobs differ from the usual ones."""

    def add(mutate: Mutate) -> Mutate:
        MUTATIONS[mutate.__name__] = (mutate, set(rules), setting)
        return mutate

    return add


def nothing(*_: object, **__: object) -> None:
    pass


# -- the state of a role alone -----------------------------------------------------------------------------------------


@mutation(Rule.SAME_STATE, mask="", own="vote", copies="all", first=())
def a_joiner_gets_the_position_of_its_twin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Redundancy, "inventory_for", lambda self, role, step: take_inventory(self._tracked))


@mutation(Rule.SAME_STATE, mask="", own="vote", copies="all", first=())
def positions_of_the_last_boundary_are_given(patch: pytest.MonkeyPatch) -> None:
    inventory_for = Redundancy.inventory_for
    patch.setattr(Redundancy, "inventory_for", lambda self, role, step: inventory_for(self, role, step - 1))


@mutation(Rule.SAME_STATE, mask="", own="vote", copies="all", first=(), copy_every=1)
def a_copy_of_a_twin_counts_as_a_copy_of_the_role(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failure, "identical", lambda job: job.twins)
    patch.setattr(Redundancy, "identical", lambda self: self.twins)


# -- the worker's protocol ---------------------------------------------------------------------------------------------


@mutation(Rule.NO_CRASH, machines=2, nproc=1, copies="all", mask="", first=(), steps=30, vote_malice=0.3, stalls=0.4)
def a_vote_is_counted_after_a_halt(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(STEPS, (StepState.HALTED, Event.COUNTED), WorkerProtocol._counted)


@mutation(Rule.STATE_VALID, Rule.REPLICA_USED, Rule.NO_CRASH, Rule.NO_HANG)
def an_interrupted_step_is_not_repeated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerProtocol, "_repeat", nothing)


@mutation(Rule.NO_CRASH, Rule.STEP_ORDER, Rule.VOTE_TOGETHER)
def a_step_that_a_survivor_has_applied_is_not_applied_by_the_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerProtocol, "_go_on_from", lambda self, step: self._repeat())


@mutation(Rule.NO_CRASH)
def a_prepared_generation_is_entered_before_the_vote_agrees(patch: pytest.MonkeyPatch) -> None:
    boundary = WorkerProtocol.boundary

    def early(self: WorkerProtocol) -> Next:
        proposal = self.proposal
        if proposal is not None and not proposal.direct and proposal.ready and self.seated and not self.halted:
            proposal.state = ProposalState.AGREED
            return SwitchTo(proposal.generation)
        return boundary(self)

    patch.setattr(WorkerProtocol, "boundary", early)


@mutation(Rule.STATE_VALID)
def a_worker_trains_on_after_a_halt(patch: pytest.MonkeyPatch) -> None:
    def halt(self: WorkerProtocol, message: Halt) -> list[Any]:
        effects = WorkerProtocol._halt(self, message)
        self.halted = False
        return effects

    for state in WorkerState:
        patch.setitem(MESSAGES, (state, Halt), halt)


@mutation(Rule.STEP_ORDER, Rule.VOTE_TOGETHER, Rule.NO_CRASH)
def a_joiner_counts_one_step_too_many(patch: pytest.MonkeyPatch) -> None:
    took = WorkerProtocol.took
    patch.setattr(WorkerProtocol, "took", lambda self, generation, step: took(self, generation, step + 1))


# -- the worker's runtime ----------------------------------------------------------------------------------------------


@mutation(Rule.NO_CRASH)
def a_step_is_applied_without_a_vote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimTrainingProcess, "least", lambda self, numbers: numbers)


@mutation(Rule.NO_CRASH)
def the_vote_agrees_on_the_greatest_generation(patch: pytest.MonkeyPatch) -> None:
    def greatest(least: list[int], current: int) -> VoteOutcome:
        return outcome_of([-least[1], *least[1:]], current)

    patch.setattr(runtime, "outcome_of", greatest)


@mutation(Rule.SAME_STATE, Rule.NO_CRASH)
def a_repeated_step_begins_with_what_the_first_attempt_changed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Undo, "restore", nothing)


@mutation(Rule.COPIES_KEPT)
def a_copy_counts_before_the_backup_has_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CopyKeeper, "complete", property(lambda self: self._begun))


# -- the controller ----------------------------------------------------------------------------------------------------


@mutation(Rule.ONE_ROSTER, Rule.NO_CRASH)
def a_generation_number_is_used_twice(patch: pytest.MonkeyPatch) -> None:
    def again(job: JobState, *args: Any, **more: Any) -> Any:
        if job.generations > 1 and job.generations % 2:
            job.generations -= 1
        return next_roster(job, *args, **more)

    next_roster = actions.next_roster
    from understudy.controller.core import failure, planned

    for module in (actions, failure, planned):
        patch.setattr(module, "next_roster", again, raising=False)


@mutation(Rule.NO_CRASH, Rule.STATE_KEPT)
def the_least_step_of_the_survivors_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settlement, "max", min, raising=False)


@mutation(Rule.NO_HANG, malice=0.5, copies="all")
def the_death_of_a_giver_is_ignored(patch: pytest.MonkeyPatch) -> None:
    def situation(job: JobState, uids: set[str], **more: Any) -> Situation:
        change = job.change
        givers = {} if change is None else change.givers
        if change is not None:
            change.givers = {}
        try:
            return original(job, uids, **more)
        finally:
            if change is not None:
                change.givers = givers

    original = signals._situation
    patch.setattr(signals, "_situation", situation)


@mutation(Rule.NO_HANG, Rule.SAME_STATE)
def the_state_of_a_broken_worker_is_trusted(patch: pytest.MonkeyPatch) -> None:
    def trusting(situation: Situation) -> Verdict:
        return judge(structs.replace(situation, trusted=True) if hasattr(situation, "__struct_fields__") else situation)

    judge = judgement.judge
    patch.setattr(signals, "judge", trusting)


@mutation(Rule.ONE_PROCESS, Rule.NO_CRASH)
def orders_and_reports_are_taken_twice(patch: pytest.MonkeyPatch) -> None:
    def take(self: Inbox, number: int) -> bool:
        self.last = max(self.last, number)
        return True

    patch.setattr(Inbox, "take", take)


@mutation(Rule.NO_HANG)
def orders_are_not_sent_again_over_a_new_connection(patch: pytest.MonkeyPatch) -> None:
    admit = Controller.admit

    def forgetful(self: Controller, connection: Connection, register: Register) -> bool:
        known = self.job.machines.get(register.machine)
        if known is not None:
            register = structs.replace(register, received=known.outbox.last)
        return admit(self, connection, register)

    patch.setattr(Controller, "admit", forgetful)


@mutation(Rule.NO_HANG, Rule.ONE_PROCESS, Rule.NO_CRASH)
def a_machine_that_was_started_again_goes_on_in_its_old_session(patch: pytest.MonkeyPatch) -> None:
    admit = Controller.admit

    def confused(self: Controller, connection: Connection, register: Register) -> bool:
        known = self.job.machines.get(register.machine)
        if known is not None:
            known.incarnation = register.incarnation
        return admit(self, connection, register)

    patch.setattr(Controller, "admit", confused)


@mutation(Rule.ONE_ROSTER, Rule.NO_HANG, Rule.NO_CRASH, Rule.VOTE_TOGETHER)
def some_events_are_not_in_the_ledger(patch: pytest.MonkeyPatch) -> None:
    append = SimLedger.append

    def leaky(self: SimLedger, at: float, event: ControllerEvent) -> None:
        if not isinstance(event, Reported) or event.number % 5:
            append(self, at, event)

    patch.setattr(SimLedger, "append", leaky)


# -- and all are noticed -----------------------------------------------------------------------------------------------


def simulate(name: str, seed: int) -> None:
    SimJob(replace(setting_of(seed), **MUTATIONS[name][2])).run()


RARE = {"a_copy_of_a_twin_counts_as_a_copy_of_the_role"}
"""Mutations that few seeds notice: for make soak."""
NAMES = [pytest.param(name, marks=pytest.mark.long) if name in RARE else name for name in MUTATIONS]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_the_mutation_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, rules, _ = MUTATIONS[name]
    mutate(monkeypatch)
    noticed = ((seed, rule) for seed in SEEDS if (rule := broken_by(name, seed)) is not None)
    seed, rule = next(noticed, (-1, None))
    assert rule in rules
    monkeypatch.undo()
    assert broken_by(name, seed) is None


def broken_by(name: str, seed: int) -> Rule | None:
    """The rule that a seed breaks; None: none."""
    try:
        simulate(name, seed)
    except RuleBroken as error:
        return error.rule
    return None

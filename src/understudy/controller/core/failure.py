"""A failure: all workers halt and report, one settlement is made of their reports, and training begins again from it.

The story in order: `halt`, `decide` (once all have reported), the rehearsals of the joiners, `resume`, and then the
switch that all changes share (`reports.py`).
"""

from __future__ import annotations

from understudy.protocol.messages import Conclude, Finish, Halt, Resume
from understudy.protocol.sentences import counted

from .actions import (
    announce,
    condemn,
    enter,
    move,
    next_roster,
    quarantine_if_due,
    recycle,
    renew,
    start_worker,
    tell,
    want,
)
from .change import Change, Kind, Phase
from .ending import continued_from, fail
from .machines import Machine, MachineState, Worker
from .masked import park, parked_machine, places_without, spared, to_vacate
from .replicas import sound
from .settlement import Holder, Settlement, StateLost, fall_back, latest_copy, settle
from .sources import forget_own, identical
from .standbys import rehearse, stand_in
from .state import ATTEMPTS, FIRST_STEPS, STUBBORN, FailureCause, JobState, JobStatus
from .turns import try_again

# -- the halt --------------------------------------------------------------------------------------------------------


def halt(job: JobState, why: str) -> None:
    """Have all workers stop and report how far they have come; the change under way is interrupted."""
    recycle(job)
    change, job.change = job.change, None
    job.status = JobStatus.HALTING
    job.halts += 1
    job.halt_reason = why
    job.halted_at, job.waiting = job.now, ""
    announce(job, "halt", why, halt=job.halts)
    involved = job.seated(change)
    if change is not None and change.planned:
        take_leavers_back(job, change)
    job.interrupted = change
    involved |= {
        uid
        for uid, worker in job.workers.items()
        if worker.alive and (worker.holds or (worker.report is not None and worker.report.able))
    }
    if change is not None:
        involved |= {each.taker.uid for each in change.moves}
    job.unreported = {uid for uid in job.living(involved) if job.workers[uid].done is None}
    for uid in sorted(job.unreported):
        job.workers[uid].report = None
        tell(job, uid, Halt(job.halts, why))
    job.involved = involved


def take_leavers_back(job: JobState, change: Change) -> None:
    """Make the leavers of a change that does not come about active again."""
    for name in change.leaving:
        if job.machines[name].state == MachineState.LEAVING:
            job.machines[name].state = MachineState.ACTIVE


def _survivors(job: JobState) -> list[Worker]:
    """Living workers of the latest halt; a standby's further sets of workers do not count."""
    living = [job.workers[uid] for uid in job.living(job.involved)]
    return [each for each in living if each in job.machines[each.machine].workers[each.slot : each.slot + 1]]


# -- the decision ----------------------------------------------------------------------------------------------------


def decide(job: JobState) -> None:
    """Begin the recovery that the reports call for; if a machine has to come or start first, decide again later."""
    survivors, change = _survivors(job), job.interrupted
    if _has_ended(job, survivors):
        return
    settlement = _settlement(job, survivors, change)
    if settlement is None:
        return
    vacant_by_plan = spared(job, settlement, survivors)
    settlement = settlement.without(job.cells_of(vacant_by_plan), vacant_by_plan)
    if _stuck(job, settlement):
        return
    stopped = change is not None and change.stops_the_world
    vacant = () if stopped else to_vacate(job, settlement, survivors, vacant_by_plan)
    in_place = {worker.uid for worker in survivors if worker.report is not None and worker.report.able}
    if vacant:
        places = places_without(job, settlement, (*vacant, *vacant_by_plan))
    else:
        places = _find_machines(job, settlement, in_place)
        if not places.keys() >= set(settlement.missing):
            return  # one is starting, or has yet to come
    job.interrupted = None
    job.waiting = ""
    job.failed_before |= {(role, settlement.reached) for role in job.script_failures}
    job.script_failures.clear()
    job.deaths.update((cell, settlement.reached) for cell in settlement.missing)
    unasked = [each for each in (change, job.settling) if each is not None and each.item is None]
    if job.settling is not None and set(job.settling.leaving) & set(places.values()):  # it is undone, and queued again
        settling, job.settling = job.settling, None
        try_again(job, settling, job.halt_reason)
    announce(
        job,
        "decided",
        settlement.reason if vacant or not settlement.givers else settlement.reason + settlement.sources,
        step=settlement.step,
        missing=list(settlement.missing),
        roles=[role for cell in settlement.missing for role in job.roles_of(cell)],
        source=settlement.back or "replica",
        repeated=settlement.repeated,
    )
    job.status = JobStatus.RECOVERING
    recover = _recovery(job, settlement, places, vacant, vacant_by_plan, in_place)
    recover.copied = latest_copy(_reports(survivors), job.plan.roles, identical(job))
    _inherit_leavers(job, recover, change, unasked)
    job.change = recover
    enter(job, recover, Phase.REHEARSE)
    rehearse(job, recover.joiners)


def _has_ended(job: JobState, survivors: list[Worker]) -> bool:
    """End the job if a worker has made all steps already: the others finish."""
    done = any(job.workers[uid].done for uid in job.involved)
    if not done and not any(worker.report and worker.report.over for worker in survivors):
        return False
    if job.script_failures:
        fail(job, FailureCause.SCRIPT, next(iter(job.script_failures.values())))
    else:
        job.status = JobStatus.CLOSING
        for worker in survivors:
            tell(job, worker.uid, Finish())
    return True


def _reports(survivors: list[Worker]) -> list[Holder]:
    return [
        Holder(worker.uid, worker.machine, role, worker.report)
        for worker in survivors
        if worker.report is not None and (role := worker.role) is not None
    ]


def _settlement(job: JobState, survivors: list[Worker], change: Change | None) -> Settlement | None:
    """The step with which the job goes on, and the machines; None: the job begins anew or has failed."""
    if job.roster is None:
        _nothing_left(job, "no worker that is left holds any state")
        return None
    reports = _reports(survivors)
    holders = [holder for holder in reports if holder.report.holds]
    stopped = change is not None and change.stops_the_world
    coming, leaving = ([], []) if change is None else (list(change.places.values()), list(change.leaving))
    seated = [worker.machine for worker in job.roster.workers]
    unwanted = leaving if stopped else []
    cells = job.plan.cells
    try:
        settlement = settle(holders, cells, job.twins, [*coming, *seated], unwanted)
        free = sum(machine.name not in coming for machine in job.in_state(MachineState.STANDBY))
        missing = set(settlement.missing) - job.cells_of(spared(job, settlement, survivors))
        if not stopped and len(missing) > free:  # the leavers go on, and the machines that came can stand in
            settlement = settle(holders, cells, job.twins, [*leaving, *seated])
        return settlement
    except StateLost as error:
        lost, role = str(error), error.role
    able = [holder for holder in reports if holder.report.able]
    try:
        return fall_back(able, cells, identical(job), job.latest_checkpoint(), lost, [*coming, *seated], unwanted)
    except StateLost:
        _nothing_left(job, lost, role)
    return None


def _nothing_left(job: JobState, lost: str, role: int | None = None) -> None:
    held = [worker.report.step for worker in _survivors(job) if worker.report is not None and worker.report.holds]
    early = not job.begun or (held and max(held) <= FIRST_STEPS)
    if job.script_failures:
        fail(job, FailureCause.SCRIPT, next(iter(job.script_failures.values())))
    elif early and job.restarts < STUBBORN:
        _start_over(job, max(held, default=0))
    elif early:
        reason = f"{job.halt_reason}; the job has begun anew {STUBBORN} times and never made {FIRST_STEPS} steps"
        fail(job, FailureCause.DIED_AGAIN, reason)
    else:
        job.lost_role = role
        reason = f"{job.halt_reason}; {lost}, and there is no checkpoint; keep some with --checkpoint DIR"
        fail(job, FailureCause.STATE_LOST, reason)


def _start_over(job: JobState, reached: int) -> None:
    """Begin the job anew, since no step has been made, or so few that the roles have not compared their states."""
    job.restarts += 1
    few = f"the roles have not compared their states yet, {counted(reached, 'step')} made again"
    said = f"{few if reached else 'no step was made yet'}: all begin anew"
    announce(job, "decided", said, step=0, missing=[], source="start", repeated=reached)
    change, job.interrupted = job.interrupted, None
    if change is not None and change.item is not None:
        try_again(job, change, job.halt_reason)
    job.roster, job.status, job.waiting = None, JobStatus.FORMING, ""
    for known in (job.twins, job.alike, job.own, job.compared):
        known.clear()
    job.replica_cache = []
    for machine in job.in_state(MachineState.ACTIVE):
        if not quarantine_if_due(job, machine):
            renew(job, machine)
    job.missing_machines = len(job.plan.opening) - len(job.in_state(MachineState.ACTIVE))


def _stuck(job: JobState, settlement: Settlement) -> bool:
    """End the job if the same script fails twice in the same step, or the same cell dies there again and again."""
    for role, text in job.script_failures.items():
        if (role, settlement.reached) in job.failed_before:
            fail(job, FailureCause.SCRIPT, text)
            return True
    for cell in settlement.missing:
        if job.deaths[cell, settlement.reached] >= STUBBORN:
            text = f"{job.halt_reason}; {job.span(cell)} died {STUBBORN} times in step {settlement.reached}"
            fail(job, FailureCause.DIED_AGAIN, text)
            return True
    return False


def _find_machines(job: JobState, settlement: Settlement, in_place: set[str]) -> dict[int, str]:
    """Cell → the machine that goes on with it or takes it, for all cells that have one by now; if no standby is left
    for a cell, training waits or ends, as the plan says."""
    places, lacking = dict(settlement.kept), []
    for cell in settlement.missing:
        taken = set(places.values())
        machine = parked_machine(job, cell) or stand_in(job, cell, taken)
        if machine is None and not job.free_standbys(taken):
            machine = _own_machine(job, cell, taken, in_place)
            if machine is None:
                lacking.append(cell)
        if machine is not None and machine.whole:
            places[cell] = machine.name
    if lacking:
        _wait_for_machine(job, lacking)
    return places


def _own_machine(job: JobState, cell: int, taken: set[str], in_place: set[str]) -> Machine | None:
    """The machine that has had a cell, if only workers of it have died. Dead workers are started again, as are those
    that have not come to their first boundary."""
    if job.roster is None:
        return None
    names = {seat.machine for role in job.roles_of(cell) if (seat := job.roster.worker_of(role)) is not None}
    names |= {job.parked[cell]} if cell in job.parked else set()
    for machine in (job.machines[name] for name in sorted(names - taken)):
        if not sound(job, machine):
            continue
        for worker, role in zip(list(machine.workers), job.roles_of(cell), strict=True):
            fresh = worker.role is None or role in (worker.rehearsing, worker.rehearsed)
            if worker.alive and (fresh or worker.uid in in_place):
                continue
            if worker.alive:
                condemn(job, worker, "")
            machine.workers[worker.slot] = start_worker(job, machine, worker.slot)
        return machine
    return None


def _wait_for_machine(job: JobState, cells: list[int]) -> None:
    """Ask for machines and wait, or end the job, since no standby is left for these cells."""
    if not job.waiting:
        spans = " and ".join(job.span(cell) for cell in cells)
        job.waiting = f"{job.halt_reason}; no standby is left for {spans}"
        if job.plan.settings.recovery.no_standby == "stop":
            conclude_job(job, job.waiting)
            return
        job.waiting_since, job.refusals = job.now, 0
        announce(job, "waiting", f"{job.waiting}: training waits for one; add one with: understudy standby add")
    if not job.wanted and job.refusals < ATTEMPTS:
        want(job, len(cells))


def _recovery(
    job: JobState,
    settlement: Settlement,
    places: dict[int, str],
    vacant: tuple[int, ...],
    vacant_by_plan: tuple[int, ...],
    in_place: set[str],
) -> Change:
    workers = job.workers_of(places)
    joiners = {
        role: uid
        for role, uid in workers.items()
        if not vacant
        and job.plan.cells[role] in settlement.missing
        and (uid not in in_place or job.workers[uid].role != role)
    }
    return Change(
        Kind.RECOVER,
        places,
        joiners,
        step=settlement.step,
        givers={role: uids for role, uids in settlement.givers.items() if not vacant and workers[role] not in uids},
        copies=settlement.copies,
        vacant=tuple(sorted((*vacant, *vacant_by_plan))),
        spared=vacant_by_plan,
        back=settlement.back,
    )


def _inherit_leavers(job: JobState, recover: Change, change: Change | None, unasked: list[Change]) -> None:
    """Let the recovery do what interrupted changes were to do: their leavers go, if no cell needs them."""
    staying = set(recover.places.values())
    if change is not None and change.item is not None:
        if staying.isdisjoint(change.leaving):
            recover.item, recover.leaving = change.item, change.leaving
        else:
            try_again(job, change, job.halt_reason)
    elif names := {name for each in unasked if each.kind != Kind.REFILL for name in each.leaving}:
        recover.leaving = tuple(sorted(names - staying))
        recover.keep = any(each.keep for each in unasked)


# -- the way on ------------------------------------------------------------------------------------------------------


def resume(job: JobState, change: Change) -> None:
    """Have all workers open their links, hand state over and begin with the change's first step."""
    if change.back:
        forget_own(job, list(job.own))
    change.roster = next_roster(job, change.places, fresh=True, vacant=change.vacant)
    takers = job.workers_of(change.places)
    change.moves = tuple(
        move(job, role, giver, takers[role], part=part, parts=len(givers), copy_of=change.copies.get(role, -1))
        for role, givers in change.givers.items()
        for part, giver in enumerate(givers)
    )
    enter(job, change, Phase.OPEN)
    change.waiting = {each.giver.uid for each in change.moves}
    for role, seat in enumerate(change.roster.seats):
        if seat is not None:
            job.workers[seat].role = role
            change.waiting.add(seat)
    for uid in sorted(change.waiting):
        job.workers[uid].entered, job.workers[uid].parked = True, False
        tell(job, uid, Resume(change.roster, change.step, change.moves, change.back, change.copied))
    if change.vacant:
        park(job, change)


def conclude_job(job: JobState, why: str) -> None:
    """End the job with a checkpoint of the state that the survivors hold."""
    survivors = _survivors(job)
    settlement = _settlement(job, survivors, job.interrupted)
    if settlement is None or job.over:
        return
    if settlement.back:
        saved = job.latest_checkpoint()
        rest = "there is no checkpoint" if saved is None else continued_from(saved)
        fail(job, FailureCause.NO_MACHINE, f"{why}; {settlement.lost}; {rest}")
        return
    reached = {settlement.step: (True, False), settlement.step - 1: (True,)}
    tasks: dict[str, list[int]] = {
        worker.uid: []
        for worker in survivors
        if (report := worker.report) and report.holds and report.voted in reached.get(report.step, ())
    }
    for worker in survivors:
        if worker.role is not None and settlement.kept.get(job.plan.cells[worker.role]) == worker.machine:
            tasks[worker.uid].append(worker.role)
    for role, givers in settlement.givers.items():
        tasks[givers[0]].append(role)
    job.closing_reason, job.closing_step, job.closing_workers = why, settlement.step, set(tasks)
    job.status, job.waiting = JobStatus.CLOSING, ""
    for uid, roles in tasks.items():
        tell(job, uid, Conclude(settlement.step, tuple(roles)))
    job.closing_at = job.now

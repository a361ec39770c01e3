"""Signals: workers and machines that are dead, ill, late, or about to go. Every signal is judged in one place
(`judgement.py`)."""

from __future__ import annotations

from collections.abc import Iterable

from understudy.protocol.frames import Exited, Leaving
from understudy.protocol.messages import Halted, ScriptFailure, Stalled

from .actions import announce, condemn, dismiss, quarantine_if_due, record_failure, reply, want
from .change import Change, Phase, QueuedReplacement
from .ending import fail
from .events import Expired, Overdue, Replace, Slipping
from .failure import conclude_job, halt
from .forming import replace_founders
from .judgement import Situation, Source, Verdict, judge
from .machines import Machine, MachineState, Worker
from .planned import cancel
from .standbys import restaff
from .state import FailureCause, JobState, JobStatus
from .turns import deadlines, notice_id, replace_ill


def signal(
    job: JobState,
    source: Source,
    workers: list[Worker],
    why: str,
    *,
    dead: bool = True,
    trusted: bool = True,
    active: bool = False,
) -> Verdict:
    """Judge that these workers are dead or ill, and act; `active`: their machine, gone with them, was active."""
    uids = {worker.uid for worker in workers}
    situation = _situation(job, uids, dead=dead, trusted=trusted, active=active)
    verdict = judge(situation)
    announce(job, "signal", f"{why}: {verdict.reason}", source=source, act=verdict.act, workers=sorted(uids))
    if dead:
        job.unreported -= uids
    match verdict.act:
        case "fail":
            fail(job, FailureCause.START, f"{why} while the job was starting")
        case "note":
            job.halt_reason = why
            if situation.founding:
                replace_founders(job, workers)
        case "halt":
            halt(job, why)
        case "cancel":
            cancel(job, why)
        case "replace":
            replace_ill(job, {worker.machine for worker in workers})
        case "end":
            for worker in workers:
                condemn(job, worker, why)
            return signal(job, source, workers, why, active=active)
        case "nothing":
            pass
    for worker in workers if dead else ():
        restaff(job, worker)
    return verdict


def _situation(job: JobState, uids: set[str], *, dead: bool, trusted: bool, active: bool) -> Situation:
    change = job.change
    planned = change is not None and change.planned
    needed: set[str] = set()
    if change is not None and planned:
        needed = set(change.joiners.values()) | (change.waiting if change.phase == Phase.SWITCH else set())
    elif change is not None:
        givers = {uid for each in change.givers.values() for uid in each}
        needed = {*job.workers_of(change.places).values(), *givers} | job.seated(change)
    homes = [job.machines[job.workers[uid].machine] for uid in uids]
    active = active or any(machine.state == MachineState.ACTIVE for machine in homes)
    return Situation(
        job.status,
        dead,
        trusted,
        founding=job.status == JobStatus.FORMING and change is None and active,
        seated=bool(uids & job.seated(None)) and (change is None or planned or not dead),
        needed=bool(uids & needed),
        planned=planned,
        switching=change is not None and change.phase == Phase.SWITCH,
        standby=bool(job.free_standbys(set()))
        or all(machine.alive and machine.failures < job.plan.settings.recovery.quarantine for machine in homes)
        or bool(job.restarts and job.plan.settings.recovery.no_standby == "wait"),
    )


# -- machines and workers that are gone or ill -----------------------------------------------------------------------


def lose(job: JobState, machine: Machine, why: str, source: Source = "heartbeat") -> None:
    """A machine is gone with all its workers; if it still lives, the order to end fences it."""
    announce(job, "lost", f"{machine.name} is gone: {why}", machine=machine.name)
    dead = [worker for worker in machine.all_workers if worker.alive]
    active = machine.state == MachineState.ACTIVE
    if machine.notice is None:
        record_failure(job, machine, why)
    dismiss(job, machine, why, again=machine.notice is None)
    signal(job, source, dead, f"{machine.name} is gone: {why}", active=active)


def exited(job: JobState, worker: Worker, report: Exited) -> None:
    """A worker's process has ended."""
    worker.alive = False
    job.unreported.discard(worker.uid)
    machine = job.machines[worker.machine]
    if worker.done is not None or job.over:
        return
    how = f"was killed by signal {-report.code}" if report.code < 0 else f"ended with exit code {report.code}"
    needed = job.has_role(worker.uid)
    if report.code or needed:  # else it could not change its role, and another worker can
        record_failure(job, machine, f"{worker.uid} {how}")
    founder = machine.state == MachineState.ACTIVE and job.status == JobStatus.FORMING
    if report.code >= 0 and (founder or needed):
        said = report.words.strip().splitlines()
        words = f": {said[-1]}" if said else ""
        if report.code == 0 and not worker.holds:
            words = "; let the script call understudy.run(train)"
        text = f"{job.describe(worker)} {how} before the job was over{words}"
        if report.code == 0 or not worker.holds:
            how_it_failed: ScriptFailure = "no-train" if report.code == 0 and not worker.holds else "exits"
            fail(job, FailureCause.SCRIPT, text, how_it_failed)
        else:
            script_failed(job, worker, text, "exits")
        return
    announce(job, "died", f"{job.describe(worker)} {how}", machine=machine.name, uid=worker.uid)
    signal(job, "exit", [worker], f"{job.describe(worker)} {how}")


def script_failed(job: JobState, worker: Worker, text: str, script: ScriptFailure) -> None:
    """A script has failed in its role. Another worker tries the step once more; after a second failure there the
    script is at fault, and the job fails."""
    if worker.alive:
        condemn(job, worker, text)
    role = job.role_of(worker.uid)
    if role is None or not worker.holds:  # it has not come to its first step
        fail(job, FailureCause.SCRIPT, text, script)
        return
    job.script_failures[role] = text
    announce(job, "died", text, machine=worker.machine, uid=worker.uid, script=script)
    signal(job, "script", [worker], text)


def reported_ill(job: JobState, id: str, name: str, why: str, *, fatal: bool) -> None:
    """A health checker outside the job reports a fault of a machine."""
    machine = job.machines.get(name)
    if machine is None or not machine.alive:
        active = job.names_in(MachineState.ACTIVE)
        reply(job, id, False, f"there is no machine {name}; machines with roles: {active}")
        return
    record_failure(job, machine, why)
    machine.ill = True
    if machine.state == MachineState.STANDBY and name not in job.joining_machines():
        quarantine_if_due(job, machine)
        reply(job, id, True, f"{name} is a standby; it is in quarantine now")
        return
    early = machine.state == MachineState.STANDBY and job.pending()  # it would have to leave as soon as it has joined
    living = [worker for worker in machine.workers if worker.alive]
    verdict = signal(job, "checker", living, f"{name} is ill: {why}", dead=False, trusted=not (fatal or early))
    reply(job, id, True, verdict.reason, act=verdict.act)


# -- workers that halt, wait, or do not answer -----------------------------------------------------------------------


def halted(job: JobState, worker: Worker, message: Halted) -> None:
    """A worker has halted: by itself (number 0), because it noticed a failure, or because the controller asked."""
    if message.how == "mismatch":
        text = f"{job.describe(worker)} in step {message.step}: {message.reason}"
        fail(job, FailureCause.DISAGREEMENT, text, "collectives")
    elif message.number == 0:
        begun = job.status == JobStatus.FORMING and job.change is not None
        if job.status in (JobStatus.TRAINING, JobStatus.RECOVERING) or begun:
            why = message.reason or f"{job.describe(worker)} has noticed a failure"
            late = _suspects(job) if message.how == "timeout" else []
            announce(job, "signal", why, source="limit" if message.how == "timeout" else "link", act="halt")
            halt(job, why)
            give_up_on(job, late, "keeps the others waiting")
    elif message.number == job.halts and job.status == JobStatus.HALTING:
        worker.report = message
        worker.holds = message.holds
        job.unreported.discard(worker.uid)


def stalled(job: JobState, worker: Worker, message: Stalled) -> None:
    """A worker has waited for long in one operation, or waits no longer. The job fails if all workers wait and each in
    an operation that the others are not in: the script's roles disagree."""
    worker.stalled = message if message.roles else None
    if job.status != JobStatus.TRAINING or job.roster is None:
        return
    seats = {role: job.workers[uid] for role, uid in enumerate(job.roster.seats) if uid is not None}
    places: dict[int, Stalled] = {}
    for role, worker in seats.items():
        if worker.stalled is None or worker.stalled.generation != job.roster.generation:
            return
        places[role] = worker.stalled
    for place in places.values():
        mates = [places[role] for role in place.roles if role in places]
        if all(mate.number == place.number and mate.roles == place.roles for mate in mates):
            return  # these are in the same operation: it is only slow
    first = next(iter(places))
    other = next(role for role in places[first].roles if role in places and places[role] != places[first])
    here, there = (f"{job.describe(seats[role])} {places[role].what}" for role in (first, other))
    rule = "all roles must run the same steps and call the same operations in the same order"
    fail(job, FailureCause.DISAGREEMENT, f"{here}, while {there}: {rule}", "collectives")


def _suspects(job: JobState) -> list[str]:
    """Workers that do not wait while others wait for long: the others wait for them."""
    if job.roster is None:
        return []
    seats = [uid for uid in job.roster.seats if uid is not None]
    waiting = {
        uid
        for uid in seats
        if (place := job.workers[uid].stalled) is not None and place.generation == job.roster.generation
    }
    return [uid for uid in job.living(seats) if uid not in waiting] if waiting else []


def give_up_on(job: JobState, uids: Iterable[str], why: str) -> None:
    """End workers that may live but do not answer or come along."""
    workers = [job.workers[uid] for uid in job.living(uids)]
    said = {worker.uid: f"{job.describe(worker)} {why}" for worker in workers}
    for worker in workers:
        announce(job, "died", f"{said[worker.uid]}; it is ended", machine=worker.machine, uid=worker.uid)
        condemn(job, worker, why)
    if workers:
        signal(job, "limit", workers, ", ".join(said.values()))
        change = job.change
        if change is not None and change.phase == Phase.CANCEL:
            change.waiting -= set(said)


# -- notices: machines that will go at a given time, and are replaced before that if possible ------------------------


def notified(job: JobState, machine: Machine, leaving: Leaving) -> None:
    """A machine reports that it goes soon."""
    if machine.notice is not None:
        return
    machine.notice, machine.why = job.now + leaving.seconds, leaving.why
    said = f"{machine.name} goes in {leaving.seconds:g} s: {leaving.why}"
    announce(job, "notice", said, machine=machine.name, seconds=leaving.seconds)
    heed_notices(job)


def heed_notices(job: JobState) -> None:
    """Drain active machines that have to go, and dismiss the others."""
    for machine in [machine for machine in job.machines.values() if machine.notice is not None]:
        if machine.state in (MachineState.STANDBY, MachineState.QUARANTINED):
            _let_go(job, machine)
        elif machine.state in (MachineState.ACTIVE, MachineState.LEAVING):
            _drain(job, machine)


def _let_go(job: JobState, machine: Machine) -> None:
    """Dismiss a standby, unless it is needed; during a halt it may hold state that others have lost."""
    joins = machine.name in job.joining_machines()
    if job.status in (JobStatus.HALTING, JobStatus.RECOVERING) or (joins and not job.pending()):
        return
    living = [worker for worker in machine.all_workers if worker.alive]
    announce(job, "machine", f"{machine.name} is dismissed", machine=machine.name)
    dismiss(job, machine, machine.why)
    signal(job, "agent", living, f"{machine.name} goes: {machine.why}")


def _drain(job: JobState, machine: Machine) -> None:
    """Queue the replacement of a machine that has to go, and ask for a standby if there is none."""
    if any(machine.name in item.request.machines and item.forced for item in job.queue):
        return
    lacking = len(job.free_standbys(job.joining_machines())) + job.wanted <= len(job.queue)
    request = Replace((machine.name,), by=machine.notice, why=machine.why)
    job.queue.append(QueuedReplacement(notice_id(machine), request, forced=True))
    if not lacking or machine.state != MachineState.ACTIVE:
        return
    then = "training waits for one then"
    if job.plan.settings.masking.mask:
        then = "its replica is given up then, and training goes on with the others"
    said = f"{machine.name} goes, and no standby is free: without one, {then}"
    announce(job, "late", said, machine=machine.name)
    if job.plan.settings.recovery.no_standby != "stop":
        want(job, 1)


def time_is_up(job: JobState, machine: Machine) -> None:
    """The time of a notice has come; nothing is to be done if the machine's place is as good as taken."""
    change = job.change
    going = change is not None and machine.name in change.leaving and change.phase in (Phase.ARMED, Phase.SWITCH)
    seated = job.roster is not None and machine.name in job.homes()
    left = machine.state == MachineState.LEAVING and not seated
    if not going and not left:
        lose(job, machine, f"its time was up: {machine.why}", "agent")


# -- time limits -----------------------------------------------------------------------------------------------------


def due(job: JobState) -> list[tuple[float, Overdue | Slipping | Expired]]:
    """All limits and deadlines that run, with the time at which each passes."""
    if job.over:
        return []
    settings, change = job.plan.settings, job.change
    job.starting = {uid: each for uid, each in job.starting.items() if each.alive and each.address is None}
    found: list[tuple[float, Overdue | Slipping | Expired]] = [*deadlines(job)]
    for uid, each in job.starting.items():
        found.append((each.started + settings.standbys.rehearsal_limit, Expired("start", int(uid[1:]))))
    if job.status == JobStatus.HALTING and job.unreported:
        found.append((job.halted_at + settings.recovery.answer_limit, Expired("answer", job.halts)))
    elif job.waiting and (
        job.status == JobStatus.HALTING or (job.status == JobStatus.FORMING and job.missing_machines)
    ):
        found.append((job.waiting_since + settings.recovery.patience, Expired("patience", job.halts)))
    if job.closing_at:
        found.append((job.closing_at + settings.comm.limit, Expired("end", job.halts)))
    if change is None:
        return found
    if change.phase == Phase.REHEARSE:
        ends = change.clock["rehearse"] + settings.standbys.rehearsal_limit
        found.append((ends, Expired("rehearse", _attempt(job, change))))
    elif change.phase == Phase.CANCEL:
        found.append((change.clock["cancel"] + settings.recovery.answer_limit, Expired("cancel", change.generation)))
    elif not change.planned and "open" in change.clock:
        found.append((change.clock["open"] + settings.comm.limit, Expired("switch", change.generation)))
    return found


def _attempt(job: JobState, change: Change) -> int:
    """A number that tells the rehearsals of this change from those of every other one."""
    return job.halts * 1000 + job.generations * 10 + (0 if change.item is None else change.item.attempts)


def expired(job: JobState, event: Expired) -> None:
    """A time limit has passed; it means nothing if what it belongs to is over."""
    settings, change, number = job.plan.settings, job.change, event.number
    match event.what:
        case "start":
            late = job.workers[f"w{number}"]
            if late.alive and late.address is None:
                give_up_on(job, [late.uid], f"has not come for {settings.standbys.rehearsal_limit:g} s")
        case "answer" if job.status == JobStatus.HALTING and number == job.halts:
            give_up_on(job, job.unreported, f"has not answered for {settings.recovery.answer_limit:g} s")
        case "patience" if job.status == JobStatus.HALTING and number == job.halts and job.waiting:
            conclude_job(job, f"{job.waiting}, and none has come in {settings.recovery.patience:g} s")
        case "patience" if job.status == JobStatus.FORMING and job.missing_machines:
            fail(job, FailureCause.NO_MACHINE, f"{job.waiting}, and none has come in {settings.recovery.patience:g} s")
        case "end" if job.status in (JobStatus.TRAINING, JobStatus.CLOSING) and job.roster is not None:
            awaited = job.closing_workers if job.closing_reason else job.seated(None)
            late_ones = [uid for uid in awaited if job.workers[uid].done is None]
            give_up_on(job, late_ones, f"has not ended within {settings.comm.limit:g} s after the others")
        case "rehearse" | "cancel" | "switch" if change is not None:
            _change_expired(job, change, event)
        case _:
            pass


def _change_expired(job: JobState, change: Change, event: Expired) -> None:
    settings = job.plan.settings
    if event.what == "rehearse" and change.phase == Phase.REHEARSE and event.number == _attempt(job, change):
        slow = [uid for role, uid in change.joiners.items() if job.workers[uid].rehearsed != role]
        give_up_on(job, slow, f"has rehearsed for {settings.standbys.rehearsal_limit:g} s")
    elif event.what == "cancel" and change.phase == Phase.CANCEL and event.number == change.generation:
        give_up_on(job, change.waiting, f"has not answered for {settings.recovery.answer_limit:g} s")
    elif event.what == "switch" and event.number == change.generation and not change.planned:
        takers = {move.taker.uid for move in change.moves}
        slow = [uid for uid in change.waiting if uid not in takers]
        if slow:
            give_up_on(job, slow, f"has not come to the boundary within {settings.comm.limit:g} s")
        else:  # a worker that hangs does not answer the halt
            halt(job, f"the hand-over took longer than {settings.comm.limit:g} s")

"""The acts that all stories share: speak to workers, start and end them, announce, answer, and move machines between
states."""

from __future__ import annotations

from collections.abc import Iterable

from understudy.protocol.frames import Dismiss, EndWorker, Order, StartWorker, Tell
from understudy.protocol.messages import Move, ToWorker
from understudy.protocol.provisioning import ReleaseMachine, StartMachines
from understudy.protocol.roster import Roster, WorkerAddress

from .change import Change, Phase
from .effects import Announcement, AnnouncementKind, Reply
from .machines import Machine, MachineState, Worker
from .state import JobState


class UnexpectedEvent(Exception):
    """An event that the protocol rules out came; the message shows the latest events."""

    def __init__(self, job: JobState, what: str) -> None:
        super().__init__(f"{what}; the latest events: {job.tell_story()}")
        self.what = what


def tell(job: JobState, uid: str, message: ToWorker) -> None:
    """Send a message to a worker, if it lives."""
    worker = job.workers[uid]
    if worker.alive:
        order(job, job.machines[worker.machine], Tell(uid, message))


def order(job: JobState, machine: Machine, what: Order) -> None:
    """Send an order to a machine's agent."""
    machine.outbox.put(what)
    job.addressed[machine.name] = None


def announce(job: JobState, kind: AnnouncementKind, text: str, /, **data: object) -> None:
    job.effects.append(Announcement(kind, text, job.now, data))


def reply(job: JobState, id: str, ok: bool, text: str, **data: object) -> None:
    """Answer a request; what the controller wants by itself has no id and gets no answer."""
    if id:
        job.answers[id] = Reply(id, ok, text, job.now, data)
        job.effects.append(job.answers[id])


def want(job: JobState, count: int) -> None:
    """Ask for more machines, as standbys."""
    job.wanted += count
    announce(job, "wanted", f"{count} standby machine{'s' if count > 1 else ''} wanted", count=count)
    job.effects.append(StartMachines(count, job.now))


def start_worker(job: JobState, machine: Machine, slot: int) -> Worker:
    worker = Worker(f"w{len(job.workers)}", machine.name, slot, started=job.now)
    job.workers[worker.uid] = job.starting[worker.uid] = worker
    order(job, machine, StartWorker(worker.uid, slot))
    return worker


def end_workers(job: JobState, workers: Iterable[Worker]) -> None:
    for worker in workers:
        if worker.alive:
            worker.alive = False
            order(job, job.machines[worker.machine], EndWorker(worker.uid))
        job.unreported.discard(worker.uid)


def condemn(job: JobState, worker: Worker, why: str) -> None:
    """End a worker that may still live; its later messages are ignored."""
    machine = job.machines[worker.machine]
    order(job, machine, EndWorker(worker.uid))
    worker.alive = False
    if why:
        record_failure(job, machine, why)


def renew(job: JobState, machine: Machine) -> None:
    """Start a machine's workers anew, because the state they hold is not wanted."""
    machine.rehearsal_seconds.clear()
    for worker in list(machine.workers):
        if worker.alive:
            order(job, machine, EndWorker(worker.uid))
        worker.alive = False
        machine.workers[worker.slot] = start_worker(job, machine, worker.slot)


def activate(job: JobState, machine: Machine) -> None:
    """Make a machine active. It keeps one set of workers, which have roles or will have them."""
    machine.state = MachineState.ACTIVE
    end_workers(job, (worker for workers in machine.warm_sets for worker in workers))
    machine.warm_sets.clear()


def record_failure(job: JobState, machine: Machine, why: str) -> None:
    machine.history.append((job.now, why))


def quarantine_if_due(job: JobState, machine: Machine) -> bool:
    """Put a machine that is ill or fails too often into quarantine; returns whether it is there."""
    if machine.failures < job.plan.settings.recovery.quarantine and not machine.ill:
        return False
    last = machine.history[-1][1]
    why = last if machine.ill else f"{machine.failures} failures, the last one: {last}"
    announce(job, "quarantined", f"{machine.name} is in quarantine: {why}", machine=machine.name)
    machine.state, machine.why = MachineState.QUARANTINED, why
    end_workers(job, machine.all_workers)
    machine.workers.clear()
    machine.warm_sets.clear()
    return True


def dismiss(job: JobState, machine: Machine, reason: str, *, again: bool = False) -> None:
    """End an agent and its workers; `again`: the agent may register anew."""
    order(job, machine, Dismiss(reason, again))
    machine.state, machine.why = MachineState.GONE, reason
    for worker in machine.all_workers:
        worker.alive = False


def release(job: JobState, machine: Machine, change: Change | None = None) -> None:
    """Give a machine back that has lost its roles by plan."""
    request = "" if change is None else change.request
    announce(job, "released", f"{machine.name} is released", machine=machine.name, change=request)
    job.effects.append(ReleaseMachine(machine.name, job.now))
    replaced = change is not None and (change.item is not None or change.kind == "refill")
    dismiss(job, machine, "it was replaced" if replaced else "fewer replicas are wanted")


def retire(job: JobState, machine: Machine) -> None:
    """Make a machine without roles a standby once the others have made their next step: its workers would start and
    rehearse beside that step."""
    machine.state = MachineState.LEAVING
    job.retired.append(machine.name)


def stand_by(job: JobState, machine: Machine) -> None:
    """Make a machine that has given its roles away a standby."""
    job.retired.append(machine.name)
    recycle(job)


def recycle(job: JobState) -> None:
    """Make retired machines standbys; a machine that has to go anyway is dismissed."""
    retired, job.retired = [job.machines[name] for name in job.retired], []
    for machine in retired:
        if machine.state != MachineState.LEAVING or job.over:
            continue
        if machine.notice is not None:
            dismiss(job, machine, "it had to leave")
        elif not quarantine_if_due(job, machine):
            machine.state = MachineState.STANDBY
            announce(job, "machine", f"{machine.name} is a standby again", machine=machine.name)
            renew(job, machine)


def next_roster(job: JobState, places: dict[int, str], *, fresh: bool, vacant: Iterable[int] = ()) -> Roster:
    """The roster in which these machines take these cells, and no worker has the vacant roles."""
    job.generations += 1
    workers: dict[int, WorkerAddress | None]
    workers = {role: job.workers[uid].address for role, uid in job.workers_of(places).items()}
    workers |= dict.fromkeys(vacant)
    if job.roster is None:
        pairs = [(role, worker.uid) for role, worker in workers.items() if worker is not None]
        listed = [worker for worker in workers.values() if worker is not None]
        return Roster.of(job.generations, pairs, listed, roles=job.plan.roles, cells=job.plan.cells)
    return job.roster.successor(workers, generation=job.generations, fresh=fresh)


def move(job: JobState, role: int, giver: str, taker: str, *, part: int = 0, parts: int = 1, copy_of: int = -1) -> Move:
    """The hand-over of a role's state, or of one part of it."""
    source, target = job.workers[giver].address, job.workers[taker].address
    assert source is not None
    assert target is not None
    return Move(role, source, target, part, parts, copy_of)


def enter(job: JobState, change: Change, phase: Phase) -> None:
    """Bring a change into its next phase."""
    if not change.may_enter(phase):
        raise UnexpectedEvent(job, f"a change of kind {change.kind} cannot go from {change.phase} to {phase}")
    change.phase = phase
    mark(job, change, phase)


def mark(job: JobState, change: Change, what: str) -> None:
    """Note and announce when something began in a change."""
    change.clock[str(what)] = job.now
    announce(job, "phase", str(what), change=change.request, generation=change.generation, phase=str(what))

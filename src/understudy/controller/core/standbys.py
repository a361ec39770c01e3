"""Standbys: which one takes a place, what they rehearse before they are needed, and what they rehearse with."""

from __future__ import annotations

from collections import Counter

from understudy.protocol.frames import KeepCopy
from understudy.protocol.messages import Recorded, Rehearse
from understudy.protocol.provisioning import ReleaseMachine
from understudy.protocol.roster import Roster

from .actions import announce, dismiss, end_workers, order, quarantine_if_due, renew, reply, start_worker, tell, want
from .change import Phase
from .machines import Machine, MachineState, Worker, fits, ready, unused, warmth
from .state import JobState, JobStatus

# -- requests --------------------------------------------------------------------------------------------------------


def add(job: JobState, id: str, count: int) -> None:
    if count < 1:
        reply(job, id, False, f"{count} standbys cannot be added; ask for at least one")
        return
    want(job, count)
    reply(job, id, True, f"{count} more asked for")


def remove(job: JobState, id: str, name: str, why: str) -> None:
    machine = job.machines.get(name)
    if machine is None or machine.state != MachineState.STANDBY:
        reply(job, id, False, f"{name} is not a standby; standbys: {job.names_in(MachineState.STANDBY)}")
    elif name in job.joining_machines():
        reply(job, id, False, f"{name} is about to take roles; wait until the replacement is over")
    else:
        dismiss(job, machine, why)
        announce(job, "released", f"{name} is dismissed", machine=name)
        job.effects.append(ReleaseMachine(name, job.now))
        reply(job, id, True, f"{name} is dismissed")


def readmit(job: JobState, id: str, name: str) -> None:
    """Make a machine in quarantine a standby again, as an operator asks."""
    machine = job.machines.get(name)
    if machine is None or machine.state != MachineState.QUARANTINED:
        there = job.names_in(MachineState.QUARANTINED)
        reply(job, id, False, f"{name} is not in quarantine; machines that are: {there}")
        return
    machine.state, machine.ill, machine.pardoned, machine.why = MachineState.STANDBY, False, len(machine.history), ""
    announce(job, "machine", f"{name} is out of quarantine and a standby", machine=name)
    machine.workers = [start_worker(job, machine, slot) for slot in range(job.plan.nproc)]
    reply(job, id, True, f"{name} is a standby again")


# -- taking a place --------------------------------------------------------------------------------------------------


def stand_in(job: JobState, cell: int, taken: set[str], named: str = "") -> Machine | None:
    """A standby for a cell; None: none is ready yet. If no living standby could ever take it, one is started anew."""
    found = suitable(job, cell, taken, named)
    free = job.free_standbys(taken, named)
    if found is None and free and all(machine.whole for machine in free):
        renew(job, free[0])
    return found


def suitable(job: JobState, cell: int, taken: set[str], named: str = "") -> Machine | None:
    """A standby that can take a cell, preferably one that has rehearsed it. Its set of workers that can is brought
    forward."""
    roles = job.roles_of(cell)
    found = [
        (machine, workers)
        for machine in job.free_standbys(taken, named)
        for workers in machine.sets
        if fits(workers, roles) and not any(worker.holds for worker in machine.workers)
    ]
    if not found:
        return None
    machine, workers = max(found, key=lambda pair: warmth(pair[1], roles))
    machine.bring_forward(workers)
    return machine


def expected(job: JobState) -> int:
    """Number of standbys that are here, or will be."""
    here = sum(machine.notice is None for machine in job.in_state(MachineState.STANDBY))
    return here + job.wanted + len(job.retired)


def claimed(job: JobState) -> int:
    """Number of expected standbys that earlier requests take and do not give back."""
    items = [item for item in job.queue if not item.request.keep]
    found = sum(len(item.request.machines) for item in items)
    if job.change is not None:
        states = [job.machines[name].state for name in job.change.places.values()]
        found += states.count(MachineState.STANDBY)
        if job.change.item is not None and job.change.item.request.keep:
            found -= len(job.change.leaving)
    return found


def restaff(job: JobState, worker: Worker) -> None:
    """Start a standby's dead worker again, until the machine has failed too often."""
    machine = job.machines[worker.machine]
    if machine.state != MachineState.STANDBY or job.over:
        return
    for workers in [workers for workers in machine.warm_sets if worker in workers]:
        end_workers(job, workers)
        machine.warm_sets.remove(workers)
    change = job.change
    joins = change is not None and change.phase != Phase.CANCEL and machine.name in change.places.values()
    if worker not in machine.workers or joins:
        return
    if not quarantine_if_due(job, machine):
        machine.rehearsal_seconds.clear()
        machine.workers[worker.slot] = start_worker(job, machine, worker.slot)


# -- rehearsing ------------------------------------------------------------------------------------------------------


def rehearse(job: JobState, joiners: dict[int, str]) -> None:
    """Have joiners rehearse their roles, unless they have; those that run the script for it do so together."""
    asked = {
        role: job.workers[uid]
        for role, uid in joiners.items()
        if role not in (job.workers[uid].rehearsed, job.workers[uid].rehearsing)
    }
    cold = {role: worker.address for role, worker in asked.items() if not ready(worker, role)}
    addresses = {role: address for role, address in cold.items() if address is not None}
    together = None
    if len(addresses) > 1:
        job.generations += 1
        seats = [(role, address.uid) for role, address in addresses.items()]
        there, plan = list(addresses.values()), job.plan
        together = Roster.of(job.generations, seats, there, roles=plan.roles, cells=plan.cells)
    for role, worker in asked.items():
        worker.role, worker.rehearsing, worker.rehearsed, worker.also = role, role, None, ()
        tell(job, worker.uid, Rehearse(role, recording(job, role, worker), together if role in cold else None))


def recording(job: JobState, role: int, worker: Worker) -> Recorded | None:
    """The recording of this role or of a twin, on a machine that is still here."""
    near = job.machines[worker.machine].place
    found = (job.recordings.found(other, job.is_here, near) for other in (role, *job.alike.get(role, ())))
    return next(filter(None, found), None)


# -- before they are needed ------------------------------------------------------------------------------------------


def anticipate(job: JobState) -> None:
    """Have the next joiners rehearse while a change is under way, and other standbys what may be needed one day."""
    if job.status != JobStatus.TRAINING:
        return
    job.line_up()
    taken, homes = job.joining_machines(), job.homes()
    for item in job.queue:
        for number, name in enumerate(item.request.machines):
            cell = homes.get(name)
            named = item.request.standbys[number] if item.request.standbys else ""
            machine = None if cell is None else suitable(job, cell, taken, named)
            if cell is not None and machine is not None:
                taken.add(machine.name)
                rehearse(job, job.workers_of({cell: machine.name}))
    if job.settling is None and not _recording_under_way(job):
        _warm_up(job, taken)
        if job.change is None and job.recordings:
            _keep_copies(job)


def _keep_copies(job: JobState) -> None:
    """Have recordings copied, so that they outlive the machines that made them."""
    staying = [machine for machine in job.machines.values() if machine.notice is None]
    standbys = [machine.place for machine in staying if machine.state == MachineState.STANDBY]
    others = [machine.place for machine in staying if machine.state == MachineState.ACTIVE]
    for (name, _), recorded in job.recordings.to_copy(standbys, others, job.is_here):
        order(job, job.machines[name], KeepCopy(recorded))


def _recording_under_way(job: JobState) -> bool:
    """Whether the roles that record their first steps are still recording."""
    if not job.plan.records or job.roster is None or job.roster.generation > 1:
        return False
    known: set[int] = set()
    for role, twins in sorted(job.alike.items()):
        if role in known:
            continue
        if role not in job.recordings:  # the first of its kind
            return True
        known.update(twins)
    return False


def _warm_up(job: JobState, taken: set[str]) -> None:
    """Have standbys rehearse each kind of cell once, and then the cell in which they wait: if possible, each standby
    in a cell of its own."""
    idle = job.free_standbys(taken) if job.plan.settings.standbys.warm else []
    if not idle:
        return
    kinds = _kinds(job)
    homes: Counter[int] = Counter()
    restless: list[tuple[Machine, list[Worker]]] = []
    for machine in idle:
        is_warm = all(worker.alive and worker.rehearsed is not None for worker in machine.all_workers)
        if is_warm and len(machine.sets) < min(job.plan.settings.standbys.warm, job.plan.machines):
            machine.warm_sets.append([start_worker(job, machine, slot) for slot in range(job.plan.nproc)])
        for workers in filter(unused, machine.sets):
            cells = {job.plan.cells[worker.rehearsed] for worker in workers if worker.rehearsed is not None}
            in_one_cell = len(cells) == 1 and all(worker.rehearsed is not None for worker in workers)
            stays = workers is not machine.workers or any(worker.fixed for worker in workers)
            if in_one_cell and (stays or not _unknown(machine, kinds)):
                homes.update(cells)
            else:
                restless.append((machine, workers))
    for machine, workers in restless:
        home = _home(job, machine, workers, kinds, homes)
        homes[home] += 1
        ahead = [kind[0] for kind in _unknown(machine, kinds) if home not in kind]
        cell = ahead[0] if ahead and workers is machine.workers else home
        if not any(worker.rehearsing is not None for worker in workers):
            rehearse(job, {role: worker.uid for role, worker in zip(job.roles_of(cell), workers, strict=True)})


def _unknown(machine: Machine, kinds: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The kinds of cells that a machine's workers have not rehearsed."""
    return [kind for kind in kinds if not machine.rehearsal_seconds.keys() & set(kind)]


def _home(
    job: JobState, machine: Machine, workers: list[Worker], kinds: list[tuple[int, ...]], homes: Counter[int]
) -> int:
    """The cell in which these workers are to wait: of the kind with the fewest standbys for its size."""
    for worker in workers:
        if worker.fixed and worker.rehearsed is not None:
            return job.plan.cells[worker.rehearsed]
    others = {cell for each in machine.sets if each is not workers for cell in _coverage(job, each)}
    ranked = []
    for kind in kinds:
        crowd = sum(homes[each] for each in kind) / len(kind)
        ranked.append(min((cell in others, crowd, homes[cell], -len(kind), cell) for cell in kind))
    return min(ranked)[-1]


def _kinds(job: JobState) -> list[tuple[int, ...]]:
    """Cells whose roles are twins, one by one: their workers run the same program on the same shapes."""
    kinds: list[list[int]] = []
    likely: dict[int, list[tuple[list[int], list[set[int]]]]] = {}
    """Role → kinds whose first role is its twin, with the twins of each role of the kind's first cell."""
    for cell, roles in sorted(job.plan.roles_in.items()):
        for kind, twins in likely.get(roles[0], ()):
            if all(role in same for role, same in zip(roles, twins, strict=True)):
                kind.append(cell)
                break
        else:
            new, twins = [cell], [set(job.alike.get(role, ())) for role in roles]
            kinds.append(new)
            for twin in twins[0]:
                likely.setdefault(twin, []).append((new, twins))
    return [tuple(kind) for kind in kinds]


def _coverage(job: JobState, workers: list[Worker]) -> set[int]:
    """The cells that these workers could take at once, or will be able to take after their rehearsal."""
    going = {job.plan.cells[worker.rehearsing] for worker in workers if worker.rehearsing is not None}
    known = {job.plan.cells[role] for role in (workers[0].rehearsed, *workers[0].also) if role is not None}
    return going | {cell for cell in known if all(map(ready, workers, job.roles_of(cell)))}

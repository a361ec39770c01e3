"""Masking: training goes on without a lost replica, and the replica is refilled later, beside training."""

from __future__ import annotations

from collections.abc import Iterable

from understudy.masking.policy import MaskOptions, choose
from understudy.protocol.messages import Park

from .actions import announce, enter, recycle, retire, start_worker, tell, want
from .change import Change, Kind, Phase
from .machines import Machine, MachineState, Worker, ready
from .replicas import bundles, known, occupant, replicas, risk, surplus, target, whole, wiped_out
from .settlement import Settlement
from .standbys import rehearse, stand_in, suitable
from .state import ATTEMPTS, STUBBORN, JobState


def spared(job: JobState, settlement: Settlement, survivors: list[Worker]) -> tuple[int, ...]:
    """Roles that are vacant by plan and stay vacant. Replicas that have just left come back if others are lost."""
    vacant = set(job.vacant())
    if not vacant or not known(job):
        return tuple(sorted(vacant))
    all_replicas, gone, idle = replicas(job), _gone(job, settlement, survivors), surplus(job)
    room = sum(vacant.isdisjoint(roles) and not gone.isdisjoint(roles) for roles in all_replicas)
    found: list[int] = []
    for bundle in filter(idle.issuperset, bundles(job)):
        roles = [role for number in bundle for role in all_replicas[number]]
        cells = job.cells_of(roles)
        if settlement.kept.keys() >= cells and len(bundle) <= room and vacant.issuperset(roles):
            room -= len(bundle)
        elif vacant.issuperset(roles) or (settlement.back and cells.isdisjoint(settlement.kept)):
            found += roles
    return tuple(sorted(found))


def _gone(job: JobState, settlement: Settlement, survivors: list[Worker]) -> set[int]:
    """Roles of cells that need a machine, unless a survivor on the cell's own machine could go on with them."""
    sound = {
        (worker.role, worker.machine)
        for worker in survivors
        if (report := worker.report) is not None and report.holds and report.step + report.voted >= settlement.step
    }
    return {
        role
        for cell in settlement.missing
        for role in job.roles_of(cell)
        if (machine := occupant(job, cell)) is None or (role, machine.name) not in sound
    }


def to_vacate(
    job: JobState, settlement: Settlement, survivors: list[Worker], spared: tuple[int, ...]
) -> tuple[int, ...]:
    """The further roles without which training goes on; none: machines take them first."""
    if not job.plan.settings.masking.mask or not settlement.missing or settlement.back or not job.begun:
        return ()
    gone = _gone(job, settlement, survivors)
    roles = tuple(sorted(role for replica in replicas(job) if not gone.isdisjoint(replica) for role in replica))
    steps = sorted(each.report.usual for each in survivors if each.report is not None and each.report.usual)
    usual = steps[len(steps) // 2] if steps else 0.0
    choice = choose(_options(job, settlement, (*roles, *spared), usual))
    missing = " and ".join(job.span(cell) for cell in settlement.missing)
    said = f"{choice.act}: {missing}: {choice.reason}"
    if (job.halts, said) != job.announced_choice:  # the choice is made again with every event until it is carried out
        job.announced_choice = (job.halts, said)
        announce(job, "policy", said, act=choice.act)
    return roles if choice.act == "mask" else ()


def _options(job: JobState, settlement: Settlement, roles: tuple[int, ...], usual: float) -> MaskOptions:
    """The facts by which to choose between these roles being vacant and machines taking the missing cells."""
    live = whole(job, roles)
    taken: set[str] = set()
    at_once = True
    for cell in settlement.missing:
        machine = parked_machine(job, cell) or suitable(job, cell, taken)
        at_once = at_once and machine is not None and all(map(ready, machine.workers, job.roles_of(cell)))
        taken |= set() if machine is None else {machine.name}
    needed = sum(parked_machine(job, cell) is None for cell in settlement.missing)
    size = max(job.sizes.get(role, 0) for cell in settlement.missing for role in job.roles_of(cell))
    return MaskOptions(
        replicas=len(replicas(job)),
        live=len(live),
        ready=at_once,
        coming=len(job.free_standbys(set())) >= needed,
        hand_over=0.1 + size / job.rate,
        step=usual,
        lost=wiped_out(job, live) if live else "",
        enough=len(live) >= target(job),
        reluctant=job.plan.settings.recovery.no_standby == "shrink",
    )


def places_without(job: JobState, settlement: Settlement, vacant: tuple[int, ...]) -> dict[int, str]:
    """Cell → its machine, for all cells that are not vacant as a whole."""
    places, without = {}, set(vacant)
    for cell, roles in sorted(job.plan.roles_in.items()):
        if not without.issuperset(roles):
            machine = occupant(job, cell)
            places[cell] = settlement.kept[cell] if machine is None or cell in settlement.kept else machine.name
    return places


def parked_machine(job: JobState, cell: int) -> Machine | None:
    """The machine whose workers have parked in this cell, if all of them live."""
    machine = occupant(job, cell)
    if machine is None or not machine.whole or not any(worker.parked for worker in machine.workers):
        return None
    here = all(worker.role == role for worker, role in zip(machine.workers, job.roles_of(cell), strict=True))
    return machine if here else None


def park(job: JobState, change: Change) -> None:
    """Have the living workers of vacant roles wait in their roles."""
    for cell in sorted(job.cells_of(change.vacant)):
        place = change.places.get(cell)  # perhaps a leaver, which goes on in its cell
        machine = occupant(job, cell) if place is None else job.machines[place]
        if machine is None:
            job.parked.pop(cell, None)
            continue
        if set(job.roles_of(cell)) <= set(change.vacant):
            job.parked[cell] = machine.name
        for worker, role in zip(machine.workers, job.roles_of(cell), strict=True):
            able = worker.alive and worker.report is not None and worker.report.able and worker.role == role
            if role in change.vacant and able and (worker.holds or not worker.parked):
                worker.parked, worker.holds = True, False
                worker.rehearsing, worker.rehearsed = worker.role, None
                tell(job, worker.uid, Park())
    if change.vacant == change.spared:
        return
    live, number = whole(job, change.vacant), len(replicas(job))
    said = f"{number - len(live)} of {number} replicas vacant: training goes on with the others"
    announce(job, "masked", said + risk(job, live), roles=list(change.vacant), live=len(live))


def announce_vacated(job: JobState, roles: Iterable[int], said: str) -> None:
    """Announce roles that are vacant by plan."""
    announce(job, "vacated", said, roles=sorted(roles))


def refill(job: JobState) -> bool:
    """Begin to bring back the replicas whose places can all be taken; returns whether there are any."""
    vacant = set(job.vacant()) if job.plan.settings.masking.mask and job.settling is None else set()
    if not vacant or job.stopping or job.refill_attempts >= STUBBORN or not known(job):
        return False
    places, coming, lacking = _refillable(job, vacant)
    recycle(job)
    free = len(job.free_standbys(set(places.values()))) + job.wanted
    asks = job.plan.settings.recovery.no_standby != "stop" or bool(job.target_replicas)
    if len(lacking) > free and job.refusals < ATTEMPTS and asks:
        want(job, len(lacking) - free)
    if not places:
        return False
    job.refill_attempts += 1
    homes = {cell: name for name, cell in job.homes().items()}
    moving = {cell for cell, name in places.items() if homes.get(cell, name) != name}
    joiners = {
        role: uid
        for role, uid in job.workers_of(places).items()
        if role in coming or (job.plan.cells[role] in moving and role not in vacant)
    }
    change = job.change = Change(Kind.REFILL, places, joiners, vacant=tuple(sorted(vacant - coming)))
    change.leaving = tuple(homes[cell] for cell in sorted(moving))
    for name in change.leaving:  # the machine fails too often to get another worker
        job.machines[name].state = MachineState.LEAVING
    spans = ", ".join(f"{name} for {job.span(cell)}" for cell, name in places.items())
    announce(job, "change", f"refill: {spans}", kind=change.kind)
    enter(job, change, Phase.REHEARSE)
    rehearse(job, change.joiners)
    return True


def _refillable(job: JobState, vacant: set[int]) -> tuple[dict[int, str], set[int], set[int]]:
    """Machines for the cells of replicas that can come back; the vacant roles of these replicas; and cells for which
    there is no machine."""
    places: dict[int, str] = {}
    coming: set[int] = set()
    lacking: set[int] = set()
    idle = surplus(job)
    wanted = [roles for number, roles in enumerate(replicas(job)) if number not in idle]
    for roles in (roles for roles in wanted if not vacant.isdisjoint(roles)):
        found: dict[int, str] = {}
        for cell in sorted(job.cells_of(roles) - places.keys()):
            machine = _machine_for(job, cell, {*places.values(), *found.values()})
            if machine is None:
                lacking.add(cell)
            elif machine.whole:
                found[cell] = machine.name
        if job.cells_of(roles) <= {*found, *places}:
            places |= found
            coming |= set(roles) & vacant
    return places, coming, lacking


def _machine_for(job: JobState, cell: int, taken: set[str]) -> Machine | None:
    """The machine that is to take a vacant cell: its own if all its workers live, a standby that is ready, or its own
    once its workers have started again; None: there is none."""
    machine = parked_machine(job, cell) or occupant(job, cell)
    if machine is not None and machine.whole:
        return machine
    seated = machine is not None and cell not in job.parked
    standby = None if seated else suitable(job, cell, taken)
    if standby is not None and (machine is None or all(map(ready, standby.workers, job.roles_of(cell)))):
        _unclaim(job, cell)
        return standby
    if machine is None:
        _unclaim(job, cell)
        return stand_in(job, cell, taken)
    for worker in [worker for worker in machine.workers if not worker.alive]:
        machine.workers[worker.slot] = start_worker(job, machine, worker.slot)
    return machine


def _unclaim(job: JobState, cell: int) -> None:
    """Retire the machine that had parked in a cell, since another one takes the cell."""
    machine = job.machines.get(job.parked.pop(cell, ""))
    if machine is not None and machine.state == MachineState.ACTIVE:
        retire(job, machine)

"""Training goes on without a replica that is gone, and the hole is filled later, beside training.

A replica (a unit) is one of each kind of roles that hold the same. It can be missing only as a whole, and machines
move as a whole: if one is gone, everybody who shares a replica with it parks, and whoever shares a machine with those.
"""

from __future__ import annotations

from collections.abc import Iterable

from understudy.spare.coverage import at_risk, wipe_out
from understudy.spare.placement import Placement, parse
from understudy.worker.messages import Park

from .cast import Machine, ready
from .change import Change
from .company import ATTEMPTS
from .policy import Choice, Options, choose
from .recovery import Settlement
from .signals import Signals

STUBBORN = 8
"""How often something is tried again before it is given up."""


class Vacancies(Signals):
    # -- replicas ------------------------------------------------------------------------------------------------------

    def _units(self) -> list[tuple[int, ...]]:
        """The roles of each model replica; one unit with all roles where nothing is replicated."""
        kinds = {tuple(sorted({role, *self.twins.get(role, ())})) for role in range(self.plan.roles)}
        sizes = {len(kind) for kind in kinds}
        if len(sizes) != 1 or sum(map(len, kinds)) != self.plan.roles:
            return [tuple(range(self.plan.roles))]
        return [tuple(sorted(kind[number] for kind in kinds)) for number in range(sizes.pop())]

    def _closure(self, cells: Iterable[int]) -> tuple[int, ...]:
        """All cells that cannot play without these."""
        bonds = [{self.plan.cells[role] for role in unit} for unit in self._units()]
        found, wider = set(cells), True
        while wider:
            touched = set[int]().union(*(bond for bond in bonds if bond & found))
            wider = not touched <= found
            found |= touched
        return tuple(sorted(found))

    def _whole(self, without: Iterable[int]) -> list[int]:
        """The numbers of the units that have no role in these cells."""
        gone = set(without)
        return [n for n, unit in enumerate(self._units()) if not gone & {self.plan.cells[role] for role in unit}]

    def _placement(self) -> Placement:
        return parse(self.plan.mask, len(self._units()))

    def _lost(self, live: list[int]) -> str:
        """Why these replicas cannot compute everything; empty where they can."""
        try:
            gone = wipe_out(self._placement(), live)
        except ValueError as error:  # workers say so, too, and end the job
            return str(error)
        return gone.reason if gone else ""

    def vacant(self) -> tuple[int, ...]:
        """Cells without which training goes on."""
        roster = self.roster
        if roster is None:
            return ()
        return tuple(
            cell for cell in self.plan.all_cells if all(roster.seats[role] is None for role in self._roles(cell))
        )

    # -- the decision --------------------------------------------------------------------------------------------------

    def _to_vacate(self, settlement: Settlement, usual: float) -> tuple[int, ...]:
        """The cells without which to go on; none where their roles are to be taken first."""
        if not self.plan.mask or not settlement.missing or settlement.back or not self.begun:
            return ()
        cells = self._closure(settlement.missing)
        choice = self._weigh(settlement, cells, usual)
        who = " and ".join(self._span(cell) for cell in settlement.missing)
        self._tale("policy", f"{choice.act}: {who}: {choice.reason}", act=choice.act)
        return cells if choice.act == "mask" else ()

    def _weigh(self, settlement: Settlement, cells: tuple[int, ...], usual: float) -> Choice:
        live = self._whole(cells)
        taken: set[str] = set()
        at_once = True
        for cell in settlement.missing:
            machine = self._at_hand(cell) or self._suitable(cell, taken)
            if machine is None or not machine.whole:
                at_once = False
            else:
                taken.add(machine.name)
                at_once = at_once and all(map(ready, machine.actors, self._roles(cell)))
        size = max(self.sizes.get(role, 0) for cell in settlement.missing for role in self._roles(cell))
        outside = sum(self._at_hand(cell) is None for cell in settlement.missing)
        return choose(
            Options(
                units=len(self._units()),
                live=len(live),
                ready=at_once,
                coming=len(self._free(set())) >= outside,
                hand_over=0.1 + size / self.rate,
                step=usual,
                lost=self._lost(live) if live else "",
                reluctant=self.plan.scarcity == "shrink",
            )
        )

    def _at_hand(self, cell: int) -> Machine | None:
        """The machine whose workers have parked in this cell, if all of them live."""
        machine = self.machines.get(self.parked.get(cell, ""))
        if machine is None or machine.state != "cast" or machine.ill or not machine.whole:
            return None
        parked = all(actor.role == role for actor, role in zip(machine.actors, self._roles(cell), strict=True))
        return machine if parked else None

    def _park(self, change: Change) -> None:
        """Let those wait who cannot play, in their roles."""
        assert self.roster is not None
        for cell in change.vacant:
            names = {w.machine for role in self._roles(cell) if (w := self.roster.player(role)) is not None}
            for machine in (self.machines[name] for name in names):
                if machine.state == "cast" and not machine.ill and machine.failures < self.plan.quarantine:
                    self.parked[cell] = machine.name
            machine_name = self.parked.get(cell)
            for actor in [] if machine_name is None else self.machines[machine_name].actors:
                able = actor.alive and actor.report is not None and actor.report.able
                if able and (actor.holds or not actor.parked):
                    actor.parked, actor.holds = True, False
                    actor.rehearsing, actor.rehearsed = actor.role, None
                    self._tell(actor.uid, Park())
        live = self._whole(change.vacant)
        units = len(self._units())
        risk = at_risk(self._placement(), live)
        said = f"{units - len(live)} of {units} replicas vacant: training goes on with the others"
        self._tale("masked", f"{said}; {risk.reason}" if risk else said, cells=list(change.vacant), live=len(live))

    # -- coming back ---------------------------------------------------------------------------------------------------

    def _refill(self) -> bool:
        """Begin to bring replicas back whose places can all be taken; whether there were any."""
        vacant = set(self.vacant())
        if not vacant or self.settling is not None or self.stopping or self._refills >= STUBBORN:
            return False
        places: dict[int, str] = {}
        lacking = 0
        while vacant:
            group = [cell for cell in self._closure([min(vacant)]) if cell in vacant]
            vacant -= set(group)
            found: dict[int, str] = {}
            for cell in group:
                machine = self._comer(cell, {*places.values(), *found.values()})
                if machine is not None and machine.whole:
                    found[cell] = machine.name
                lacking += machine is None
            if len(found) == len(group):
                places |= found
        self._recycle()
        free = len(self._free(set(places.values()))) + self.wanted
        if lacking > free and self._refused < ATTEMPTS and self.plan.scarcity != "stop":
            self._want(lacking - free)
        if not places:
            return False
        self._refills += 1
        change = self.change = Change("refill", places, self._workers(places))
        spans = ", ".join(f"{name} for {self._span(cell)}" for cell, name in places.items())
        self._tale("change", f"refill: {spans}")
        self._phase(change, "rehearse")
        self._rehearse(change.joiners)
        return True

    def _comer(self, cell: int, taken: set[str]) -> Machine | None:
        """Who is to take a vacant cell: its own machine where all its workers live, a standby that is ready, or its own
        machine once its workers have started again; None: nobody is there."""
        own = self._at_hand(cell)
        if own is not None:
            return own
        machine = self.machines.get(self.parked.get(cell, ""))
        if machine is not None and (machine.state != "cast" or machine.ill or machine.failures >= self.plan.quarantine):
            machine = None
        standby = self._suitable(cell, taken)
        if standby is not None and (machine is None or all(map(ready, standby.actors, self._roles(cell)))):
            self._unclaim(cell)
            return standby
        if machine is None:
            self._unclaim(cell)
            return self._stand_in(cell, taken)
        for actor in [actor for actor in machine.actors if not actor.alive]:
            machine.actors[actor.slot] = self._start(machine, actor.slot)
        return machine

    def _unclaim(self, cell: int) -> None:
        """Its own machine does not take this cell again: it becomes a standby, where it can."""
        machine = self.machines.get(self.parked.pop(cell, ""))
        if machine is not None and machine.state == "cast":
            machine.state = "leaving"
            self.spent.append(machine.name)

    def _giver(self, role: int, load: dict[str, int]) -> str:
        """Who gives a newcomer its state: whoever leaves the role, or one of those who hold the same."""
        assert self.roster is not None
        seats = self.roster.seats
        own = seats[role]
        if own is not None:
            return own
        live = [uid for twin in self.twins[role] if (uid := seats[twin]) is not None]
        chosen = min(live, key=lambda uid: (load.get(uid, 0), live.index(uid)))
        load[chosen] = load.get(chosen, 0) + 1
        return chosen

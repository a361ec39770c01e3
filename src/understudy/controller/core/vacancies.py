"""Training goes on without a replica that is gone, and the hole is filled later, beside training.

A replica (a unit) is one of each kind of roles that hold the same. It can be missing only as a whole: if one of
its roles is gone, the others park.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from understudy.masking.coverage import at_risk, wipe_out
from understudy.masking.placement import Placement, parse
from understudy.masking.policy import MaskOptions, Surplus, choose, surplus_replicas
from understudy.protocol.messages import Park

from .cast import Machine, Worker, ready
from .change import Change
from .company import ATTEMPTS
from .settlement import Settlement
from .signals import Signals

STUBBORN = 8
"""How often something is tried again before it is given up."""


class Vacancies(Signals):
    # -- replicas ------------------------------------------------------------------------------------------------------

    def _units(self) -> list[tuple[int, ...]]:
        """The roles of each model replica; one unit with all roles where nothing is replicated."""
        known = (len(self.twins), self._told_twins)
        if not self._replicas[1] or self._replicas[0] != known:
            self._replicas = (known, self._find_units())
        return self._replicas[1]

    def _find_units(self) -> list[tuple[int, ...]]:
        kinds = {tuple(sorted({role, *self.twins.get(role, ())})) for role in range(self.plan.roles)}
        sizes = {len(kind) for kind in kinds}
        if len(sizes) != 1 or sum(map(len, kinds)) != self.plan.roles:
            return [tuple(range(self.plan.roles))]
        return [tuple(sorted(kind[number] for kind in kinds)) for number in range(sizes.pop())]

    def _whole(self, without: Iterable[int]) -> list[int]:
        """The numbers of the units that have none of these roles."""
        gone = set(without)
        return [number for number, unit in enumerate(self._units()) if gone.isdisjoint(unit)]

    def replicas(self, without: Iterable[int] = ()) -> tuple[int, int]:
        """How many there are, and how many of them are whole where nobody plays these roles."""
        return len(self._units()), len(self._whole(without))

    @property
    def known(self) -> bool:
        """Whether all roles have said who holds the same, so that it is known what a replica is."""
        return len(self.twins) == self.plan.roles

    def target(self) -> int:
        """How many replicas there are to be."""
        units = self._units()
        if self.wished is not None:
            return self.wished
        opening = set(self.plan.opening)
        first = {role for role, cell in enumerate(self.plan.cells) if cell in opening}
        return sum(first.issuperset(unit) for unit in units)

    def _bundles(self) -> list[tuple[int, ...]]:
        """The numbers of units that share machines, which are replaced as a whole."""
        bundles: list[tuple[set[int], set[int]]] = []
        for number, unit in enumerate(self._units()):
            cells, numbers = {self.plan.cells[role] for role in unit}, {number}
            for other in [other for other in bundles if not cells.isdisjoint(other[0])]:
                bundles.remove(other)
                cells, numbers = cells | other[0], numbers | other[1]
            bundles.append((cells, numbers))
        return [tuple(sorted(numbers)) for _, numbers in bundles]

    def _idle(self) -> set[int]:
        """The numbers of the units that are not to play."""
        return set(self._outside(self.target(), self._sooner).replicas)

    def _outside(self, target: int, sooner: Collection[int]) -> Surplus:
        """The same, where there are to be so many."""
        units = self._units()
        if target >= len(units) or not self.known:
            return Surplus()
        gone = set(self.vacant())
        vacant = [number for number, unit in enumerate(units) if not gone.isdisjoint(unit)]
        deserted = [n for n in vacant if all(self._dweller(cell) is None for cell in self._cells(units[n]))]
        return surplus_replicas(
            self._placement(), self._bundles(), target, vacant=vacant, deserted=deserted, sooner=sooner
        )

    def _cells(self, roles: Iterable[int]) -> set[int]:
        return {self.plan.cells[role] for role in roles}

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
        """Roles without which training goes on."""
        return () if self.roster is None else self.roster.vacant

    def _dweller(self, cell: int) -> Machine | None:
        """The machine that plays some role of a cell, or whose workers have parked in it."""
        if self.roster is None:
            return None
        names = [worker.machine for role in self._roles(cell) if (worker := self.roster.player(role)) is not None]
        machine = self.machines.get([*names, self.parked.get(cell, "")][0])
        if machine is None or machine.state != "cast" or machine.ill or machine.failures >= self.plan.quarantine:
            return None
        return machine

    def _lies_idle(self, machine: Machine) -> bool:
        """Whether roles of a machine that plays are vacant."""
        cell = self._homes().get(machine.name)
        return cell is None or not set(self._roles(cell)).isdisjoint(self.vacant())

    # -- the decision --------------------------------------------------------------------------------------------------

    def _spared(self, settlement: Settlement, survivors: list[Worker]) -> tuple[int, ...]:
        """The roles that are vacant by plan, and stay so. Those who have just left come back where others are lost."""
        vacant = set(self.vacant())
        if not vacant or not self.known:
            return tuple(sorted(vacant))
        units, gone = self._units(), self._gone(settlement, survivors)
        idle = self._idle()
        room = sum(vacant.isdisjoint(unit) and not gone.isdisjoint(unit) for unit in units)
        spared: list[int] = []
        for bundle in filter(idle.issuperset, self._bundles()):
            roles = [role for number in bundle for role in units[number]]
            cells = self._cells(roles)
            if settlement.kept.keys() >= cells and len(bundle) <= room and vacant.issuperset(roles):
                room -= len(bundle)
            elif vacant.issuperset(roles) or (settlement.back and cells.isdisjoint(settlement.kept)):
                spared += roles
        return tuple(sorted(spared))

    def _gone(self, settlement: Settlement, survivors: list[Worker]) -> set[int]:
        """Roles of cells that need a machine, unless somebody on their own one could go on with them."""
        sound = {
            (actor.role, actor.machine)
            for actor in survivors
            if (report := actor.report) is not None and report.holds and report.step + report.voted >= settlement.step
        }
        return {
            role
            for cell in settlement.missing
            for role in self._roles(cell)
            if (machine := self._dweller(cell)) is None or (role, machine.name) not in sound
        }

    def _to_vacate(self, settlement: Settlement, survivors: list[Worker], spared: tuple[int, ...]) -> tuple[int, ...]:
        """The roles without which to go on beside those that are vacant by plan; none where they are to be taken
        first."""
        if not self.plan.mask or not settlement.missing or settlement.back or not self.begun:
            return ()
        gone = self._gone(settlement, survivors)
        roles = tuple(sorted(role for unit in self._units() if not gone.isdisjoint(unit) for role in unit))
        known = sorted(a.report.usual for a in survivors if a.report is not None and a.report.usual)
        usual = known[len(known) // 2] if known else 0.0
        choice = choose(self._options(settlement, (*roles, *spared), usual))
        who = " and ".join(self._span(cell) for cell in settlement.missing)
        said = f"{choice.act}: {who}: {choice.reason}"
        if (self.halts, said) != self._weighed:  # it is weighed again with everything that happens
            self._weighed = (self.halts, said)
            self._tale("policy", said, act=choice.act)
        return roles if choice.act == "mask" else ()

    def _options(self, settlement: Settlement, roles: tuple[int, ...], usual: float) -> MaskOptions:
        """What could be done about the cells that need a machine, other than to go on without these roles."""
        live = self._whole(roles)
        taken: set[str] = set()
        at_once = True
        for cell in settlement.missing:
            machine = self._at_hand(cell) or self._suitable(cell, taken)
            at_once = at_once and machine is not None and all(map(ready, machine.actors, self._roles(cell)))
            taken |= set() if machine is None else {machine.name}
        outside = sum(self._at_hand(cell) is None for cell in settlement.missing)
        size = max(self.sizes.get(role, 0) for cell in settlement.missing for role in self._roles(cell))
        return MaskOptions(
            replicas=len(self._units()),
            live=len(live),
            ready=at_once,
            coming=len(self._free(set())) >= outside,
            hand_over=0.1 + size / self.rate,
            step=usual,
            lost=self._lost(live) if live else "",
            enough=len(live) >= self.target(),
            reluctant=self.plan.scarcity == "shrink",
        )

    def _places_without(self, settlement: Settlement, vacant: tuple[int, ...]) -> dict[int, str]:
        """The machines that play, where these roles are vacant."""
        places, without = {}, set(vacant)
        for cell, roles in sorted(self.plan.roles_in.items()):
            if not without.issuperset(roles):
                machine = self._dweller(cell)
                places[cell] = settlement.kept[cell] if machine is None or cell in settlement.kept else machine.name
        return places

    def _at_hand(self, cell: int) -> Machine | None:
        """The machine whose workers have parked in this cell, if all of them live."""
        machine = self._dweller(cell)
        if machine is None or not machine.whole or not any(actor.parked for actor in machine.actors):
            return None
        here = all(actor.role == role for actor, role in zip(machine.actors, self._roles(cell), strict=True))
        return machine if here else None

    def _park(self, change: Change) -> None:
        """Let those wait who cannot play, in their roles."""
        for cell in sorted({self.plan.cells[role] for role in change.vacant}):
            machine = self._dweller(cell)
            if machine is None:
                self.parked.pop(cell, None)
                continue
            if set(self._roles(cell)) <= set(change.vacant):
                self.parked[cell] = machine.name
            for actor, role in zip(machine.actors, self._roles(cell), strict=True):
                able = actor.alive and actor.report is not None and actor.report.able and actor.role == role
                if role in change.vacant and able and (actor.holds or not actor.parked):
                    actor.parked, actor.holds = True, False
                    actor.rehearsing, actor.rehearsed = actor.role, None
                    self._tell(actor.uid, Park())
        if change.vacant == change.spared:
            return
        live = self._whole(change.vacant)
        units = len(self._units())
        said = f"{units - len(live)} of {units} replicas vacant: training goes on with the others"
        self._tale("masked", said + self._risk(live), roles=list(change.vacant), live=len(live))

    def _risk(self, live: list[int]) -> str:
        """A warning where the next failure of one of these replicas could be a wipe-out."""
        risk = at_risk(self._placement(), live)
        return f"; {risk.reason}" if risk else ""

    def _vacated(self, roles: Iterable[int], said: str) -> None:
        """These are vacant by plan."""
        self._tale("vacated", said, roles=sorted(roles))

    # -- coming back ---------------------------------------------------------------------------------------------------

    def _refill(self) -> bool:
        """Begin to bring replicas back whose places can all be taken; whether there were any."""
        vacant = set(self.vacant()) if self.plan.mask and self.settling is None else set()
        if not vacant or self.stopping or self._refills >= STUBBORN or not self.known:
            return False
        idle = self._idle()
        places: dict[int, str] = {}
        coming: set[int] = set()
        lacking: set[int] = set()
        units = [unit for number, unit in enumerate(self._units()) if number not in idle]
        for unit in (unit for unit in units if not vacant.isdisjoint(unit)):
            found: dict[int, str] = {}
            for cell in sorted({self.plan.cells[role] for role in unit} - places.keys()):
                machine = self._comer(cell, {*places.values(), *found.values()})
                if machine is None:
                    lacking.add(cell)
                elif machine.whole:
                    found[cell] = machine.name
            if {self.plan.cells[role] for role in unit} <= {*found, *places}:
                places |= found
                coming |= set(unit) & vacant
        self._recycle()
        free = len(self._free(set(places.values()))) + self.wanted
        if len(lacking) > free and self._refused < ATTEMPTS and (self.plan.scarcity != "stop" or self.wished):
            self._want(len(lacking) - free)
        if not places:
            return False
        self._refills += 1
        homes = {cell: name for name, cell in self._homes().items()}
        moving = {cell for cell, name in places.items() if homes.get(cell, name) != name}
        joiners = {
            role: uid
            for role, uid in self._workers(places).items()
            if role in coming or (self.plan.cells[role] in moving and role not in vacant)
        }
        change = self.change = Change("refill", places, joiners, vacant=tuple(sorted(vacant - coming)))
        change.leaving = tuple(homes[cell] for cell in sorted(moving))
        for name in change.leaving:  # it fails too often to get another worker
            self.machines[name].state = "leaving"
        spans = ", ".join(f"{name} for {self._span(cell)}" for cell, name in places.items())
        self._tale("change", f"refill: {spans}")
        self._phase(change, "rehearse")
        self._rehearse(change.joiners)
        return True

    def to_fill(self) -> set[int]:
        """Vacant cells for which a machine has yet to be found."""
        vacant = set(self.vacant())
        if not vacant:
            return set()
        idle = self._idle()
        wanted = {role for number, unit in enumerate(self._units()) if number not in idle for role in unit}
        taken = set() if self.change is None else set(self.change.places)
        return {cell for cell in self._cells(vacant & wanted) - taken if self._dweller(cell) is None}

    def _comer(self, cell: int, taken: set[str]) -> Machine | None:
        """Who is to take a vacant cell: its own machine where all its workers live, a standby that is ready, or its own
        machine once its workers have started again; None: nobody is there."""
        machine = self._at_hand(cell) or self._dweller(cell)
        if machine is not None and machine.whole:
            return machine
        plays = machine is not None and cell not in self.parked
        standby = None if plays else self._suitable(cell, taken)
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

"""Replicas that come and go by plan: how many there are to be, and how those go that are too many.

The mesh says how many there can be. Those that come are refilled like lost ones; those that go leave at a boundary on
which all have agreed by their vote, so nobody halts and nothing is repeated.
"""

from __future__ import annotations

from understudy.protocol.sentences import counted, listed, named

from .change import Change
from .events import Scale
from .failure import Failure
from .vacancies import STUBBORN


class Scaling(Failure):
    def _cancel(self, why: str) -> None:
        raise NotImplementedError

    # -- what is asked for ---------------------------------------------------------------------------------------------

    def _scale(self, id: str, request: Scale) -> None:
        problem = self._no_scaling() or self._improper(request) or self._impossible(request)
        if problem:
            self._reply(id, False, problem)
            return
        self.wished, self._keep = request.replicas, request.keep
        self._sooner = frozenset(self._played_on(request.without))
        self._shrinks = self._refills = self._refused = 0
        units, live = self.replicas(self.vacant())
        self._tale("asked", f"{request.replicas} of {units} replicas, where {live} train", id=id)
        self._reconsider_change()
        self._reply(id, True, self._outlook(units, live, request), replicas=request.replicas, live=live)

    def _no_scaling(self) -> str:
        """Why replicas cannot come and go in this job, or not yet."""
        if not self.plan.mask:
            return "this job needs all its replicas; run it with --mask anywhere to let them come and go"
        if not self.begun or not self.known:
            return "how many replicas there are is known when the first step is made; ask again then"
        return ""

    def _improper(self, request: Scale) -> str:
        """Why nobody could ever do that."""
        units, wanted = len(self._units()), request.replicas
        if wanted < 1:
            return f"{wanted} replicas cannot train; ask for at least 1, or end the job with: understudy stop"
        if wanted > units:
            return f"the mesh has {counted(units, 'replica')}, the most there can be; {wanted} need a larger mesh"
        if len(set(request.without)) != len(request.without):
            return "--without: a machine is named twice"
        for name in request.without:
            machine = self.machines.get(name)
            if machine is None or machine.state != "cast":
                return f"--without: {name} plays no role; machines that play: {self._names('cast')}"
        going = self._played_on(request.without)
        if len(going) > units - wanted:
            them, many = listed(request.without), counted(len(going), "replica")
            return f"--without: {them} have {many}, more than are to go; ask for at most {units - len(going)}"
        return ""

    def _impossible(self, request: Scale) -> str:
        """Why the others could not go on."""
        found = self._outside(request.replicas, self._played_on(request.without))
        if found.problem:
            return f"{request.replicas} of {len(self._units())} replicas are not possible: {found.problem}"
        missed = set(self._played_on(request.without)) - set(found.replicas)
        if missed:
            them = listed(request.without)
            return f"--without: the others cannot do without {them}, whose data nobody else has; name other machines"
        return ""

    def _played_on(self, names: tuple[str, ...]) -> set[int]:
        """The numbers of the units that need these machines, and of those that share machines with them."""
        if self.roster is None:
            return set()
        homes = self._homes() | {name: cell for cell, name in self.parked.items()}
        cells = {homes[name] for name in names if name in homes}
        units = self._units()
        touched = {number for number, unit in enumerate(units) if not cells.isdisjoint(self._cells(unit))}
        return {number for bundle in self._bundles() if not touched.isdisjoint(bundle) for number in bundle}

    def _reconsider_change(self) -> None:
        """What is under way may be what is not wanted any more."""
        change = self.change
        if change is None or change.kind not in ("refill", "shrink") or not self._pending():
            return
        idle = {role for number in self._idle() for role in self._units()[number]}
        going = set(change.vacant) - set(self.vacant())
        if idle & set(change.joiners) if change.kind == "refill" else going - idle:
            self._cancel(f"the target is {self.target()} now")

    def _outlook(self, units: int, live: int, request: Scale) -> str:
        wanted = request.replicas
        if wanted == live:
            return f"{live} of {units} replicas train, as asked for"
        if wanted > live:
            return f"{live} of {units} replicas train; {wanted - live} more as soon as machines are ready"
        how = "become standbys" if request.keep else "are released"
        return f"{live} of {units} replicas train; {live - wanted} go at a boundary, their machines {how}"

    # -- what follows --------------------------------------------------------------------------------------------------

    def _shrink(self) -> bool:
        """Begin to let replicas go that are too many; whether there were any."""
        if not self.plan.mask or not self.known or self.settling is not None or self.stopping:
            return False
        units, vacant, idle = self._units(), set(self.vacant()), self._idle()
        if not idle:
            return False
        self._send_away([cell for number in sorted(idle) for cell in sorted(self._cells(units[number]))])
        surplus = len(self._whole(vacant)) - self.target()
        going: list[int] = []
        for bundle in filter(idle.issuperset, self._bundles()):
            playing = [number for number in bundle if vacant.isdisjoint(units[number])]
            going += playing if len(going) + len(playing) <= surplus else []  # others have to come first
        if not going or self._shrinks >= STUBBORN:
            return False
        homes = {cell: name for name, cell in self._homes().items()}
        roles = sorted(role for number in going for role in units[number])
        leaving = tuple(homes[cell] for cell in sorted(self._cells(roles)))
        self._shrinks += 1
        rest = tuple(sorted(vacant | set(roles)))
        change = self.change = Change("shrink", {}, {}, leaving=leaving, keep=self._keep, vacant=rest)
        for name in leaving:
            self.machines[name].state = "leaving"
        live = self._whole(change.vacant)
        who = f"{listed(leaving)} ({named('role', roles)})"
        said = f"shrink: without {who}, {len(live)} of {len(units)} replicas go on"
        self._tale("change", said + self._risk(live))
        self._phase(change, "rehearse")
        return True

    def _complete(self, change: Change) -> None:
        super()._complete(change)
        if change.kind in ("refill", "shrink"):
            units, live = self.replicas(change.vacant)
            said = f"{live} of {units} replicas train (target {self.target()})"
            self._tale("replicas", said, live=live, target=self.target())

    def _send_away(self, cells: list[int]) -> None:
        """Machines whose workers have parked in these go, too: nobody will call them."""
        for cell in cells:
            machine = self.machines.get(self.parked.get(cell, ""))
            if machine is None or set(self._roles(cell)) - set(self.vacant()):
                continue
            del self.parked[cell]
            if machine.state == "cast":
                machine.state = "leaving"
                self._stand_by(machine) if self._keep else self._release(machine)

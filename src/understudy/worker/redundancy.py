"""The redundancy of a role's state: which live roles can give it, found by comparing bits, and the loose units of other
roles, which each role tells to all others with every vote.

Everything here happens at the same step on all roles, and takes effect only once that step is applied, which is the
same on all roles, too. So roles never disagree about which of them exchange what.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from understudy.comm.fabric import Fabric
from understudy.protocol.messages import Compared
from understudy.state.inventory import Inventory, take_inventory
from understudy.state.kinds import Tracked
from understudy.state.redundancy import Comparison, RoleUnits, compare, differences
from understudy.state.units import Unit, layout_of, merged, pack, units_of, unpack

from .process import TrainingProcess

log = logging.getLogger("understudy.worker")

_MOST_UNITS = 1 << 20
"""Units of all roles together that are compared one by one; beyond that, whole objects are compared."""

_EARLY = 4
"""Steps after each of which roles compare their states."""

Key = tuple[str, bool]


class HandedRedundancy(msgspec.Struct, frozen=True):
    """What a joiner must know to take part in the exchange."""

    twins: tuple[int, ...]
    own: tuple[Key, ...]
    exchanging: bool
    late: bool
    known: dict[int, dict[int, bytes]]
    made: int


class _Exchange(msgspec.Struct, frozen=True):
    """What a role tells the others with a vote: its loose units, and whether it changes them after votes."""

    data: bytes
    late: bool


class _Found(msgspec.Struct, frozen=True):
    """The result of a comparison, as long as its step is not applied."""

    step: int
    comparison: Comparison
    own: tuple[Key, ...]
    report: Compared


def is_due(step: int, made: int) -> bool:
    """Whether roles compare their states before this step, with `made` steps made since they began: after each of the
    first steps, and then at powers of two. Before the first step equal bits mean little."""
    return made > 0 and (made <= _EARLY or step & (step - 1) == 0)


def _told(units: list[Unit], expected: tuple[int, ...]) -> RoleUnits:
    shares = any(unit.is_tensor and not unit.loose for unit in units)  # without parameters nothing tells replicas apart
    return RoleUnits(
        layout=layout_of(units),
        expected=expected,
        digests=tuple(unit.digest for unit in units),
        sizes=tuple(unit.bytes for unit in units),
        loose=tuple(number for number, unit in enumerate(units) if unit.loose and shares),
    )


class Redundancy:
    """Belongs to the training thread."""

    def __init__(
        self,
        fabric: Fabric,
        process: TrainingProcess,
        tracked: Tracked,
        *,
        role: Callable[[], int],
        expected: Callable[[], tuple[int, ...]],
    ) -> None:
        """`role`: the role of this worker; `expected`: the roles that should hold the same state, this one included."""
        self._fabric, self._process, self._tracked = fabric, process, tracked
        self._role, self._expected = role, expected
        self.forget()

    def forget(self) -> None:
        """Begin anew: the state is another one than before."""
        self._made = 0
        """Steps made since then."""
        self.twins: tuple[int, ...] = ()
        """Roles that can give this role's state; empty: not compared yet."""
        self._own: tuple[Key, ...] = ()
        """The loose units that this role tells to the others."""
        self._exchanging = False
        """Whether any role has such units: then all take part in the exchange."""
        self._late = False
        """Whether a role changes such units after votes, so that they are exchanged at boundaries, too."""
        self._am_late = False
        self._known: dict[int, dict[int, bytes]] = {}
        """Role → boundary → its loose units there, for the last two boundaries."""
        self._sent: tuple[int, bytes] = (-1, b"")
        """The last boundary for which this role has told its units, and the units."""
        self._final = -1
        """The last boundary at which the units were exchanged after everything that could change them."""
        self._found: _Found | None = None
        self._next_late = False

    # -- at a boundary -------------------------------------------------------------------------------------------------

    def agree(self, step: int) -> Compared | None:
        """Make sure that all roles know the same. All roles call this at the first boundary after a failure: one worker
        may have kept the state with which another has begun anew. If they differ, all begin anew, and what the
        controller was told holds no more: returns the report of that."""
        mine = [self._made, int(self._exchanging), int(self._late)]
        least = self._process.least([*mine, *(-number for number in mine)])
        if self._fabric.fault is not None or least == [*least[:3], *(-number for number in least[:3])]:
            return None
        known = bool(self.twins)
        self.forget()
        return Compared(self._role(), step, ()) if known else None

    def boundary(self, step: int) -> tuple[int, ...]:
        """Compare the states before this step if that is due. All roles call this at the same boundary. Returns the
        twins that were found; empty: nothing was compared."""
        if self._exchanging:
            data = self._packed(self._own)
            self._am_late = self._am_late or (self._sent[0] == step and self._sent[1] != data)
            if self._late and self._tell(step, data):
                self._final = step
        roster, self._found = self._fabric.roster, None
        if roster is not None and not roster.vacant and is_due(step, self._made):
            self._found = self._compare(step, len(roster.seats))
        return () if self._found is None else self._found.report.twins

    def _compare(self, step: int, roles: int) -> _Found | None:
        me, expected = self._role(), self._expected()
        units = units_of(take_inventory(self._tracked))
        if len(units) * roles > _MOST_UNITS:
            units = merged(units)
        told = self._process.gather(msgspec.msgpack.encode(_told(units, expected)))
        if self._fabric.fault is not None:
            return None
        found = {role: msgspec.msgpack.decode(each, type=RoleUnits) for role, each in enumerate(told) if each}
        comparison = compare(found)
        numbers = comparison.own[me]
        items = tuple(dict.fromkeys(units[number].item for number in numbers))
        said = differences(me, found, [unit.item for unit in units]) if me == min(expected) else ()
        report = Compared(me, step, comparison.twins[me], items, said)
        return _Found(step, comparison, tuple(units[number].key for number in numbers), report)

    # -- with a vote ---------------------------------------------------------------------------------------------------

    def vote(self, step: int) -> None:
        """Tell the loose units with which the next step will begin if this one counts. All roles call this before the
        same vote."""
        exchanging, own = self._exchanging, self._own
        if self._found is not None:
            exchanging, own = any(self._found.comparison.own.values()), self._found.own
        self._next_late = False  # what an interrupted vote has told does not count
        if exchanging:
            self._tell(step + 1, self._packed(own))

    def _packed(self, own: tuple[Key, ...]) -> bytes:
        return pack(take_inventory(self._tracked), own) if own else b""

    def _tell(self, boundary: int, data: bytes) -> bool:
        """Tell all roles the loose units with which a step begins, and learn theirs. Returns False if interrupted."""
        told = self._process.gather(msgspec.msgpack.encode(_Exchange(data, self._am_late)))
        if self._fabric.fault is not None:
            return False
        self._sent = (boundary, data)
        twins = self.twins if self._found is None else self._found.report.twins
        for role, each in enumerate(told):
            if each:
                message = msgspec.msgpack.decode(each, type=_Exchange)
                self._next_late = self._next_late or message.late
                if role in twins:
                    known = self._known.setdefault(role, {})
                    known[boundary] = message.data
                    for old in sorted(known)[:-2]:
                        del known[old]
        return True

    def applied(self, step: int) -> Compared | None:
        """Step `step` is applied: what was found before it holds from now on. Returns the report that is due."""
        self._made += 1
        self._late = self._late or self._next_late
        found, self._found = self._found, None
        if found is None or found.step != step:
            return None
        before = self.twins, self._own
        self.twins, self._own = found.report.twins, found.own
        self._exchanging = any(found.comparison.own.values())
        return found.report if before != (self.twins, self._own) or found.report.differences else None

    # -- hand-overs ----------------------------------------------------------------------------------------------------

    def identical(self) -> tuple[int, ...]:
        """Roles whose whole state has the bits of this one's; empty: not compared yet."""
        return (self._role(),) if self._own else self.twins

    def inventory_for(self, role: int, step: int) -> Inventory:
        """The state of a twin's role at this boundary: this role's own, with the loose units of the other."""
        inventory = take_inventory(self._tracked)
        if role == self._role() or not self._own:
            return inventory
        known = self._known.get(role, {})
        items = ", ".join(dict.fromkeys(name for name, _ in self._own))
        if not known:
            log.warning("role %d: no live role knows %s; it begins with what role %d has", role, items, self._role())
            return inventory
        boundary = step if step in known else max(known)
        if boundary != step:
            log.warning("role %d: %s is of step %d, not of step %d: results may differ", role, items, boundary, step)
        elif self._late and self._final != step:
            log.warning(
                "role %d: what changed in %s after its last vote may be missing, since its worker died before the next "
                "step; what differs between roles is safe if it changes inside `with step:`, before the update",
                role,
                items,
            )
        return unpack(inventory, known[boundary])

    def handed(self) -> HandedRedundancy:
        """What a joiner takes over with the state."""
        return HandedRedundancy(self.twins, self._own, self._exchanging, self._late, self._known, self._made)

    def take(self, handed: HandedRedundancy | None) -> None:
        """Take over what the giver knows, which has the same twins and the same loose units; None: the state is a copy
        of an earlier step, from which all roles begin anew."""
        self.forget()
        if handed is None:
            return
        self.twins, self._own, self._exchanging = handed.twins, handed.own, handed.exchanging
        self._late, self._known, self._made = handed.late, handed.known, handed.made

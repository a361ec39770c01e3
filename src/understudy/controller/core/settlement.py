"""After a halt: which step is next, and which workers hold the state that it needs. Pure, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from understudy.protocol.messages import Back, Halted

STRIPES = 4
"""Number of givers over which a joiner's state is spread, at most."""


class Holder(msgspec.Struct, frozen=True):
    """A living worker that has reached a boundary in its role."""

    uid: str
    machine: str
    role: int
    report: Halted


class Settlement(msgspec.Struct, frozen=True):
    """The way on that the survivors' reports allow."""

    step: int
    """The next step: all steps before it are applied, or will be by the workers that still hold them complete."""
    kept: dict[int, str]
    """Cell → the machine that goes on with it."""
    givers: dict[int, tuple[str, ...]]
    """Role whose state must come from elsewhere → the workers that give it, each a part."""
    missing: tuple[int, ...]
    """Cells that need another machine."""
    reason: str
    sources: str = ""
    """Continues the reason: where the state of missing cells comes from."""
    lost: str = ""
    """Which state is lost, if all workers go back to an earlier step."""
    back: Back = ""
    """Source of all state, if all workers go back to an earlier step."""
    repeated: int = 0
    """Number of steps that are made again."""
    copies: dict[int, int] = {}
    """Role whose state comes from a copy elsewhere → the role whose copy it is."""

    def without(self, cells: Collection[int], roles: Collection[int]) -> Settlement:
        """The same settlement, with these cells and roles vacant."""
        return msgspec.structs.replace(
            self,
            kept={cell: name for cell, name in self.kept.items() if cell not in cells},
            givers={role: uids for role, uids in self.givers.items() if role not in roles},
            missing=tuple(cell for cell in self.missing if cell not in cells),
            copies={role: other for role, other in self.copies.items() if role not in roles},
        )

    @property
    def reached(self) -> int:
        """The step that was under way when training halted."""
        return self.step + self.repeated


class StateLost(Exception):
    """The state of a role is lost; the message says which. `role` is None if no state is left at all."""

    def __init__(self, what: str, role: int | None = None) -> None:
        super().__init__(what)
        self.role = role


class _Survivors:
    """Surviving workers by role, and the cells that are still whole."""

    def __init__(self, holders: Iterable[Holder], cells: Sequence[int], prefer: Sequence[str], unwanted: Sequence[str]):
        self.by_role: dict[int, list[Holder]] = {role: [] for role in range(len(cells))}
        for holder in holders:
            self.by_role[holder.role].append(holder)
        ranks = {name: rank for rank, name in reversed(list(enumerate(prefer)))}
        self.kept: dict[int, str] = {}
        self.missing: list[int] = []
        homes: dict[int, list[set[str]]] = {}
        for role, cell in enumerate(cells):
            homes.setdefault(cell, []).append({holder.machine for holder in self.by_role[role]})
        for cell, machines in sorted(homes.items()):
            whole = set.intersection(*machines).difference(unwanted)
            if whole:
                self.kept[cell] = min(whole, key=lambda name: (ranks.get(name, len(ranks)), name))
            else:
                self.missing.append(cell)


def settle(
    holders: Sequence[Holder],
    cells: Sequence[int],
    twins: Mapping[int, Sequence[int]],
    prefer: Sequence[str] = (),
    unwanted: Sequence[str] = (),
) -> Settlement:
    """Settle so that every role applies every step exactly once.

    If a worker has applied a step, all living workers have voted for it, so the latest step that was applied anywhere
    is complete. `cells` is the cell of each role, `twins` the roles that hold identical copies of a role's state,
    `prefer` the machines that go on if there is a choice, the best first, and `unwanted` the machines that may give
    state but not go on.
    """
    if not holders:
        raise StateLost("no worker that is left holds any state")
    step = max(holder.report.step for holder in holders)
    able = [h for h in holders if h.report.step == step or (h.report.step == step - 1 and h.report.voted)]
    left = _Survivors(able, cells, prefer, unwanted)
    givers: dict[int, tuple[str, ...]] = {}
    load: dict[str, int] = {}
    gone = set(left.missing)
    for role in (role for role, of in enumerate(cells) if of in gone):
        own = left.by_role[role][:1]
        copies = own or [h for twin in twins.get(role, ()) if twin != role for h in left.by_role[twin][:1]]
        if not copies:
            raise StateLost(f"role {role}: no live replica holds its state", role)
        givers[role] = _share(copies, role, load)
    behind = any(holder.report.step < step for holder in able)
    verb = f"is next: step {step - 1} has been applied" if behind else "begins again"
    return Settlement(
        step, left.kept, givers, tuple(left.missing), reason=f"step {step} {verb}", sources=_sources(givers)
    )


def _share(copies: Sequence[Holder], role: int, load: dict[str, int]) -> tuple[str, ...]:
    """The workers with the least to give to others, by machine and worker; each joiner begins with another one."""
    order = [*copies[role % len(copies) :], *copies[: role % len(copies)]]
    order.sort(key=lambda holder: (load.get(holder.machine, 0), load.get(holder.uid, 0)))
    chosen = order[:STRIPES]
    for holder in chosen:
        load[holder.machine] = load.get(holder.machine, 0) + 1
        load[holder.uid] = load.get(holder.uid, 0) + 1
    return tuple(holder.uid for holder in chosen)


def _sources(givers: Mapping[int, Sequence[str]]) -> str:
    if not givers:
        return ""
    most = max(len(uids) for uids in givers.values())
    return "; state comes from " + ("a live replica" if most == 1 else f"{most} live replicas at once")


class _Copies:
    """The copies of roles' state in the memory of the survivors."""

    def __init__(self, holders: Sequence[Holder], roles: int, twins: Mapping[int, Sequence[int]]) -> None:
        self._roles, self._twins = range(roles), twins
        self._found: dict[tuple[int, int], list[Holder]] = {}
        for holder in holders:
            for key in holder.report.kept:
                self._found.setdefault(key, []).append(holder)

    def _same(self, role: int) -> Iterator[int]:
        """The role itself, and its twins."""
        yield role
        yield from (twin for twin in self._twins.get(role, ()) if twin != role)

    def sources(self, step: int) -> dict[int, list[Holder]]:
        """Role → the workers that have a copy of its state at this step."""
        return {
            role: [holder for twin in self._same(role) for holder in self._found.get((twin, step), ())]
            for role in self._roles
        }

    def whose(self, role: int, step: int, uid: str) -> int:
        """The role, among a role and its twins, whose copy this worker has."""
        return next(twin for twin in self._same(role) if any(h.uid == uid for h in self._found.get((twin, step), ())))

    def latest(self) -> int:
        """The latest step of which there is a copy for every role; -1: none."""
        steps = {step for _, step in self._found}
        return max((step for step in steps if all(self._has(role, step) for role in self._roles)), default=-1)

    def _has(self, role: int, step: int) -> bool:
        return any((same, step) in self._found for same in self._same(role))


def latest_copy(holders: Sequence[Holder], roles: int, twins: Mapping[int, Sequence[int]]) -> int:
    """The latest step to which all workers could go back with copies in memory; -1: none."""
    return _Copies(holders, roles, twins).latest()


def fall_back(
    holders: Sequence[Holder],
    cells: Sequence[int],
    twins: Mapping[int, Sequence[int]],
    saved: int | None,
    why: str,
    prefer: Sequence[str] = (),
    unwanted: Sequence[str] = (),
) -> Settlement:
    """Settle if the state of a role is lost: all workers go back to the latest step that was kept for all roles, in
    the memory of survivors or else in a checkpoint (`saved`: the step of the latest complete one; `why`: which state is
    lost)."""
    left = _Survivors(holders, cells, prefer, unwanted)
    reached = max((holder.report.step for holder in holders), default=0)
    kept = _Copies(holders, len(cells), twins)
    step = kept.latest()
    if step >= 0 and (saved is None or step >= saved):
        sources = kept.sources(step)
        load: dict[str, int] = {}
        givers, copies = {}, {}
        for role, cell in enumerate(cells):
            stays = left.kept.get(cell)
            if not any(h.role == role and h.machine == stays for h in sources[role]):
                (giver,) = givers[role] = _share(sources[role], role, load)[:1]
                copies[role] = kept.whose(role, step, giver)
        repeated = max(0, reached - step)
        reason = f"{why}: all go back to the copies of step {step} in memory{_times(repeated)}"
        return Settlement(
            step,
            left.kept,
            givers,
            tuple(left.missing),
            reason=reason,
            lost=why,
            back="copy",
            repeated=repeated,
            copies=copies,
        )
    if saved is None:
        raise StateLost(why)
    repeated = max(0, reached - saved)
    reason = f"{why}: all go back to the checkpoint of step {saved}{_times(repeated)}"
    return Settlement(
        saved, left.kept, {}, tuple(left.missing), reason=reason, lost=why, back="checkpoint", repeated=repeated
    )


def _times(repeated: int) -> str:
    return f", {repeated} step{'s are' if repeated != 1 else ' is'} made again" if repeated else ""

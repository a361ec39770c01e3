"""After a halt: which step is next, and which workers hold the state that it needs. Pure, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

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
    """The end of the reason: the sources of the state of missing cells."""
    lost: str = ""
    """Which state is lost, if all workers go back to an earlier step."""
    back: Back = ""
    """Source of all state, if all workers go back to an earlier step."""
    repeated: int = 0
    """Number of steps that are made again."""
    copies: dict[int, int] = {}
    """Role whose state comes from a copy elsewhere → the role whose copy it is."""

    def without(self, cells: Collection[int], roles: Collection[int]) -> Settlement:
        """This settlement, with these cells and roles vacant."""
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
    by_role, kept, missing = _by_cell(able, cells, prefer, unwanted)
    givers: dict[int, tuple[str, ...]] = {}
    load: dict[str, int] = {}
    for role in (role for role, cell in enumerate(cells) if cell not in kept):
        own = by_role[role][:1]
        copies = own or [h for twin in twins.get(role, ()) if twin != role for h in by_role[twin][:1]]
        if not copies:
            raise StateLost(f"role {role}: no live replica holds its state", role)
        givers[role] = _share(copies, role, load)
    behind = any(holder.report.step < step for holder in able)
    reason = f"step {step} " + (f"is next: step {step - 1} has been applied" if behind else "begins again")
    most = max(map(len, givers.values()), default=0)
    sources = "; state comes from " + ("a live replica" if most == 1 else f"{most} live replicas at once")
    return Settlement(step, kept, givers, missing, reason=reason, sources=sources if givers else "")


def _by_cell(
    holders: Iterable[Holder], cells: Sequence[int], prefer: Sequence[str], unwanted: Sequence[str]
) -> tuple[dict[int, list[Holder]], dict[int, str], tuple[int, ...]]:
    """Role → its holders; cell → the machine that still has all its roles and goes on; and the cells without one."""
    by_role: dict[int, list[Holder]] = {role: [] for role in range(len(cells))}
    for holder in holders:
        by_role[holder.role].append(holder)
    ranks = {name: rank for rank, name in reversed(list(enumerate(prefer)))}
    homes: dict[int, list[set[str]]] = {}
    for role, cell in enumerate(cells):
        homes.setdefault(cell, []).append({holder.machine for holder in by_role[role]})
    kept: dict[int, str] = {}
    for cell, machines in sorted(homes.items()):
        whole = set.intersection(*machines).difference(unwanted)
        if whole:
            kept[cell] = min(whole, key=lambda name: (ranks.get(name, len(ranks)), name))
    return by_role, kept, tuple(cell for cell in sorted(homes) if cell not in kept)


def _share(copies: Sequence[Holder], role: int, load: dict[str, int]) -> tuple[str, ...]:
    """The workers with the least to give to others, by machine and worker; each joiner begins with another one."""
    order = [*copies[role % len(copies) :], *copies[: role % len(copies)]]
    order.sort(key=lambda holder: (load.get(holder.machine, 0), load.get(holder.uid, 0)))
    chosen = order[:STRIPES]
    for holder in chosen:
        load[holder.machine] = load.get(holder.machine, 0) + 1
        load[holder.uid] = load.get(holder.uid, 0) + 1
    return tuple(holder.uid for holder in chosen)


def latest_copy(holders: Sequence[Holder], roles: int, twins: Mapping[int, Sequence[int]]) -> int:
    """The latest step to which all workers could go back with copies in memory; -1: none."""
    kept = {key for holder in holders for key in holder.report.kept}

    def complete(step: int) -> bool:
        return all(any((same, step) in kept for same in (role, *twins.get(role, ()))) for role in range(roles))

    return max(filter(complete, {step for _, step in kept}), default=-1)


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
    _, kept, missing = _by_cell(holders, cells, prefer, unwanted)
    reached = max((holder.report.step for holder in holders), default=0)
    step = latest_copy(holders, len(cells), twins)
    givers: dict[int, tuple[str, ...]] = {}
    copies: dict[int, int] = {}
    back: Back = "copy"
    if step >= 0 and (saved is None or step >= saved):
        found: dict[int, list[Holder]] = {}
        """Role → workers that keep a copy of its state at this step."""
        for holder in holders:
            for role in (role for role, at in holder.report.kept if at == step):
                found.setdefault(role, []).append(holder)
        load: dict[str, int] = {}
        for role, cell in enumerate(cells):
            same = (role, *(twin for twin in twins.get(role, ()) if twin != role))
            sources = {twin: found.get(twin, []) for twin in same}
            keepers = [holder for each in sources.values() for holder in each]
            if not any(h.role == role and h.machine == kept.get(cell) for h in keepers):
                (giver,) = givers[role] = _share(keepers, role, load)[:1]
                copies[role] = next(twin for twin, each in sources.items() if any(h.uid == giver for h in each))
        where = f"the copies of step {step} in memory"
    elif saved is not None:
        step, back, where = saved, "checkpoint", f"the checkpoint of step {saved}"
    else:
        raise StateLost(why)
    repeated = max(0, reached - step)
    times = f", {repeated} step{'s are' if repeated != 1 else ' is'} made again" if repeated else ""
    reason = f"{why}: all go back to {where}{times}"
    return Settlement(step, kept, givers, missing, reason=reason, lost=why, back=back, repeated=repeated, copies=copies)

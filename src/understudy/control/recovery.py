"""After a halt: which step is the next one, and who holds what it needs. Pure, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from understudy.worker.messages import Halted


class Holder(msgspec.Struct, frozen=True):
    """A living worker that holds a role's state."""

    uid: str
    machine: str
    role: int
    report: Halted


class Settlement(msgspec.Struct, frozen=True):
    """What the survivors' reports amount to."""

    step: int
    """The next step: all before it are applied, or will be by those who still hold them complete."""
    kept: dict[int, str]
    """Machine that goes on with each cell."""
    givers: dict[int, str]
    """For each role of the other cells: who can give its state."""
    missing: tuple[int, ...]
    """Cells that need another machine."""
    reason: str


class Hopeless(Exception):
    """No live worker holds some role's state."""


def settle(
    holders: Sequence[Holder],
    cells: Sequence[int],
    twins: Mapping[int, Sequence[int]],
    prefer: Sequence[str] = (),
    unwanted: Sequence[str] = (),
) -> Settlement:
    """Every role applies every step exactly once: if anybody has applied a step, everybody alive has voted for it.

    `cells` is the cell of each role, `twins` the roles that hold identical copies of a role's state, `prefer` machines
    that go on where there is a choice, the best first, `unwanted` those that may give but not go on.
    """
    if not holders:
        raise Hopeless("nobody who is left holds any state")
    step = max(holder.report.step for holder in holders)
    able = [h for h in holders if h.report.step == step or (h.report.step == step - 1 and h.report.voted)]
    by_role: dict[int, list[Holder]] = {role: [] for role in range(len(cells))}
    for holder in able:
        by_role[holder.role].append(holder)
    ranks = {name: rank for rank, name in reversed(list(enumerate(prefer)))}
    kept: dict[int, str] = {}
    givers: dict[int, str] = {}
    missing = []
    for cell in sorted(set(cells)):
        roles = [role for role, of in enumerate(cells) if of == cell]
        whole = set.intersection(*({holder.machine for holder in by_role[role]} for role in roles)) - set(unwanted)
        if whole:
            kept[cell] = min(whole, key=lambda name: (ranks.get(name, len(ranks)), name))
        else:
            missing.append(cell)
    for cell in missing:
        for role in (role for role, of in enumerate(cells) if of == cell):
            copies = [twin for twin in twins.get(role, ()) if twin != role and by_role[twin]]
            if by_role[role]:
                givers[role] = by_role[role][0].uid
            elif copies:
                givers[role] = by_role[copies[role % len(copies)]][0].uid
            else:
                raise Hopeless(f"role {role}: no live replica holds its state")
    behind = any(holder.report.step < step for holder in able)
    verb = f"is next: somebody has applied step {step - 1}" if behind else "begins again"
    return Settlement(step, kept, givers, tuple(missing), f"step {step} {verb}")

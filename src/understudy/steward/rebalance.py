"""How to get from where roles are to where they should be: the fewest transitions, each a set of moves made at one
boundary. A cell is what one machine plays. It moves to a machine that plays nothing; the machine it leaves is free
afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Moves = dict[int, str]
"""Cell → the machine that takes it."""


class Impossible(ValueError):
    """The plan cannot be carried out; the message says why and what to do."""


def check(where: Mapping[int, str], wanted: Mapping[int, str], free: Iterable[str]) -> Moves:
    """The moves that are to be made, without those that are made already; refused where they contradict each other."""
    moves = {cell: machine for cell, machine in wanted.items() if where[cell] != machine}
    standbys = set(free)
    owners: dict[str, int] = {}
    for cell, machine in wanted.items():
        if machine in owners:
            raise Impossible(f"{machine} is to take two places; name another machine for one of them")
        owners[machine] = cell
    players = {machine: cell for cell, machine in where.items()}
    for machine in moves.values():
        if machine in players and players[machine] not in moves:
            raise Impossible(
                f"{machine} plays and is not freed by this plan; move its own roles, too, or name a standby"
            )
        if machine not in players and machine not in standbys:
            raise Impossible(f"{machine} is neither a standby nor freed by this plan; standbys: {_list(standbys)}")
    if moves and not standbys:
        raise Impossible(
            "machines trade places by way of a free standby, and there is none; add one with: understudy standby add"
        )
    return moves


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def transitions(where: Mapping[int, str], wanted: Mapping[int, str], free: Iterable[str]) -> list[Moves]:
    """The fewest, and among those few moves."""
    moves, blank = check(where, wanted, free), set(free)
    for rounds in range(2 * len(moves) + 1):
        found = _within(rounds, dict(where), moves, set(blank))
        if found is not None:
            return found
    raise AssertionError("one cell at a time is always possible")


def _within(rounds: int, at: dict[int, str], wanted: Mapping[int, str], blank: set[str]) -> list[Moves] | None:
    """A way that takes no more than this many transitions, where this rule finds one: whoever can go where it should
    does; a standby that nobody is to have takes whoever stands in the way of the longest row, so that the rows on both
    sides of it move at the same time."""
    found: list[Moves] = []
    for left in range(rounds, 0, -1):
        todo = {cell for cell, machine in wanted.items() if at[cell] != machine}
        if not todo:
            break
        now = {cell: wanted[cell] for cell in sorted(todo) if wanted[cell] in blank}
        spare = sorted(blank - {wanted[cell] for cell in todo})
        for machine, cell in zip(spare, _in_the_way(at, wanted, todo, blank, left), strict=False):
            now[cell] = machine
        if not now:
            return None
        found.append(now)
        blank |= {at[cell] for cell in now}
        blank -= set(now.values())
        at.update(now)
    return found if all(at[cell] == machine for cell, machine in wanted.items()) else None


def _in_the_way(
    at: Mapping[int, str], wanted: Mapping[int, str], todo: set[int], blank: set[str], left: int
) -> list[int]:
    """Whom to set aside, the most pressing first, so that everything can be done in the transitions that are left."""
    here = {at[cell]: cell for cell in todo}
    followers = {here[wanted[cell]]: cell for cell in todo if wanted[cell] in here}
    found: list[tuple[int, int]] = []
    seen: set[int] = set()
    for head in sorted(cell for cell in todo if wanted[cell] in blank):  # rows: each waits for the one before it
        row = _row(head, followers)
        seen |= set(row)
        found += _cuts(row, left, left - 1)
    for cell in sorted(todo - seen):  # rings: nobody can begin
        if cell not in seen:
            ring = _row(cell, followers)
            seen |= set(ring)
            found.append((len(ring) + left, ring[0]))
            found += _cuts([*ring[1:], ring[0]], left - 1, left - 1)
    found.sort(key=lambda pair: -pair[0])
    return [cell for _, cell in found]


def _row(head: int, followers: Mapping[int, int]) -> list[int]:
    row = [head]
    while (after := followers.get(row[-1])) is not None and after != head:
        row.append(after)
    return row


def _cuts(row: list[int], first: int, others: int) -> list[tuple[int, int]]:
    """Cells of a row that must be set aside now, for all of it to be done in time: how much hangs on each, and which.
    Of the row as it is, `first` cells are done in time, and `others` of each that begins behind a cell set aside."""
    cuts = range(first, len(row), others) if first and others else ()
    return [(len(row) - place, row[place - 1]) for place in cuts]

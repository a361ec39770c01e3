"""Moves of roles between machines in the fewest transitions, and targets that spread replicas over racks.

A transition is a set of moves at one boundary. A cell is the set of roles of one machine. A cell moves to a machine
without roles; the machine that it leaves is free afterwards.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence

Moves = dict[int, str]
"""Cell → the machine that takes it."""


class ImpossibleMoves(ValueError):
    """The moves cannot be made; the message says why and what to do."""


def check(where: Mapping[int, str], wanted: Mapping[int, str], free: Iterable[str]) -> Moves:
    """The moves that remain to be made. Raises ImpossibleMoves if they contradict each other."""
    moves = {cell: machine for cell, machine in wanted.items() if where[cell] != machine}
    standbys = set(free)
    owners: dict[str, int] = {}
    for cell, machine in wanted.items():
        if machine in owners:
            raise ImpossibleMoves(f"{machine} is the target of two moves; name another machine for one of them")
        owners[machine] = cell
    cells = {machine: cell for cell, machine in where.items()}
    for machine in moves.values():
        if machine in cells and cells[machine] not in moves:
            raise ImpossibleMoves(
                f"{machine} has roles and is not freed by this plan; move its own roles, too, or name a standby"
            )
        if machine not in cells and machine not in standbys:
            raise ImpossibleMoves(f"{machine} is neither a standby nor freed by this plan; standbys: {_list(standbys)}")
    if moves and not standbys:
        raise ImpossibleMoves(
            "machines exchange roles by way of a free standby, and there is none; add one with: understudy standby add"
        )
    return moves


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def transitions(where: Mapping[int, str], wanted: Mapping[int, str], free: Iterable[str]) -> list[Moves]:
    """The fewest transitions that make all moves, with few moves in addition."""
    moves, blank = check(where, wanted, free), set(free)
    for rounds in range(2 * len(moves) + 1):
        found = _within(rounds, dict(where), moves, set(blank))
        if found is not None:
            return found
    raise AssertionError("one cell at a time is always possible")


def _within(rounds: int, at: dict[int, str], wanted: Mapping[int, str], blank: set[str]) -> list[Moves] | None:
    """Transitions, at most `rounds`; None: this rule finds none.

    A cell moves if its target is free. Each free machine that is not a target takes the cell that blocks the
    longest row, so that the rows on both sides of that cell move at the same time.
    """
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
    """Cells to set aside, the most urgent first, so that all moves fit into the `left` transitions."""
    here = {at[cell]: cell for cell in todo}
    followers = {here[wanted[cell]]: cell for cell in todo if wanted[cell] in here}
    found: list[tuple[int, int]] = []
    seen: set[int] = set()
    for head in sorted(cell for cell in todo if wanted[cell] in blank):  # rows: each cell waits for the one before
        row = _row(head, followers)
        seen |= set(row)
        found += _cuts(row, left, left - 1)
    for cell in sorted(todo - seen):  # rings: no cell can begin
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
    """Cells of a row that must be set aside now, each with the number of cells that depend on it.

    `first` cells of the row are done in time, and `others` cells of each part behind a cell that is set aside.
    """
    cuts = range(first, len(row), others) if first and others else ()
    return [(len(row) - place, row[place - 1]) for place in cuts]


def spread_over_racks(
    where: Mapping[int, str], kinds: Sequence[Sequence[int]], racks: Mapping[str, str], free: Iterable[str]
) -> Moves:
    """The fewest moves after which no rack holds more equal cells than necessary, by a flow of minimal cost.

    `kinds` are sets of cells with equal state; `racks` is the rack of each machine. Standbys without a known rack are
    not used. Raises ImpossibleMoves if the rack of a machine with roles is not known.
    """
    unknown = sorted(machine for machine in where.values() if machine not in racks)
    if unknown:
        raise ImpossibleMoves(f"the rack of {', '.join(unknown)} is not known; label it, or leave --spread out")
    standbys = [machine for machine in sorted(free) if machine in racks]
    room = Counter(racks[machine] for machine in [*where.values(), *standbys])
    goal = _cheapest(where, [kind for kind in kinds if kind], racks, room)
    vacated = [machine for cell, machine in sorted(where.items()) if goal[cell] != racks[machine]]
    open_ones = [*standbys, *vacated]
    moves: Moves = {}
    for cell in sorted(goal):
        if goal[cell] != racks[where[cell]]:
            machine = next(machine for machine in open_ones if racks[machine] == goal[cell])
            open_ones.remove(machine)
            moves[cell] = machine
    return moves


def _cheapest(
    where: Mapping[int, str], kinds: Sequence[Sequence[int]], racks: Mapping[str, str], room: Mapping[str, int]
) -> dict[int, str]:
    """The rack of each cell. A rack's second cell of a kind costs more than all moves together, its third more than all
    second ones, and so on. The number of moves decides between equal arrangements."""
    graph, step = _Flow(), len(where) + 1
    here = [{rack: [cell for cell in kind if racks[where[cell]] == rack] for rack in sorted(room)} for kind in kinds]
    for kind, groups in enumerate(here):
        for rack, cells in groups.items():
            graph.edge("source", ("from", kind, rack), len(cells), 0)
            for other in groups if cells else ():
                graph.edge(("from", kind, rack), (kind, other), len(cells), int(other != rack))
            for crowd in range(min(len(kinds[kind]), room[rack])):
                graph.edge((kind, rack), ("rack", rack), 1, step ** (crowd + 1) if crowd else 0)
    for rack, size in room.items():
        graph.edge(("rack", rack), "sink", size, 0)
    graph.fill()
    goal = {}
    for kind, groups in enumerate(here):
        for rack, cells in groups.items():
            left = list(cells)
            for other in (rack, *(other for other in groups if other != rack)):  # the first cells stay
                count = graph.flow(("from", kind, rack), (kind, other))
                goal.update(dict.fromkeys(left[:count], other))
                del left[:count]
    return goal


class _Flow:
    """A maximal flow from source to sink of minimal cost."""

    def __init__(self) -> None:
        self._ends: list[Hashable] = []
        self._room: list[int] = []
        self._cost: list[int] = []
        self._at: dict[Hashable, list[int]] = {}
        """Node → its edges; edge n ^ 1 is edge n backwards."""

    def edge(self, begin: Hashable, end: Hashable, room: int, cost: int) -> None:
        for node, other, size, price in ((begin, end, room, cost), (end, begin, 0, -cost)):
            self._at.setdefault(node, []).append(len(self._ends))
            self._ends.append(other)
            self._room.append(size)
            self._cost.append(price)

    def flow(self, begin: Hashable, end: Hashable) -> int:
        """The flow from `begin` to `end`."""
        edges = [edge for edge in self._at.get(begin, ()) if edge % 2 == 0 and self._ends[edge] == end]
        return sum(self._room[edge ^ 1] for edge in edges)

    def fill(self) -> None:
        while path := self._path():
            most = min(self._room[edge] for edge in path)
            for edge in path:
                self._room[edge] -= most
                self._room[edge ^ 1] += most

    def _path(self) -> list[int]:
        """The cheapest augmenting path; empty if there is none."""
        cost: dict[Hashable, int] = {"source": 0}
        came: dict[Hashable, int] = {}
        queue: deque[Hashable] = deque(["source"])
        while queue:
            node = queue.popleft()
            for edge in self._at[node]:
                end, total = self._ends[edge], cost[node] + self._cost[edge]
                if self._room[edge] and total < cost.get(end, total + 1):
                    cost[end], came[end] = total, edge
                    if end not in queue:
                        queue.append(end)
        path: list[int] = []
        while "sink" in came and (not path or self._ends[path[-1] ^ 1] != "source"):
            path.append(came["sink" if not path else self._ends[path[-1] ^ 1]])
        return path

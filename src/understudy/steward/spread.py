"""Where cells that hold the same should be, so that no rack (or room, or switch) holds more of them than it must: the
fewest moves, by a flow of least cost."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence

from .rebalance import Impossible, Moves


def spread(
    where: Mapping[int, str], kinds: Sequence[Sequence[int]], racks: Mapping[str, str], free: Iterable[str]
) -> Moves:
    """Cell → machine for those that are to move. `kinds` are the cells that hold the same, `racks` is where each
    machine stands; machines of which that is not known cannot be judged, and standbys among them are not used."""
    unknown = sorted(machine for machine in where.values() if machine not in racks)
    if unknown:
        raise Impossible(f"where {', '.join(unknown)} stands is not known; label it, or leave --spread out")
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
    second ones, and so on; whatever does not change that is decided by the number of moves."""
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
            for other in (rack, *(other for other in groups if other != rack)):  # the first ones stay
                count = graph.flow(("from", kind, rack), (kind, other))
                goal.update(dict.fromkeys(left[:count], other))
                del left[:count]
    return goal


class _Flow:
    """As much as can goes from source to sink, for the least cost."""

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
        """What goes from one to the other."""
        edges = [edge for edge in self._at.get(begin, ()) if edge % 2 == 0 and self._ends[edge] == end]
        return sum(self._room[edge ^ 1] for edge in edges)

    def fill(self) -> None:
        while path := self._path():
            most = min(self._room[edge] for edge in path)
            for edge in path:
                self._room[edge] -= most
                self._room[edge ^ 1] += most

    def _path(self) -> list[int]:
        """The cheapest way for more; empty where there is none."""
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

"""Where cells that hold the same should be, so that no rack (or room, or switch) holds more of them than it must: the
fewest moves, by a flow of least cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

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


def crowding(where: Mapping[int, str], kinds: Sequence[Sequence[int]], racks: Mapping[str, str]) -> list[int]:
    """For each kind, how many of its cells the fullest rack holds."""
    return [max(Counter(racks.get(where[cell], "") for cell in kind).values()) for kind in kinds if kind]


def _cheapest(
    where: Mapping[int, str], kinds: Sequence[Sequence[int]], racks: Mapping[str, str], room: Mapping[str, int]
) -> dict[int, str]:
    """The rack of each cell. A rack's second cell of a kind costs more than all moves together, its third more than all
    second ones, and so on; whatever does not change that is decided by the number of moves."""
    graph = _Flow()
    step = len(where) + 1
    for number, kind in enumerate(kinds):
        for cell in kind:
            graph.edge("source", ("cell", cell), 0)
            for rack in sorted(room):
                graph.edge(("cell", cell), (number, rack), int(rack != racks[where[cell]]))
        for rack in sorted(room):
            for crowd in range(len(kind)):
                graph.edge((number, rack), ("rack", rack), step**crowd * step if crowd else 0)
    for rack, size in sorted(room.items()):
        for _ in range(size):
            graph.edge(("rack", rack), "sink", 0)
    graph.fill()
    return {
        cell: next(rack for rack in sorted(room) if graph.used(("cell", cell), (number, rack)))
        for number, kind in enumerate(kinds)
        for cell in kind
    }


class _Flow:
    """Edges that take one unit each; as much as can goes from source to sink, for the least cost."""

    def __init__(self) -> None:
        self._edges: list[tuple[object, object, int]] = []
        self._taken: list[bool] = []

    def edge(self, begin: object, end: object, cost: int) -> None:
        self._edges.append((begin, end, cost))
        self._taken.append(False)

    def used(self, begin: object, end: object) -> bool:
        return any(taken and edge[:2] == (begin, end) for edge, taken in zip(self._edges, self._taken, strict=True))

    def fill(self) -> None:
        while (path := self._path()) is not None:
            for number in path:
                self._taken[number] = not self._taken[number]

    def _path(self) -> list[int] | None:
        """The cheapest way for one more unit; edges in use may be gone back on."""
        cost: dict[object, int] = {"source": 0}
        came: dict[object, tuple[object, int]] = {}
        better = True
        while better:
            better = False
            for number, (begin, end, price) in enumerate(self._edges):
                if self._taken[number]:
                    begin, end, price = end, begin, -price
                if begin in cost and cost[begin] + price < cost.get(end, cost[begin] + price + 1):
                    cost[end], came[end] = cost[begin] + price, (begin, number)
                    better = True
        if "sink" not in came:
            return None
        path, at = [], "sink"
        while at != "source":
            at, number = came[at]  # type: ignore[assignment]
            path.append(number)
        return path

"""What a death has cost, from the marks that the training scripts left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from understudy_bench.harness import median

QUIET = 12
"""Steps before a death, to know how long an undisturbed one takes."""
ALONE = 20
"""Steps without the dead one, at most, by which it is known how fast the others are; half of them must be there."""
NEVER = 25
"""Steps after full strength in which nothing new was done: what was done before is forgotten."""


class Mark(msgspec.Struct, frozen=True):
    """A line that a script has written; see `scripts/marks.py`."""

    place: int
    """Whose work it is, whoever does it: a role, a rank, a replica."""
    pid: int
    kind: str
    step: int
    at: float
    full: bool = True
    shards: tuple[int, ...] = ()
    """At the end of a step: the micro-shards that this process has computed for it, interrupted attempts included."""


class Watch:
    """Reads what the scripts append to the files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.marks: list[Mark] = []

    def look(self) -> list[Mark]:
        """All marks so far, in the order of their time; a line that is not complete yet is left for the next time."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            complete = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(complete)
            self.marks += [msgspec.json.decode(line, type=Mark) for line in complete.splitlines()]
        self.marks.sort(key=lambda mark: mark.at)
        return self.marks

    def ends(self, place: int | None = None) -> list[Mark]:
        return [mark for mark in self.look() if mark.kind == "end" and place in (None, mark.place)]

    def player(self, place: int) -> int:
        """The process that ended a step of this place last."""
        return self.ends(place)[-1].pid


@dataclass(frozen=True)
class Outage:
    """What the survivors saw; of several, the one that lost most. Seconds count from the death."""

    step_s: float
    """An undisturbed step, before."""
    stall_s: float
    """To the next completed step, less an undisturbed one."""
    full_strength_s: float
    """To the end of the first step in which the dead one's place is played again."""
    new_step_s: float | None
    """To the end of the first step that had not been done before; None: all was forgotten."""
    repeated: int
    """Steps that were begun again, the one in flight included."""
    dropped: int
    """Steps whose work was thrown away: no update came of their data."""
    restarted: bool
    """Whether the survivors' processes were started again, too."""


def outage(marks: Sequence[Mark], place: int, at: float) -> Outage | None:
    """What the death of the worker at `place` at time `at` has cost; None while that cannot be said yet."""
    back = _back(marks, place, at)
    if back is None:
        return None
    seen = [_seen([mark for mark in marks if mark.place == other], at, back) for other in _others(marks, place)]
    known = [each for each in seen if each is not None]
    return max(known, key=lambda each: each.stall_s) if len(known) == len(seen) else None


def _back(marks: Sequence[Mark], place: int, at: float) -> float | None:
    """When the dead one's place was played again in a step of all."""
    dead = max((mark for mark in marks if mark.place == place and mark.at <= at), key=lambda mark: mark.at).pid
    ends = (mark for mark in marks if mark.place == place and mark.at > at and mark.kind == "end")
    return next((mark.at for mark in ends if mark.pid != dead and mark.full), None)


def _others(marks: Sequence[Mark], place: int) -> list[int]:
    return sorted({mark.place for mark in marks} - {place})


def _ends(marks: Sequence[Mark], place: int, at: float) -> tuple[list[Mark], list[Mark]]:
    """Steps of a place, up to some time and since."""
    ends = [mark for mark in marks if mark.place == place and mark.kind == "end"]
    before = [mark for mark in ends if mark.at <= at]
    return before, ends[len(before) :]


def _late(marks: Sequence[Mark], at: float) -> int:
    """Which of a survivor's steps since the death is the one that the death has delayed; its marks are in the order of
    their time.

    A step that needed nothing more from the dead one may still end by itself; then the one after it is late. One in
    which the survivor has computed more than before has stood in for the dead one. Otherwise it is the one before whose
    end more than one was begun: it, or the one that was given up, had to be begun again. Only where there is none, the
    longer one is."""
    before, after = _ends(marks, marks[0].place, at)
    around = [before[-1], *after[:2]]
    if len(around[1].shards) > len(around[0].shards):
        return 0
    places = [marks.index(end) for end in around]
    begun = [sum(mark.kind == "begin" for mark in marks[one:other]) for one, other in pairwise(places)]
    if max(begun) > 1:
        return int(begun[0] <= 1)
    first, second = gaps(end.at for end in around)
    return int(second > first)


def _seen(marks: Sequence[Mark], at: float, back: float) -> Outage | None:
    """By one survivor, whose marks these are, in the order of their time."""
    before, after = _ends(marks, marks[0].place, at)
    if len(after) < 2:
        return None
    late = _late(marks, at)
    step_s = median(gaps(mark.at for mark in before[-QUIET - 1 :]))
    player = before[-1].pid  # an earlier one may have counted otherwise
    known = max(mark.step for mark in [*before, *after[:late]] if mark.pid == player)
    new = next((mark.at for mark in after[late:] if mark.step > known), None)
    if new is None and sum(mark.at > back for mark in after) < NEVER:
        return None
    over = back if new is None else max(back, new)
    begun = {mark.step for mark in marks if mark.kind == "begin" and mark.at <= at and mark.pid == player}
    since = [mark for mark in marks if at < mark.at <= over]
    return Outage(
        step_s=step_s,
        stall_s=after[late].at - at - step_s,
        full_strength_s=back - at,
        new_step_s=None if new is None else new - at,
        repeated=sum(mark.kind == "begin" and mark.step in begun for mark in since),
        dropped=sum(mark.kind == "drop" for mark in since),
        restarted=after[late].pid != player,
    )


def degraded(marks: Sequence[Mark], place: int, at: float) -> float | None:
    """Micro-shards per second while the one at `place` is missing, of those at full strength before its death; None
    where the others have not gone on without it for long enough."""
    full, alone = [], []
    back = _back(marks, place, at)
    for each in sorted({mark.place for mark in marks}):
        mine = [mark for mark in marks if mark.place == each]
        before, after = _ends(mine, each, at)
        full.append(before[-QUIET - 1 :])
        if each != place:
            if len(after) < 2:
                return None
            since = after[_late(mine, at) :]
            steps = [mark for mark in since if mark.pid == before[-1].pid and (back is None or mark.at < back)]
            alone.append(steps[: ALONE + 1])
    if min(map(len, alone)) <= ALONE // 2:
        return None
    return _speed(alone) / _speed(full)


def _speed(places: Sequence[Sequence[Mark]]) -> float:
    """Micro-shards per second from the first to the last of these ends of steps, of each place its own."""
    computed = sum(median(len(mark.shards) for mark in ends[1:]) for ends in places)
    return computed / median(median(gaps(mark.at for mark in ends)) for ends in places)


def recomputed(marks: Sequence[Mark], place: int, at: float) -> int:
    """Micro-shards that survivors have computed although one of them had done so before, as far as they lived to tell:
    a process that was itself ended says nothing of its last step."""
    found: list[tuple[int, int]] = []
    for other in _others(marks, place):
        before, after = _ends(marks, other, at)
        known = [mark for mark in before[-QUIET:] if mark.pid == before[-1].pid]
        found += [(mark.step, number) for mark in [*known, *after[:QUIET]] for number in mark.shards]
    return len(found) - len(set(found))


def gaps(times: Iterable[float]) -> list[float]:
    """From each to the next."""
    ordered = list(times)
    return [later - earlier for earlier, later in pairwise(ordered)]

"""Replace: what training loses when a machine is replaced by plan, against the ways it could be done otherwise.

- understudy: a standby is there. It rehearses and connects while the others train, state travels while the last step
  computes;
- the same with one technique switched off: `no delta` opens every link anew, not only those that change; `no overlap`
  hands all state over at the boundary (`overlap = False`); `no standby` begins with the start of a machine;
  `no rehearsal` lets the newcomer enter `train` without a shadow step (`rehearsals = 0`), and averages gradients by
  hand, since a DDP that has not made a step cannot join those that have;
- naive: a standby is there, but the world is stopped: everybody waits while it rehearses, all links are opened anew,
  and the state goes over at the boundary;
- restart: save a checkpoint, end, start everything again with torchrun, load. `restart, DCP` saves and loads with
  torch.distributed.checkpoint, on all workers.

Those that differ in the request take turns in one job of two machines; those that differ in settings have jobs of their
own. Only one job runs at a time: nobody computes beside the one that is measured. The lives of all kinds alternate.

What is lost is the time of the two steps around the change beyond two usual ones; for a restart, the time from the end
of the last step before to the end of the first one after, beyond one usual step. Usual is the median of undisturbed
steps just before. `told_s` is what the runtime itself says. Usual, for the runtime, are the last steps before the
change; where all machines share two cores, these are slow while the newcomer rehearses. So it says less, and it is not
what is compared. `beside_s` is what those slow steps took beyond usual ones; a machine of its own would take nothing.
`ready_s` is from the request until the newcomer has made its first step. What the leaver's processes use to end, after
the newcomer's first step, is in none of the figures, for the same reason.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from understudy_bench.around import Curve, around_row, of_ends
from understudy_bench.harness import Bench, Check, Progress, Result, interleave, median, rounded, spread
from understudy_bench.processes import Command, torchrun, workplace
from understudy_bench.replaced import LIMIT_S, QUIET, WARM_UP, Life, Row, Seen, replacements
from understudy_bench.scripts import OURS, PLAIN, TIMED

TOGETHER, RESTARTS = "together", ("restart", "restart, DCP")
ALONE: Mapping[str, Life] = {
    "no overlap": Life(OURS, {"overlap": False}, ("no overlap",)),
    "no rehearsal": Life(TIMED, {"rehearsals": 0}, ("no rehearsal",), ("--by-hand",)),
}
"""Those whose settings are other ones."""
TURNS = ("understudy", "naive", "no delta", "understudy", "no standby")
KINDS = (TOGETHER, *ALONE, *RESTARTS)
ROUNDS = 6
AFTERWARDS = 8
"""Steps of a restarted job."""
RESTART_BAR = 40
SYSTEMS = ("understudy", "no delta", "no overlap", "no standby", "no rehearsal", "naive", *RESTARTS)


# -- what is computed from what was seen -------------------------------------------------------------------------------


def in_turn(number: int) -> Life:
    """The life in which several take turns; each round begins with another one."""
    first = number % len(TURNS)
    return Life(OURS, {}, (*TURNS[first:], *TURNS[:first]))


def restart_row(
    before: Sequence[tuple[str, float]], launched: float, after: Sequence[tuple[str, float]]
) -> tuple[float, float, dict[str, float]]:
    """Seconds lost, seconds of a usual step and where the time went, from what ended when in both lives of the job."""
    ends = [at for name, at in before if name == "step"]
    step_s = median(later - end for end, later in zip(ends[WARM_UP:], ends[WARM_UP + 1 :], strict=False))
    clock = ends[-1]
    phases = {}
    for name, at in [
        *(mark for mark in before if mark[0] == "save"),
        ("stop", launched),
        *(mark for mark in after if mark[0] != "step"),
        ("first step", next(at for name, at in after if name == "step")),
    ]:
        phases[name], clock = at - clock, at
    return clock - ends[-1] - step_s, step_s, phases


def by_system(rows: Iterable[Mapping[str, Any]], column: str) -> dict[str, list[float]]:
    """A column's values, of the rows that have it."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if column in row:
            found.setdefault(row["system"], []).append(row[column])
    return found


def summary(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row for all repetitions of a system together: medians, and where most of them lie."""
    names = ("lost_s", "told_s", "beside_s", "ready_s", "step_s")
    columns = {column: by_system(rows, column) for column in names}
    found: list[Row] = []
    for system in sorted(columns["lost_s"], key=SYSTEMS.index):
        values = columns["lost_s"][system]
        medians = {name: round(median(column[system]), 4) for name, column in columns.items() if system in column}
        lost_spread = [round(value, 4) for value in spread(values)]
        found.append({"system": system, "round": "all", **medians, "lost_spread": lost_spread})
    return found


def checks_of(lost: Mapping[str, Sequence[float]]) -> list[Check]:
    ours = max(median(lost["understudy"]), 1e-3)  # below a millisecond nothing is measured
    restart, naive = median(lost["restart"]) / ours, median(lost["naive"]) / ours
    return [
        Check("ratio_restart", round(restart, 1), f">= {RESTART_BAR}", restart >= RESTART_BAR),
        Check("ratio_naive", round(naive, 1), "> 1", naive > 1),
    ]


# -- the restart -------------------------------------------------------------------------------------------------------


def restart(folder: Path, *, dcp: bool = False) -> Seen:
    """A job that is ended with a checkpoint and started again."""
    folder.mkdir()
    checkpoint, marks = folder / "checkpoint", (folder / "before", folder / "after")
    steps = (WARM_UP + QUIET + 1, AFTERWARDS)
    launched = []
    format = ("--dcp",) if dcp else ()
    for number, extra in enumerate((("--save", *format), format)):
        options = ("--steps", str(steps[number]), "--checkpoint", str(checkpoint), "--marks", str(marks[number]))
        command, env = torchrun(2, PLAIN, *options, *extra)
        launched.append(time.time())
        with Command(command, folder / "log", env) as running:
            running.wait(LIMIT_S)
    before, after = (json.loads(path.read_text()) for path in marks)
    lost_s, step_s, phases = restart_row(before, launched[1], after)
    kept = [file for file in folder.rglob("*") if file.relative_to(folder).parts[0].startswith(checkpoint.name)]
    size = sum(file.stat().st_size for file in kept if file.is_file())
    ends = [at for name, at in (*before, *after) if name == "step"]
    at = [at for name, at in before if name == "step"][-1]
    shutil.rmtree(folder)
    row: Row = {"lost_s": lost_s, "step_s": step_s, "phases": phases, "bytes": size}
    return Seen(row, of_ends(ends, at, step_s))


def measure(quick: bool, progress: Progress) -> Result:
    rounds = 1 if quick else ROUNDS
    progress.total = rounds * (len(TURNS) + len(ALONE) + len(RESTARTS))
    rows: list[Row] = []
    curves: dict[str, list[Curve]] = {}

    def keep(number: int, system: str, seen: Seen) -> None:
        rows.append({"system": system, "round": number, **rounded(seen.row)})
        curves.setdefault(system, []).append(seen.around)
        progress.advance(f"{system} {number + 1}")

    with workplace() as folder:
        for number, kind in interleave(KINDS, rounds):
            place = folder / f"{KINDS.index(kind)}-{number}"
            if kind in RESTARTS:
                keep(number, kind, restart(place, dcp=kind == RESTARTS[1]))
                continue
            life = in_turn(number) if kind == TOGETHER else ALONE[kind]
            asyncio.run(replacements(life, place, partial(keep, number)))
    around = [around_row(system, {}, curves[system]) for system in SYSTEMS if system in curves]
    return Result([*rows, *summary(rows), *around], checks_of(by_system(rows, "lost_s")))


BENCH = Bench("replace", "what training loses by a planned replacement, against restarting from a checkpoint", measure)

"""Rehearsal: the value of a standby's shadow steps, and their cost for the machines that train.

- first step (`first_step.py`): a joiner's first step after the switch against its usual ones (medians of the same
  process, a few steps later), with rehearsal (the defaults, a standby that waits) and without (`rehearsals = 0`, `warm
  = 0`), eager and with torch.compile: inductor if there is a C++ compiler, else aot_eager. Every process compiles into
  a cache of its own. The columns show the time of each part: `start_s` from the request for a machine to its worker's
  process, `import_s` the script's imports, `build_s` from the entry of `train` to its first boundary, `shadow_s` each
  shadow step (the first one compiles), `links_s` opening links beside training, `hand_over_s` from the switch to the
  verification of the state. `forward_ratio` and others are parts of the first step, divided by those of a usual one;
  `processor_ratio` counts processor time only. Without rehearsal gradients are averaged by hand: DDP lays out its
  buckets in its first two steps, and a joiner that has not done so cannot join those that have.
- promotion (`promotion.py`): every machine of a mesh dies in turn, and a standby takes its roles: at once if they are
  of the role class in which it waits, else by entering `train` again. `full_strength_s` is from the kill to the end of
  the first step of all roles. After a death all links are opened: `joiners_links_s` and `stayers_links_s` are the
  joiners' and the stayers' part of it, at the same time. At the end every role's state has the bits of an undisturbed
  run.
- recording (`recording.py`): a step after the recording of the first steps, against one of a job that records nothing;
  both jobs train by turns. And the sizes of recordings.
- memory (`standby_memory.py`): the standby's worker and those that train, all between two steps: resident memory, and
  the part that no other process maps (`own`), from `smaps_rollup`, with an allocator that returns large blocks at once.

While a joiner makes its first steps, the job does nothing else: the next standby is requested afterwards.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

from understudy_bench.harness.bench import Bench, Progress, Result, interleave, rounded
from understudy_bench.harness.processes import workplace
from understudy_bench.rehearsal import first_step, promotion, recording, standby_memory
from understudy_bench.rehearsal.first_step import Contestant

ROUNDS, REPLACEMENTS, BLOCKS = 3, 2, 20
RESTS = 3
QUICK_REPLACEMENTS, QUICK_CELLS, QUICK_BLOCKS = 2, (0, 2), 6

Row = dict[str, Any]


def backend() -> str:
    """The backend of torch.compile that works on this computer."""
    return "inductor" if shutil.which("g++") or shutil.which("clang++") else "aot_eager"


def measure(quick: bool, progress: Progress) -> Result:
    contestants = [Contestant(name, rehearses) for name in ("", backend()) for rehearses in (True, False)]
    rounds, replacements = (1, QUICK_REPLACEMENTS) if quick else (ROUNDS, REPLACEMENTS)
    meshes = [
        (mesh, QUICK_CELLS if quick else range(mesh.machines)) for mesh in promotion.MESHES[: 1 if quick else None]
    ]
    blocks = QUICK_BLOCKS if quick else BLOCKS
    weighed = () if quick else recording.WEIGHED
    progress.total = (
        rounds * replacements * len(contestants)
        + sum(len(cells) + 1 for _, cells in meshes)
        + blocks * len(recording.SYSTEMS)
        + RESTS
        + len(weighed)
    )
    firsts: list[Row] = []
    promoted: list[Row] = []
    sizes: dict[str, list[int]] = {}
    wrong: dict[str, list[str]] = {}
    with workplace() as folder:
        for number, contestant in interleave(contestants, rounds):
            place = folder / f"{contestant.name}-{contestant.how}-{number}"
            life = asyncio.run(first_step.live(contestant, place, replacements, progress.advance))
            who = {"model": contestant.name, "how": contestant.how, "backend": contestant.backend}
            for row in life.rows:
                firsts.append({"part": "first step", **who, "round": str(number), **rounded(row)})
            if contestant.rehearses:
                sizes[f"benchmark, {contestant.name}"] = life.recorded
        for mesh, cells in meshes:
            promoted_in = asyncio.run(promotion.promote(mesh, folder / mesh.name, cells, progress.advance))
            promoted += promoted_in.rows
            sizes[f"gpt_3d.py, {mesh.name}"] = promoted_in.recorded
            wrong[mesh.name] = promoted_in.wrong
        times = recording.step_times(folder / "contest", blocks, progress.advance)
        held = asyncio.run(standby_memory.weigh(folder / "memory", RESTS, progress.advance))
        for example in weighed:
            sizes[example] = asyncio.run(recording.sizes_of(example, folder / example))
            progress.advance(example)
    return Result(
        [
            *firsts,
            *first_step.summary(firsts),
            *promoted,
            *promotion.summary(promoted),
            *recording.step_rows(times),
            *(recording.size_row(model, recorded) for model, recorded in sizes.items()),
            *held,
        ],
        [
            *first_step.checks_of(firsts),
            *promotion.checks_of(wrong, promoted),
            recording.check_of(times),
            standby_memory.check_of(held),
        ],
    )


BENCH = Bench("rehearsal", "a joiner's first step, roles that a standby takes, and what recording costs", measure)

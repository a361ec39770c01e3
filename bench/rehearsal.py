"""Rehearsal: what a standby's shadow steps are worth, and what they cost those who train.

- first step: a newcomer's first step after the switch against its usual ones (medians of the same process, a few steps
  later), with rehearsal (the defaults, a standby that waits) and without (`rehearsals = 0`, `warm = 0`), eager and with
  torch.compile: inductor where there is a C++ compiler, else aot_eager. Every process compiles into a cache of its own.
  The rows say where the time goes: `start_s` from asking for a machine to its worker's process, `import_s` the script's
  imports, `build_s` from the entry of `train` to its first boundary, `shadow_s` each shadow step (the first one
  compiles), `links_s` opening links beside training, `hand_over_s` from the switch to the check of what has come.
  Of the first step's own parts, `forward_ratio` … are those of a usual one; `processor_ratio` is its work, however
  long it had to wait for a processor. Without rehearsal gradients are averaged by hand, since DDP lays out its buckets
  in its first two steps: a newcomer that has not done so cannot join those that have.
- promotion: every machine of a mesh dies in turn, and a standby that waits takes its roles, at once where they are of
  the kind that it waits in, else by entering `train` again. `full_strength_s` is from the kill to the end of the first
  step that all have made; in `joiners_links_s` of it those who come have opened their links, in `stayers_links_s` the
  others, at the same time: after a death all links are opened anew. At the end every role's state is that of an
  undisturbed run, to the bit.
- recording: a step where the first steps were recorded, after that is over, against one of a job that records nothing.
  Both jobs live and train by turns. And the sizes of recordings.
- memory: the standby's worker and those that train, all between two steps: what is resident, and what of that nobody
  else has (`own`), from `smaps_rollup`, with an allocator that gives large blocks back at once.

Nothing else of a job happens while a newcomer makes its first steps: the next standby is sent for afterwards.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

from understudy_bench import first_step, memory, promotion, recording
from understudy_bench.first_step import Contestant
from understudy_bench.harness import Bench, Progress, Result, interleave, rounded
from understudy_bench.processes import workplace

ROUNDS, REPLACEMENTS, BLOCKS = 3, 2, 20
RESTS = 3
QUICK_REPLACEMENTS, QUICK_CELLS, QUICK_BLOCKS = 2, (0, 2), 6

Row = dict[str, Any]


def backend() -> str:
    """What torch.compile can do here."""
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
            played = asyncio.run(promotion.play(mesh, folder / mesh.name, cells, progress.advance))
            promoted += played.rows
            sizes[f"gpt_3d.py, {mesh.name}"] = played.recorded
            wrong[mesh.name] = played.wrong
        times = recording.step_times(folder / "contest", blocks, progress.advance)
        weights = asyncio.run(memory.weigh(folder / "memory", RESTS, progress.advance))
        for example in weighed:
            sizes[example] = asyncio.run(recording.sizes_of(example, folder / example))
            progress.advance(example)
    held = [recording.memory_row(*seen, number) for number, seen in enumerate(weights)]
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
            *recording.checks_of(times, held),
        ],
    )


BENCH = Bench("rehearsal", "a newcomer's first step, roles that a standby takes, and what recording costs", measure)

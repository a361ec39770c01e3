"""Many seeds at once, on all processors."""

from __future__ import annotations

import gc
import logging
import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .job import simulate_seed
from .verdicts import RuleBroken

_BLOCK = 25
"""Seeds that a process takes at a time."""
_TOLD = 1000
"""Seeds after which a line tells how far it is, if standard error is no terminal."""


def simulate_many(seeds: range, processes: int) -> tuple[Counter[str], dict[int, str]]:
    """How often jobs ended in which way, and what was wrong in the seeds that broke a rule."""
    ends: Counter[str] = Counter()
    broken: dict[int, str] = {}
    blocks = [seeds[first : first + _BLOCK] for first in range(0, len(seeds), _BLOCK)]
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(processes, context, _prepare) as pool,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        task = progress.add_task("seeds", total=len(seeds))
        for future in as_completed([pool.submit(simulate_block, block) for block in blocks]):
            for seed, end, detail in future.result():
                ends[end] += 1
                if detail:
                    broken[seed] = detail
                    progress.console.print(f"seed {seed}: {detail.splitlines()[0]}", markup=False, soft_wrap=True)
                progress.advance(task)
            if not progress.console.is_terminal and not ends.total() % _TOLD:
                progress.console.print(f"{ends.total()} of {len(seeds)} seeds, {len(broken)} broken", soft_wrap=True)
    return ends, broken


def _prepare() -> None:
    logging.disable(logging.CRITICAL)
    gc.freeze()  # simulated workers collect garbage often, and what is there now stays


def simulate_block(seeds: range) -> list[tuple[int, str, str]]:
    """For each seed: how the job ended, or the rule that was broken and what was wrong."""
    found = []
    for seed in seeds:
        try:
            state = simulate_seed(seed).controller.state
            found.append((seed, "undecided" if state is None else state.status.value, ""))
        except RuleBroken as error:
            found.append((seed, error.rule.name, str(error)))
    return found

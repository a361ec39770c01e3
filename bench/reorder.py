"""Reordering: the time to mask a failure, the depth of the stacks, and the failures that a placement endures.

Replicas fail one after the other in random order until a wipe-out. Each failure is timed on its own, in processor time.
States are verified independently: every shard is assigned once, to a live holder, and no replica computes more than the
depth; if the depth is above the even share, a plain matching shows that no smaller one is possible. Failures endured
and mean depth are compared with their closed forms. All draws are seeded.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean

import numpy as np

from understudy.masking import formulas
from understudy.masking.assignment import assign, mask
from understudy.masking.placement import Placement, PlacementError, golomb, random_regular
from understudy.masking.stacks import Stacks, after_failure, stacked
from understudy_bench.harness.bench import Bench, Check, Progress, Result

SIZES = (200, 1_000, 10_000)
HOLDERS = (3, 9, 20)
FAILURES = {200: 6_000, 1_000: 8_000, 10_000: 12_000}
"""Replicas → failures, at least; whole runs are added until there are so many."""

CHECKED = {200: 1, 1_000: 10, 10_000: 200}
"""Replicas → one state in so many is verified, besides all that are deeper than the even share."""

DRAWS = {200: 40_000, 1_000: 20_000, 10_000: 8_000}
MICRO = (4, 8)
"""Holders of the rows with 16 micro-shards per shard on 600 replicas."""

SHORTEST = (1_000, 9)
"""Replicas and holders of the row with SPARe's own, shortest ruler."""

ENDURED_WITHIN = 0.0085
ABOVE_AT_MOST = 0.0045


@dataclass
class Failures:
    """The measurements of one placement's failures."""

    seconds: list[float] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    above: int = 0
    free: int = 0
    patched: int = 0
    checked: int = 0
    wrong: int = 0


def measure(quick: bool, progress: Progress) -> Result:
    placements = [placed(size, r) for size in SIZES for r in HOLDERS] + [golomb(*SHORTEST, wide=False)]
    progress.total = 2 * len(placements) + len(MICRO)
    rows: list[dict[str, object]] = []
    total = Failures()
    mean_ms = 0.0
    errors: list[tuple[float, float]] = []
    depth_errors: list[float] = []
    for number, placement in enumerate(placements):
        size, r, is_short = placement.replicas, placement.r, number == len(placements) - 1
        seen = fail_until_wipe_out(placement, FAILURES[size] // (10 if quick else 1), CHECKED[size])
        progress.advance(f"{placement.name} on {size:,} replicas: failures")
        endured, error = draw_endured(placement, DRAWS[size] // (10 if quick else 1))
        progress.advance(f"{placement.name} on {size:,} replicas: failures endured")
        expected = formulas.failures(size, r)
        depth = formulas.mean_depth_over_failures(size, expected)
        errors.append((abs(expected / endured - 1), error / endured))
        depth_errors.append(abs(fmean(seen.depths) / depth - 1))
        total.checked += seen.checked
        total.wrong += seen.wrong
        if placement.name.startswith("spare") and not is_short:
            total.depths += seen.depths
            total.above += seen.above
        if (size, r) == (max(SIZES), max(HOLDERS)):
            mean_ms = fmean(seen.seconds) * 1e3
        rows.append(
            {
                "replicas": size,
                "placement": f"{placement.name}, shortest ruler" if is_short else placement.name,
                "failures": len(seen.seconds),
                "mean_us": round(fmean(seen.seconds) * 1e6, 1),
                "p99_us": round(sorted(seen.seconds)[int(0.99 * len(seen.seconds))] * 1e6, 1),
                "worst_us": round(max(seen.seconds) * 1e6, 1),
                "patched": round(seen.patched / len(seen.seconds), 2),
                "free_percent": round(100 * seen.free / len(seen.seconds), 1),
                "depth": round(fmean(seen.depths), 3),
                "depth_formula": round(depth, 3),
                "above_percent": round(100 * seen.above / len(seen.depths), 2),
                "endured": round(endured, 2),
                "endured_formula": round(expected, 2),
                "endured_3_sigma": round(3 * error, 2),
            }
        )
    for r in MICRO:
        rows.append(micro_shards(600, r, 16, 1 if quick else 5))
        progress.advance(f"16 micro-shards per shard, r = {r}")
    within = all(off <= ENDURED_WITHIN + 3 * sigma for off, sigma in errors)
    share = total.above / len(total.depths)
    return Result(
        rows,
        [
            Check("wrong_states", total.wrong, f"0 of {total.checked:,} checked", total.wrong == 0),
            Check("mean_ms_10000_replicas_20_holders", round(mean_ms, 3), "< 1", mean_ms < 1),
            Check(
                "endured_against_formula",
                round(max(off for off, _ in errors), 4),
                f"<= {ENDURED_WITHIN} and 3 standard errors of the draw",
                within,
            ),
            Check(
                "states_above_even_share",
                round(share, 5),
                f"<= {ABOVE_AT_MOST} of {len(total.depths):,} with Golomb placement",
                share <= ABOVE_AT_MOST,
            ),
            Check("depth_against_formula", round(max(depth_errors), 3), "<= 0.1", max(depth_errors) <= 0.1),
        ],
    )


def placed(size: int, r: int) -> Placement:
    """A Golomb placement if a ruler fits, otherwise a random one, which the same formulas describe."""
    try:
        return golomb(size, r)
    except PlacementError:
        return random_regular(size, r)


def fail_until_wipe_out(placement: Placement, failures: int, every: int) -> Failures:
    """Run until there are at least so many failures; verify one state in `every`."""
    seen = Failures()
    for run in count():
        if len(seen.seconds) >= failures:
            break
        order = random.Random(1000 * placement.r + run).sample(range(placement.replicas), placement.replicas)
        stacks = stacked(placement)
        for vacant, replica in enumerate(order, 1):
            start = time.thread_time()
            stacks = after_failure(stacks, [replica])
            seen.seconds.append(time.thread_time() - start)
            if stacks.assignment.lost:
                break
            is_above = stacks.depth > formulas.depth_bound(placement.replicas, vacant)
            seen.depths.append(stacks.depth)
            seen.above += is_above
            seen.free += stacks.phase == 0
            seen.patched += len(stacks.patch)
            if is_above or vacant % every == 0:
                seen.checked += 1
                seen.wrong += not is_right(stacks, is_above)
    return seen


def is_right(stacks: Stacks, is_above: bool) -> bool:
    """Whether the state is valid, and its depth the smallest possible."""
    placement, live = stacks.assignment.placement, set(stacks.assignment.live)
    counted = [0] * placement.replicas
    for shard, (replica,) in enumerate(stacks.assignment.where):
        counted[replica] += 1
        if replica not in live or shard not in stacks.order[replica][: stacks.depth]:
            return False
        if replica not in placement.holders(shard):
            return False
    return max(counted) <= stacks.depth and not (is_above and matches(placement, live, stacks.depth - 1))


def matches(placement: Placement, live: set[int], depth: int) -> bool:
    """Whether all shards fit on the live replicas at this depth, by augmenting paths."""
    mine: dict[int, list[int]] = {replica: [] for replica in live}
    for shard in range(placement.replicas):
        came: dict[int, tuple[int, int | None]] = {}
        queue: list[tuple[int, int | None]] = [(shard, None)]
        end = None
        for moving, source in queue:
            for replica in placement.holders(moving):
                if replica in live and replica not in came:
                    came[replica] = moving, source
                    if len(mine[replica]) < depth:
                        end = replica
                        break
                    queue += [(other, replica) for other in mine[replica]]
            if end is not None:
                break
        if end is None:
            return False
        at: int | None = end
        while at is not None:
            moving, source = came[at]
            mine[at].append(moving)
            if source is not None:
                mine[source].remove(moving)
            at = source
    return True


def draw_endured(placement: Placement, draws: int) -> tuple[float, float]:
    """Mean failures until wipe-out, the fatal one included, and its standard error."""
    generator = np.random.default_rng(placement.r)
    hosts = np.array(placement.hosts).T
    found = []
    for _ in range(draws):
        when = generator.permutation(placement.replicas)
        last = when[hosts[0]]
        for column in hosts[1:]:
            np.maximum(last, when[column], out=last)
        found.append(int(last.min()) + 1)
    return float(np.mean(found)), float(np.std(found) / draws**0.5)


def micro_shards(size: int, r: int, q: int, runs: int) -> dict[str, object]:
    """One row: the mean load with micro-shards, over the failures until wipe-out."""
    seconds, loads = [], []
    for run in range(runs):
        order = random.Random(run).sample(range(size), size)
        assignment = assign(golomb(size, r), q, range(size))
        for replica in order:
            start = time.thread_time()
            assignment = mask(assignment, [replica])
            seconds.append(time.thread_time() - start)
            if assignment.lost:
                break
            loads.append(assignment.depth)
    return {
        "replicas": size,
        "placement": f"spare:r={r}, {q} micro-shards",
        "failures": len(seconds),
        "mean_us": round(fmean(seconds) * 1e6, 1),
        "p99_us": round(sorted(seconds)[int(0.99 * len(seconds))] * 1e6, 1),
        "worst_us": round(max(seconds) * 1e6, 1),
        "depth": round(fmean(loads), 3),
    }


BENCH = Bench("reorder", "masking a failure: time to reorder 200 to 10,000 replicas, depth and endurance", measure)

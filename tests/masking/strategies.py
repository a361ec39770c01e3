"""Placements, live sets and histories for the property tests, small enough for a library's flows."""

from __future__ import annotations

from hypothesis import strategies as st

from understudy.masking import rulers
from understudy.masking.placement import Placement, blocks, consecutive, everywhere, golomb, off, random_regular

KINDS = ("golomb", "random", "blocks", "consecutive", "everywhere", "off")


@st.composite
def placements(draw: st.DrawFn, most: int = 14, kinds: tuple[str, ...] = KINDS) -> Placement:
    kind = draw(st.sampled_from(kinds))
    replicas = draw(st.integers(1, most))
    if kind == "golomb":
        domain = draw(st.sampled_from([d for d in (1, 2, 3) if replicas % d == 0]))
        return golomb(replicas, draw(st.integers(1, rulers.largest_on(replicas // domain))), domain)
    if kind == "random":
        return random_regular(replicas, draw(st.integers(1, replicas)), draw(st.integers(0, 9)))
    if kind == "blocks":
        return blocks(replicas, draw(st.sampled_from([r for r in range(1, replicas + 1) if replicas % r == 0])))
    if kind == "consecutive":
        return consecutive(replicas, draw(st.integers(1, replicas)))
    return everywhere(replicas) if kind == "everywhere" else off(replicas)


@st.composite
def live_sets(draw: st.DrawFn, placement: Placement) -> set[int]:
    """Mostly alive, so that wipe-outs do not hide everything else."""
    replicas = range(placement.replicas)
    return set(replicas) - set(draw(st.lists(st.sampled_from(replicas), max_size=placement.replicas)))


@st.composite
def histories(draw: st.DrawFn, placement: Placement, most: int = 8) -> list[tuple[str, set[int]]]:
    """Failures and refills, of one or a few replicas each."""
    some = st.sets(st.integers(0, placement.replicas - 1), min_size=1, max_size=2)
    return draw(st.lists(st.tuples(st.sampled_from(["fail", "fail", "refill"]), some), max_size=most))

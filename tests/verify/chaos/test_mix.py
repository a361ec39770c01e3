"""The drawn faults depend on the seed and the mix only."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.verify.chaos.mix import MixError, parse_mix, schedule

KINDS = {"kill-worker": "outside", "kill-agent": "outside", "nan": "inside"}
USUAL = {"kill-worker": 2, "nan": 1}
MIXES = st.dictionaries(st.sampled_from([*KINDS, "a", "b", "c"]), st.integers(1, 4), min_size=1)


@pytest.mark.parametrize(
    ("text", "mix"),
    [
        ("kill-worker", {"kill-worker": 1}),
        ("kill-worker=3,nan", {"kill-worker": 3, "nan": 1}),
        (" kill-worker = 3 , nan ", {"kill-worker": 3, "nan": 1}),
        ("outside=2", {"kill-worker": 2, "kill-agent": 2}),
        ("inside", {"nan": 1}),
        ("all,nan=0", {"kill-worker": 1, "kill-agent": 1}),
        ("usual", USUAL),
        ("usual=3,kill-agent", {"kill-worker": 6, "nan": 3, "kill-agent": 1}),
        ("nan=2,nan=5", {"nan": 5}),
    ],
)
def test_a_mix(text: str, mix: dict[str, int]) -> None:
    assert parse_mix(text, KINDS, USUAL) == mix


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kill-wroker", "no kind of fault 'kill-wroker'; did you mean kill-worker?"),
        ("usaul", "did you mean usual?"),
        ("xyzzy", "see understudy chaos --list"),
        ("nan=many", "nan=many: the weight must be a whole number"),
        ("nan=-1", "the weight must be a whole number"),
        ("nan=1.5", "the weight must be a whole number"),
        ("nan=", "the weight must be a whole number"),
        ("nan=10000000", "the weight must be a whole number"),
        ("nan=0", "leaves nothing to do"),
        ("", "empty place"),
        ("nan,,kill-agent", "empty place"),
        ("=3", "empty place"),
    ],
)
def test_a_bad_mix(text: str, says: str) -> None:
    with pytest.raises(MixError) as caught:
        parse_mix(text, KINDS, USUAL)
    assert says in str(caught.value)


@given(st.integers(0, 2**63), MIXES, st.floats(0.001, 100))
def test_the_same_seed_draws_the_same(seed: int, mix: dict[str, int], every: float) -> None:
    shuffled = dict(sorted(mix.items(), reverse=True))
    draws = list(islice(schedule(seed, mix, every), 50))
    assert draws == list(islice(schedule(seed, shuffled, every), 50))
    assert all(0.5 * every <= draw.wait <= 1.5 * every for draw in draws)


@given(st.integers(), MIXES, st.integers(1, 5))
def test_every_kind_comes_as_often_as_the_mix_says(seed: int, mix: dict[str, int], rounds: int) -> None:
    draws = islice(schedule(seed, mix, 1.0), rounds * sum(mix.values()))
    assert Counter(draw.kind for draw in draws) == {kind: rounds * weight for kind, weight in mix.items()}


def test_other_seeds_draw_others() -> None:
    plans = {tuple(islice(schedule(seed, dict.fromkeys(KINDS, 1), 1.0), 6)) for seed in range(100)}
    assert len(plans) == 100

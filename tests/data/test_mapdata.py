"""Batches of map-style datasets, and datasets that cannot be used."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from understudy.data import DataError, MapData, Sampler, check, partition


@dataclass(frozen=True)
class Shard:
    number: int
    count: int


class Made(Dataset[Any]):
    """Samples made by a function of the index."""

    def __init__(self, make: Callable[[int], Any], size: int = 40) -> None:
        self._make, self._size = make, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        return self._make(index)


def test_a_batch_is_what_the_sampler_says_collated() -> None:
    data = MapData(TensorDataset(torch.arange(30), torch.arange(30) * 2), 4, seed=3)
    once, twice = data.batch(2, Shard(1, 3))
    assert once.tolist() == Sampler(30, 4, 3, seed=3).indices(2, 1).tolist() == data.indices(2, (1, 3))
    assert torch.equal(twice, once * 2)


def test_made_ahead_or_not_it_is_the_same() -> None:
    plain, ahead = (MapData(Made(lambda index: index), 3, prefetch=steps, collate=tuple) for steps in (0, 2))
    for step in range(8):
        for number in range(2):
            assert ahead.batch(step, (number, 2)) == plain.batch(step, (number, 2))
    ahead.close()


def test_a_sample_that_cannot_be_read_is_named_at_the_call() -> None:
    data = MapData(Made(lambda index: 1 // (index - 7), size=1000), 100, shuffle=False, prefetch=1)
    with pytest.raises(DataError, match=r"sample 7 of Made cannot be read: ZeroDivisionError"):
        data.batch(0, (0, 1))
    data.close()


def test_with_shards_each_draws_from_its_own_part() -> None:
    data, parts = MapData(Made(lambda index: index), 2, shards=3), partition(40, 3)
    for k, part in enumerate(parts):
        drawn = [index for step in range(20) for q in range(2) for index in data.indices(step, (2 * k + q, 6))]
        assert set(drawn) == set(part)
    with pytest.raises(DataError, match="7 micro-shards cannot be shared out evenly among 3 shards"):
        data.batch(0, (0, 7))


@dataclass
class Labelled:
    picture: np.ndarray[Any, Any]
    words: list[str]
    weight: float


class Thing:
    def __init__(self, index: int) -> None:
        self.index, self.me = index, self


@pytest.mark.parametrize(
    "make",
    [
        lambda index: torch.full((3, 2), index, dtype=torch.bfloat16).T,
        lambda index: {"a": np.float32(index), "b": [index, None, b"x", {1, 2}], 3: float("nan")},
        lambda index: Labelled(np.full(5, index), ["one", "two"], -0.0),
        lambda index: torch.randn(4, generator=torch.Generator().manual_seed(index)),
        lambda index: (np.random.default_rng(index).normal(size=3), random.Random(index).random()),
        lambda index: np.array([index, "text"], dtype=object),
        lambda index: [
            torch.tensor(index),
            torch.empty(0),
            torch.zeros(2, dtype=torch.complex64),
            torch.eye(3).to_sparse(),
        ],
        Thing,
        lambda index: object(),
    ],
)
def test_what_is_the_same_every_time_is_accepted(make: Callable[[int], Any]) -> None:
    assert check(Made(make)) == 40


count = iter(range(1, 1000))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda index: {"x": [torch.zeros(3), next(count)]}, r"when it is read again: at \['x'\]\[1\] int"),
        (
            lambda index: torch.full((4,), next(count), dtype=torch.uint8),
            r"uint8 of shape \(4,\), of which 4 of 4 bytes",
        ),
        (lambda index: torch.zeros(next(count)), r"float32 of shape \(\d+,\) at first, then float32 of shape"),
        (lambda index: "x" * next(count), r"str of \d+ bytes at first, then \d+"),
        (lambda index: {next(count): 1}, "mapping"),
        (lambda index: next(count) * 0.1, "float, of which"),
        (
            lambda index: torch.rand(2),
            "draws from the global random numbers of torch; seed what is random from the index",
        ),
        (lambda index: np.random.rand(2), "draws from the global random numbers of numpy"),
        (lambda index: random.random(), "draws from the global random numbers of random"),
        (lambda index: torch.manual_seed(index).initial_seed(), "draws from the global random numbers of torch"),
        (lambda index: [][index], r"sample 0 of Made cannot be read: IndexError"),
    ],
)
def test_what_is_not_is_refused_before_training(make: Callable[[int], Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        MapData(Made(make), 2)


def test_the_check_leaves_random_numbers_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    with pytest.raises(DataError):
        check(Made(lambda index: torch.rand(2)))
    assert torch.equal(torch.rand(2), expected)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Endless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        (Stream(), "Stream can only be read from its beginning on"),
        (iter([1, 2]), "can only be read from its beginning on"),
        (Endless(), "Endless does not say how many samples it has"),
        ([], "list has no samples"),
    ],
)
def test_what_has_no_index_is_refused(dataset: object, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        check(dataset)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"batch": 0}, "at least one sample in a batch, not 0"),
        ({"batch": 64, "drop": True}, "64 samples for each of 1 micro-shards are 64 and there are 40"),
        ({"batch": 1, "shards": 41}, "40 cannot be cut into 41 shards"),
    ],
)
def test_numbers_that_do_not_fit_are_told(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        MapData(Made(lambda index: index), **settings)

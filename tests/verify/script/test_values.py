"""Digests of values: equal for equal values, and computed without changing them."""

from __future__ import annotations

import copy
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from understudy.verify.script.observation import Value
from understudy.verify.script.values import ValueReader, kind_of, members, short


def read(value: object, skipped: set[int] | None = None) -> Value | None:
    return ValueReader(skipped or set()).read(value)


class Meter:
    """The script's own."""

    def __init__(self) -> None:
        self.total = 0


def count() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


def optimizer() -> torch.optim.Optimizer:
    made = torch.optim.AdamW([nn.Parameter(torch.ones(2))])
    made.param_groups[0]["params"][0].grad = torch.ones(2)
    return made


def a_loader() -> Iterator[Any]:
    loader: DataLoader[int] = DataLoader(list(range(9)))  # type: ignore[arg-type]
    return iter(loader)


def bump(module: nn.Linear) -> None:
    with torch.no_grad():
        module.weight.add_(1)


CHANGES: list[tuple[str, Callable[[], Any], Callable[[Any], object]]] = [
    ("tensor", lambda: torch.zeros(3), lambda each: each.add_(1)),
    ("tensor", lambda: torch.zeros(3, dtype=torch.bfloat16), lambda each: each.add_(1)),
    ("module", lambda: nn.Linear(2, 2), bump),
    ("optimizer", optimizer, lambda each: each.step()),
    ("scheduler", lambda: StepLR(optimizer(), 1), lambda each: setattr(each, "last_epoch", 7)),
    ("generator", lambda: torch.Generator().manual_seed(1), lambda each: torch.rand(1, generator=each)),
    ("generator", lambda: random.Random(1), lambda each: each.random()),
    ("generator", lambda: np.random.default_rng(1), lambda each: each.random()),
    ("generator", lambda: np.random.RandomState(1), lambda each: each.rand()),
    ("array", lambda: np.zeros(3), lambda each: each.fill(1)),
    ("list", lambda: [1, [2]], lambda each: each[1].append(3)),
    ("list", lambda: deque([1]), lambda each: each.append(2)),
    ("dict", lambda: {"a": torch.zeros(2)}, lambda each: each["a"].add_(1)),
    ("set", lambda: {"a", "b"}, lambda each: each.add("c")),
    ("iterator", lambda: iter([1, 2, 3]), next),
    ("iterator", lambda: iter(range(9)), next),
    ("iterator", lambda: enumerate("abc"), next),
    ("iterator", lambda: zip("abc", "def", strict=True), next),
    ("iterator", lambda: itertools.count(), next),
    ("iterator", count, next),
    ("iterator", a_loader, next),
]


@pytest.mark.parametrize(("kind", "make", "change"), CHANGES, ids=[str(number) for number in range(len(CHANGES))])
def test_a_change_is_seen(kind: str, make: Callable[[], Any], change: Callable[[Any], object]) -> None:
    value = make()
    before = read(value)
    assert before is not None
    assert before.kind == kind
    assert before.digest
    assert read(value) == before
    change(value)
    after = read(value)
    assert after is not None
    assert after.digest != before.digest


def test_equal_values_have_equal_digests() -> None:
    for value in (3, 2.5, "a", None, [1, {"b": (2, 3)}], {"x", "y", "z"}, torch.arange(4), random.Random(3)):
        one, other = read(value), read(copy.deepcopy(value))
        assert one == other


def test_looking_draws_nothing_and_moves_nothing_on() -> None:
    iterators = [iter([1, 2]), count(), a_loader(), itertools.cycle([1])]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    draws = random.Random(1)
    for each in (*iterators, draws, nn.Linear, Meter(), StepLR(optimizer(), 1), torch.rand):
        read(each)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]  # type: ignore[index]
    assert [next(each) for each in iterators[:2]] == [1, 1]
    assert draws.random() == random.Random(1).random()


def test_what_is_very_large_is_sampled() -> None:
    large = torch.zeros(6_000_000)
    before = read(large)
    large += 1
    assert read(large) != before
    assert read(np.zeros(4_000_000)) is not None
    many = list(range(30_000))
    before = read(many)
    many.append(1)
    assert read(many) != before


def test_what_cannot_be_looked_into() -> None:
    assert read(itertools.cycle([1])) == Value("iterator", "", "a cycle")


def test_what_is_no_state() -> None:
    for value in (len, count, nn.Linear, torch, Meter, Meter(), object(), nn.ReLU(), nn.Module.forward):
        assert read(value) is None


def test_what_is_tracked_is_left_out() -> None:
    model = nn.Linear(2, 2)
    skipped = {id(model.weight), id(model.bias)}
    assert read(nn.Sequential(model), skipped) is None
    assert read(nn.Sequential(model, nn.Linear(2, 2)), skipped) is not None
    assert read(model.weight, skipped) is None
    data = [1, 2]

    def numbers(of: list[int]) -> Iterator[int]:
        yield from of

    assert read(numbers(data), {id(data)}) is None
    assert read(numbers(data)) is not None


def test_objects_of_the_script_are_open() -> None:
    def outer() -> Callable[[], int]:
        number = 3
        return lambda: number

    assert dict(members(Meter())) == {"total": 0}
    assert dict(members(outer())) == {"number": 3}


def test_words() -> None:
    assert short(3) == "3"
    assert short([1, 2]) == "2 items, last 2"
    assert short({"a": 1}) == "a: 1"
    assert short(torch.tensor([1.5, 2.5, 3.5])) == "1.5, 2.5, … (3)"
    assert short(torch.tensor(2.0)) == "2"
    assert short(iter([1])) == "at 0"
    assert len(short("x" * 200)) == 40
    assert kind_of(True) == "flag"

"""Random number generators are tracked like any object: they move, are undone, and are never pickled."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from understudy.state.errors import StateError
from understudy.state.inventory import digest, take_inventory
from understudy.state.undo import Undo

Make = Callable[[int], Any]


def draw_numpy(own: np.random.Generator) -> list[float]:
    return [own.integers(100), *own.random(3), own.integers(9, dtype=np.uint32)]


MAKERS: dict[str, tuple[Make, Callable[[Any], Any]]] = {
    "torch": (lambda seed: torch.Generator().manual_seed(seed), lambda own: torch.randn(3, generator=own).tolist()),
    "random": (random.Random, lambda own: [own.random(), own.gauss(0, 1), own.getrandbits(70)]),
    "state": (np.random.RandomState, lambda own: own.standard_normal(3).tolist()),
    "PCG64": (lambda seed: np.random.Generator(np.random.PCG64(seed)), draw_numpy),
    "MT19937": (lambda seed: np.random.Generator(np.random.MT19937(seed)), draw_numpy),
    "Philox": (lambda seed: np.random.Generator(np.random.Philox(seed)), draw_numpy),
    "SFC64": (lambda seed: np.random.Generator(np.random.SFC64(seed)), draw_numpy),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_generator_moves_with_its_role(name: str) -> None:
    make, draw = MAKERS[name]
    giver, taker = make(1), make(2)
    draw(giver)
    before = digest(take_inventory({"own": giver}))
    assert digest(take_inventory({"own": taker})) != before
    take_inventory({"own": taker}).restore_rest(take_inventory({"own": giver}).rest())
    assert digest(take_inventory({"own": taker})) == before
    assert draw(taker) == draw(giver)


@pytest.mark.parametrize("name", MAKERS)
def test_a_repeated_step_draws_the_same_numbers(name: str) -> None:
    make, draw = MAKERS[name]
    own = make(3)
    draw(own)
    undo = Undo({"own": own})
    undo.remember()
    first = draw(own), draw(own)
    for _ in range(2):  # a step may be repeated more than once
        undo.restore()
        assert (draw(own), draw(own)) == first


def test_a_generator_of_another_kind_is_refused() -> None:
    given = take_inventory({"own": np.random.Generator(np.random.PCG64(1))}).rest()
    with pytest.raises(StateError, match="own: does not accept what the giver's own state was"):
        take_inventory({"own": np.random.Generator(np.random.MT19937(1))}).restore_rest(given)


def test_a_generator_without_state_is_named() -> None:
    with pytest.raises(StateError, match=r"own: System entropy source .*; use a generator that has"):
        take_inventory({"own": random.SystemRandom()}).rest()

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy.worker.step import seed_everything


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    kept = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(kept[0])
    numpy.random.set_state(kept[1])
    torch.set_rng_state(kept[2])


def draw() -> tuple[float, float, float]:
    return random.random(), float(numpy.random.random()), float(torch.rand(()))


@given(st.integers(), st.integers(0, 1 << 40), st.integers(0, 4096))
def test_the_same_place_gives_the_same_numbers_whatever_was_drawn_before(seed: int, step: int, role: int) -> None:
    seed_everything(seed, step, role)
    first = draw()
    draw()
    torch.randn(3)
    seed_everything(seed, step, role)
    assert draw() == first


def test_other_places_give_other_numbers() -> None:
    drawn = set()
    for seed in range(4):
        for step in range(8):
            for role in range(8):
                seed_everything(seed, step, role)
                drawn.add(draw())
    assert len(drawn) == 4 * 8 * 8
    assert len({single for triple in drawn for single in triple}) == 3 * 4 * 8 * 8


def test_one_seed_of_a_step_cannot_be_taken_for_another() -> None:
    """1, 23 is not 12, 3."""
    seed_everything(1, 23)
    first = draw()
    seed_everything(12, 3)
    assert draw() != first


def test_without_an_accelerator_the_numbers_are_those_of_manual_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for accelerated in (False, True):
        monkeypatch.setattr("understudy.device.cpu._accelerated", lambda there=accelerated: there)
        seed_everything(3, 14)
        found.append(torch.get_rng_state())
    assert torch.equal(*found)

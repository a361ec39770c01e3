"""Short epochs in the workers of a check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from understudy.verify.script.epochs import shorten
from understudy.verify.script.observation import SHORTENED


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(DataLoader, "_index_sampler", DataLoader._index_sampler)  # restored after the test
    shorten(5, tmp_path)
    return tmp_path


def batches(loader: DataLoader[Any]) -> list[list[int]]:
    return [batch.tolist() for (batch,) in loader]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_gives_its_first_batches(short: Path, workers: int) -> None:
    loader = DataLoader(TensorDataset(torch.arange(100)), 2, num_workers=workers)
    expected = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert (len(loader), batches(loader), batches(loader)) == (5, expected, expected)
    assert (short / SHORTENED).exists()


def test_a_short_loader_stays_as_it_is(short: Path) -> None:
    loader = DataLoader(TensorDataset(torch.arange(6)), 2)
    assert (len(loader), len(batches(loader))) == (3, 3)
    assert not (short / SHORTENED).exists()


class Endless(IterableDataset[tuple[int]]):
    """Numbers without end."""

    def __iter__(self) -> Any:
        return ((number,) for number in range(10**9))


def test_a_loader_without_a_length_ends_too(short: Path) -> None:
    assert len(batches(DataLoader(Endless(), 2))) == 5

from __future__ import annotations

import time

import pytest
import torch

from understudy_bench.work import WORKS, Work

PACED = WORKS["paced"]


def test_whoever_is_done_early_waits() -> None:
    began = time.perf_counter()
    PACED.rest(began)
    assert time.perf_counter() - began >= PACED.length_s
    PACED.rest(began)  # late already


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_a_loss_depends_on_step_and_shard_alone(work: Work) -> None:
    model = work.build(0)
    first, again = work.loss(model, 3, 1), work.loss(work.build(0), 3, 1)
    assert torch.equal(first, again)
    assert all(not torch.equal(first, other) for other in (work.loss(model, 3, 2), work.loss(model, 4, 1)))


def test_micro_shards_of_four_replicas_are_shared_out_evenly_among_three() -> None:
    assert 4 * PACED.micro % 3 == 0

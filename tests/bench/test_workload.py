from __future__ import annotations

import time

import pytest
import torch

from understudy_bench import workload
from understudy_bench.workload import WORKS, Work

PACED = WORKS["paced"]


def test_state_has_the_size_the_benchmarks_speak_of() -> None:
    parameters = sum(parameter.numel() for parameter in workload.build(0).parameters())
    assert 9_500_000 < parameters < 10_500_000
    assert 114e6 < parameters * 4 * 3 < 126e6, "parameters and AdamW's two moments"


def test_a_batch_depends_on_step_and_shard_alone() -> None:
    inputs, targets = workload.batch(3, 1)
    torch.manual_seed(99)
    again, _ = workload.batch(3, 1)
    assert torch.equal(inputs, again)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    for other in (workload.batch(3, 2), workload.batch(4, 1)):
        assert not torch.equal(inputs, other[0])


def test_parameters_depend_on_the_seed_alone() -> None:
    first, again, other = (workload.build(seed).head.weight for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_worker_that_is_done_early_waits() -> None:
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

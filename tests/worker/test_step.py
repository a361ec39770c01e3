"""Steps and shards of a job that runs alone, without masking."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from understudy.worker import entry
from understudy.worker.job import Job
from understudy.worker.runtime import JobError


def run(train: Callable[[Job], None]) -> None:
    entry.run(train)


def test_what_is_logged_with_shards_is_averaged() -> None:
    found: list[dict[str, float]] = []

    def train(job: Job) -> None:
        model = nn.Linear(2, 2)
        job.track(model=model)
        for step in job.steps(2):
            with step:
                for shard in step.shards(4):
                    job.log(loss=shard.number, odd=1.0) if shard.number % 2 else job.log(loss=shard.number)
                    assert shard.weight == 0.25
                job.log(after=torch.tensor(7.0))
            found.append(step.values)

    run(train)
    assert found == [{"loss": 1.5, "odd": 1.0, "after": 7.0}] * 2


def test_leaving_early_keeps_what_was_logged() -> None:
    found: list[dict[str, float]] = []

    def train(job: Job) -> None:
        job.track(model=nn.Linear(2, 2))
        for step in job.steps(1):
            with step:
                for shard in step.shards(4):
                    job.log(loss=shard.number)
                    if shard.number == 1:
                        break
            found.append(step.values)

    run(train)
    assert found == [{"loss": 0.5}]


def averaged(shards: bool, tracked: bool = True, over: str = "dp") -> Callable[[Job], None]:
    def train(job: Job) -> None:
        model, other = nn.Linear(2, 2), nn.Linear(2, 2)
        job.track(model=model if tracked else other)
        job.average(model, over=over)
        for step in job.steps(1):
            with step:
                for _ in step.shards() if shards else ():
                    model(torch.ones(1, 2)).sum().backward()
                assert not shards or model.weight.grad is not None

    return train


def test_averaging_needs_the_loop() -> None:
    run(averaged(shards=True))
    with pytest.raises(JobError, match=r"step\.shards\(\)"):
        run(averaged(shards=False))


def test_what_is_averaged_is_tracked() -> None:
    with pytest.raises(JobError, match="not tracked"):
        run(averaged(shards=True, tracked=False))


def test_a_dimension_that_is_not_there() -> None:
    with pytest.raises(JobError, match="dimensions dp"):
        run(averaged(shards=True, over="replicas"))


def test_no_micro_shards() -> None:
    def train(job: Job) -> None:
        job.track(model=nn.Linear(2, 2))
        for step in job.steps(1):
            with step:
                list(step.shards(0))

    with pytest.raises(JobError, match="at least one"):
        run(train)

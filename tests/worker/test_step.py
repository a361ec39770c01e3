"""Steps and shards of a job that runs alone, without masking."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from understudy.worker import entry
from understudy.worker.job import Job
from understudy.worker.runtime import JobError, Repeat


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


@pytest.mark.parametrize("enabled", [False, True])
def test_a_disabled_scaler_does_not_look_at_gradients(enabled: bool) -> None:
    """With --check-gradients the runtime looks in its place."""

    def train(job: Job) -> None:
        model = nn.Linear(2, 2)
        optim = torch.optim.SGD(model.parameters(), lr=0.1)
        job.track(model=model, optim=optim, scaler=torch.amp.GradScaler("cpu", enabled=enabled))
        for step in job.steps(1):
            with step:
                (model(torch.ones(1, 2)).sum() * float("inf")).backward()
                assert job._sound() == enabled

    run(train)


class Counter:
    """A loader that knows how many it has given."""

    def __init__(self) -> None:
        self.given = 0

    def __next__(self) -> int:
        self.given += 1
        return self.given

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


def test_a_repeated_step_begins_at_its_boundary() -> None:
    """The loop body runs again: a batch fetched before `with step:` and the numbers drawn there are the same."""
    seen: list[tuple[int, int, float, float]] = []

    def train(job: Job) -> None:
        model, loader = nn.Linear(2, 2), Counter()
        own = torch.Generator().manual_seed(1)
        optim = torch.optim.SGD(model.parameters(), lr=0.1)
        job.track(model=model, optim=optim, loader=loader, own=own)
        for step in job.steps(3):
            batch = next(loader)
            drawn = float(torch.rand(())), float(torch.rand((), generator=own))
            with step:
                seen.append((step.index, batch, *drawn))
                model(torch.ones(1, 2)).sum().backward()
                if len(seen) == 2:
                    raise Repeat
                optim.step()
                optim.zero_grad()

    run(train)
    assert [entry[:2] for entry in seen] == [(0, 1), (1, 2), (1, 2), (2, 3)]
    assert seen[1] == seen[2]
    assert len({entry[2:] for entry in seen}) == 3


def test_numbers_of_a_step_do_not_depend_on_those_drawn_before_it() -> None:
    found: list[list[float]] = []

    def training(draws: int) -> Callable[[Job], None]:
        def train(job: Job) -> None:
            job.track(model=nn.Linear(2, 2))
            for step in job.steps(2):
                before = torch.rand(draws).tolist()
                with step:
                    found.append([*before[:1], float(torch.rand(()))])

        return train

    run(training(0))
    run(training(5))
    without, drawn = found[:2], found[2:]
    assert [entry[-1] for entry in without] == [entry[-1] for entry in drawn]
    assert len({number for entry in drawn for number in entry}) == 4


def test_a_training_function_without_a_step_is_an_error() -> None:
    def leaves_at_once(job: Job) -> None:
        job.track(model=nn.Linear(2, 2))
        for _ in job.steps(3):
            return

    for train in (lambda job: None, leaves_at_once):
        with pytest.raises(JobError, match=r"without a step; write `for step in job\.steps\(n\):`") as found:
            run(train)
        assert found.value.cause == "no-steps"


def test_no_steps_on_purpose() -> None:
    def train(job: Job) -> None:
        job.track(model=nn.Linear(2, 2))
        for _ in job.steps(0):
            raise AssertionError

    run(train)


@pytest.mark.parametrize("tracked", [False, True])
def test_an_update_outside_of_a_step(tracked: bool, caplog: pytest.LogCaptureFixture) -> None:
    def train(job: Job) -> None:
        model = nn.Linear(2, 2)
        optim = torch.optim.SGD(model.parameters(), lr=0.1)
        job.track(model=model, **({"optim": optim} if tracked else {}))
        for step in job.steps(2):
            with step:
                pass
            optim.step()

    if tracked:
        with pytest.raises(JobError, match=r"SGD\.step\(\) was called outside of a step; .*`with step:`") as found:
            run(train)
        assert found.value.cause == "outside-step"
    else:
        run(train)
        (noticed,) = caplog.messages
        assert "role 0: SGD.step() was called outside of a step by an optimizer that is not tracked" in noticed


def test_an_update_that_changes_nothing_may_be_anywhere() -> None:
    """torch.distributed.checkpoint creates the state of an optimizer in this way."""

    def train(job: Job) -> None:
        model = nn.Linear(2, 2)
        optim = torch.optim.AdamW(model.parameters(), lr=0.1)
        job.track(model=model, optim=optim)
        set_optimizer_state_dict(model, optim, get_optimizer_state_dict(model, optim))
        for step in job.steps(1):
            with step:
                pass

    run(train)


def test_the_only_role_is_the_primary_one() -> None:
    found: list[bool] = []

    def train(job: Job) -> None:
        job.track(model=nn.Linear(2, 2))
        master = job.is_primary and not job.rehearsing
        for step in job.steps(1):
            with step:
                found.extend([bool(master), bool(job.rehearsing)])

    run(train)
    assert found == [True, False]

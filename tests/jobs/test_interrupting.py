"""Interrupts by a user: the job ends at a boundary, or at once, and leaves nothing behind."""

from __future__ import annotations

import re
import signal
import time

import pytest

from tests.jobs.command import LIMIT_S, SOON_S, Job, assert_no_traceback_of_ours, shared_memory

pytestmark = [pytest.mark.job, pytest.mark.timeout(120)]

LONG = """
import time
def train(job):
    model, optim = parts(job)
    job.track(model=model, optim=optim)
    for step in job.steps(100_000):
        with step:
            learn(model, optim)
            time.sleep(0.02)
            if step.index == 3 and job.is_primary:
                print("under way", flush=True)
understudy.run(train)
"""
STUCK = """
import time
def train(job):
    model, optim = parts(job)
    job.track(model=model, optim=optim)
    for step in job.steps(100_000):
        with step:
            learn(model, optim)
            if step.index == 3:
                print("under way", flush=True)
                time.sleep(1000)
understudy.run(train)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_one_signal_ends_the_job_at_a_boundary(job: Job, number: signal.Signals) -> None:
    job.start(LONG)
    job.when(lambda: "under way" in job.out)
    job.signal(number)
    assert job.end(SOON_S) == 130, job.out + job.err
    assert_no_traceback_of_ours(job)
    assert "stopping at the next step boundary" in job.err
    assert re.search(r"understudy: stopped after \d+ steps", job.out)


def test_a_second_ctrl_c_ends_the_job_at_once(job: Job) -> None:
    job.start(STUCK)
    job.when(lambda: "under way" in job.out)
    job.signal(signal.SIGINT)
    job.when(lambda: "Ctrl-C again" in job.err, SOON_S)
    job.signal(signal.SIGINT)
    assert job.end(SOON_S) == 130, job.out + job.err
    assert_no_traceback_of_ours(job)
    assert "ended" in job.err


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_before_the_job_has_begun(job: Job, number: signal.Signals) -> None:
    job.start(LONG)
    job.when(lambda: (job.folder / "run" / "log.txt").exists())
    job.signal(number)
    assert job.end(LIMIT_S) == 130, job.out + job.err
    assert_no_traceback_of_ours(job)


def test_everything_dies_with_the_command(job: Job) -> None:
    """A process cannot clean up after SIGKILL, but no process of the job may outlive the command for long."""
    job.start(LONG)
    job.when(lambda: "under way" in job.out)
    job.signal(signal.SIGKILL)
    assert job.process is not None
    assert job.process.wait(SOON_S) == -signal.SIGKILL
    deadline = time.monotonic() + SOON_S
    while job.left() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert job.left() == {}
    assert not shared_memory() - job.shared

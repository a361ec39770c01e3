"""The examples under all kinds of planned replacement: state and losses stay the same to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.running import Disturbance, RunningJob, same_bits

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).parents[2] / "examples"
UNHURRIED = """
import runpy, sys, time, understudy
from pathlib import Path

run, example = understudy.run, Path({example!r})

def slowly(train):
    def with_pauses(job):
        steps = job.steps
        def paused(count=None):
            for step in steps(count):
                yield step
                if not job.rehearsing and not Path(__file__).with_name("hurry").exists():
                    time.sleep(0.5)  # leave the processors to the joiners
        job.steps = paused
        train(job)
    run(with_pauses)

understudy.run = slowly
sys.path.insert(0, str(example.parent))
runpy.run_path(str(example), run_name="__main__")
"""
"""The example as it is, with a pause after each step while the test is not done with the job."""
SMALL = ("--steps", "100000", "--width", "64", "--layers", "2", "--batch", "4")
"""More steps than there is time for: the learning rate follows their number, so both runs are told the same."""


async def playing(running: RunningJob) -> list[str]:
    """The machines that hold roles, the one with role 0 first."""
    active = [machine for machine in await running.machines() if machine["state"] == "active"]
    return [str(machine["name"]) for machine in sorted(active, key=lambda machine: int(machine["roles"][0]))]


async def each_then_all(running: RunningJob) -> None:
    await running.standbys(2)
    await running.call("POST", "/standbys", {"type": "add-standby", "count": 2})
    await each(running)
    await running.standbys(2)
    answer = await running.replace(*await playing(running))
    assert answer["ok"], answer


async def each(running: RunningJob) -> None:
    """Every machine, back to back, as requests of their own, from the one with role 0 on."""
    await running.standbys(2)
    await running.step(3)
    requests = [await running.ask(name) for name in await playing(running)]
    answers = [await running.answer(request) for request in requests]
    assert all(answer["ok"] for answer in answers), answers


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("example", "disturb", "settings"),
    [
        pytest.param("gpt_ddp.py", each_then_all, {"standbys": 2}, id="ddp", marks=LONG),
        pytest.param("gpt_fsdp.py", each_then_all, {"standbys": 2}, id="fsdp", marks=LONG),
        pytest.param(
            "gpt_fsdp.py", each, {"nproc": 2, "standbys": 2, "mesh": "dp_replicate=2,dp_shard=2"}, id="hsdp", marks=LONG
        ),
        pytest.param("gpt_3d.py", each_then_all, {"nproc": 2, "standbys": 2, "mesh": "pp=2,dp=1,tp=2"}, id="3d"),
    ],
)
def test_the_same_bits(example: str, disturb: Disturbance, settings: dict[str, object], tmp_path: Path) -> None:
    script = UNHURRIED.format(example=str(EXAMPLES / example))
    same_bits(tmp_path, disturb, script=script, args=SMALL, **settings)

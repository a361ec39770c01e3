"""Scripts with the habits of torchrun: what a worker's process has for them, and what they print."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.jobs.command import Job
from tests.jobs.test_bad_scripts import failing
from understudy.launch.local import LocalJob
from understudy.launch.spec import make

pytestmark = [pytest.mark.job, pytest.mark.timeout(120)]


def test_a_script_for_torchrun_inside_of_train(job: Job) -> None:
    """It begins and ends the process group, reads the environment, and configures logging: as in plain Python."""
    job.start(
        """
        import logging
        logging.basicConfig(level=logging.INFO, format="script: %(message)s")

        def train(job):
            dist.init_process_group(backend="gloo", init_method="env://")
            model, optim = parts(job)
            job.track(model=model, optim=optim)
            names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK".split()
            if not job.rehearsing:
                logging.info("I am %s of %s", dist.get_rank(), " ".join(os.environ[name] for name in names))
            for step in job.steps(3):
                with step:
                    learn(model, optim)
                for percent in range(0, 101, 10):
                    sys.stderr.write(f"\\r{percent:3d}% of step {step.index}")
                    sys.stderr.flush()
            sys.stderr.write("\\n")
            dist.destroy_process_group()
        understudy.run(train)
        """,
        *("--nproc", "2"),
    )
    assert job.end() == 0, job.out + job.err
    assert "finished after 3 steps" in job.out
    lines = [line.partition("] ")[2] for line in job.out.splitlines() if line.startswith("[")]
    mine = sorted(line for line in lines if line.startswith("script: "))
    assert mine == [f"script: I am {role} of {role} {role % 2} 4 2 {role // 2}" for role in range(4)]
    assert [line for line in lines if "% of step" in line] == ["100% of step 2"] * 4
    assert [line for line in lines if "_process_group" in line] == [
        "understudy: init_process_group is not needed: the runtime begins and ends the process group",
        "understudy: init_process_group(init_method=env://) has no effect: the workers know one another already",
    ]


def test_a_script_for_torchrun_without_run(job: Job) -> None:
    """The first update ends the job, not the last one: a long training would have been for nothing."""
    why = failing(
        job,
        """
        def main():
            dist.init_process_group("gloo")
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
            optim = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(1000):
                model(torch.ones(2, 4)).sum().backward()
                optim.step()
                print("an update")
            dist.destroy_process_group()
        main()
        """,
    )
    assert re.match(r"role [01] .*SGD.step\(\) was called, and understudy.run was not", why)
    assert "put its main function into train(job) and call understudy.run(train)" in why
    assert "an update" not in job.out


def test_a_backend_that_does_not_fit(job: Job) -> None:
    why = failing(job, "dist.init_process_group('nccl')  # here")
    assert 'init_process_group("nccl"): the workers of this job exchange tensors in cpu memory' in why
    assert re.search(r"\(script.py, line \d+\)", why)


BARS = """
import sys, time, torch, understudy

def train(job):
    model = torch.nn.Linear(4, 4)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    job.track(model=model, optim=optim)
    for step in job.steps(100_000):
        with step:
            optim.step()
        sys.stderr.write(f"\\r{step.index} steps")
        sys.stderr.flush()
        time.sleep(0.05)  # until the test stops the job
understudy.run(train)
"""


def test_a_live_screen_gets_the_states_of_bars(tmp_path: Path) -> None:
    """Each role has a bar of its own; the log has its last state only."""
    script, bars, both = tmp_path / "train.py", dict[str, str](), asyncio.Event()
    script.write_text(BARS)

    def bar(text: str) -> None:
        writer, _, state = text.partition("] ")
        bars[writer] = state
        if bars.keys() >= {"[m0 role 0", "[m1 role 1"}:
            both.set()

    async def run() -> str:
        spec = make({"machines": 2, "script": str(script), "run_dir": str(tmp_path / "run")})
        async with LocalJob(spec, on_line=lambda line: None, on_bar=bar) as job:
            end = asyncio.ensure_future(job.wait())
            await both.wait()
            await job.stop()
            return (await end).status

    assert asyncio.run(run()) == "stopped"
    assert bars["[m0 role 0"].endswith(" steps")
    log = (tmp_path / "run" / "log.txt").read_text().splitlines()
    assert len([line for line in log if line.endswith(" steps")]) == 2

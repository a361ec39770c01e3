"""Scripts with the habits of torchrun: what a worker's process has for them, and what they print."""

from __future__ import annotations

import re

import pytest

from tests.jobs.command import Job
from tests.jobs.test_bad_scripts import failing

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

"""Scripts that do what they should not: every job ends soon, says why in one sentence, and leaves nothing behind."""

from __future__ import annotations

import re

import pytest

from tests.jobs.command import LIMIT_S, Job, assert_no_traceback_of_ours

pytestmark = [pytest.mark.job, pytest.mark.timeout(120)]


def verdict(job: Job) -> str:
    """The one sentence that says why the job has failed."""
    found = [line for line in job.err.splitlines() if line.startswith("understudy: the job has failed: ")]
    assert len(found) == 1, job.out + job.err
    assert "\n" not in found[0].strip()
    return found[0].removeprefix("understudy: the job has failed: ")


def failing(job: Job, script: str, *options: str, limit: float = LIMIT_S) -> str:
    job.start(script, *options)
    assert job.end(limit) == 1, job.out + job.err
    assert_no_traceback_of_ours(job)
    return verdict(job)


def line_of(job: Job, marker: str) -> int:
    """The number of the script's line that has this in it."""
    lines = (job.folder / "script.py").read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if marker in line]
    return number


def test_a_script_that_tracks_nothing(job: Job) -> None:
    why = failing(
        job,
        """
        def train(job):
            model, optim = parts(job)
            for step in job.steps(5):
                with step:
                    learn(model, optim)
        understudy.run(train)
        """,
    )
    assert re.match(r"role [01] ", why)
    assert "nothing was tracked" in why
    assert "job.track(" in why


def test_a_script_that_raises_on_one_role(job: Job) -> None:
    why = failing(
        job,
        """
        def train(job):
            model, optim = parts(job)
            job.track(model=model, optim=optim)
            for step in job.steps(6):
                with step:
                    if step.index == 3 and job.role == 1:
                        raise ValueError("the batch is empty")  # here
                    learn(model, optim)
        understudy.run(train)
        """,
    )
    assert re.match(r"role 1 \(w\d+ on m1\) failed in step 3: ValueError: the batch is empty", why)
    assert f"(script.py, line {line_of(job, '# here')})" in why


@pytest.mark.long
def test_the_users_own_traceback_is_shown(job: Job) -> None:
    failing(
        job,
        """
        def train(job):
            model, optim = parts(job)
            job.track(model=model, optim=optim)
            for step in job.steps(6):
                with step:
                    if job.role == 1:
                        raise ValueError("the batch is empty")
                    learn(model, optim)
        understudy.run(train)
        """,
    )
    assert "Traceback" in job.out


@pytest.mark.long
def test_a_script_that_raises_on_all_roles(job: Job) -> None:
    why = failing(
        job,
        """
        def train(job):
            model, optim = parts(job)
            job.track(model=model, optim=optim)
            for step in job.steps(6):
                with step:
                    learn(model, optim)
                    if step.index == 2:
                        undefined_name  # here
        understudy.run(train)
        """,
    )
    assert re.match(r"role [01] \(w\d+ on m[01]\) failed in step 2: NameError: ", why)
    assert f"line {line_of(job, '# here')})" in why


@pytest.mark.long
def test_one_role_leaves_early(job: Job) -> None:
    why = failing(
        job,
        """
        def train(job):
            model, optim = parts(job)
            job.track(model=model, optim=optim)
            for step in job.steps(6):
                if step.index == 3 and job.role == 0:
                    break
                with step:
                    optim.zero_grad()
                    model(torch.ones(2, 4)).pow(2).mean().backward()
                    optim.step()
        understudy.run(train)
        """,
    )
    assert "role 0 has left its training function after 3 steps while role 1 goes on" in why
    assert "all roles must run the same number of steps" in why


@pytest.mark.long
def test_one_role_leaves_early_while_the_other_is_in_a_collective(job: Job) -> None:
    why = failing(
        job,
        """
        def train(job):
            model, optim = parts(job)
            job.track(model=model, optim=optim)
            for step in job.steps(6):
                if step.index == 3 and job.role == 0:
                    break
                with step:
                    learn(model, optim)
        understudy.run(train)
        """,
        limit=90,
    )
    assert re.search(r"role [01]", why)
    assert "step 3" in why


def test_roles_that_call_a_different_number_of_collectives(job: Job) -> None:
    why = failing(
        job,
        """
        def train(job):
            model, optim = parts(job)
            job.track(model=model, optim=optim)
            for step in job.steps(6):
                with step:
                    if step.index == 2 and job.role == 1:
                        dist.all_reduce(torch.ones(3))
                    learn(model, optim)
        understudy.run(train)
        """,
    )
    assert re.search(r"role [01]", why)
    assert "step 2" in why


@pytest.mark.long
def test_roles_that_wait_for_what_never_comes(job: Job) -> None:
    """One role calls a collective less at the end of the last step, so the other one waits for it in vain."""
    why = failing(
        job,
        """
        def train(job):
            model, optim = parts(job)
            job.track(model=model, optim=optim)
            for step in job.steps(3):
                with step:
                    learn(model, optim)
                    if step.index == 2 and job.role == 1:
                        dist.barrier()
        understudy.run(train)
        """,
    )
    assert "role 1 (" in why
    assert "in barrier" in why
    assert "end of its training function after 3 steps" in why


def test_a_script_that_never_calls_run(job: Job) -> None:
    why = failing(job, "print('hello from nowhere')")
    assert re.match(r"role [01] ", why)
    assert "understudy.run(train)" in why


def test_a_script_with_a_syntax_error(job: Job) -> None:
    why = failing(job, "def train(job)\n    pass\n")
    assert re.match(r"role [01] ", why)
    assert "SyntaxError" in why
    assert f"line {line_of(job, 'def train(job)')}" in why


@pytest.mark.long
def test_a_script_that_imports_what_is_not_there(job: Job) -> None:
    why = failing(job, "import no_such_module_anywhere\n")
    assert re.match(r"role [01] ", why)
    assert "No module named 'no_such_module_anywhere'" in why
    assert f"line {line_of(job, 'no_such_module_anywhere')}" in why


@pytest.mark.long
def test_a_script_that_exits(job: Job) -> None:
    why = failing(
        job,
        """
        def train(job):
            model, optim = parts(job)
            job.track(model=model, optim=optim)
            for step in job.steps(6):
                with step:
                    learn(model, optim)
                    if step.index == 2 and job.role == 0:
                        sys.exit(3)
        understudy.run(train)
        """,
    )
    assert re.match(r"role 0 \(w\d+ on m0\) ", why)
    assert "step 2" in why
    assert re.search(r"SystemExit: 3|exit code 3", why)


def test_a_worker_that_kills_itself_and_has_no_twin(job: Job) -> None:
    why = failing(
        job,
        """
        def train(job):
            model, optim = parts(job)
            torch.nn.init.constant_(model.bias, job.role)
            job.track(model=model, optim=optim)
            for step in job.steps(8):
                with step:
                    learn(model, optim)
                    if step.index == 5 and job.role == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
        understudy.run(train)
        """,
    )
    assert re.search(r"role 1 \(w\d+ on m1\) was killed by signal 9", why)
    assert "role 1: no live replica holds its state" in why


def test_a_script_that_uses_no_with(job: Job) -> None:
    why = failing(
        job,
        """
        def train(job):
            model, optim = parts(job)
            job.track(model=model, optim=optim)
            for step in job.steps(6):
                learn(model, optim)
        understudy.run(train)
        """,
    )
    assert re.match(r"role [01] ", why)
    assert "with step:" in why


def test_a_training_function_that_makes_no_step(job: Job) -> None:
    """A library's trainer inside of `train` has a loop of its own, which the runtime does not see."""
    why = failing(
        job,
        """
        def train(job):
            model, optim = parts(job)
            job.track(model=model)
            for _ in range(5):
                learn(model, optim)
        understudy.run(train)
        """,
    )
    assert re.match(r"role [01] .*the training function has returned without a step; write `for step in job.steps", why)
    assert "not tracked" in job.out  # the optimizer
    assert "final state" not in job.out


def test_an_update_outside_of_a_step(job: Job) -> None:
    why = failing(
        job,
        """
        def train(job):
            model, optim = parts(job)
            job.track(model=model, optim=optim)
            for step in job.steps(5):
                with step:
                    optim.zero_grad()
                    model(torch.ones(2, 4)).pow(2).mean().backward()
                optim.step()  # here
        understudy.run(train)
        """,
    )
    assert re.match(r"role [01] ", why)
    assert "SGD.step() was called outside of a step; an update belongs inside `with step:`" in why
    assert f"(script.py, line {line_of(job, '# here')})" in why


@pytest.mark.long
def test_a_good_script(job: Job) -> None:
    """What all of the above are measured by."""
    job.start(
        """
        def train(job):
            model, optim = parts(job)
            job.track(model=model, optim=optim)
            for step in job.steps(4):
                with step:
                    learn(model, optim)
        understudy.run(train)
        """
    )
    assert job.end() == 0, job.out + job.err
    assert_no_traceback_of_ours(job)
    assert "finished after 4 steps" in job.out
    assert job.err == ""

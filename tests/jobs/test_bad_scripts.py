"""Scripts that do what they should not, and people who interrupt: every job ends soon, says why in one sentence, and
leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest

pytestmark = [pytest.mark.job, pytest.mark.timeout(120)]

LIMIT_S = 110.0
"""For a whole job, from the command to its end, on a busy machine."""
SOON_S = 15.0
"""For the end of a job, once there is a reason to end."""
MARK = "UNDERSTUDY_TEST_MARK"
OURS = ("understudy/agent/", "understudy/control/", "understudy/launch/", "understudy/cli/")
"""What has no place in a traceback that a user sees: between their lines and torch's there is only the worker."""

PREAMBLE = """\
import os, signal, sys
import torch
import torch.distributed as dist
import understudy

def parts(job):
    torch.manual_seed(job.seed)
    model = torch.nn.Linear(4, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)

def learn(model, optim):
    optim.zero_grad()
    model(torch.ones(2, 4)).pow(2).mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optim.step()

"""


class Job:
    """`understudy run` as a process, with everything it starts recognizable by its environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.process: subprocess.Popen[bytes] | None = None
        self._shared = _shared_memory()

    def start(self, script: str, *options: str, machines: int = 2) -> None:
        path = self.folder / "script.py"
        path.write_text(PREAMBLE + dedent(script))
        env = {**os.environ, "UNDERSTUDY_HOME": str(self.folder / "home"), MARK: self.mark}
        place = ("--run-dir", str(self.folder / "run"))
        command = [sys.executable, "-m", "understudy.cli.main", "run", "--machines", str(machines), *place, *options]
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [*command, str(path)],
                env=env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    def when(self, what: Callable[[], bool], limit: float = LIMIT_S) -> None:
        """Returns once this is so."""
        assert self.process is not None
        deadline = time.monotonic() + limit
        while not what():
            assert self.process.poll() is None, f"it ended too early:\n{self.out}{self.err}"
            assert time.monotonic() < deadline, f"nothing for {limit} s:\n{self.out}{self.err}"
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, limit: float = LIMIT_S) -> int:
        """Its exit code; afterwards it is known that nothing is left of it."""
        assert self.process is not None
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it has not ended after {limit} s:\n{self.out}{self.err}")
        assert self.left() == {}
        assert _shared_memory() <= self._shared
        assert not list((self.folder / "home").rglob("*.json"))
        return code

    def left(self) -> dict[int, str]:
        """Processes of this job that live, with their commands."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        return found

    def clear(self) -> None:
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()


def _shared_memory() -> set[str]:
    """Segments that no living process has: what others on this computer are using does not count."""
    found = {path.name for path in Path("/dev/shm").iterdir()}
    if found:
        for maps in Path("/proc").glob("[0-9]*/maps"):
            with suppress(OSError):
                text = maps.read_text()
                found -= {name for name in found if f"/dev/shm/{name}" in text}
    return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    try:
        yield made
    finally:
        made.clear()


def verdict(job: Job) -> str:
    """The one sentence that says why the job has failed."""
    found = [line for line in job.err.splitlines() if line.startswith("understudy: the job has failed: ")]
    assert len(found) == 1, job.out + job.err
    assert "\n" not in found[0].strip()
    return found[0].removeprefix("understudy: the job has failed: ")


def assert_no_traceback_of_ours(job: Job) -> None:
    """A traceback may run through the user's script; it may not come out of the machinery around it."""
    text = job.out + job.err
    for name in OURS:
        assert f'File "{name}' not in text, text
        assert not re.search(rf'File "[^"]*/{re.escape(name)}', text), text
    assert "Task exception was never retrieved" not in text, text
    assert "Exception in thread" not in text, text


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


# -- scripts -----------------------------------------------------------------------------------------------------------


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


def test_a_worker_that_kills_itself_without_a_standby(job: Job) -> None:
    why = failing(
        job,
        """
        def train(job):
            model, optim = parts(job)
            job.track(model=model, optim=optim)
            for step in job.steps(6):
                with step:
                    learn(model, optim)
                    if step.index == 2 and job.role == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
        understudy.run(train)
        """,
    )
    assert re.search(r"role 1 \(w\d+ on m1\) was killed by signal 9", why)
    assert re.search("no standby is left for role 1|role 1: no live replica holds its state", why)


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


# -- people ------------------------------------------------------------------------------------------------------------

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
    """Nobody can clean up after SIGKILL, but no process of the job may outlive it for long."""
    job.start(LONG)
    job.when(lambda: "under way" in job.out)
    job.signal(signal.SIGKILL)
    assert job.process is not None
    assert job.process.wait(SOON_S) == -signal.SIGKILL
    deadline = time.monotonic() + SOON_S
    while job.left() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert job.left() == {}
    assert not _shared_memory() - job._shared

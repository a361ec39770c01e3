"""`understudy run` as a process, and the checks after it: it ends soon and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest

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
        self.shared = shared_memory()

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
        assert shared_memory() <= self.shared
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


def shared_memory() -> set[str]:
    """Segments that no living process has: what others on this computer are using does not count."""
    found = {path.name for path in Path("/dev/shm").iterdir()}
    if found:
        for maps in Path("/proc").glob("[0-9]*/maps"):
            with suppress(OSError):
                text = maps.read_text()
                found -= {name for name in found if f"/dev/shm/{name}" in text}
    return found


def assert_no_traceback_of_ours(job: Job) -> None:
    """A traceback may run through the user's script; it may not come out of the machinery around it."""
    text = job.out + job.err
    for name in OURS:
        assert f'File "{name}' not in text, text
        assert not re.search(rf'File "[^"]*/{re.escape(name)}', text), text
    assert "Task exception was never retrieved" not in text, text
    assert "Exception in thread" not in text, text

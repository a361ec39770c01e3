"""Commands beside a benchmark and the folder that it writes to: nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.comm.helpers import eventually
from understudy.chaos import processes

pytestmark = pytest.mark.timeout(60)

SLEEPY = """
import tempfile, time
tempfile.mkdtemp(prefix="inner-")
print("here", flush=True)
time.sleep(50)
"""
BENCH = f"""
import sys, time
from understudy_bench.processes import Command, workplace
with workplace() as folder, Command([sys.executable, "-c", {SLEEPY!r}], folder / "log") as command:
    while "here" not in (folder / "log").read_text():
        time.sleep(0.01)
    print("here", flush=True)
    command.wait(50)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_however_a_benchmark_ends_nothing_is_left(number: signal.Signals, tmp_path: Path) -> None:
    mark = f"UNDERSTUDY_TEST_MARK={uuid.uuid4().hex}"
    env = {**os.environ, "TMPDIR": str(tmp_path), **dict([mark.split("=")])}
    with subprocess.Popen(
        [sys.executable, "-c", BENCH], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as it:
        try:
            assert it.stdout is not None
            assert it.stdout.readline() == b"here\n"
            (folder,) = tmp_path.iterdir()
            assert list(folder.glob("inner-*"))
            assert len(processes.marked(mark)) == 2
            it.send_signal(number)
            it.wait(30)
        finally:
            it.kill()
    eventually(lambda: not processes.marked(mark))
    eventually(lambda: not list(tmp_path.iterdir()))

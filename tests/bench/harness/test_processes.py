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
from understudy.verify import processes

pytestmark = pytest.mark.timeout(60)

WAITING = """
import signal, sys, tempfile
tempfile.mkdtemp(prefix="inner-")
open(sys.argv[1], "w").close()
signal.pause()
"""
BENCH = f"""
import os, sys
from understudy_bench.harness.processes import Command, workplace
with workplace() as folder:
    os.mkfifo(folder / "begun")
    with Command([sys.executable, "-c", {WAITING!r}, str(folder / "begun")], folder / "log") as command:
        (folder / "begun").read_text()
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

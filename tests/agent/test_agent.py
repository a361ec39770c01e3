"""An agent as a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from understudy.agent.agent import ABANDONED, AgentSpec
from understudy.worker.messages import WorkerSpec


def test_it_does_not_wait_for_ever_for_a_job_that_is_gone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    script = tmp_path / "train.py"
    script.touch()
    worker = WorkerSpec("", "m7", 0, "gpt", b"s", str(script), (), 1, (("dp", 1),))
    spec = AgentSpec("m7", "m7-1", True, url, worker, str(tmp_path), str(tmp_path), dict(os.environ), patience=0.5)
    done = subprocess.run(
        [sys.executable, "-m", "understudy.agent.agent", "--parent", str(os.getpid())],
        input=msgspec.json.encode(spec),
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == ABANDONED
    assert done.stderr.decode() == "understudy: m7: nothing seen of the job for 0.5 s; it must be over\n"

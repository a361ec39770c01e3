"""A process that becomes a fork server: its workers behave as those of a fork server that was started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 30.0

pytestmark = pytest.mark.timeout(60)

HOST = """
import asyncio, os, sys
from understudy.agent.fork_client import ForkClient

async def main(kept):
    fork_server, said = ForkClient.fork(), []
    def spawn(body, spec=b""):
        heard = lambda line, stream: said.append(line)
        return fork_server.spawn(f"tests.agent.bodies:{body}", spec, env={}, cwd="/", on_output=heard)
    if not kept:
        children = [await spawn("leave", b"%d" % code) for code in (0, 7)] + [await spawn("write", b"a line")]
        print([await child.exited for child in children], said, flush=True)
        await fork_server.close()
        return
    children = [await spawn("wait") for _ in range(2)]
    print(fork_server.pid, *(child.pid for child in children), flush=True)
    await asyncio.Event().wait()

asyncio.run(main(sys.argv[1] == "kept"))
"""


@contextmanager
def host(mode: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen([sys.executable, "-c", HOST, mode], stdout=subprocess.PIPE, env=environment)
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_workers_are_heard_and_their_ends_seen() -> None:
    with host("brief") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"[0, 7, 0] [b'a line']\n"
        assert process.wait(LIMIT_S) == 0


@pytest.mark.parametrize("victim", ["host", "server"])
def test_nothing_survives(victim: str) -> None:
    with host("kept") as process, ExitStack() as stack:
        assert process.stdout is not None
        server, *workers = [int(pid) for pid in process.stdout.readline().split()]
        pidfds = [os.pidfd_open(pid) for pid in workers]
        for pidfd in pidfds:
            stack.callback(os.close, pidfd)
        assert not any(select.select([pidfd], [], [], 0)[0] for pidfd in pidfds)
        os.kill(process.pid if victim == "host" else server, signal.SIGKILL)
        assert all(select.select([pidfd], [], [], LIMIT_S)[0] for pidfd in pidfds)

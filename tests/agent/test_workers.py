"""Malformed messages: from a live worker, and from one that has just died."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from tests.agent.test_agent import agent_spec
from understudy.agent.fork_client import ForkClient
from understudy.agent.workers import WorkerProcess, Workers
from understudy.protocol.messages import TO_AGENT, Done, WorkerSpec

LIMIT_S = 20.0
SPEC = WorkerSpec("", "m1", 0, "job", b"s" * 32, "train.py", (), 1, (("dp", 1),))
MALFORMED = {
    "not msgpack": b"\x01\x00\x00\x00\xc1",
    "no message": b"\x01\x00\x00\x00\x2a",
    "too long": b"\xff\xff\xff\xff",
    "cut off": b"\x09\x00\x00\x00\x82",
}


class Child:
    """A worker that has written `data`; it ends with `code`, or when it is killed."""

    pid = 0

    def __init__(self, data: bytes, code: int | None) -> None:
        self.connection, theirs = socket.socketpair()
        self.connection.setblocking(False)
        with theirs:
            theirs.sendall(data)
        self.killed: list[int] = []
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if code is not None:
            self.exited.set_result(code)

    def kill(self, number: int) -> None:
        self.killed.append(number)
        self.exited.set_result(-number)

    async def spawn(self, **options: object) -> Child:
        return self


def life(folder: Path, data: bytes, code: int | None) -> tuple[Child, list[object], int]:
    """Start a worker and await its end. Returns it, its messages, and the exit code that is reported."""

    async def live() -> tuple[Child, list[object], int]:
        child, heard = Child(data, code), list[object]()
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def on_exit(worker: WorkerProcess, code: int) -> None:
            ended.set_result(code)

        workers = Workers(
            agent_spec("m1", "", SPEC, folder),
            cast(ForkClient, child),
            lambda text: None,
            on_message=lambda worker, message: heard.append(message),
            on_exit=on_exit,
        )
        await workers.start("w0", 0)
        reported = await asyncio.wait_for(ended, LIMIT_S)
        assert cast(Any, workers)._running == {}
        await workers.close()
        return child, heard, reported

    return asyncio.run(live())


@pytest.mark.parametrize("last", MALFORMED.values(), ids=MALFORMED)
def test_the_end_of_a_worker_is_reported_whatever_it_has_sent_last(tmp_path: Path, last: bytes) -> None:
    child, heard, code = life(tmp_path, TO_AGENT.encode(Done(3)) + last, -signal.SIGSEGV)
    assert (heard, code, child.killed) == ([Done(3)], -signal.SIGSEGV, [])
    assert child.connection.fileno() < 0


@pytest.mark.parametrize("name", ["not msgpack", "no message", "too long"])
def test_a_worker_that_sends_no_message_is_killed(tmp_path: Path, name: str) -> None:
    child, heard, code = life(tmp_path, TO_AGENT.encode(Done(3)) + MALFORMED[name], None)
    assert (heard, code, child.killed) == ([Done(3)], -signal.SIGKILL, [signal.SIGKILL])

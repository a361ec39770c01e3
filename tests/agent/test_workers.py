"""Malformed messages: from a live worker, and from one that has just died."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path
from typing import Any, cast

import msgspec
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

    async def spawn(self, **options: Any) -> Child:
        self.options = options
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


@pytest.mark.parametrize(("live", "seconds", "mark"), [(True, 0.5, "\r"), (False, 30.0, "")])
def test_bars_are_shown_under_the_name_of_their_role(tmp_path: Path, live: bool, seconds: float, mark: str) -> None:
    """A live screen is told that the bar under the former name is over."""

    async def body() -> list[str]:
        child, shown = Child(b"", None), list[str]()
        spec = msgspec.structs.replace(agent_spec("m1", "", SPEC, tmp_path), live=live)
        workers = Workers(
            spec,
            cast(ForkClient, child),
            shown.append,
            on_message=lambda worker, message: None,
            on_exit=lambda worker, code: None,
        )
        await workers.start("w0", 0)
        bars, on_output = child.options["bars"], child.options["on_output"]
        assert bars.seconds == seconds
        bars.show(b" 10%", "stderr")
        cast(Any, workers)._running["w0"].role = 3
        bars.show(b" 20% ", "stderr")
        on_output(b"100%", "stderr")
        assert list(cast(Any, workers)._running["w0"].last_lines) == ["100%"]
        await workers.end()
        await asyncio.sleep(0)
        await workers.close()
        return shown

    gone = ["[m1 w0] \r"] if live else []
    expected = [f"[m1 w0]  10%{mark}", *gone, f"[m1 role 3]  20%{mark}", "[m1 role 3] 100%"]
    assert asyncio.run(body()) == expected

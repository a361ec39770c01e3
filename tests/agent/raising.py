"""A fork server for a test, and the checks after its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Literal

from understudy.agent.fork_client import ForkClient, ForkedWorker

ROOT = Path(__file__).parents[2]
BODIES = "tests.agent.bodies"
LIMIT_S = 30.0

Output = list[tuple[str, bytes]]


def fds() -> dict[str, str]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[entry.name] = str(entry.readlink())
    return found


def children() -> set[int]:
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


_others: set[int] = set()
"""Children that this process had before the test: other tests' servers."""


def offspring() -> set[int]:
    return children() - _others


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Afterwards there is no process and no descriptor that was not there before."""

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await body()

    _others.clear()
    _others.update(children())
    before = fds()
    asyncio.run(limited())
    assert (fds(), offspring()) == (before, set())


@contextlib.asynccontextmanager
async def fork_server(*preload: str, env: dict[str, str] | None = None) -> AsyncIterator[ForkClient]:
    env = env or {**os.environ, "PYTHONPATH": str(ROOT)}
    opened = await ForkClient.open(preload=preload or ["json", BODIES], env=env)
    try:
        yield opened
    finally:
        await opened.close()


async def spawn(
    fork_server: ForkClient,
    body: str,
    spec: bytes = b"",
    output: Output | None = None,
    env: dict[str, str] | None = None,
) -> ForkedWorker:
    def heard(line: bytes, stream: Literal["stdout", "stderr"]) -> None:
        if output is not None:
            output.append((stream, line))

    target = body if ":" in body else f"{BODIES}:{body}"
    return await fork_server.spawn(target=target, spec=spec, env=env or {}, cwd="/", on_output=heard)


async def receive(child: ForkedWorker) -> bytes:
    """All that comes over the line until its end."""
    data = b""
    while piece := await asyncio.get_running_loop().sock_recv(child.connection, 1 << 16):
        data += piece
    return data


@contextlib.contextmanager
def watched(pid: int) -> Iterator[int]:
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def died(pidfd: int, limit: float = LIMIT_S) -> bool:
    return bool(select.select([pidfd], [], [], limit)[0])

"""Sources of machines: agents here, an invitation, or a command of the user's that may fail, hang and linger."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from understudy.launch.sources import CalledMachines, CommandMachines

LIMIT_S = 60.0


def command(tmp_path: Path, body: str) -> str:
    """A shell script; it notes what it is called with in `calls`."""
    path = tmp_path / "bring"
    path.write_text(f'#!/bin/sh\necho "$@ $UNDERSTUDY_URL" >> {tmp_path}/calls\n{body}\n')
    path.chmod(0o755)
    return str(path)


def calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "calls"
    return path.read_text().splitlines() if path.exists() else []


def run_until(
    source: CommandMachines, direction: Callable[[CommandMachines], Awaitable[None]], true: Callable[[], bool]
) -> None:
    """Let it work until something is true."""

    async def run() -> None:
        try:
            await direction(source)
            deadline = time.monotonic() + LIMIT_S
            while not true():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
        finally:
            await source.close()

    asyncio.run(run())


async def one(source: CommandMachines) -> None:
    await source.start(1)


def test_a_command_is_told_what_is_wanted_and_about_which_job(tmp_path: Path) -> None:
    said: list[str] = []
    source = CommandMachines(command(tmp_path, ""), {"UNDERSTUDY_URL": "http://a:1"}, said.append)

    async def both(source: CommandMachines) -> None:
        await source.start(3)
        await source.release("m 4")

    run_until(source, both, lambda: len(calls(tmp_path)) == 2)
    assert sorted(calls(tmp_path)) == ["release m 4 http://a:1", "request 3 http://a:1"]
    assert said == []


def test_one_that_fails_is_run_again_and_the_last_thing_it_said_is_repeated(tmp_path: Path) -> None:
    said: list[str] = []
    body = f"[ $(wc -l < {tmp_path}/calls) -ge 3 ] && exit 0\necho first; echo no quota left >&2; exit 7"
    source = CommandMachines(command(tmp_path, body), {}, said.append, first=0.05)
    run_until(source, one, lambda: len(said) == 3)
    path = tmp_path / "bring"
    assert said == [
        f"{path} request 1 ended with exit code 7: no quota left; tried again in 0.05 s",
        f"{path} request 1 ended with exit code 7: no quota left; tried again in 0.1 s",
        f"{path} request 1 has succeeded now",
    ]


@pytest.mark.parametrize("first", ["there/is/none", "/etc/hostname"])
def test_one_that_cannot_be_run_is_said_so(first: str) -> None:
    said: list[str] = []
    run_until(CommandMachines(first, {}, said.append), one, lambda: bool(said))
    assert said[0].startswith(f"{first} request 1 cannot be run: ")


def test_one_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    said: list[str] = []
    body = f"sleep 600 & echo $! > {tmp_path}/child; wait"
    source = CommandMachines(command(tmp_path, body), {}, said.append, limit=0.5)
    run_until(source, one, lambda: bool(said))
    assert "has not ended within 0.5 s" in said[0]
    assert _ended(int((tmp_path / "child").read_text()))


def test_what_it_leaves_in_the_background_goes_on_and_is_not_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    source = CommandMachines(command(tmp_path, f"sleep 600 & echo $! > {tmp_path}/child"), {}, said.append)
    run_until(source, one, lambda: (tmp_path / "child").exists() and not source._tasks._running)
    child = int((tmp_path / "child").read_text())
    assert not _ended(child, 0.0)
    os.kill(child, 9)
    assert said == []


def test_when_the_job_is_over_nothing_is_tried_any_more(tmp_path: Path) -> None:
    source = CommandMachines(command(tmp_path, "sleep 600"), {}, print)
    run_until(source, one, lambda: bool(calls(tmp_path)))
    assert not source._tasks._running


def test_a_call_is_told_how_many() -> None:
    brought: list[int] = []

    async def bring(count: int) -> None:
        brought.append(count)

    async def ask() -> None:
        source = CalledMachines(bring)
        await source.start(2)
        await source.release("m3")
        await source.close()

    asyncio.run(ask())
    assert brought == [2]


def _ended(pid: int, limit: float = 10.0) -> bool:
    deadline = time.monotonic() + limit
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)

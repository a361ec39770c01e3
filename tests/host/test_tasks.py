"""Tasks that run beside their owner, and tasks that run together."""

from __future__ import annotations

import asyncio

import pytest

from understudy.host.tasks import BackgroundTasks, together


def test_a_task_runs_to_its_end_or_is_cancelled() -> None:
    ended: list[str] = []

    async def work(name: str, until: asyncio.Event) -> None:
        try:
            await until.wait()
            ended.append(name)
        except asyncio.CancelledError:
            ended.append(f"{name} is cancelled")
            raise

    async def body() -> None:
        tasks, now, never = BackgroundTasks(), asyncio.Event(), asyncio.Event()
        tasks.start(work("a", now))
        tasks.start(work("b", never))
        now.set()
        while not ended:
            await asyncio.sleep(0)
        await tasks.cancel()
        assert not tasks._running

    asyncio.run(body())
    assert ended == ["a", "b is cancelled"]


def test_when_one_fails_the_others_have_ended() -> None:
    ended: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waiting")

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(together(wait(), fail()))
    assert ended == ["waiting"]

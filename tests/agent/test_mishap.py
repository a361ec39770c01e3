"""Faults on the way between an agent and the controller."""

from __future__ import annotations

import asyncio

from understudy.agent.mishap import AGENT_MISHAPS, GARBAGE, mishap


class Socket:
    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def send_bytes(self, data: bytes) -> None:
        self.sent.append(data)


def test_garbage_is_sent() -> None:
    ws = Socket()
    asyncio.run(mishap("corrupt-report", 0.0, ws))
    assert ws.sent == [GARBAGE]


def test_everything_comes_twice_for_a_while() -> None:
    async def body() -> None:
        ws = Socket()
        task = asyncio.ensure_future(mishap("duplicate-control", 0.1, ws))
        await asyncio.sleep(0)
        await ws.send_bytes(b"one")
        await task
        await ws.send_bytes(b"two")
        assert ws.sent == [b"one", b"one", b"two"]

    asyncio.run(body())


def test_everything_comes_late_for_a_while() -> None:
    async def body() -> None:
        ws = Socket()
        task = asyncio.ensure_future(mishap("delay-control", 0.05, ws))
        await asyncio.sleep(0)
        sending = asyncio.ensure_future(ws.send_bytes(b"one"))
        await task
        assert ws.sent == []
        await sending
        assert ws.sent == [b"one"]

    asyncio.run(body())


def test_a_connection_that_is_no_more_does_not_matter() -> None:
    asyncio.run(mishap("drop-control", 0.0, object()))
    assert "drop-control" in AGENT_MISHAPS

"""Faults between an agent and the controller on request, in jobs started with `--chaos`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

AGENT_MISHAPS = {
    "corrupt-report": "an agent says something to the controller that is no message",
    "corrupt-order": "the controller says something to an agent that is no message",
    "drop-control": "the connection between an agent and the controller breaks",
    "duplicate-control": "an agent says everything to the controller twice, for a while",
    "delay-control": "everything an agent says to the controller takes 0.3 s longer, for a while",
}

GARBAGE = b"\xc1" * 16
"""No message of any protocol of ours."""
_DELAY_S = 0.3


async def mishap(kind: str, seconds: float, ws: Any) -> None:
    """Disturb a connection to the controller; what it carries next is on another one, or as before after a while."""
    match kind:
        case "corrupt-report":
            await ws.send_bytes(GARBAGE)
        case "drop-control":
            with suppress(AttributeError):
                ws._response.connection.transport.abort()
        case "duplicate-control" | "delay-control":
            send = ws.send_bytes

            async def twice(data: bytes) -> None:
                await send(data)
                await send(data)

            async def late(data: bytes) -> None:
                await asyncio.sleep(_DELAY_S)
                await send(data)

            ws.send_bytes = twice if kind == "duplicate-control" else late
            await asyncio.sleep(seconds)
            ws.send_bytes = send

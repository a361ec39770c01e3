"""A machine is told to go: a standby takes its place before it does, and the result is the same to the bit."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.jobs.stage import Stage, same_bits

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]


def test_sigterm_lets_a_standby_take_over(tmp_path: Path) -> None:
    async def direction(stage: Stage) -> None:
        await stage.step(3)
        await stage.standbys(1)
        agent = stage.job.agents["m1"]
        agent.kill(signal.SIGTERM)
        assert await asyncio.wait_for(agent.exited, 150) == 0
        assert "m1 is released" in [tale["text"] for tale in stage.tales]
        assert not [tale for tale in stage.tales if tale["kind"] in ("halt", "lost")]

    same_bits(tmp_path, direction, standbys=1, grace=120.0)

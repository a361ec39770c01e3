"""A machine gets notice to leave: a standby takes its roles before, and the result is the same to the bit."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.jobs.running import RunningJob, same_bits

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]


def test_sigterm_lets_a_standby_take_over(tmp_path: Path) -> None:
    async def disturb(running: RunningJob) -> None:
        await running.step(3)
        await running.standbys(1)
        agent = running.job.agents["m1"]
        agent.kill(signal.SIGTERM)
        assert await asyncio.wait_for(agent.exited, 150) == 0
        assert "m1 is released" in [event["text"] for event in running.events]
        assert not [event for event in running.events if event["kind"] in ("halt", "lost")]

    same_bits(tmp_path, disturb, standbys=1, grace=120.0)

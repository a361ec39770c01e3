"""Which workers are killed, when, and which one is spared."""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from understudy_bench.reality import Hazard


class Job:
    """Processes that do nothing; a dead one is replaced when a test asks, for as long as `refills` lasts."""

    def __init__(self, roles: int, refills: int) -> None:
        self._refills = refills
        self.started: list[subprocess.Popen[bytes]] = []
        self._playing = {role: self._start() for role in range(roles)}

    def _start(self) -> subprocess.Popen[bytes]:
        self.started.append(subprocess.Popen(["sleep", "60"]))
        return self.started[-1]

    async def machines(self) -> list[dict[str, Any]]:
        for role, process in list(self._playing.items()):
            if process.poll() is not None and self._refills:
                self._refills -= 1
                self._playing[role] = self._start()
        return [{"roles": [role], "pids": [process.pid]} for role, process in self._playing.items()]

    def check(self) -> None: ...

    @property
    def alive(self) -> int:
        return sum(process.poll() is None for process in self._playing.values())

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture(params=[(3, 1000), (3, 0), (1, 0)])
def job(request: pytest.FixtureRequest) -> Iterator[tuple[Job, int, int]]:
    roles, refills = request.param
    job = Job(roles, refills)
    yield job, roles, refills
    job.close()


def test_workers_die_at_their_rate_and_the_last_one_is_spared(job: tuple[Job, int, int]) -> None:
    real, roles, refills = job
    started: Any = real
    hazard = Hazard(started, 0.4, random.Random(1))
    began, ended = asyncio.run(hazard.kill_for(1.5))
    assert ended - began >= 1.5
    assert all(began <= death <= ended for death in hazard.deaths)
    if refills:
        assert 5 <= len(hazard.deaths) <= 18  # three of them, each about every 0.45 s
    else:
        assert len(hazard.deaths) == roles - 1
    assert real.alive >= 1
    assert len(real.started) - roles <= len(hazard.deaths)


def test_no_worker_dies_before_its_time() -> None:
    job = Job(2, 0)
    try:
        started: Any = job
        hazard = Hazard(started, 1000.0, random.Random(1))
        asyncio.run(hazard.kill_for(0.3))
        assert (hazard.deaths, job.alive) == ([], 2)
    finally:
        job.close()

"""Workers of a running job are killed at random moments, as machines fail: each after a life of its own."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import log
from typing import Any

from understudy_bench.running import Running

LOOK_S = 0.1
DECK = 16


def lives(mean: float, chance: random.Random) -> Iterator[float]:
    """Exponential lives, dealt like cards: every deck has the quantiles of the distribution once each, so that a short
    run has neither far more failures than its rate says nor far fewer."""
    cards = [-log(1 - (number + 0.5) / DECK) for number in range(DECK)]
    scale = mean * DECK / sum(cards)
    while True:
        chance.shuffle(cards)
        yield from (scale * card for card in cards)


def players(machines: Sequence[Mapping[str, Any]], dead: set[int]) -> dict[int, int]:
    """Role → the process that plays it, on machines with one worker each."""
    return {
        machine["roles"][0]: machine["pids"][0]
        for machine in machines
        if machine["roles"] and machine["pids"] and machine["pids"][0] not in dead
    }


class Hazard:
    """A role's next death is drawn when somebody begins to play it."""

    def __init__(self, job: Running, mean: float, chance: random.Random) -> None:
        self._job, self._lives = job, lives(mean, chance)
        self._due: dict[int, tuple[int, float]] = {}
        self._dead: set[int] = set()
        self.deaths: list[float] = []

    async def strike(self, seconds: float) -> tuple[float, float]:
        """Let failures happen for so long; from when to when that was. The last one that plays is spared until another
        one does: without a checkpoint there would be nothing to go on from."""
        began = time.time()
        self._due.clear()
        while (now := time.time()) < began + seconds:
            playing = players(await self._job.machines(), self._dead)
            self._due = {role: due for role, due in self._due.items() if playing.get(role) == due[0]}
            for role, pid in playing.items():
                if role not in self._due:
                    self._due[role] = (pid, now + next(self._lives))
            await self._kill(playing, min(began + seconds, now + LOOK_S))
            self._job.check()
        return began, time.time()

    async def _kill(self, playing: Mapping[int, int], until: float) -> None:
        """All who are due until then, each at its moment."""
        for role, (pid, at) in sorted(self._due.items(), key=lambda due: due[1][1]):
            if at > until or len(playing) - len(self._dead & set(playing.values())) < 2:
                break
            await asyncio.sleep(max(0.0, at - time.time()))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.deaths.append(time.time())
            self._dead.add(pid)
            del self._due[role]
        await asyncio.sleep(max(0.0, until - time.time()))

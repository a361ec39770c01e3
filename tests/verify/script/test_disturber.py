"""Disturbances in a world in which everything takes longer than usual, and the limit on standing still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from understudy.verify.running_job import JobOver, RunningJob
from understudy.verify.script.check import CheckProgress, RunWatch
from understudy.verify.script.disturber import Disturber, Standstill
from understudy.verify.script.observation import AWAITS_KILL, PACE, Pace
from understudy.verify.script.runs import Disturbance
from understudy.verify.victims import ACTIVE, LiveWorker, Snapshot

REPLACE = Disturbance("replace", 1, (1,))
KILL = Disturbance("kill", 0, (0,))
STEPS = 12


class SlowJob:
    """A job of two roles that obeys the pace. A replacement needs `lag` steps after the first; each look at the job
    takes five seconds of a clock, and training makes one step between two looks."""

    def __init__(self, folder: Path, lag: int = 0) -> None:
        self.folder, self.lag, self.now, self.step = folder, lag, 0.0, 0
        self.phase = ""
        self.asked_at = 0
        self.killed_in: list[int] = []
        self.dead = False
        self.workers = {0: LiveWorker("w0", 10, "m0", 0), 1: LiveWorker("w1", 11, "m1", 1)}

    def clock(self) -> float:
        return self.now

    def pace(self) -> Pace:
        return msgspec.json.decode((self.folder / PACE).read_bytes(), type=Pace)

    def go_on(self) -> None:
        """One look's worth of training."""
        self.now += 5.0
        pace = self.pace()
        if pace.dying and self.step == pace.steps - 1:
            for worker in self.workers.values():
                if worker.machine == pace.dying:
                    (self.folder / f"{AWAITS_KILL}{worker.uid}").touch()
            return
        self.step = min(self.step + 1, pace.steps, STEPS)
        if self.phase == "armed" and self.step >= self.asked_at + 2 + self.lag:
            self.phase = ""

    # -- as much of a running job as a disturber uses ------------------------------------------------------------------

    def until(self, true: Callable[[], bool], what: str, *, every: float) -> None:
        for _ in range(500):
            if true():
                return
            self.go_on()
        raise AssertionError(f"waited for {what} without end")

    def ready(self, standbys: int) -> None:
        self.until(lambda: self.step >= self.pace().steps, "the job to train", every=1.0)

    def view(self) -> dict[str, Any]:
        if self.dead:
            raise JobOver("the job is failed")
        return {"step": self.step, "change": {"phase": self.phase} if self.phase else None}

    def snapshot(self) -> Snapshot:
        return Snapshot(tuple(self.workers.values()), {}, {"m0": ACTIVE, "m1": ACTIVE})

    def trains(self) -> bool:
        return not self.phase

    def agent(self, snapshot: Snapshot, machine: str) -> int:
        return 1

    def ask(self, path: str, **body: Any) -> str:
        self.phase, self.asked_at = "armed", self.step
        return "r1"

    def asked(self, id: str) -> dict[str, Any]:
        return {"done": not self.phase, "ok": True}

    def kill(self, *pids: int) -> None:
        self.killed_in.append(self.step)
        role = next(role for role, worker in self.workers.items() if worker.pid in pids)
        self.workers[role] = LiveWorker(f"{self.workers[role].uid}'", 90 + role, f"s{role}", role)


def disturber(job: SlowJob) -> Disturber:
    found = Disturber(cast(RunningJob, job), job.folder, STEPS, lambda text: None, job.clock)
    found.allow(4)
    return found


@pytest.mark.parametrize(("lag", "kill"), [(0, 6), (1, 7), (3, 9)])
def test_a_kill_comes_where_a_slow_replacement_has_left_training(tmp_path: Path, lag: int, kill: int) -> None:
    job = SlowJob(tmp_path, lag)
    disturbing = disturber(job)
    disturbing.disturb((REPLACE, KILL))
    assert disturbing.problem == ""
    assert [each.step for each in disturbing.begun] == [4, kill]
    assert job.killed_in == [kill]
    assert disturbing.killed == {"w0"}
    assert job.pace() == Pace(STEPS + 1, 2)


def test_a_disturbance_without_steps_left_is_not_begun(tmp_path: Path) -> None:
    job = SlowJob(tmp_path, lag=6)
    disturbing = disturber(job)
    disturbing.disturb((REPLACE, KILL))
    assert [each.kind for each in disturbing.begun] == ["replace"]
    assert (disturbing.problem, job.killed_in) == ("", [])


class FailingJob(SlowJob):
    """Fails just before its machine is to be killed."""

    def agent(self, snapshot: Snapshot, machine: str) -> int:
        self.dead = True
        return 1


def test_a_job_that_ends_while_its_machine_is_awaited_ends_the_wait(tmp_path: Path) -> None:
    job = FailingJob(tmp_path)
    disturbing = disturber(job)
    disturbing.disturb((KILL,))
    assert disturbing.problem == "the job is failed"
    assert not job.pace().dying


def test_a_role_without_a_worker_is_a_problem_in_words(tmp_path: Path) -> None:
    job = SlowJob(tmp_path)
    disturbing = disturber(job)
    del job.workers[0]
    disturbing.disturb((KILL,))
    assert disturbing.problem == "role 0 has no worker, although the job trains"


def signal(source: str, act: str, *workers: str) -> dict[str, Any]:
    return {"kind": "signal", "text": "w1 is gone", "data": {"source": source, "act": act, "workers": list(workers)}}


@pytest.mark.parametrize(
    ("event", "interferes"),
    [
        (signal("heartbeat", "halt", "w1"), True),
        (signal("limit", "cancel", "w1"), True),
        (signal("heartbeat", "nothing", "w1"), False),  # a standby that nothing depends on
        (signal("exit", "halt", "w1"), False),  # a joiner that starts anew for another role
        (signal("agent", "halt", "w0"), False),  # the check has killed it
        (signal("link", "halt"), False),
        (signal("script", "halt", "w1"), False),
    ],
)
def test_only_deaths_that_the_check_has_not_caused_interfere(event: dict[str, Any], interferes: bool) -> None:
    async def watched() -> str:
        watch = RunWatch(Standstill(300.0), CheckProgress())
        watch.killed = {"w0"}
        watch.event(event)
        never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if interferes:
            assert await watch.over(never) is None
        return watch.interference

    assert asyncio.run(watched()) == ("w1 is gone" if interferes else "")


def test_a_run_in_which_nothing_happens_is_over() -> None:
    async def watched() -> object:
        never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        return await RunWatch(Standstill(0.0), CheckProgress()).over(never)

    assert asyncio.run(watched()) is None


def test_a_run_is_stuck_only_if_nothing_happens() -> None:
    now = 0.0
    standstill = Standstill(300.0, lambda: now)
    for step in range(20):  # a step every 200 seconds: slow, and not stuck
        now += 200.0
        standstill.see(("step", step))
        assert standstill.remaining == 300.0
    now += 250.0
    standstill.see(("step", 19))
    assert standstill.remaining == 50.0
    now += 50.0
    assert standstill.remaining <= 0

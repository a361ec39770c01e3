"""Workers that an observer holds at a boundary, as the check of scripts does, take part in every change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from understudy.controller.core.state import JobStatus
from understudy.protocol.settings import StewardSettings
from understudy.testing.simulation import SimJob, setting_of
from understudy.testing.simulation import worker as simulated
from understudy.worker.runtime import WorkerRuntime

HELD_AT = 4


class Holder:
    """Holds all workers at one boundary until the job has recovered from a death."""

    def __init__(self, job: SimJob) -> None:
        self._job = job
        self.held: set[str] = set()
        self.killed = ""

    @property
    def recovered(self) -> bool:
        state = self._job.controller.state
        return bool(self.killed and state and state.halts and state.status == JobStatus.TRAINING)

    def runtime(self, *args: Any, **more: Any) -> WorkerRuntime:
        """A worker's runtime with this observer."""
        runtime = WorkerRuntime(*args, **more)
        runtime.observer = HeldWorker(self, runtime.spec.uid)
        return runtime

    def look(self) -> None:
        """Kill the worker of role 0 as soon as all workers with roles are held."""
        state = self._job.controller.state
        if state is not None and not self.killed and state.seated(None) and state.seated(None) <= self.held:
            self.killed = min(state.seated(None))
            self._job.workers[self.killed].process.kill()
        self._job.scheduler.after(0.1, self.look)


class HeldWorker:
    """The observer of one worker."""

    def __init__(self, holder: Holder, uid: str) -> None:
        self._holder, self._uid = holder, uid

    def may_begin(self, step: int) -> bool:
        if step < HELD_AT or self._holder.recovered:
            return True
        self._holder.held.add(self._uid)
        return False

    def at_boundary(self, step: int) -> None: ...

    def before_vote(self, step: int) -> None: ...


@pytest.mark.parametrize("seed", range(5))
def test_held_workers_recover_from_a_death(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calm: dict[str, Any] = {"malice": 0.0, "vote_malice": 0.0, "mask": "", "first": (), "copies": "all"}
    calm |= {"stalls": 0.0, "scarcity": "wait", "steward": StewardSettings("off")}
    setting = replace(setting_of(seed), machines=3, nproc=1, standbys=1, steps=8, **calm)
    job = SimJob(setting)
    holder = Holder(job)
    for name in ("fault", "_ask", "_scale"):
        monkeypatch.setattr(job, name, lambda *args: None)
    monkeypatch.setattr(simulated, "WorkerRuntime", holder.runtime)
    job.scheduler.at(0.0, holder.look)
    job.run()
    assert holder.killed
    assert job.controller.state is not None
    assert job.controller.state.status == JobStatus.FINISHED

"""Disturbs one run of a check: training is held at a boundary, a machine is replaced or killed, training continues.

No wait has a time limit of its own: on a slow computer everything takes longer. The run ends if nothing at all happens
for too long (`Standstill`), and then ends every wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from understudy.verify.running_job import JobOver, NotRecovered, RunningJob
from understudy.verify.victims import NotPossible

from .observation import AWAITS_KILL, PACE, Pace
from .runs import Disturbance, described, held_at

_POLL_S = 0.05
_NUDGE_S = 1.0
"""Time for which all allowed steps must be made before one more is allowed for a replacement that has not ended."""
_WAITS_FOR_STEPS = ("armed", "switch", "hand-over", "first step")
"""Phases of a planned replacement that last until training goes on."""


class Standstill:
    """Notices that a run does nothing any more: the same signs for `limit` seconds."""

    def __init__(self, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit, self._clock = limit, clock
        self._signs: object = None
        self._since = clock()

    def see(self, signs: object) -> None:
        """Take note of the step, the events and the machines of the run."""
        if signs != self._signs:
            self._signs, self._since = signs, self._clock()

    @property
    def remaining(self) -> float:
        """Seconds until the run counts as stuck, if nothing happens; 0 or less: it is stuck."""
        return self._since + self.limit - self._clock()


class Disturber:
    """Holds and disturbs one job, in a thread of its own."""

    def __init__(
        self,
        job: RunningJob,
        folder: Path,
        steps: int,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job, self._folder, self._steps, self._tell, self._clock = job, folder, steps, tell, clock
        self._allowed = 0
        self.begun: list[Disturbance] = []
        self.killed: set[str] = set()
        """Workers that were killed on purpose."""
        self.problem = ""
        """Why a disturbance did not come to its end."""

    def allow(self, steps: int, *, dying: str = "") -> None:
        """Let workers begin this number of steps; workers of the machine `dying` wait to be killed in the last one."""
        self._allowed = steps
        draft = self._folder / f"{PACE}.draft"
        draft.write_bytes(msgspec.json.encode(Pace(steps, len(self.begun), dying)))
        draft.replace(self._folder / PACE)

    def disturb(self, wanted: tuple[Disturbance, ...]) -> None:
        """Disturb the job, once for each disturbance that there are steps for; then training goes on freely.

        A disturbance may take more steps than usual. The next one comes where training is held then.
        """
        try:
            for number, disturbance in enumerate(wanted):
                step = max(held_at(number), self._allowed)
                if step + _needs(disturbance) > self._steps:
                    break
                self.allow(step)
                self._job.ready(1)
                self._tell(f"step {step}: {described(disturbance)}")
                self.begun.append(msgspec.structs.replace(disturbance, step=step))
                if disturbance.kind == "replace":
                    self._replace(disturbance, step)
                else:
                    self._kill(disturbance, step)
        except (JobOver, NotRecovered, NotPossible) as error:
            self.problem = str(error)
        finally:
            self.allow(self._steps + 1)

    def _machine(self, role: int) -> str:
        for worker in self._job.snapshot().with_roles():
            if worker.role == role:
                return worker.machine
        raise NotRecovered(f"role {role} has no worker, although the job trains")

    def _replace(self, disturbance: Disturbance, step: int) -> None:
        job = self._job
        id = job.ask("/replace", type="replace", machines=[self._machine(disturbance.role)])

        def ready() -> bool:
            change = job.view()["change"]
            return bool(change is not None and change["phase"] in _WAITS_FOR_STEPS) or bool(job.asked(id)["done"])

        job.until(ready, "the joiner to be ready", every=_POLL_S)
        self.allow(step + 2)  # the leaver's last step, and the joiner's first
        since: float | None = None

        def done() -> bool:
            nonlocal since
            made = job.view()["step"] >= self._allowed
            if not made or since is None:
                since = self._clock() if made else None
            elif self._clock() - since > _NUDGE_S and self._allowed < self._steps:
                since = None
                self.allow(self._allowed + 1)  # a switch that was not prepared at the end of a step needs another one
            return bool(job.asked(id)["done"])

        job.until(done, "the replacement to end", every=_POLL_S)
        answer = job.asked(id)
        if not answer["ok"]:
            raise NotRecovered(str(answer["text"]))

    def _kill(self, disturbance: Disturbance, step: int) -> None:
        job = self._job
        snapshot = job.snapshot()
        machine = self._machine(disturbance.role)
        workers = [worker for worker in snapshot.on(machine) if worker.role is not None]
        agent = job.agent(snapshot, machine)
        self.allow(step + 1, dying=machine)
        waiting = [self._folder / f"{AWAITS_KILL}{worker.uid}" for worker in workers]

        def there() -> bool:
            return bool(job.view()) and all(file.exists() for file in waiting)

        job.until(there, f"{machine} to come to step {step}", every=_POLL_S)
        self.killed.update(worker.uid for worker in snapshot.on(machine))
        job.kill(agent, *(worker.pid for worker in snapshot.on(machine)))
        gone = {worker.uid for worker in workers}

        def taken() -> bool:
            filled = {worker.role for worker in job.snapshot().with_roles() if worker.uid not in gone}
            return set(disturbance.roles) <= filled and job.trains()

        self.allow(step + 2)
        job.until(taken, f"a standby to take the roles of {machine}", every=_POLL_S)


def _needs(disturbance: Disturbance) -> int:
    """Number of steps that a run must have from the one of the disturbance on."""
    return 2 if disturbance.kind == "replace" else 1

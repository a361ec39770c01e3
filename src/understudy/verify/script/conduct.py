"""Disturbs a running job exactly where it is wanted: training is held at a boundary while things are prepared."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from understudy.verify.chaos.scene import Over, Scene, Unrecovered
from understudy.verify.chaos.victims import Passed

from .observation import AWAITS_KILL, PACE, Pace
from .runs import Disturbance, held_at, said

_READY = ("armed", "switch", "hand-over", "first step")
"""Phases of a planned replacement in which it waits for training to go on."""
_LOOK_S = 0.05
_NUDGE_S = 1.0
"""After which another step is let go where a replacement has not ended."""


class Conductor:
    """Holds and disturbs one job; to be run in a thread of its own."""

    def __init__(self, scene: Scene, folder: Path, steps: int, tell: Callable[[str], None]) -> None:
        self._scene, self._folder, self._steps, self._tell = scene, folder, steps, tell
        self.begun: list[Disturbance] = []
        self.problem = ""
        """Why a disturbance did not come to its end."""

    def pace(self, steps: int, *, dying: str = "") -> None:
        """So many steps may begin."""
        draft = self._folder / f"{PACE}.draft"
        draft.write_bytes(msgspec.json.encode(Pace(steps, len(self.begun), dying)))
        draft.replace(self._folder / PACE)

    def conduct(self, wanted: tuple[Disturbance, ...]) -> None:
        """One after another; afterwards training goes on freely."""
        try:
            for number, disturbance in enumerate(wanted):
                step = held_at(number)
                self._scene.ready(1)
                self._tell(f"step {step}: {said(disturbance)}")
                self.begun.append(disturbance)
                self._replace(disturbance, step) if disturbance.kind == "replace" else self._kill(disturbance, step)
                if number + 1 < len(wanted):
                    self.pace(held_at(number + 1))
        except Over as over:
            self.problem = str(over)
        except (Unrecovered, Passed) as stuck:
            self.problem = str(stuck)
        finally:
            self.pace(self._steps + 1)

    def _machine(self, role: int) -> str:
        return next(worker.machine for worker in self._scene.company().cast() if worker.role == role)

    def _replace(self, disturbance: Disturbance, step: int) -> None:
        scene = self._scene
        id = scene.ask("/replace", type="replace", machines=[self._machine(disturbance.role)])

        def ready() -> bool:
            change = scene.job()["change"]
            return bool(change is not None and change["phase"] in _READY) or bool(scene.asked(id)["done"])

        scene.until(ready, "the newcomer to be ready", every=_LOOK_S)
        allowed = step + 2  # its leaver's last step, and its own first
        self.pace(allowed)
        since = time.monotonic()

        def done() -> bool:
            nonlocal allowed, since
            if time.monotonic() - since > _NUDGE_S and allowed < self._steps:
                allowed, since = allowed + 1, time.monotonic()
                self.pace(allowed)
            return bool(scene.job() and scene.asked(id)["done"])

        scene.until(done, "the replacement to end", every=_LOOK_S)
        answer = scene.asked(id)
        if not answer["ok"]:
            raise Unrecovered(str(answer["text"]))

    def _kill(self, disturbance: Disturbance, step: int) -> None:
        scene = self._scene
        company = scene.company()
        machine = self._machine(disturbance.role)
        workers = [worker for worker in company.on(machine) if worker.role is not None]
        agent = scene.agent(company, machine)
        self.pace(step + 1, dying=machine)
        waiting = [self._folder / f"{AWAITS_KILL}{worker.uid}" for worker in workers]
        scene.until(lambda: all(file.exists() for file in waiting), f"{machine} to come to step {step}", every=_LOOK_S)
        scene.kill(agent, *(worker.pid for worker in company.on(machine)))
        gone = {worker.uid for worker in workers}

        def taken() -> bool:
            now = scene.company()
            playing = {worker.role for worker in now.cast() if worker.uid not in gone}
            return set(disturbance.roles) <= playing and scene.trains()

        self.pace(step + 2)
        scene.until(taken, f"a standby to take the place of {machine}", every=_LOOK_S)

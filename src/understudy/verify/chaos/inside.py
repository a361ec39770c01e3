"""Faults inside workers and agents, which a job allows that was started with `--chaos`."""

from __future__ import annotations

from random import Random

from understudy.testing.faults import AGENT_FAULTS, WORKER_FAULTS

from .kinds import Strike, Wound, kind
from .scene import Scene
from .victims import a_worker, some_machines

_GAPS = {"nan": "needs --check-gradients", "hang": "needs --step-limit"}
_FATAL = {"corrupt-line", "exit-1", "sys-exit", "raise-in-forward", "hang"}
"""Of those who are struck with these, the controller must notice the loss."""
_NOTICED_S = 2.0
"""About so long after the end of a connection a machine counts as gone, if it does."""
_MILD = {"delay-links", "throttle-links", "fill-checkpoint-disk", "leak-memory", "burn-cpu", "slow"}
_MILD |= {"drop-control", "duplicate-control", "delay-control", "corrupt-report"}
"""Nobody dies of these, so nobody has to be spared."""


def _in_worker(name: str) -> Strike:
    def strike(scene: Scene, dice: Random) -> Wound:
        worker = a_worker(scene.company(), dice, reckless=scene.reckless or name in _MILD)
        seconds = dice.uniform(1.0, 3.0)
        scene.inject(worker.machine, name, uid=worker.uid, seconds=seconds)
        scene.pause(0.0 if name in _FATAL else seconds)
        text = f"role {worker.role} ({worker.uid} on {worker.machine}), {seconds:.1f} s"
        return Wound(text, (worker.pid,) if name in _FATAL else ())

    return strike


def _in_agent(name: str) -> Strike:
    def strike(scene: Scene, dice: Random) -> Wound:
        machine = some_machines(scene.company(), dice, reckless=scene.reckless or name in _MILD)[0]
        seconds = dice.uniform(1.0, 3.0)
        scene.inject(machine, name, seconds=seconds)
        scene.pause(seconds + _NOTICED_S)
        return Wound(f"{machine}, {seconds:.1f} s")

    return strike


for _name, _line in WORKER_FAULTS.items():
    kind(_name, "inside", _line, _GAPS.get(_name, ""))(_in_worker(_name))
for _name, _line in AGENT_FAULTS.items():
    kind(_name, "inside", _line, _GAPS.get(_name, ""))(_in_agent(_name))

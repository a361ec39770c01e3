"""Small cases that every engine can simulate."""

from __future__ import annotations

from understudy.planning.failures import Failures, Repair
from understudy.planning.setting import Cluster, Durations, PlanningSetting, StepWork
from understudy.planning.strategy import (
    OOBLECK,
    Strategy,
    checkpoint,
    mask_and_refill,
    reconfigure,
    replication,
    spare,
    torchft,
    trainmover,
)

PERIOD = 100.0
NEVER = 1e12
COSTS = Durations(detect=1.0, hand_over=2.0, restart=100.0, save=5.0, refill=60.0, cold=80.0)
REPAIR = Repair(1500.0, "fixed")


def setting(
    step: float = 5.0, sync: float = 0.0, steps: int = 103, machines: int = 8, replicas: int = 8
) -> PlanningSetting:
    return PlanningSetting(Cluster(machines, replicas), StepWork(step - sync, sync, steps), COSTS)


def failures(of: PlanningSetting, every: float = 150.0) -> Failures:
    """One somewhere in the cluster so often."""
    return Failures(mtbf=of.cluster.machines * every)


def never_going_back(s: PlanningSetting) -> dict[str, Strategy]:
    """Nothing is ever lost. Where steps become longer there is no checkpoint: it would be a step early or late."""
    return {
        "trainmover": trainmover(s, 2, PERIOD),
        "trainmover without standby": trainmover(s, 0, PERIOD),
        "mask and refill anywhere": mask_and_refill(s, 2, NEVER),
        "mask and refill anywhere, micro-shards": mask_and_refill(s, 2, NEVER, q=8),
        "mask and refill without standby": mask_and_refill(s, 0, NEVER),
        "torchft": torchft(s, NEVER, 1),
        "reconfigure": reconfigure(s, OOBLECK, NEVER, 1),
    }


def going_back(s: PlanningSetting) -> dict[str, Strategy]:
    return {
        "checkpoint": checkpoint(s, PERIOD),
        "checkpoint with a standby": checkpoint(s, PERIOD, 1),
        "spare": spare(s, 3, PERIOD),
        "spare with planned restarts": spare(s, 3, PERIOD, restart_after=2),
        "replication": replication(s, 2, PERIOD),
        "mask and refill, local": mask_and_refill(s, 1, PERIOD, "spare:r=2", 4),
    }

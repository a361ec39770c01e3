"""Small clusters that fail often, and every strategy in them."""

from __future__ import annotations

from understudy.planning import strategy as ways
from understudy.planning.failures import Failures
from understudy.planning.setting import HOUR, Cluster, Durations, PlanningSetting, StepWork
from understudy.planning.strategy import Strategy

DURATIONS = Durations(
    detect=1.0, shrink=0.1, hand_over=10.0, planned=5.0, join=2.0, refill=60.0, cold=200.0, save=20.0, restart=300.0
)
SETTING = PlanningSetting(Cluster(machines=48, replicas=12), StepWork(compute=20.0, sync=2.0), DURATIONS)
FAILURES = Failures(mtbf=48 * HOUR)
"""One failure an hour."""

EVERY = {
    "checkpoint": ways.checkpoint(SETTING, 600.0),
    "replication": ways.replication(SETTING, 2, 1200.0),
    "spare": ways.spare(SETTING, 3, 1200.0),
    "spare-planned": ways.spare(SETTING, 3, 1200.0, restart_after=3),
    "trainmover": ways.trainmover(SETTING, 4, 4 * HOUR),
    "trainmover-cold": ways.trainmover(SETTING, 0, 4 * HOUR),
    "mask-and-refill": ways.mask_and_refill(SETTING, 4, 4 * HOUR, "anywhere", 16),
    "mask-and-refill-local": ways.mask_and_refill(SETTING, 4, 4 * HOUR, "spare:r=3", 16),
    "mask-and-refill-whole": ways.mask_and_refill(SETTING, 4, 4 * HOUR, "spare:r=3"),
    "torchft-like": ways.torchft(SETTING, 4 * HOUR, 4),
    "oobleck-like": ways.reconfigure(SETTING, ways.OOBLECK, 4 * HOUR, 4),
    "parcae-like": ways.reconfigure(SETTING, ways.PARCAE, 4 * HOUR, 4),
}


def names() -> list[str]:
    return list(EVERY)


def way(name: str) -> Strategy:
    return EVERY[name]

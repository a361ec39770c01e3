"""TrainMover's projection of wasted GPU-hours per week to jobs of up to 131,072 GPUs, from its stated assumptions.

    wasted = interruptions per week x GPUs x (downtime + infrastructure) + standby GPUs x hours of a week

Details that the paper does not state are parameters of `Reading`.
"""

from __future__ import annotations

from math import ceil, exp, log, sqrt
from typing import Literal

import msgspec

from understudy.planning.failures import Failures, Repair
from understudy.planning.setting import HOUR, WEEK, Cluster, Durations, PlanningSetting, StepWork
from understudy.planning.simulation import jump
from understudy.planning.strategy import PARCAE, Downtimes, Strategy, reconfigure, trainmover

SOURCE = "TrainMover, OSDI 2026, arXiv 2412.12636"

MTTF = {1_024: 7.9 * HOUR, 8_192: 3.0 * HOUR, 16_384: 1.8 * HOUR, 131_072: 14 / 60 * HOUR}
"""Seconds between two interruptions of a job, by number of GPUs: Meta's figures, as used in TrainMover's projection."""
UNEXPECTED_SHARE = 1 / (1 + 1 / 8.9)  # of interruptions, assumed in the projection
INFRASTRUCTURE = 120.0  # seconds per interruption with any system, assumed in the projection
COLD_DOWNTIME = 221.0  # seconds without state from a peer, early set-up and warm-up; from the breakdown, 5.12T MoE
# TrainMover's measurements, in seconds.
EXPECTED_DOWNTIME = 16.6  # at 1,024 GPUs
UNEXPECTED_DOWNTIME = 21.1  # at 1,024 GPUs, with a standby
RESTART_AT_32 = 80.0  # Megatron-LM
RESTART_AT_1024 = 300.0  # Megatron-LM

PROJECTED: dict[tuple[str, int], float] = {
    ("no standby", 8_192): -0.359,
    ("no standby", 65_536): -0.55,
    ("no standby", 131_072): -0.55,
    ("parcae", 8_192): -0.828,
    ("parcae", 131_072): -0.88,
}
"""TrainMover's projection: change of wasted GPU-hours by standbys, against no standby and against Parcae."""
PROJECTED_SAVED_64K = 1.4e6
"""GPU-hours saved per week at 65,536 GPUs. TrainMover's projection; it does not say against which system."""

SIZES = (1_024, 8_192, 65_536, 131_072)
GPUS_PER_MACHINE = 8

System = Literal["standbys", "no standby", "parcae"]
SYSTEMS: tuple[System, ...] = ("standbys", "no standby", "parcae")


class Reading(msgspec.Struct, frozen=True):
    """Values for what the paper does not state."""

    words: str = "a pool for the machines in repair, 6 h each; Parcae slower at scale, as restarts are"
    standbys: int | None = None
    """Standby machines; None: the mean number in repair plus three standard deviations."""
    repair: float = 6 * HOUR
    parcae_grows: float = RESTART_AT_1024 / RESTART_AT_32
    """Downtime of Parcae at scale, in downtimes at 32 GPUs."""


USUAL = Reading()
OTHERS = (
    Reading("exactly one standby", standbys=1),
    Reading("a machine is back after 24 h", repair=24 * HOUR),
    Reading("Parcae as fast at scale as with 32 GPUs", parcae_grows=1.0),
)


def mttf(gpus: int) -> float:
    """Seconds between two interruptions: published for some sizes, else interpolated linearly in logarithms."""
    if gpus in MTTF:
        return MTTF[gpus]
    sizes = sorted(MTTF)
    above = next((size for size in sizes[1:] if size >= gpus), sizes[-1])
    below = sizes[sizes.index(above) - 1]
    share = log(gpus / below) / log(above / below)
    return exp(log(MTTF[below]) * (1 - share) + log(MTTF[above]) * share)


def standbys_for(gpus: int, reading: Reading = USUAL) -> int:
    """Standby machines of a job on this number of GPUs."""
    if reading.standbys is not None:
        return reading.standbys
    in_repair = UNEXPECTED_SHARE / mttf(gpus) * reading.repair
    return ceil(in_repair + 3 * sqrt(in_repair))


def downtime(system: System, reading: Reading = USUAL) -> float:
    """Mean standstill of an interruption in seconds, infrastructure included."""
    if system == "parcae":
        fewer, more = _parcae(reading)
        return fewer + more + 2 * INFRASTRUCTURE
    lost = UNEXPECTED_DOWNTIME if system == "standbys" else COLD_DOWNTIME
    share = UNEXPECTED_SHARE
    return share * lost + (1 - share) * EXPECTED_DOWNTIME + INFRASTRUCTURE


def wasted(system: System, gpus: int, reading: Reading = USUAL) -> float:
    """GPU-hours wasted per week."""
    held = standbys_for(gpus, reading) * GPUS_PER_MACHINE if system == "standbys" else 0
    return (WEEK / mttf(gpus) * gpus * downtime(system, reading) + held * WEEK) / HOUR


def reduction(against: System, gpus: int, reading: Reading = USUAL) -> float:
    """Relative change of the wasted GPU-hours if standbys are used instead of `against`."""
    return wasted("standbys", gpus, reading) / wasted(against, gpus, reading) - 1


def simulated(
    system: System, gpus: int, reading: Reading = USUAL, *, weeks: float = 2.0, runs: int = 4, seed: int = 0
) -> float:
    """GPU-hours wasted per week by simulation: interruptions may overlap, and standbys may run out."""
    machines, share = gpus // GPUS_PER_MACHINE, UNEXPECTED_SHARE
    every = mttf(gpus) * machines
    durations = Durations(detect=0.0, cold=COLD_DOWNTIME, outside=INFRASTRUCTURE)
    setting = PlanningSetting(Cluster(machines, machines // 16, GPUS_PER_MACHINE), StepWork(1.0), durations)
    strategy = _strategy(system, setting, gpus, reading)
    failures = Failures(every / share, maintenance=every / (1 - share))
    outcome = jump.simulate(
        setting, failures, strategy, Repair(reading.repair), runs=runs, horizon=weeks * WEEK, seed=seed
    )
    held = strategy.standbys * GPUS_PER_MACHINE
    return ((1 - outcome.efficiency.value) * gpus + held) * WEEK / HOUR


def _strategy(system: System, setting: PlanningSetting, gpus: int, reading: Reading) -> Strategy:
    """The system as a strategy with the published downtimes, without checkpoints, as in the projection."""
    if system == "parcae":
        made = reconfigure(setting, Downtimes("parcae-like", *_parcae(reading)), jump.FOREVER)
        return msgspec.structs.replace(made, stall=made.stall - setting.work.step / 2)
    standbys = standbys_for(gpus, reading) if system == "standbys" else 0
    return msgspec.structs.replace(
        trainmover(setting, standbys, jump.FOREVER),
        stall=INFRASTRUCTURE + (UNEXPECTED_DOWNTIME if standbys else 0.0),
        planned=INFRASTRUCTURE + EXPECTED_DOWNTIME,
    )


def _parcae(reading: Reading) -> tuple[float, float]:
    return PARCAE.fewer * reading.parcae_grows, PARCAE.more * reading.parcae_grows

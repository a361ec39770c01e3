"""Prepares a run in SimGrid: failure dates, the platform, and tables of the runtime's decisions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from numpy.random import Generator, SeedSequence, default_rng

from understudy.planning.failures import Failures, Repair
from understudy.planning.setting import Cluster, PlanningSetting, StepWork
from understudy.planning.simgrid.script import BLINK, PLATFORM, SPEED
from understudy.planning.strategy import Strategy, placed

MOST = 256
"""Largest number of machines; larger runs would take hours."""

Dates = tuple[tuple[float, ...], ...]
"""Dates of the failures at every machine's place."""


class SimgridUnsupported(ValueError):
    """SimGrid cannot simulate this case; the message names the reason and another engine."""


class PreparedRun(msgspec.Struct, frozen=True):
    """Everything that is drawn or decided before a run begins. The script reads it as JSON."""

    setting: PlanningSetting
    strategy: Strategy
    dates: Dates
    members: int
    horizon: float
    known: float
    """Failures are drawn until this date."""
    slowness: float
    """Seconds that the job loses to a slow machine until it is detected."""
    pace: float
    """Mean computing time of the slowest member at full strength, in times to compute one shard."""
    loads: list[float]
    """Mean computing time of the slowest member by number of missing members, in times to compute one shard."""
    patch: float
    """Seconds to recompute the work that is lost with a member in the middle of a step."""
    shares: list[float]
    """Share of losses that need a patch, by number of members that were missing before."""
    masks: list[list[bool]]
    """Whether the runtime's policy masks, by number of missing members and by whether a standby is ready."""
    holders: list[list[list[int]]]
    """For every member, the holders of each shard that it holds; empty if every member holds every shard."""
    draws: list[float]
    """A number between 0 and 1 for every loss: a number below the share means a patch."""
    repairs: list[float]
    maintained: list[float]
    slowed: list[float]

    @property
    def files(self) -> Mapping[str, str]:
        """Files by name. The platform refers to traces by name, and no two resources may share a trace."""
        traces = {name: trace(self.dates[machine]) for machine, name in _profiles(self.dates)}
        return {PLATFORM: platform(self.dates), **traces}


def prepare(
    setting: PlanningSetting,
    failures: Failures,
    strategy: Strategy,
    repair: Repair,
    *,
    horizon: float,
    known: float,
    seed: SeedSequence,
) -> PreparedRun:
    """The run of this seed. A later `known` date adds failures at the end and changes nothing else."""
    refuse(setting, failures, strategy)
    ours = (SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, number)) for number in range(5))
    fates, repairs, maintained, slowed, draws = (default_rng(own) for own in ours)
    dates = failure_dates(failures, setting.cluster, fates, known)
    many, members, masking = sum(map(len, dates)), strategy.members(setting), strategy.answer == "mask"
    computing = msgspec.structs.replace(setting, work=StepWork(setting.work.compute, jitter=setting.work.jitter))
    masks = [
        [not strategy.may_recover or strategy.masks(setting, missing, ready) for ready in (False, True)]
        for missing in range(members + 1 if masking else 0)
    ]
    return PreparedRun(
        setting=setting,
        strategy=strategy,
        dates=dates,
        members=members,
        horizon=horizon,
        known=known,
        slowness=failures.slowness,
        pace=computing.work.stretched(1.0, members),
        loads=[strategy.stretch(computing, missing) for missing in range(members if masking else 1)],
        patch=strategy.patch(setting) if masking else 0.0,
        shares=[strategy.patched(setting, missing) for missing in range(members if masking else 0)],
        masks=masks,
        holders=holders(strategy, members) if masking else [],
        draws=[*map(float, draws.random(many))] if masking else [],
        repairs=[*map(float, repair.durations(repairs, many))] if strategy.standbys else [],
        maintained=_events(failures.maintenance / setting.cluster.machines, maintained, known),
        slowed=_events(failures.straggling / setting.cluster.machines, slowed, known),
    )


def refuse(setting: PlanningSetting, failures: Failures, strategy: Strategy) -> None:
    """Raises SimgridUnsupported if failures cannot be drawn before the run, or if the run would take too long."""
    if setting.cluster.machines > MOST:
        raise SimgridUnsupported(
            f"SimGrid is for small cases of up to {MOST} machines, not {setting.cluster.machines:,}; use another engine"
        )
    if failures.shape != 1.0 and strategy.answer == "mask" and not strategy.refills:
        raise SimgridUnsupported(
            f"{strategy.name}: machines are new after a restart, and the date of a restart is not known in advance, so "
            "SimGrid's traces allow only failures at a constant rate; use another engine"
        )


def failure_dates(failures: Failures, cluster: Cluster, rng: Generator, until: float) -> Dates:
    """Failure dates of every place, drawn by time: a later `until` adds failures and changes none of the others.

    A new machine takes the place at once.
    """
    following = failures.lifetimes(rng, cluster.machines)
    dates: list[list[float]] = [[] for _ in range(cluster.machines)]
    while (at := float(following.min())) < until:
        first = int(following.argmin())
        struck = range(first, first + 1)
        if cluster.domain > 1 and failures.together and rng.random() < failures.together:
            start = first - first % cluster.domain
            struck = range(start, min(start + cluster.domain, cluster.machines))
        lives = np.maximum(failures.lifetimes(rng, len(struck)), 2 * BLINK)
        for machine, life in zip(struck, lives, strict=True):
            if not dates[machine] or at > dates[machine][-1] + 2 * BLINK:
                dates[machine].append(at)
            following[machine] = at + life
    return tuple(map(tuple, dates))


def _events(mean: float, rng: Generator, until: float) -> list[float]:
    dates, at = list[float](), 0.0
    while mean and (at := at + float(rng.standard_exponential()) * mean) < until:
        dates.append(at)
    return dates


def holders(strategy: Strategy, members: int) -> list[list[list[int]]]:
    """For every member, the holders of each of its shards; empty if every member holds every shard."""
    placement = placed(strategy.placement, members)
    if placement.everywhere:
        return []
    return [[list(placement.holders(shard)) for shard in placement.stack(member)] for member in range(members)]


def trace(dates: Iterable[float]) -> str:
    """A state profile: the host is off at every date and on again right after it."""
    return "".join(f"{date!r} 0\n{date + BLINK!r} 1\n" for date in dates)


def platform(dates: Dates) -> str:
    """The platform: machines, controller and storage around a switch. Transfers on a link do not slow each other."""
    off = {name: f' state_file="{name}"' for _, name in _profiles(dates)}
    names = [*(f"m{machine}" for machine in range(len(dates))), "controller", "storage"]
    links = f'bandwidth="{SPEED:g}Bps" latency="0s" sharing_policy="FATPIPE"'
    lines = [
        "<?xml version='1.0'?>",
        '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">',
        '<platform version="4.1">',
        '<zone id="cluster" routing="Floyd">',
        *(f'<host id="{name}" speed="{SPEED:g}f"{off.get(f"{name}.host", "")}/>' for name in names),
        '<router id="switch"/>',
        *(f'<link id="{name}-link" {links}{off.get(f"{name}.link", "")}/>' for name in names),
        *(f'<route src="{name}" dst="switch"><link_ctn id="{name}-link"/></route>' for name in names),
        "</zone>",
        "</platform>",
    ]
    return "\n".join(lines) + "\n"


def _profiles(dates: Dates) -> list[tuple[int, str]]:
    """Machine and file of every trace. A machine that never fails has no trace."""
    return [(machine, f"m{machine}.{what}") for machine, at in enumerate(dates) if at for what in ("host", "link")]

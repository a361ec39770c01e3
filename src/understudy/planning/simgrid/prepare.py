"""From a setting and a strategy to what SimGrid plays: failure dates, the platform, and tables of decisions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.random import Generator, SeedSequence, default_rng

from understudy.planning.failures import Failures, Repair
from understudy.planning.setting import Cluster, Setting, StepWork
from understudy.planning.simgrid.exchange import BLINK, SPEED, SimgridInput
from understudy.planning.strategy import Strategy, placed

MOST = 256
"""Machines. It would work with more, for hours."""

Dates = tuple[tuple[float, ...], ...]
"""Of every machine's place, when whoever stands there fails."""


class SimgridUnsupported(ValueError):
    """SimGrid cannot play this; the message says why and what can."""


@dataclass(frozen=True)
class PreparedRun:
    """Everything of one run that is drawn or decided before it begins."""

    inputs: SimgridInput
    dates: Dates

    @property
    def files(self) -> Mapping[str, str]:
        """The platform refers to the traces by name; no two resources may share one."""
        traces = {name: trace(self.dates[machine]) for machine, name in _profiles(self.dates)}
        return {"platform.xml": platform(self.dates), **traces}


def prepare(
    setting: Setting,
    failures: Failures,
    strategy: Strategy,
    repair: Repair,
    *,
    horizon: float,
    known: float,
    seed: SeedSequence,
) -> PreparedRun:
    """The run with this seed; with a later `known` date it is the same run, with more failures at the end."""
    refuse(setting, failures, strategy)
    ours = (SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, number)) for number in range(5))
    fates, repairs, maintained, slowed, draws = (default_rng(own) for own in ours)
    dates = failure_dates(failures, setting.cluster, fates, known)
    many, d, members = sum(map(len, dates)), setting.durations, strategy.members(setting)
    inputs = SimgridInput(
        machines=setting.cluster.machines,
        members=members,
        compute=setting.work.compute,
        sync=setting.work.sync,
        steps=setting.work.steps,
        horizon=horizon,
        known=known,
        answer=strategy.answer,
        period=strategy.period,
        save=d.save,
        restart=d.restart + d.outside,
        cold=d.cold,
        standbys=strategy.standbys,
        stall=strategy.stall,
        redo=strategy.redo,
        planned=strategy.planned,
        recover=strategy.recover,
        refills=strategy.refills,
        refill=strategy.refill,
        join=strategy.join,
        restart_after=strategy.restart_after,
        restart_anew=strategy.restart_anew,
        slowness=failures.noticed * failures.slow / (1 + failures.slow),
        pace=_only_computing(setting).work.stretched(1.0, members),
        loads=loads(setting, strategy),
        patch=strategy.patch(setting) if strategy.answer == "mask" else 0.0,
        shares=shares(setting, strategy),
        masks=masks(setting, strategy),
        holders=holders(strategy, members),
        draws=[*map(float, draws.random(many))] if strategy.answer == "mask" else [],
        repairs=[*map(float, repair.durations(repairs, many))] if strategy.standbys else [],
        maintained=_events(failures.maintenance / setting.cluster.machines, maintained, known),
        slowed=_events(failures.straggling / setting.cluster.machines, slowed, known),
    )
    return PreparedRun(inputs, dates)


def refuse(setting: Setting, failures: Failures, strategy: Strategy) -> None:
    """What cannot be result with dates that are drawn beforehand, or not in reasonable time."""
    if setting.cluster.machines > MOST:
        raise SimgridUnsupported(
            f"SimGrid is for small cases, up to {MOST} machines, not {setting.cluster.machines:,}; take another engine"
        )
    memoryless = not failures.lives and failures.shape == 1.0 and failures.infant_factor == 1.0
    if not memoryless and strategy.answer == "mask" and not strategy.refills:
        raise SimgridUnsupported(
            f"{strategy.name}: machines are new after a restart, whose date nobody knows beforehand, so SimGrid's "
            "traces allow only failures at a constant rate; take another engine"
        )


def failure_dates(failures: Failures, cluster: Cluster, rng: Generator, until: float) -> Dates:
    """In order of time, so that a later `until` adds failures and changes none. A new machine follows at once."""
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


def loads(setting: Setting, strategy: Strategy) -> list[float]:
    """Computing time of the slowest member while 0, 1, … members are missing, in times to compute one shard: a mean."""
    some, bare = strategy.members(setting) if strategy.answer == "mask" else 1, _only_computing(setting)
    return [strategy.stretch(bare, missing) for missing in range(some)]


def _only_computing(setting: Setting) -> Setting:
    return msgspec.structs.replace(setting, work=StepWork(setting.work.compute, jitter=setting.work.jitter))


def shares(setting: Setting, strategy: Strategy) -> list[float]:
    """How often a member that is lost while 0, 1, … are missing costs a patch."""
    if strategy.answer != "mask":
        return []
    return [strategy.patched(setting, missing) for missing in range(strategy.members(setting))]


def masks(setting: Setting, strategy: Strategy) -> list[list[bool]]:
    """What the runtime's policy says, by the number of missing members and by whether a standby is ready."""
    if strategy.answer != "mask":
        return []
    members = strategy.members(setting)
    return [
        [not strategy.may_recover or strategy.masks(setting, missing, ready) for ready in (False, True)]
        for missing in range(members + 1)
    ]


def holders(strategy: Strategy, members: int) -> list[list[list[int]]]:
    """Of every member, who holds each of its shards; nothing where everybody holds everything."""
    if strategy.answer != "mask" or strategy.placement == "off":
        return []
    placement = placed(strategy.placement, members)
    if placement.everywhere:
        return []
    return [[list(placement.holders(shard)) for shard in placement.stack(member)] for member in range(members)]


def trace(dates: Iterable[float]) -> str:
    """A state profile: off at every date, and on again right after it."""
    return "".join(f"{date!r} 0\n{date + BLINK!r} 1\n" for date in dates)


def platform(dates: Dates) -> str:
    """Machines around a switch, with a controller and a storage. A link is shared without anybody becoming slower."""
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
    """(machine, file) of every trace: a machine that never fails has none."""
    return [(machine, f"m{machine}.{what}") for machine, at in enumerate(dates) if at for what in ("host", "link")]

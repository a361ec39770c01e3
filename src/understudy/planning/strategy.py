"""Strategies against failures: each published one as a value that the closed forms and the simulators take."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Literal

import msgspec

from understudy.masking.assignment import assign, load_bound
from understudy.masking.formulas import depth_bound, patched_share
from understudy.masking.placement import Placement, PlacementError, parse
from understudy.masking.policy import MaskOptions, choose
from understudy.planning.setting import PlanningSetting

HEARTBEAT = 5.0
"""Default seconds after which torchft's lighthouse declares a replica dead."""
DRAWN = 5
"""Missing replicas up to which the load of micro-shards with few holders is found by drawing. With more missing
replicas, the load is taken to stay as far above the even share."""
FINEST = 16
"""Micro-shards of a shard up to which the load is drawn. More micro-shards take longer to draw, and their load is as
far above the even share."""
SAMPLES = 8
"""Number of live sets drawn for the mean load of micro-shards."""


class Strategy(msgspec.Struct, frozen=True):
    """What follows a failure. `answer` is one of:

    - `restart`: the job goes back to the last checkpoint;
    - `replace`: the job waits until a standby has taken the machine's roles;
    - `mask`: the other replicas continue without the lost one, as long as every shard has a live holder.
    """

    name: str
    words: str
    answer: Literal["restart", "replace", "mask"]
    period: float
    """Seconds of training between two checkpoints."""
    standbys: int = 0
    """Machines that are held ready. 0: a new machine is made ready after each failure, which takes `Durations.cold`."""
    stall: float = 0.0
    """Standstill after a failure, in seconds, not counting the wait for a machine."""
    planned: float = 0.0
    """Standstill of a planned replacement, in seconds."""
    redo: bool = False
    """Whether the interrupted step is repeated. `stall` includes half a step for the repetition."""
    placement: str = "off"
    """With `mask`: the placement, that is, which replicas can compute which shards."""
    q: int = 0
    """Micro-shards of a shard; 0: shards are computed whole."""
    evenly: bool = False
    """Whether the live members share the work of missing ones without a remainder."""
    by_machine: bool = False
    """Whether a member, that is, what can be missing on its own, is a machine; else a member is a replica."""
    redundancy: int = 1
    """How often each shard is computed at full strength."""
    refills: bool = False
    """Whether a missing replica is refilled while the others train; else it comes back with a restart."""
    refill: float = 0.0
    """Seconds from having a machine until it can join."""
    join: float = 0.0
    """Standstill when a machine joins, in seconds."""
    may_recover: bool = False
    """Whether the runtime's policy chooses between masking and waiting for a standby."""
    recover: float = 0.0
    """Standstill if the policy chooses to wait, in seconds."""
    restart_after: int = 0
    """Number of missing replicas that triggers a planned restart; 0: only a wipe-out restarts the job."""
    restart_anew: bool = True
    """Whether a failure during a restart begins the whole restart again; else only the failed member begins again."""

    def members(self, setting: PlanningSetting) -> int:
        """Number of members: what can be missing on its own, a machine or a replica."""
        return setting.cluster.machines if self.by_machine else setting.cluster.replicas

    def load(self, setting: PlanningSetting, missing: int) -> float:
        """Shards that a live member computes in a step while `missing` members are missing."""
        members = self.members(setting)
        if missing >= members:
            return float("inf")
        if not missing or self.redundancy > 1:
            return 1.0
        if self.evenly:
            return members / (members - missing)
        if not self.q:
            return float(depth_bound(members, missing))
        if self.placement == "anywhere":
            return load_bound(members, self.q, missing) / self.q
        drawn, q = min(missing, DRAWN), min(self.q, FINEST)
        above = mean_load(self.placement, members, q, drawn) - load_bound(members, q, drawn) / q
        return load_bound(members, self.q, missing) / self.q + above

    def stretch(self, setting: PlanningSetting, missing: int) -> float:
        """The step time with `missing` members missing, in step times at full strength without redundancy."""
        if missing >= self.members(setting):
            return float("inf")
        return setting.work.stretched(self.load(setting, missing) * self.redundancy, self.members(setting) - missing)

    def masks(self, setting: PlanningSetting, missing: int, ready: bool) -> bool:
        """Whether the runtime's policy masks when `missing` members are missing."""
        members = self.members(setting)
        options = MaskOptions(
            replicas=members,
            live=max(members - missing, 0),
            ready=ready,
            coming=bool(self.standbys),
            hand_over=self.recover,
            step=setting.work.step,
            stretch=self.stretch(setting, missing),
        )
        return choose(options).act == "mask"

    def patch(self, setting: PlanningSetting) -> float:
        """Seconds to recompute the work that is lost with a replica in the middle of a step."""
        compute = setting.work.compute
        if self.redundancy > 1 or self.evenly:
            return 0.0
        if not self.q:
            return compute
        holders = placed(self.placement, setting.cluster.replicas)
        return compute * -(-self.q // max(1, holders.r - 1)) / self.q

    def patched(self, setting: PlanningSetting, missing: int) -> float:
        """Share of failures that cost a patch when `missing` members are missing already."""
        if self.q or self.placement == "anywhere":
            return 1.0
        return patched_share(self.members(setting), missing)


@cache
def placed(text: str, replicas: int) -> Placement:
    """The placement of this name; each one is made once."""
    return parse(text, replicas)


def fits(text: str, replicas: int) -> bool:
    """Whether shards can be placed in this way on so many replicas."""
    try:
        placed(text, replicas)
    except PlacementError:
        return False
    return True


@cache
def mean_load(text: str, replicas: int, q: int, missing: int) -> float:
    """Largest load of a live replica, in shards: mean over random sets of missing replicas that are not a wipe-out."""
    placement, rng, loads = placed(text, replicas), Random(missing), []
    for _ in range(SAMPLES):
        gone = set(rng.sample(range(replicas), missing))
        found = assign(placement, q, [replica for replica in range(replicas) if replica not in gone])
        if not found.lost:
            loads.append(found.depth)
    return sum(loads) / len(loads) if loads else depth_bound(replicas, missing)


def checkpoint(s: PlanningSetting, period: float, standbys: int = 0) -> Strategy:
    """Restart the job from the last checkpoint, as most jobs do today."""
    d = s.durations
    return Strategy(
        "checkpoint",
        "go back to the last checkpoint after every failure",
        "restart",
        period,
        standbys,
        stall=d.detect + d.restart + d.outside,
        planned=d.save + d.restart + d.outside,
    )


def replication(s: PlanningSetting, r: int, period: float) -> Strategy:
    """Classic replication: every shard is computed `r` times."""
    d = s.durations
    return Strategy(
        "replication",
        f"blocks of {r} replicas compute the same; back to the checkpoint when a block is gone",
        "mask",
        period,
        stall=d.detect + d.shrink,
        planned=d.shrink,
        placement=f"blocks:r={r}",
        redundancy=r,
        restart_anew=False,
    )


def spare(s: PlanningSetting, r: int, period: float, restart_after: int = 0) -> Strategy:
    """SPARe: mask until a wipe-out, or until `restart_after` replicas are gone; no refill."""
    at = f", planned restart when {restart_after} are gone" if restart_after else ""
    d = s.durations
    return Strategy(
        "spare-planned" if restart_after else "spare",
        f"every shard on {r} replicas, reordered after each failure; back to the checkpoint at a wipe-out{at}",
        "mask",
        period,
        stall=d.detect + d.shrink,
        planned=d.shrink,
        placement=f"spare:r={r}",
        restart_after=restart_after,
        restart_anew=False,
    )


def trainmover(s: PlanningSetting, standbys: int, period: float) -> Strategy:
    """TrainMover: the job waits for the hand-over to a standby or, without standbys, for a new machine."""
    d = s.durations
    ready = "a standby that has rehearsed" if standbys else "a new machine"
    return Strategy(
        "trainmover" if standbys else "trainmover-cold",
        f"training waits until {ready} has taken the machine's roles",
        "replace",
        period,
        standbys,
        stall=d.detect + d.hand_over + s.work.step / 2 + d.outside,
        planned=d.planned + d.outside,
        redo=True,
    )


def mask_and_refill(
    s: PlanningSetting, standbys: int, period: float, placement: str = "anywhere", q: int = 0
) -> Strategy:
    """Understudy: continue at once without the lost replica, and refill it while training goes on."""
    d = s.durations
    what = f"{q:,} micro-shard{'s' if q > 1 else ''}" if q else "whole shards"
    kind = "" if placement == "anywhere" and q else "-local" if q else "-whole"
    return Strategy(
        f"mask-and-refill{kind}",
        f"the other replicas compute what is missing ({placement}, {what}) until a standby has joined",
        "mask",
        period,
        standbys,
        stall=d.detect + d.shrink,
        planned=d.planned,
        placement=placement,
        q=q,
        refills=True,
        refill=d.refill,
        join=d.join,
        may_recover=True,
        recover=d.detect + d.hand_over + s.work.step / 2,
    )


def torchft(s: PlanningSetting, period: float, standbys: int = 0) -> Strategy:
    """torchft: the step is lost, the quorum shrinks, and the failed replica restarts its processes and heals."""
    d = s.durations
    return Strategy(
        "torchft-like",
        "the step is lost, the others go on with a smaller batch, the replica comes back after a restart of its own",
        "mask",
        period,
        standbys,
        stall=HEARTBEAT + d.shrink + s.work.step / 2 + d.outside,
        planned=d.planned + d.shrink + d.outside,
        redo=True,
        placement="anywhere",
        evenly=True,
        refills=True,
        refill=d.cold,
        join=d.join + d.shrink,
    )


class Downtimes(msgspec.Struct, frozen=True):
    """Published standstills in seconds: with one machine fewer (`fewer`) and with one machine more (`more`)."""

    name: str
    fewer: float
    more: float


OOBLECK = Downtimes("oobleck-like", 57.0, 100.0)
PARCAE = Downtimes("parcae-like", 21.0, 200.0)  # at 32 GPUs; one machine more: at least


def reconfigure(s: PlanningSetting, downtimes: Downtimes, period: float, standbys: int = 0) -> Strategy:
    """The job is reconfigured for the available machines twice for each failure."""
    d = s.durations
    return Strategy(
        downtimes.name,
        f"stand still {downtimes.fewer:g} s to go on with fewer machines, {downtimes.more:g} s when one is back",
        "mask",
        period,
        standbys,
        stall=d.detect + downtimes.fewer + s.work.step / 2 + d.outside,
        planned=downtimes.fewer + downtimes.more + 2 * d.outside,
        redo=True,
        placement="anywhere",
        evenly=True,
        by_machine=True,
        refills=True,
        join=downtimes.more + d.outside,
    )

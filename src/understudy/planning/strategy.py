"""How failures are dealt with: each published way as one value that the closed forms and the simulators understand."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Literal

import msgspec

from understudy.masking.assignment import assign, load_bound
from understudy.masking.formulas import depth_bound, patched_share
from understudy.masking.placement import Placement, parse
from understudy.masking.policy import MaskOptions, choose
from understudy.planning.setting import Setting

HEARTBEAT = 5.0
"""Seconds after which torchft's lighthouse takes a replica for dead, unless told otherwise."""
DRAWN = 5
"""Up to so many missing replicas, the load of micro-shards with few holders is found by drawing who is missing; with
more, it is taken to stay as far above the even share."""
FINEST = 16
"""Micro-shards of a shard up to which the load is drawn: that of finer ones is as far above the even share, and takes
much longer to draw."""
SAMPLES = 8
"""Live sets that are drawn to find the mean load of micro-shards with so many replicas missing."""


class Strategy(msgspec.Struct, frozen=True):
    """What follows a failure.

    - `restart`: everybody goes back to the last checkpoint;
    - `replace`: everybody waits until a standby has taken the place;
    - `mask`: the others go on without the replica, for as long as every shard has a live holder.
    """

    name: str
    words: str
    answer: Literal["restart", "replace", "mask"]
    period: float
    """Seconds of training between two checkpoints."""
    standbys: int = 0
    """Machines that are held ready. Without any, a new machine has to be fetched: `cold`."""
    stall: float = 0.0
    """What a failure costs everybody, once there is a machine where one is waited for."""
    planned: float = 0.0
    """What a planned replacement costs everybody."""
    redo: bool = False
    """Whether the step in which a failure comes is begun again. Half a step of `stall` stands for that."""
    placement: str = "off"
    """With `mask`: who can compute whose shards."""
    q: int = 0
    """Micro-shards of a shard; 0: shards are computed whole."""
    evenly: bool = False
    """Whether the work of missing members is spread without a remainder over all others."""
    by_machine: bool = False
    """Whether a missing machine takes only itself out of the job, not its replica."""
    redundancy: int = 1
    """How often each shard is computed when all is well."""
    refills: bool = False
    """Whether a missing replica is brought back while the others train; else only by a restart."""
    refill: float = 0.0
    """From the moment there is a machine until it can be joined."""
    join: float = 0.0
    """What joining costs everybody."""
    may_recover: bool = False
    """Whether the runtime's policy chooses between masking and waiting for the standby: then `recover` is the stall."""
    recover: float = 0.0
    restart_after: int = 0
    """So many missing replicas are a reason for a planned restart; 0: only a wipe-out is."""
    restart_anew: bool = True
    """Whether a failure during a restart begins it anew, or only the failed member's own part of it."""

    def members(self, setting: Setting) -> int:
        """What can be missing on its own."""
        return setting.cluster.machines if self.by_machine else setting.cluster.replicas

    def load(self, setting: Setting, missing: int) -> float:
        """How many shards a member computes in a step while so many are missing."""
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

    def stretch(self, setting: Setting, missing: int) -> float:
        """How many times as long a step takes as at full strength without redundancy."""
        if missing >= self.members(setting):
            return float("inf")
        return setting.work.stretched(self.load(setting, missing) * self.redundancy, self.members(setting) - missing)

    def masks(self, setting: Setting, missing: int, ready: bool) -> bool:
        """What the runtime's policy says of so many that are missing: whether the others go on without them."""
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

    def patch(self, setting: Setting) -> float:
        """Seconds of computation that the step lacks in which a replica is lost whose work nobody else has done."""
        compute = setting.work.compute
        if self.redundancy > 1 or self.evenly:
            return 0.0
        if not self.q:
            return compute
        holders = placed(self.placement, setting.cluster.replicas)
        return compute * -(-self.q // max(1, holders.r - 1)) / self.q

    def patched(self, setting: Setting, missing: int) -> float:
        """How often a failure that comes when so many are missing costs a patch."""
        if self.q or self.placement == "anywhere":
            return 1.0
        return patched_share(self.members(setting), missing)


@cache
def placed(text: str, replicas: int) -> Placement:
    return parse(text, replicas)


@cache
def mean_load(text: str, replicas: int, q: int, missing: int) -> float:
    """Largest load over the live replicas, mean over random sets of missing ones that are no wipe-out."""
    placement, rng, loads = placed(text, replicas), Random(missing), []
    for _ in range(SAMPLES):
        gone = set(rng.sample(range(replicas), missing))
        found = assign(placement, q, [replica for replica in range(replicas) if replica not in gone])
        if not found.lost:
            loads.append(found.depth)
    return sum(loads) / len(loads) if loads else depth_bound(replicas, missing)


def checkpoint(s: Setting, period: float, standbys: int = 0) -> Strategy:
    """What everybody does today."""
    d = s.durations
    words = "go back to the last checkpoint after every failure"
    return Strategy(
        "checkpoint",
        words,
        "restart",
        period,
        standbys,
        d.detect + d.restart + d.outside,
        d.save + d.restart + d.outside,
    )


def replication(s: Setting, r: int, period: float) -> Strategy:
    words = f"blocks of {r} replicas compute the same; back to the checkpoint when a block is gone"
    d = s.durations
    return Strategy(
        "replication",
        words,
        "mask",
        period,
        stall=d.detect + d.shrink,
        planned=d.shrink,
        placement=f"blocks:r={r}",
        redundancy=r,
        restart_anew=False,
    )


def spare(s: Setting, r: int, period: float, restart_after: int = 0) -> Strategy:
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


def trainmover(s: Setting, standbys: int, period: float) -> Strategy:
    """With standbys the hand-over, without any everything from fetching a machine on, while all wait."""
    d = s.durations
    ready = "a standby that has rehearsed" if standbys else "a machine that is fetched first"
    return Strategy(
        "trainmover" if standbys else "trainmover-cold",
        f"everybody waits until {ready} has taken the place",
        "replace",
        period,
        standbys,
        d.detect + d.hand_over + s.work.step / 2 + d.outside,
        d.planned + d.outside,
        redo=True,
    )


def mask_and_refill(s: Setting, standbys: int, period: float, placement: str = "anywhere", q: int = 0) -> Strategy:
    """Understudy: go on at once, refill beside training."""
    d = s.durations
    what = f"{q:,} micro-shard{'s' if q > 1 else ''}" if q else "whole shards"
    kind = "" if placement == "anywhere" and q else "-local" if q else "-whole"
    return Strategy(
        f"mask-and-refill{kind}",
        f"the others compute what is missing ({placement}, {what}) until a standby has joined",
        "mask",
        period,
        standbys,
        d.detect + d.shrink,
        d.planned,
        placement=placement,
        q=q,
        refills=True,
        refill=d.refill,
        join=d.join,
        may_recover=True,
        recover=d.detect + d.hand_over + s.work.step / 2,
    )


def torchft(s: Setting, period: float, standbys: int = 0) -> Strategy:
    """Replicas come and go by quorum: the step is lost for all, the replica starts its processes again and heals."""
    d = s.durations
    words = "the step is lost, the others go on with a smaller batch, the replica comes back after a restart of its own"
    return Strategy(
        "torchft-like",
        words,
        "mask",
        period,
        standbys,
        HEARTBEAT + d.shrink + s.work.step / 2 + d.outside,
        d.planned + d.shrink + d.outside,
        redo=True,
        placement="anywhere",
        evenly=True,
        refills=True,
        refill=d.cold,
        join=d.join + d.shrink,
    )


class Downtimes(msgspec.Struct, frozen=True):
    """Published: seconds of standstill when a machine goes and when one comes."""

    name: str
    fewer: float
    more: float


OOBLECK = Downtimes("oobleck-like", 57.0, 100.0)
PARCAE = Downtimes("parcae-like", 21.0, 200.0)


def reconfigure(s: Setting, downtimes: Downtimes, period: float, standbys: int = 0) -> Strategy:
    """The job changes its shape to the machines it has, twice for each failure."""
    d = s.durations
    return Strategy(
        downtimes.name,
        f"stand still {downtimes.fewer:g} s to go on with fewer machines, {downtimes.more:g} s when one is back",
        "mask",
        period,
        standbys,
        d.detect + downtimes.fewer + s.work.step / 2 + d.outside,
        downtimes.fewer + downtimes.more + 2 * d.outside,
        redo=True,
        placement="anywhere",
        evenly=True,
        by_machine=True,
        refills=True,
        join=downtimes.more + d.outside,
    )

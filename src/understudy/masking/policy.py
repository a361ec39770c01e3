"""Two pure decisions, with reasons: mask a lost replica or wait for a standby, and which replicas to keep vacant."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from understudy.masking.coverage import wipe_out
from understudy.masking.placement import Placement
from understudy.protocol.sentences import counted, named

REFILL_STEPS = 3
"""Steps of a refill that begins at once: open links, stream the state during a step, switch."""


class MaskOptions(msgspec.Struct, frozen=True):
    """The state after a failure, and what masking and recovery would cost."""

    replicas: int
    """Model replicas of the job."""
    live: int
    """Replicas without a missing worker."""
    ready: bool = False
    """Whether a standby that has rehearsed the role is available for every missing worker."""
    coming: bool = False
    """Whether a standby is available for every missing worker, rehearsed or not."""
    hand_over: float = 0.0
    """Seconds until a joiner would have its state."""
    step: float = 0.0
    """Seconds of an undisturbed step; 0: not known."""
    stretch: float = 0.0
    """Step time without the missing replicas, in normal step times; 0: as if their work is spread evenly."""
    lost: str = ""
    """Why the live replicas cannot compute all shards; empty: they can."""
    enough: bool = False
    """Whether the live replicas are as many as requested."""
    reluctant: bool = False
    """Whether to mask only if there is no standby."""


class MaskChoice(msgspec.Struct, frozen=True):
    """The decision: the live replicas go on (`mask`), or wait for a standby (`recover`)."""

    act: Literal["mask", "recover"]
    reason: str


def choose(o: MaskOptions) -> MaskChoice:
    """Whether the live replicas go on without the missing ones."""
    if not o.live:
        return MaskChoice("recover", "no replica is complete")
    if o.lost:
        return MaskChoice("recover", o.lost)
    if o.enough:
        return MaskChoice("mask", f"{o.live} of {o.replicas} replicas are as many as requested")
    if o.reluctant and o.coming:
        return MaskChoice("recover", "there is a standby")
    if not o.coming:
        return MaskChoice("mask", "there is no standby")
    if not o.ready:
        return MaskChoice("mask", "no standby is ready")
    masked = ((o.stretch or o.replicas / o.live) - 1) * o.step * REFILL_STEPS
    there = f"{o.hand_over:.2g} s"
    if o.step and o.hand_over < masked:
        return MaskChoice("recover", f"the hand-over takes about {there}, masking would cost {masked:.2g} s")
    return MaskChoice("mask", f"masking costs about {masked:.2g} s, the hand-over would take {there}")


@dataclass(frozen=True)
class Surplus:
    """Replicas to keep vacant. If they are fewer than requested, `problem` says why and what is possible."""

    replicas: tuple[int, ...] = ()
    problem: str = ""


def surplus_replicas(
    placement: Placement,
    bundles: Sequence[tuple[int, ...]],
    target: int,
    *,
    vacant: Collection[int] = (),
    deserted: Collection[int] = (),
    sooner: Collection[int] = (),
) -> Surplus:
    """All but `target` replicas, chosen so that few training replicas leave and every shard keeps a live holder.

    `bundles` are replicas that share machines and leave together. The order: replicas in `sooner`, vacant replicas
    (those without machines, `deserted`, first), then the replicas with the highest numbers.
    """
    surplus = placement.replicas - target
    gone: set[int] = set()
    blocked = ""

    def order(bundle: tuple[int, ...]) -> tuple[bool, bool, int, int]:
        members = set(bundle)
        return members <= set(sooner), members <= set(deserted), len(members & set(vacant)), max(bundle)

    for bundle in sorted(bundles, key=order, reverse=True):
        if len(gone) + len(bundle) > surplus:
            continue
        left = set(range(placement.replicas)) - gone - set(bundle) - set(vacant)
        lost = None if set(bundle) <= set(vacant) else wipe_out(placement, left)
        if lost:
            blocked = blocked or f"no remaining replica would hold {named('shard', lost.shards)} ({placement.name})"
        else:
            gone |= set(bundle)
    if len(gone) == surplus:
        return Surplus(tuple(sorted(gone)))
    possible = placement.replicas - len(gone)
    if not blocked:
        size = max(map(len, bundles))
        blocked = f"each machine is shared by {counted(size, 'replica')}, which come and go together"
    return Surplus(tuple(sorted(gone)), f"{blocked}; ask for {possible} or more")

"""A replica is gone: go on without it and refill it later, or wait until a standby has taken its place? Pure, with the
reason."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from understudy.masking.coverage import wipe_out
from understudy.masking.placement import Placement
from understudy.protocol.sentences import counted, named

REFILL_STEPS = 3
"""How many steps a refill takes that can begin at once: to open, to stream the state beside a step, to switch."""


class MaskOptions(msgspec.Struct, frozen=True):
    """What could be done, and what is known of what it costs."""

    replicas: int
    """Model replicas of the job."""
    live: int
    """Of these, those that are whole."""
    ready: bool = False
    """For everybody who is missing there is a standby that has rehearsed the role."""
    coming: bool = False
    """… or at least a standby."""
    hand_over: float = 0.0
    """Seconds in which a newcomer would have its state."""
    step: float = 0.0
    """Seconds of an undisturbed step; 0: not known."""
    stretch: float = 0.0
    """How many times as long a step takes without those who are missing; 0: as where their work is spread evenly."""
    lost: str = ""
    """Why the live replicas cannot compute everything, where they cannot."""
    enough: bool = False
    """Whether there are to be no more replicas than those that are whole."""
    reluctant: bool = False
    """Whether to go on without a replica only where there is no standby."""


class MaskChoice(msgspec.Struct, frozen=True):
    act: Literal["mask", "recover"]
    reason: str


def choose(o: MaskOptions) -> MaskChoice:
    """Whether the others go on without the replicas that are missing."""
    if not o.live:
        return MaskChoice("recover", "no replica is whole")
    if o.lost:
        return MaskChoice("recover", o.lost)
    if o.enough:
        return MaskChoice("mask", f"{o.live} of {o.replicas} replicas are as many as are wanted")
    if o.reluctant and o.coming:
        return MaskChoice("recover", "there is a standby")
    if not o.coming:
        return MaskChoice("mask", "there is no standby")
    if not o.ready:
        return MaskChoice("mask", "no standby is ready")
    masked = ((o.stretch or o.replicas / o.live) - 1) * o.step * REFILL_STEPS
    if o.step and o.hand_over < masked:
        return MaskChoice(
            "recover", f"the hand-over takes about {o.hand_over:.2g} s, masking would cost {masked:.2g} s"
        )
    return MaskChoice("mask", f"masking costs about {masked:.2g} s, the hand-over would take {o.hand_over:.2g} s")


# -- Fewer replicas than there could be are wanted: which of them are not to play? Pure, with t


@dataclass(frozen=True)
class Surplus:
    """Replicas that are to be vacant. Where that are fewer than asked for, `problem` says why, and the way out."""

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
    """All but `target` replicas, chosen so that few who play have to go, and every shard keeps a live holder.

    `bundles` are replicas that share machines: they come and go together. First go those in `sooner`, then the vacant
    ones (before others those whose machines are gone, `deserted`), then the last.
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
        left = set(range(placement.replicas)) - gone - set(bundle)
        plays = not set(bundle) <= set(vacant)
        lost = wipe_out(placement, left - set(vacant)) if plays else None
        if lost:
            blocked = blocked or f"nobody who is left would hold {named('shard', lost.shards)} ({placement.name})"
            continue
        gone |= set(bundle)
    if len(gone) == surplus:
        return Surplus(tuple(sorted(gone)))
    possible = placement.replicas - len(gone)
    if not blocked:
        size = max(map(len, bundles))
        blocked = f"machines are shared by {counted(size, 'replica')} each, and come and go as a whole"
    return Surplus(tuple(sorted(gone)), f"{blocked}; ask for {possible} or more")

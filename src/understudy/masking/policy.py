"""A replica is gone: go on without it and refill it later, or wait until a standby has taken its place? Pure, with the
reason."""

from __future__ import annotations

from typing import Literal

import msgspec

REFILL_STEPS = 3
"""How many steps a refill takes that can begin at once: to open, to stream the state beside a step, to switch."""


class Options(msgspec.Struct, frozen=True):
    """What could be done, and what is known of what it costs."""

    units: int
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


class Choice(msgspec.Struct, frozen=True):
    act: Literal["mask", "recover"]
    reason: str


def choose(o: Options) -> Choice:
    """Whether the others go on without the replicas that are missing."""
    if not o.live:
        return Choice("recover", "no replica is whole")
    if o.lost:
        return Choice("recover", o.lost)
    if o.enough:
        return Choice("mask", f"{o.live} of {o.units} replicas are as many as are wanted")
    if o.reluctant and o.coming:
        return Choice("recover", "there is a standby")
    if not o.coming:
        return Choice("mask", "there is no standby")
    if not o.ready:
        return Choice("mask", "no standby is ready")
    masked = ((o.stretch or o.units / o.live) - 1) * o.step * REFILL_STEPS
    if o.step and o.hand_over < masked:
        return Choice("recover", f"the hand-over takes about {o.hand_over:.2g} s, masking would cost {masked:.2g} s")
    return Choice("mask", f"masking costs about {masked:.2g} s, the hand-over would take {o.hand_over:.2g} s")

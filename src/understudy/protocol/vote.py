"""The vote: one MIN all-reduce over all roles before a step is applied. With it the roles agree on everything that must
happen at the same boundary everywhere, without the controller."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

NO_ROLE = 1 << 40
"""Greater than any role."""


class Ballot(msgspec.Struct, frozen=True):
    """What one role says in a vote."""

    role: int
    step: int
    generation: int
    """The generation to which the worker could switch; otherwise the current one."""
    stop: bool = False
    """Whether an operator wants the job to end here."""
    over: bool = False
    """Whether the training function has made all steps."""
    sound: bool = True
    """Whether the gradients are finite."""
    copied: int = -1
    """The latest step of which the worker's copies are complete; -1: none."""


class VoteOutcome(msgspec.Struct, frozen=True):
    """The result of a vote."""

    generation: int | None
    """The generation to which all workers switch at the next boundary; None: no switch."""
    stop: bool = False
    over: bool = False
    sound: bool = True
    """Whether the step counts; otherwise all roles repeat it."""
    copied: int = -1
    """The latest step of which all workers have complete copies."""
    error: str = ""
    """Why the roles cannot continue together; empty: they can."""


def numbers_of(ballot: Ballot) -> list[int]:
    """The ballot as numbers for a MIN all-reduce."""
    return [
        ballot.generation,
        -ballot.generation,
        ballot.step,
        -ballot.step,
        -int(ballot.stop),
        ballot.role if ballot.over else NO_ROLE,
        NO_ROLE if ballot.over else ballot.role,
        int(ballot.sound),
        ballot.copied,
    ]


WIDTH = len(numbers_of(Ballot(0, 0, 0)))


def outcome_of(least: Sequence[int], current: int) -> VoteOutcome:
    """The outcome, from the minimum of all roles' numbers and the current generation."""
    lowest, highest, first, last = least[0], -least[1], least[2], -least[3]
    stop, finished, unfinished = least[4] < 0, least[5], least[6]
    if finished != NO_ROLE and unfinished != NO_ROLE:
        return VoteOutcome(
            None,
            error=f"role {finished} has left its training function after {last if stop else first} steps while role "
            f"{unfinished} goes on; all roles must run the same number of steps",
        )
    if first != last:
        return VoteOutcome(None, error=f"the roles are in different steps ({first} to {last}); step together")
    sound, copied = bool(least[7]), least[8]
    agreed = lowest if lowest == highest and lowest > current and sound else None
    return VoteOutcome(agreed, stop, finished != NO_ROLE, sound, copied)

"""The vote: one MIN all-reduce over all roles before a step is applied. It carries the agreement on everything that
must happen at the same boundary everywhere, so nobody has to be asked."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

NOBODY = 1 << 40
"""Greater than any role."""


class Ballot(msgspec.Struct, frozen=True):
    """What one role says."""

    role: int
    step: int
    generation: int
    """The one it could switch to, or the one in play."""
    stop: bool = False
    """An operator wants the job to end here."""
    over: bool = False
    """Its training function has come to its end."""
    sound: bool = True
    """Its gradients are numbers."""
    copied: int = -1
    """The latest step of which its copies are complete."""


class VoteOutcome(msgspec.Struct, frozen=True):
    """What all roles have said."""

    generation: int | None
    """The one to switch to at the next boundary."""
    stop: bool = False
    over: bool = False
    sound: bool = True
    """Whether the step counts; otherwise everybody begins it again."""
    copied: int = -1
    """The latest step to which everybody could go back."""
    error: str = ""
    """Why the roles cannot go on together."""


def numbers_of(ballot: Ballot) -> list[int]:
    """The ballot as numbers of which the least over all roles are taken, one by one."""
    return [
        ballot.generation,
        -ballot.generation,
        ballot.step,
        -ballot.step,
        -int(ballot.stop),
        ballot.role if ballot.over else NOBODY,
        NOBODY if ballot.over else ballot.role,
        int(ballot.sound),
        ballot.copied,
    ]


WIDTH = len(numbers_of(Ballot(0, 0, 0)))


def outcome_of(least: Sequence[int], current: int) -> VoteOutcome:
    """What follows, given the least of everybody's numbers and the generation in play."""
    lowest, highest, first, last = least[0], -least[1], least[2], -least[3]
    stop, finished, unfinished = least[4] < 0, least[5], least[6]
    if finished != NOBODY and unfinished != NOBODY:
        return VoteOutcome(
            None,
            error=f"role {finished} has left its training function after {last if stop else first} steps while role "
            f"{unfinished} goes on; all roles must run the same number of steps",
        )
    if first != last:
        return VoteOutcome(None, error=f"the roles are in different steps ({first} to {last}); step together")
    sound, copied = bool(least[7]), least[8]
    agreed = lowest if lowest == highest and lowest > current and sound else None
    return VoteOutcome(agreed, stop, finished != NOBODY, sound, copied)

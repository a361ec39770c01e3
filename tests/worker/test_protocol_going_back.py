"""A role's state is lost, or the job cannot go on: back to what was kept, or one last checkpoint. And gradients that
are not numbers."""

from __future__ import annotations

import pytest

from tests.worker.test_protocol import FIRST, MOVE, SECOND, THIRD, W0, W2, playing, rehearsed, report
from understudy.protocol.messages import (
    Back,
    Cancel,
    Cancelled,
    Conclude,
    Halt,
    Halted,
    Move,
    Prepare,
    Resume,
    Switched,
)
from understudy.protocol.vote import Ballot, VoteOutcome
from understudy.worker.instructions import Begin, Close, GoBack, Open, SendReport, SwitchTo, Wait, Wake, WriteCheckpoint
from understudy.worker.protocol import WorkerProtocol
from understudy.worker.states import ProtocolError

FOURTH = FIRST.successor({1: W2}, generation=4, fresh=True)
TO_W0 = (Move(0, W2, W0),)
TO_W2 = (Move(1, W0, W2),)


def sent_back(step: int = 5, to: int = 3, source: Back = "checkpoint") -> WorkerProtocol:
    """w0 was in step 5 and is told to go back to step 3."""
    part = playing(step=step)
    part.hear(Halt(1, "x"))
    assert part.hear(Resume(THIRD, to, back=source)) == [Open(THIRD), Wake()]
    return part


# -- going back --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["checkpoint", "copy"])
def test_it_goes_back_before_it_switches(source: Back) -> None:
    part = sent_back(source=source)
    assert part.verdict() is False
    part.opened(3)
    assert part.boundary() == GoBack(3, 3, source)
    part.went_back(3, 3)
    assert part.boundary() == SwitchTo(3)
    assert part.entered(3) == [SendReport(Switched(3, 3))]
    assert part.boundary() == Begin(3)
    assert part.ballot() == Ballot(0, 3, 3)


def test_it_goes_back_while_the_links_open() -> None:
    part = sent_back()
    assert part.boundary() == GoBack(3, 3, "checkpoint")
    part.went_back(3, 3)
    assert part.boundary() == Wait()
    part.opened(3)
    assert part.boundary() == SwitchTo(3)


def test_it_goes_back_whatever_it_has_voted_or_seen() -> None:
    for voted, passed in ((True, False), (True, True)):
        part = playing(step=5)
        if voted:
            part.ballot()
        if passed:
            part.counted(VoteOutcome(None))
        part.hear(Halt(1, "x"))
        part.hear(Resume(THIRD, 3, back="checkpoint"))
        assert part.verdict() is passed  # a step that has passed is applied first, and then forgotten
        if passed:
            part.applied()
        assert part.boundary() == GoBack(3, 3, "checkpoint")
        part.went_back(3, 3)
        assert report(part) == Halted(4, 1, 3, voted=False, holds=True, able=True)


def test_it_holds_nothing_until_all_of_it_is_there() -> None:
    part = sent_back()
    assert part.holds
    part.boundary()
    assert report(part) == Halted(4, 1, 5, voted=False, holds=False, able=True)


def test_a_halt_in_the_middle_of_it() -> None:
    """What it was told to go back to is not wanted any more when it is there; what it is told next counts."""
    part = sent_back()
    part.boundary()
    assert part.hear(Halt(2, "y"))[1] == Close(3)
    part.went_back(3, 3)
    assert part.boundary() == Wait()
    assert report(part) == Halted(4, 1, 3, voted=False, holds=True, able=True)
    part.hear(Resume(FOURTH, 2, back="checkpoint"))
    part.opened(4)
    assert part.boundary() == GoBack(4, 2, "checkpoint")
    part.went_back(4, 2)
    assert part.boundary() == SwitchTo(4)


def test_a_halt_and_the_next_word_in_the_middle_of_it() -> None:
    part = sent_back()
    part.boundary()
    part.hear(Halt(2, "y"))
    part.hear(Resume(FOURTH, 2, back="checkpoint"))
    part.opened(4)
    part.went_back(3, 3)
    assert part.boundary() == GoBack(4, 2, "checkpoint")
    assert not part.holds


@pytest.mark.parametrize("back", ["", "copy"])
def test_what_it_went_back_to_is_not_what_it_is_to_take(back: Back) -> None:
    """It has said that it holds nothing, so it is given a state; its own came in the meantime, and is too late."""
    part = sent_back()
    part.boundary()
    part.hear(Halt(2, "y"))
    part.hear(Resume(FOURTH, 2, TO_W0, back))
    part.opened(4)
    part.went_back(3, 3)
    assert part.boundary() == Wait()
    assert part.took(4, 2)
    assert part.boundary() == SwitchTo(4)
    part.entered(4)
    assert part.boundary() == Begin(2)


def test_who_has_got_back_in_time_and_is_to_take_all_the_same() -> None:
    part = sent_back()
    part.boundary()
    part.hear(Halt(2, "y"))
    part.went_back(3, 3)
    part.hear(Resume(FOURTH, 3, TO_W0))
    part.opened(4)
    assert part.boundary() == Wait()
    assert part.took(4, 3)
    assert part.boundary() == SwitchTo(4)


def test_who_takes_a_copy_does_not_go_back_by_itself() -> None:
    part = playing(step=5)
    part.hear(Halt(1, "x"))
    part.hear(Resume(THIRD, 3, TO_W0, "copy"))
    assert report(part).holds is False  # what it has is not what is wanted
    part.hear(Resume(FOURTH, 3, TO_W0, "copy"))
    part.opened(4)
    assert part.boundary() == Wait()
    assert part.took(4, 3)
    assert part.boundary() == SwitchTo(4)


@pytest.mark.parametrize("voted", [False, True])
def test_a_worker_that_is_to_take_another_state_leaves_its_step(voted: bool) -> None:
    """Otherwise its training thread waits for a decision on the step and never comes to the boundary."""
    part = playing(step=5)
    if voted:
        part.ballot()
    part.hear(Halt(1, "x"))
    part.hear(Resume(THIRD, 5, TO_W0))
    assert part.verdict() is False
    part.validate()
    part.opened(3)
    assert part.took(3, 5)
    assert part.boundary() == SwitchTo(3)


def test_a_newcomer_goes_back_to_a_checkpoint_like_everybody() -> None:
    part = rehearsed()
    part.hear(Resume(THIRD, 3, back="checkpoint"))
    part.opened(3)
    assert part.boundary() == GoBack(3, 3, "checkpoint")
    assert report(rehearsed()).able
    part.went_back(3, 3)
    assert part.boundary() == SwitchTo(3)
    part.entered(3)
    assert part.boundary() == Begin(3)


def test_a_newcomer_takes_a_copy() -> None:
    part = rehearsed()
    part.hear(Resume(THIRD, 3, TO_W2, "copy"))
    part.opened(3)
    assert part.boundary() == Wait()
    assert part.took(3, 3)
    assert part.boundary() == SwitchTo(3)


def test_who_gives_a_copy_goes_back_first() -> None:
    part = playing(step=5)
    part.hear(Halt(1, "x"))
    part.hear(Resume(THIRD, 3, TO_W2, "copy"))
    part.opened(3)
    assert part.boundary() == GoBack(3, 3, "copy")
    part.went_back(3, 3)
    assert part.boundary() == SwitchTo(3)


def test_it_says_which_copies_it_has() -> None:
    part = playing(step=2)
    part.kept = lambda: ((0, 1), (1, 1))
    assert report(part).kept == ((0, 1), (1, 1))


# -- the last checkpoint -----------------------------------------------------------------------------------------------


def test_it_keeps_what_it_is_told_to_at_the_boundary() -> None:
    part = playing(step=3)
    part.hear(Halt(1, "x"))
    assert part.hear(Conclude(3, (0, 1))) == [Wake()]
    assert part.verdict() is False
    assert part.boundary() == WriteCheckpoint(3, (0, 1))


def test_it_applies_the_step_first_that_somebody_has_applied() -> None:
    part = playing(step=3)
    part.ballot()
    part.hear(Halt(1, "x"))
    part.hear(Conclude(4, (0,)))
    assert part.verdict() is True
    part.applied()
    assert part.boundary() == WriteCheckpoint(4, (0,))


def test_it_gives_up_what_it_has_prepared() -> None:
    part = playing(step=3)
    part.hear(Halt(1, "x"))
    part.hear(Resume(THIRD, 3))
    assert part.hear(Conclude(3, (0,))) == [Close(3), Wake()]
    assert part.boundary() == WriteCheckpoint(3, (0,))


@pytest.mark.parametrize("step", [2, 4, 5])
def test_it_cannot_keep_what_it_does_not_have(step: int) -> None:
    part = playing(step=3)
    part.hear(Halt(1, "x"))
    with pytest.raises(ProtocolError, match=rf"w0 .* step {3 if step == 4 else step}"):
        part.hear(Conclude(step, (0,)))


# -- gradients that are not numbers ------------------------------------------------------------------------------------


def unsound(part: WorkerProtocol) -> None:
    """The vote says that somebody's gradients are not numbers."""
    assert part.counted(VoteOutcome(None, sound=False)) == []


def test_a_step_whose_gradients_are_not_sound_does_not_count() -> None:
    part = playing(step=3)
    assert part.ballot(sound=False) == Ballot(0, 3, 1, sound=False)
    unsound(part)
    assert not part.passed
    assert part.verdict() is None
    assert part.boundary() == Begin(3)
    with pytest.raises(ProtocolError, match="applied is not possible while computing"):
        part.applied()


def test_whoever_was_sound_repeats_it_too() -> None:
    part = playing(step=3)
    assert part.ballot() == Ballot(0, 3, 1)
    unsound(part)
    assert part.boundary() == Begin(3)
    assert report(part) == Halted(4, 1, 3, voted=False, holds=True, able=True)


def test_the_second_time_it_is_taken_as_it_comes() -> None:
    part = playing(step=3)
    part.ballot(sound=False)
    unsound(part)
    assert part.ballot(sound=False) == Ballot(0, 3, 1)
    assert part.counted(VoteOutcome(None)) == []
    part.applied()
    assert part.boundary() == Begin(4)
    assert part.ballot(sound=False) == Ballot(0, 4, 1, sound=False)  # the next step is another matter


def test_a_generation_waits_until_the_step_counts() -> None:
    part = playing(step=3)
    part.hear(Prepare(SECOND, MOVE))
    part.opened(2)
    assert part.ballot(sound=False) == Ballot(0, 3, 2, sound=False)
    unsound(part)
    assert part.boundary() == Begin(3)
    assert part.ballot() == Ballot(0, 3, 2)
    part.counted(VoteOutcome(2))
    part.applied()
    assert part.boundary() == SwitchTo(2)


def test_cancelled_during_a_vote_that_does_not_count() -> None:
    part = playing(step=3)
    part.hear(Prepare(SECOND, MOVE))
    part.opened(2)
    part.ballot(sound=False)
    assert part.hear(Cancel(2)) == []
    assert part.counted(VoteOutcome(None, sound=False)) == [Close(2), SendReport(Cancelled(2))]


def test_how_far_its_copies_are_is_in_the_ballot() -> None:
    assert playing(step=3).ballot(copied=2) == Ballot(0, 3, 1, copied=2)

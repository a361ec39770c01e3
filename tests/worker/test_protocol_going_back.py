"""A role's state is lost, or the job cannot continue: workers go back to a copy or a checkpoint, or write a last
checkpoint. And gradients that are not finite."""

from __future__ import annotations

import pytest

from tests.worker.test_protocol import FIRST, MOVE, SECOND, THIRD, W0, W2, rehearsed, report, training
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
from understudy.worker.instructions import Begin, Close, GoBack, Open, SendReport, SwitchTo, Wait, WriteCheckpoint
from understudy.worker.protocol import WorkerProtocol
from understudy.worker.states import ProtocolError

FOURTH = FIRST.successor({1: W2}, generation=4, fresh=True)
TO_W0 = (Move(0, W2, W0),)
TO_W2 = (Move(1, W0, W2),)


def sent_back(step: int = 5, to: int = 3, source: Back = "checkpoint") -> WorkerProtocol:
    """w0 was in step 5 and is told to go back to step 3."""
    worker = training(step=step)
    worker.hear(Halt(1, "x"))
    assert worker.hear(Resume(THIRD, to, back=source)) == [Open(THIRD)]
    return worker


# -- going back --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["checkpoint", "copy"])
def test_a_worker_goes_back_before_it_switches(source: Back) -> None:
    worker = sent_back(source=source)
    assert worker.verdict() is False
    worker.opened(3)
    assert worker.boundary() == GoBack(3, 3, source)
    worker.went_back(3, 3)
    assert worker.boundary() == SwitchTo(3)
    assert worker.entered(3) == [SendReport(Switched(3, 3))]
    assert worker.boundary() == Begin(3)
    assert worker.ballot() == Ballot(0, 3, 3)


def test_a_worker_goes_back_while_the_links_open() -> None:
    worker = sent_back()
    assert worker.boundary() == GoBack(3, 3, "checkpoint")
    worker.went_back(3, 3)
    assert worker.boundary() == Wait()
    worker.opened(3)
    assert worker.boundary() == SwitchTo(3)


def test_a_worker_goes_back_after_any_vote_and_outcome() -> None:
    for voted, passed in ((True, False), (True, True)):
        worker = training(step=5)
        if voted:
            worker.ballot()
        if passed:
            worker.counted(VoteOutcome(None))
        worker.hear(Halt(1, "x"))
        worker.hear(Resume(THIRD, 3, back="checkpoint"))
        assert worker.verdict() is passed  # a step that has passed is applied first, and then forgotten
        if passed:
            worker.applied()
        assert worker.boundary() == GoBack(3, 3, "checkpoint")
        worker.went_back(3, 3)
        assert report(worker) == Halted(4, 1, 3, voted=False, holds=True, able=True)


def test_a_worker_that_goes_back_holds_no_state_until_it_is_complete() -> None:
    worker = sent_back()
    assert worker.holds
    worker.boundary()
    assert report(worker) == Halted(4, 1, 5, voted=False, holds=False, able=True)


def test_a_halt_in_the_middle_of_it() -> None:
    """What it was told to go back to is not wanted any more when it is there; what it is told next counts."""
    worker = sent_back()
    worker.boundary()
    assert worker.hear(Halt(2, "y"))[1] == Close(3)
    worker.went_back(3, 3)
    assert worker.boundary() == Wait()
    assert report(worker) == Halted(4, 1, 3, voted=False, holds=True, able=True)
    worker.hear(Resume(FOURTH, 2, back="checkpoint"))
    worker.opened(4)
    assert worker.boundary() == GoBack(4, 2, "checkpoint")
    worker.went_back(4, 2)
    assert worker.boundary() == SwitchTo(4)


def test_a_halt_and_the_next_word_in_the_middle_of_it() -> None:
    worker = sent_back()
    worker.boundary()
    worker.hear(Halt(2, "y"))
    worker.hear(Resume(FOURTH, 2, back="checkpoint"))
    worker.opened(4)
    worker.went_back(3, 3)
    assert worker.boundary() == GoBack(4, 2, "checkpoint")
    assert not worker.holds


@pytest.mark.parametrize("back", ["", "copy"])
def test_what_it_went_back_to_is_not_what_it_is_to_take(back: Back) -> None:
    """It has said that it holds nothing, so it is given a state; its own came in the meantime, and is too late."""
    worker = sent_back()
    worker.boundary()
    worker.hear(Halt(2, "y"))
    worker.hear(Resume(FOURTH, 2, TO_W0, back))
    worker.opened(4)
    worker.went_back(3, 3)
    assert worker.boundary() == Wait()
    assert worker.took(4, 2)
    assert worker.boundary() == SwitchTo(4)
    worker.entered(4)
    assert worker.boundary() == Begin(2)


def test_a_worker_that_has_gone_back_in_time_takes_state_if_it_is_told_to() -> None:
    worker = sent_back()
    worker.boundary()
    worker.hear(Halt(2, "y"))
    worker.went_back(3, 3)
    worker.hear(Resume(FOURTH, 3, TO_W0))
    worker.opened(4)
    assert worker.boundary() == Wait()
    assert worker.took(4, 3)
    assert worker.boundary() == SwitchTo(4)


def test_a_taker_of_a_copy_does_not_go_back_by_itself() -> None:
    worker = training(step=5)
    worker.hear(Halt(1, "x"))
    worker.hear(Resume(THIRD, 3, TO_W0, "copy"))
    assert report(worker).holds is False  # what it has is not what is wanted
    worker.hear(Resume(FOURTH, 3, TO_W0, "copy"))
    worker.opened(4)
    assert worker.boundary() == Wait()
    assert worker.took(4, 3)
    assert worker.boundary() == SwitchTo(4)


@pytest.mark.parametrize("voted", [False, True])
def test_a_worker_that_is_to_take_another_state_leaves_its_step(voted: bool) -> None:
    """Otherwise its training thread waits for a decision on the step and never comes to the boundary."""
    worker = training(step=5)
    if voted:
        worker.ballot()
    worker.hear(Halt(1, "x"))
    worker.hear(Resume(THIRD, 5, TO_W0))
    assert worker.verdict() is False
    worker.validate()
    worker.opened(3)
    assert worker.took(3, 5)
    assert worker.boundary() == SwitchTo(3)


def test_a_joiner_goes_back_to_a_checkpoint_like_any_worker() -> None:
    worker = rehearsed()
    worker.hear(Resume(THIRD, 3, back="checkpoint"))
    worker.opened(3)
    assert worker.boundary() == GoBack(3, 3, "checkpoint")
    assert report(rehearsed()).able
    worker.went_back(3, 3)
    assert worker.boundary() == SwitchTo(3)
    worker.entered(3)
    assert worker.boundary() == Begin(3)


def test_a_joiner_takes_a_copy() -> None:
    worker = rehearsed()
    worker.hear(Resume(THIRD, 3, TO_W2, "copy"))
    worker.opened(3)
    assert worker.boundary() == Wait()
    assert worker.took(3, 3)
    assert worker.boundary() == SwitchTo(3)


def test_a_giver_of_a_copy_goes_back_first() -> None:
    worker = training(step=5)
    worker.hear(Halt(1, "x"))
    worker.hear(Resume(THIRD, 3, TO_W2, "copy"))
    worker.opened(3)
    assert worker.boundary() == GoBack(3, 3, "copy")
    worker.went_back(3, 3)
    assert worker.boundary() == SwitchTo(3)


@pytest.mark.parametrize("back", ["copy", ""])
def test_a_worker_that_only_gives_copies_does_not_hold_the_later_state_any_more(back: Back) -> None:
    """Otherwise its step, the latest, would make the state of all others worthless after the next failure."""
    worker = training(step=5)
    worker.hear(Halt(1, "x"))
    elsewhere = FIRST.successor({0: W2}, generation=4)
    worker.hear(Resume(elsewhere, 3 if back else 5, TO_W2, back))
    worker.opened(4)
    assert worker.boundary() == SwitchTo(4)
    worker.entered(4)
    assert report(worker).holds is not bool(back)


def test_a_worker_reports_its_copies() -> None:
    worker = training(step=2)
    worker.kept = lambda: ((0, 1), (1, 1))
    assert report(worker).kept == ((0, 1), (1, 1))


# -- the last checkpoint -----------------------------------------------------------------------------------------------


def test_a_worker_writes_the_last_checkpoint_at_the_boundary() -> None:
    worker = training(step=3)
    worker.hear(Halt(1, "x"))
    assert worker.hear(Conclude(3, (0, 1))) == []
    assert worker.verdict() is False
    assert worker.boundary() == WriteCheckpoint(3, (0, 1))


def test_a_worker_first_applies_the_step_that_another_worker_has_applied() -> None:
    worker = training(step=3)
    worker.ballot()
    worker.hear(Halt(1, "x"))
    worker.hear(Conclude(4, (0,)))
    assert worker.verdict() is True
    worker.applied()
    assert worker.boundary() == WriteCheckpoint(4, (0,))


def test_a_worker_that_concludes_gives_up_what_it_has_prepared() -> None:
    worker = training(step=3)
    worker.hear(Halt(1, "x"))
    worker.hear(Resume(THIRD, 3))
    assert worker.hear(Conclude(3, (0,))) == [Close(3)]
    assert worker.boundary() == WriteCheckpoint(3, (0,))


@pytest.mark.parametrize("step", [2, 4, 5])
def test_a_worker_cannot_write_a_step_that_it_does_not_have(step: int) -> None:
    worker = training(step=3)
    worker.hear(Halt(1, "x"))
    with pytest.raises(ProtocolError, match=rf"w0 .* step {3 if step == 4 else step}"):
        worker.hear(Conclude(step, (0,)))


# -- gradients that are not numbers ------------------------------------------------------------------------------------


def unsound(worker: WorkerProtocol) -> None:
    """The vote says that the gradients of at least one role are not finite."""
    assert worker.counted(VoteOutcome(None, sound=False)) == []


def test_a_step_with_unsound_gradients_does_not_count() -> None:
    worker = training(step=3)
    assert worker.ballot(sound=False) == Ballot(0, 3, 1, sound=False)
    unsound(worker)
    assert not worker.passed
    assert worker.verdict() is None
    assert worker.boundary() == Begin(3)
    with pytest.raises(ProtocolError, match="applied is not possible while computing"):
        worker.applied()


def test_a_worker_with_sound_gradients_repeats_the_step_too() -> None:
    worker = training(step=3)
    assert worker.ballot() == Ballot(0, 3, 1)
    unsound(worker)
    assert worker.boundary() == Begin(3)
    assert report(worker) == Halted(4, 1, 3, voted=False, holds=True, able=True)


def test_the_second_time_it_is_taken_as_it_comes() -> None:
    worker = training(step=3)
    worker.ballot(sound=False)
    unsound(worker)
    assert worker.ballot(sound=False) == Ballot(0, 3, 1)
    assert worker.counted(VoteOutcome(None)) == []
    worker.applied()
    assert worker.boundary() == Begin(4)
    assert worker.ballot(sound=False) == Ballot(0, 4, 1, sound=False)  # the next step is another matter


def test_a_generation_waits_until_the_step_counts() -> None:
    worker = training(step=3)
    worker.hear(Prepare(SECOND, MOVE))
    worker.opened(2)
    assert worker.ballot(sound=False) == Ballot(0, 3, 2, sound=False)
    unsound(worker)
    assert worker.boundary() == Begin(3)
    assert worker.ballot() == Ballot(0, 3, 2)
    worker.counted(VoteOutcome(2))
    worker.applied()
    assert worker.boundary() == SwitchTo(2)


def test_cancelled_during_a_vote_that_does_not_count() -> None:
    worker = training(step=3)
    worker.hear(Prepare(SECOND, MOVE))
    worker.opened(2)
    worker.ballot(sound=False)
    assert worker.hear(Cancel(2)) == []
    assert worker.counted(VoteOutcome(None, sound=False)) == [Close(2), SendReport(Cancelled(2))]


def test_how_far_its_copies_are_is_in_the_ballot() -> None:
    assert training(step=3).ballot(copied=2) == Ballot(0, 3, 1, copied=2)

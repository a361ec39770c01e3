"""Each message in each state, and what the protocol rules out."""

from __future__ import annotations

import pytest

from understudy.protocol.messages import (
    Arm,
    Cancel,
    Cancelled,
    Conclude,
    Finish,
    Gave,
    Halt,
    Halted,
    Leave,
    Move,
    Park,
    Prepare,
    Prepared,
    Rehearse,
    Rehearsed,
    Resume,
    Stop,
    Switched,
    ToWorker,
    Tracked,
    Unprepared,
)
from understudy.protocol.roster import Roster, WorkerAddress
from understudy.protocol.vote import Ballot, VoteOutcome
from understudy.worker.instructions import (
    Begin,
    Close,
    End,
    EnterTrain,
    HandedOver,
    Open,
    PoisonFabric,
    SendReport,
    SwitchTo,
    Wait,
    Wake,
)
from understudy.worker.protocol import MESSAGES, WorkerProtocol
from understudy.worker.states import IllegalTransition, Proposal, ProposalState, ProtocolError, StepState, WorkerState

W0, W1, W2 = WorkerAddress("w0", "m0"), WorkerAddress("w1", "m1"), WorkerAddress("w2", "m2")
FIRST = Roster.of(1, [(0, "w0"), (1, "w1")], [W0, W1])
SECOND = FIRST.successor({1: W2})
"""In generation 2, w2 has w1's role."""
THIRD = FIRST.successor({1: W2}, generation=3, fresh=True)
MOVE = (Move(1, W1, W2),)


def playing(uid: str = "w0", step: int = 0) -> WorkerProtocol:
    """In generation 1, at the boundary before this step."""
    part = WorkerProtocol(uid)
    part.hear(Resume(FIRST, 0))
    part.opened(1)
    part.entered(1)
    part.tracked((0, 1))
    for _ in range(step):
        assert part.ballot() is not None
        assert part.counted(VoteOutcome(None)) == []
        part.applied()
    return part


def prepared(uid: str = "w0") -> WorkerProtocol:
    part = playing(uid)
    part.hear(Prepare(SECOND, MOVE))
    part.opened(2)
    return part


def rehearsed() -> WorkerProtocol:
    """w2, which waits for role 1."""
    part = WorkerProtocol("w2")
    assert part.hear(Rehearse(1)) == [EnterTrain(1, rehearsal=True)]
    assert part.rehearsed(0.5) == [SendReport(Rehearsed(1, 0.5))]
    return part


# -- forming -----------------------------------------------------------------------------------------------------------


def test_a_job_begins() -> None:
    part = WorkerProtocol("w1")
    assert part.boundary() == Wait()
    assert part.hear(Resume(FIRST, 0)) == [Open(FIRST), EnterTrain(1, rehearsal=False), Wake()]
    assert part.boundary() == Wait()
    assert part.opened(1, 0.25) == [SendReport(Prepared(1, 0.25)), Wake()]
    assert part.boundary() == SwitchTo(1)
    assert part.entered(1) == [SendReport(Switched(1, 0))]
    assert part.tracked((0, 1), 12) == [SendReport(Tracked(1, (0, 1), 12))]
    assert part.boundary() == Begin(0)
    assert part.ballot() == Ballot(1, 0, 1)
    assert part.counted(VoteOutcome(None)) == []
    part.applied()
    assert part.boundary() == Begin(1)


# -- a replacement -----------------------------------------------------------------------------------------------------


def test_who_stays_switches_when_the_vote_agrees() -> None:
    part = prepared()
    assert part.ballot() == Ballot(0, 0, 2)
    assert part.counted(VoteOutcome(2)) == []
    part.applied()
    assert part.boundary() == SwitchTo(2)
    assert part.entered(2) == [SendReport(Switched(2, 1))]
    assert part.boundary() == Begin(1)


def test_who_gives_names_the_generation_only_when_armed() -> None:
    part = prepared("w1")
    for _ in range(2):
        assert part.hear(Arm(7)) == []
        assert part.ballot() == Ballot(1, part.step, 1)
        part.counted(VoteOutcome(None))
        part.applied()
    part.hear(Arm(2))
    assert part.ballot() == Ballot(1, 2, 2)
    part.counted(VoteOutcome(2))
    part.applied()
    assert part.boundary() == SwitchTo(2)
    part.entered(2)
    assert part.boundary() == HandedOver()
    assert part.gave(2) == [SendReport(Gave(2))]


def test_who_comes_enters_when_it_has_the_state() -> None:
    part = rehearsed()
    assert part.hear(Prepare(SECOND, MOVE)) == [Open(SECOND)]
    part.opened(2)
    assert part.boundary() == Wait()
    assert not part.took(1, 5)
    assert part.took(2, 5)
    assert part.boundary() == SwitchTo(2)
    assert part.entered(2) == [SendReport(Switched(2, 5))]
    assert part.boundary() == Begin(5)


def test_a_generation_that_is_not_healthy_is_not_named() -> None:
    assert prepared().ballot(healthy=False) == Ballot(0, 0, 1)


def test_what_could_not_be_opened_is_forgotten() -> None:
    part = playing()
    part.hear(Prepare(SECOND, MOVE))
    assert part.not_opened(9, "no") == part.opened(9) == []
    assert part.not_opened(2, "no way") == [SendReport(Unprepared(2, "no way"))]
    assert part.opened(2) == []
    assert part.ballot() == Ballot(0, 0, 1)


def test_a_newer_proposal_closes_the_older() -> None:
    part = prepared()
    assert part.hear(Prepare(THIRD)) == [Close(2), Open(THIRD)]


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_cancelled_before_the_vote() -> None:
    assert prepared().hear(Cancel(2)) == [Close(2), SendReport(Cancelled(2))]


def test_cancelled_without_knowing_of_it() -> None:
    assert playing().hear(Cancel(2)) == [SendReport(Cancelled(2))]


def test_cancelled_during_the_vote_that_does_not_agree() -> None:
    part = prepared()
    part.ballot()
    assert part.hear(Cancel(2)) == []
    assert part.counted(VoteOutcome(None)) == [Close(2), SendReport(Cancelled(2))]


def test_cancelled_during_the_vote_that_agrees() -> None:
    part = prepared()
    part.ballot()
    part.hear(Cancel(2))
    assert part.counted(VoteOutcome(2)) == []
    part.applied()
    assert part.boundary() == SwitchTo(2)


def test_cancelled_too_late() -> None:
    part = prepared()
    part.ballot()
    part.counted(VoteOutcome(2))
    assert part.hear(Cancel(2)) == []
    part.applied()
    part.entered(2)
    assert part.hear(Cancel(2)) == []


# -- halts -------------------------------------------------------------------------------------------------------------


def report(part: WorkerProtocol) -> Halted:
    """What it says to a halt."""
    (said,) = [e.message for e in part.hear(Halt(4, "w9 is gone")) if isinstance(e, SendReport)]
    assert isinstance(said, Halted)
    assert said.number == 4
    return said


def test_a_halt_lets_go_of_everything() -> None:
    assert prepared().hear(Halt(4, "w9 is gone")) == [
        PoisonFabric("w9 is gone"),
        Close(2),
        SendReport(Halted(4, 1, 0, voted=False, holds=True, able=True)),
        Wake(),
    ]


def test_how_far_it_has_come() -> None:
    assert report(WorkerProtocol("w0")) == Halted(4, 0, 0, voted=False, holds=False)
    part = playing(step=3)
    assert report(part) == Halted(4, 1, 3, voted=False, holds=True, able=True)
    part = playing(step=3)
    part.ballot()
    assert report(part) == Halted(4, 1, 3, voted=True, holds=True, able=True)
    part = playing(step=3)
    part.ballot()
    part.counted(VoteOutcome(None))
    assert report(part) == Halted(4, 1, 4, voted=False, holds=True, able=True)
    part.applied()
    assert report(part) == Halted(4, 1, 4, voted=False, holds=True, able=True)
    part = playing(step=3)
    part.ballot(over=True)
    part.counted(VoteOutcome(None, over=True))
    assert report(part) == Halted(4, 1, 3, voted=False, holds=True, able=True, over=True)


def test_nothing_passes_while_it_is_halted() -> None:
    part = playing()
    part.ballot()
    part.hear(Halt(1, "x"))
    assert part.counted(VoteOutcome(None)) is None
    assert part.ballot() is None
    assert part.verdict() is None
    assert part.boundary() == Wait()
    assert part.interrupted("eof", "y") == []
    assert part.hear(Prepare(SECOND)) == [SendReport(Unprepared(2, "w0 has halted"))]
    assert part.hear(Cancel(2)) == []


def test_it_notices_a_failure_by_itself_once() -> None:
    part = prepared()
    part.ballot()
    assert part.interrupted("eof", "w1 is gone", "w1") == [
        Close(2),
        SendReport(Halted(0, 1, 0, voted=True, holds=True, how="eof", reason="w1 is gone", who="w1", able=True)),
    ]
    assert part.interrupted("eof", "w1 is gone", "w1") == []


@pytest.mark.parametrize("voted", [False, True])
def test_the_step_is_begun_again(voted: bool) -> None:
    part = playing(step=3)
    if voted:
        part.ballot()
    part.hear(Halt(1, "x"))
    assert part.hear(Resume(THIRD, 3)) == [Open(THIRD), Wake()]
    assert part.verdict() is False
    assert part.ballot() is None
    part.opened(3)
    assert part.boundary() == SwitchTo(3)
    part.entered(3)
    assert part.boundary() == Begin(3)
    assert part.ballot() == Ballot(0, 3, 3)


def test_the_step_is_applied_although_it_did_not_see_the_outcome() -> None:
    part = playing(step=3)
    part.ballot()
    part.hear(Halt(1, "x"))
    part.hear(Resume(THIRD, 4))
    assert part.verdict() is True
    part.applied()
    part.opened(3)
    part.entered(3)
    assert part.boundary() == Begin(4)


def test_a_joiner_after_a_failure_enters_with_the_state() -> None:
    part = rehearsed()
    assert part.hear(Resume(THIRD, 4, (Move(1, W0, W2),))) == [Open(THIRD), Wake()]
    part.opened(3)
    assert part.boundary() == Wait()
    assert part.took(3, 4)
    assert part.boundary() == SwitchTo(3)
    part.entered(3)
    assert part.boundary() == Begin(4)


# -- the end -----------------------------------------------------------------------------------------------------------


def test_stop_is_in_the_next_ballot() -> None:
    part = playing()
    assert part.hear(Stop()) == [Wake()]
    assert part.ballot() == Ballot(0, 0, 1, stop=True)


def test_the_last_vote() -> None:
    part = playing(step=2)
    assert part.ballot(over=True) == Ballot(0, 2, 1, over=True)
    part.counted(VoteOutcome(None, over=True))
    assert part.over
    assert part.verdict() is True


def test_finish_instead_of_the_last_vote() -> None:
    part = playing()
    part.ballot(over=True)
    part.hear(Halt(1, "x"))
    assert part.hear(Finish()) == [Wake()]
    assert part.verdict() is True


def test_leave() -> None:
    assert playing().hear(Leave()) == [End()]


# -- what the protocol rules out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Prepare(FIRST), "w0 in generation 1 is told to prepare 1"),
        (Resume(THIRD, 4), "w0 is told to apply step 3, for which it has not voted"),
        (Resume(THIRD, 5), "w0 at step 3 is told to go on from step 5"),
        (Resume(THIRD, 2), "w0 at step 3 is told to go on from step 2"),
    ],
)
def test_impossible_orders(message: ToWorker, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        playing(step=3).hear(message)


def test_impossible_reports() -> None:
    with pytest.raises(IllegalTransition, match="applied is not possible while computing"):
        playing().applied()
    with pytest.raises(IllegalTransition, match="entered is not possible while absent"):
        prepared().entered(5)
    with pytest.raises(IllegalTransition, match="entered is not possible while entered"):
        playing().entered(1)
    part = playing()
    part.ballot()
    with pytest.raises(IllegalTransition, match="came to the vote is not possible while voted"):
        part.ballot()


def test_an_error_tells_what_came_before() -> None:
    part = prepared()
    part.ballot()
    with pytest.raises(IllegalTransition, match="Rehearse is not possible while training") as caught:
        part.hear(Rehearse(1))
    assert [event.rpartition(": ")[2] for event in caught.value.story] == [
        *("Resume", "opened", "entered", "tracked", "Prepare", "opened", "came to the vote")
    ]
    assert str(caught.value).count("\n") == len(caught.value.story)


@pytest.mark.parametrize("state", WorkerState)
def test_every_message_has_its_states(state: WorkerState) -> None:
    """What may come in any state does; a worker that concludes hears of no other change."""
    for message in (Halt, Stop, Finish, Leave):
        assert (state, message) in MESSAGES
    if state is WorkerState.CONCLUDING:
        assert not {(state, message) for message in (Rehearse, Prepare, Resume, Park, Conclude)} & MESSAGES.keys()


def test_what_never_holds_is_found() -> None:
    for broken in (
        {"holds": False},
        {"generation": 0},
        {"role": None},
        {"step_state": StepState.REPEATING},
        {"state": WorkerState.STANDBY},
        {"proposal": Proposal(FIRST, (), direct=False)},
        {"proposal": Proposal(SECOND, (), direct=False, state=ProposalState.PROMISED)},
        {"proposal": Proposal(SECOND, (), direct=True, state=ProposalState.AGREED)},
        {"proposal": Proposal(SECOND, (), direct=False), "halted": True},
    ):
        part = playing()
        part.validate()
        for name, value in broken.items():
            setattr(part, name, value)
        with pytest.raises(ProtocolError, match="it does not hold that"):
            part.validate()

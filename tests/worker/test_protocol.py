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
    Open,
    PoisonFabric,
    SendReport,
    SwitchTo,
    Wait,
)
from understudy.worker.protocol import MESSAGES, WorkerProtocol
from understudy.worker.states import IllegalTransition, Proposal, ProposalState, ProtocolError, StepState, WorkerState

W0, W1, W2 = WorkerAddress("w0", "m0"), WorkerAddress("w1", "m1"), WorkerAddress("w2", "m2")
FIRST = Roster.of(1, [(0, "w0"), (1, "w1")], [W0, W1])
SECOND = FIRST.successor({1: W2})
"""In generation 2, w2 has w1's role."""
THIRD = FIRST.successor({1: W2}, generation=3, fresh=True)
MOVE = (Move(1, W1, W2),)


def training(uid: str = "w0", step: int = 0) -> WorkerProtocol:
    """In generation 1, at the boundary before this step."""
    worker = WorkerProtocol(uid)
    worker.hear(Resume(FIRST, 0))
    worker.opened(1)
    worker.entered(1)
    worker.tracked((0, 1))
    for _ in range(step):
        assert worker.ballot() is not None
        assert worker.counted(VoteOutcome(None)) == []
        worker.applied()
    return worker


def prepared(uid: str = "w0") -> WorkerProtocol:
    worker = training(uid)
    worker.hear(Prepare(SECOND, MOVE))
    worker.opened(2)
    return worker


def rehearsed() -> WorkerProtocol:
    """w2, which waits for role 1."""
    worker = WorkerProtocol("w2")
    assert worker.hear(Rehearse(1)) == [EnterTrain(1, rehearsal=True)]
    assert worker.rehearsed(0.5) == [SendReport(Rehearsed(1, 0.5))]
    return worker


# -- forming -----------------------------------------------------------------------------------------------------------


def test_a_job_begins() -> None:
    worker = WorkerProtocol("w1")
    assert worker.boundary() == Wait()
    assert worker.hear(Resume(FIRST, 0)) == [Open(FIRST), EnterTrain(1, rehearsal=False)]
    assert worker.boundary() == Wait()
    assert worker.opened(1, 0.25) == [SendReport(Prepared(1, 0.25))]
    assert worker.boundary() == SwitchTo(1)
    assert worker.entered(1) == [SendReport(Switched(1, 0))]
    assert worker.tracked((0, 1), 12) == [SendReport(Tracked(1, (0, 1), 12))]
    assert worker.boundary() == Begin(0)
    assert worker.ballot() == Ballot(1, 0, 1)
    assert worker.counted(VoteOutcome(None)) == []
    worker.applied()
    assert worker.boundary() == Begin(1)


def test_a_worker_that_tracks_its_state_only_after_a_halt_reports_again() -> None:
    worker = WorkerProtocol("w1")
    worker.hear(Resume(FIRST, 0))
    worker.opened(1)
    worker.entered(1)
    first = worker.hear(Halt(3, "w0 is gone"))[-1]
    assert isinstance(first, SendReport)
    assert isinstance(first.message, Halted)
    assert not first.message.holds
    tracked, second = worker.tracked((0, 1))
    assert tracked == SendReport(Tracked(1, (0, 1)))
    assert isinstance(second, SendReport)
    assert isinstance(second.message, Halted)
    assert (second.message.number, second.message.holds, second.message.able) == (3, True, True)


# -- a replacement -----------------------------------------------------------------------------------------------------


def test_a_stayer_switches_when_the_vote_agrees() -> None:
    worker = prepared()
    assert worker.ballot() == Ballot(0, 0, 2)
    assert worker.counted(VoteOutcome(2)) == []
    worker.applied()
    assert worker.boundary() == SwitchTo(2)
    assert worker.entered(2) == [SendReport(Switched(2, 1))]
    assert worker.boundary() == Begin(1)


def test_a_giver_votes_for_the_generation_only_when_armed() -> None:
    worker = prepared("w1")
    for _ in range(2):
        assert worker.hear(Arm(7)) == []
        assert worker.ballot() == Ballot(1, worker.step, 1)
        worker.counted(VoteOutcome(None))
        worker.applied()
    worker.hear(Arm(2))
    assert worker.ballot() == Ballot(1, 2, 2)
    worker.counted(VoteOutcome(2))
    worker.applied()
    assert worker.boundary() == SwitchTo(2)
    worker.entered(2)
    assert worker.boundary() == Wait()
    assert worker.gave(2) == [SendReport(Gave(2))]


def test_a_joiner_enters_when_it_has_the_state() -> None:
    worker = rehearsed()
    assert worker.hear(Prepare(SECOND, MOVE)) == [Open(SECOND)]
    worker.opened(2)
    assert worker.boundary() == Wait()
    assert not worker.took(1, 5)
    assert worker.took(2, 5)
    assert worker.boundary() == SwitchTo(2)
    assert worker.entered(2) == [SendReport(Switched(2, 5))]
    assert worker.boundary() == Begin(5)


def test_a_generation_that_is_not_healthy_is_not_named() -> None:
    assert prepared().ballot(healthy=False) == Ballot(0, 0, 1)


def test_what_could_not_be_opened_is_forgotten() -> None:
    worker = training()
    worker.hear(Prepare(SECOND, MOVE))
    assert worker.not_opened(9, "no") == worker.opened(9) == []
    assert worker.not_opened(2, "no way") == [SendReport(Unprepared(2, "no way"))]
    assert worker.opened(2) == []
    assert worker.ballot() == Ballot(0, 0, 1)


def test_a_newer_proposal_closes_the_older() -> None:
    worker = prepared()
    assert worker.hear(Prepare(THIRD)) == [Close(2), Open(THIRD)]


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_cancelled_before_the_vote() -> None:
    assert prepared().hear(Cancel(2)) == [Close(2), SendReport(Cancelled(2))]


def test_cancelled_without_knowing_of_it() -> None:
    assert training().hear(Cancel(2)) == [SendReport(Cancelled(2))]


def test_cancelled_during_the_vote_that_does_not_agree() -> None:
    worker = prepared()
    worker.ballot()
    assert worker.hear(Cancel(2)) == []
    assert worker.counted(VoteOutcome(None)) == [Close(2), SendReport(Cancelled(2))]


def test_cancelled_during_the_vote_that_agrees() -> None:
    worker = prepared()
    worker.ballot()
    worker.hear(Cancel(2))
    assert worker.counted(VoteOutcome(2)) == []
    worker.applied()
    assert worker.boundary() == SwitchTo(2)


def test_cancelled_too_late() -> None:
    worker = prepared()
    worker.ballot()
    worker.counted(VoteOutcome(2))
    assert worker.hear(Cancel(2)) == []
    worker.applied()
    worker.entered(2)
    assert worker.hear(Cancel(2)) == []


# -- halts -------------------------------------------------------------------------------------------------------------


def report(worker: WorkerProtocol) -> Halted:
    """What it says to a halt."""
    (said,) = [e.message for e in worker.hear(Halt(4, "w9 is gone")) if isinstance(e, SendReport)]
    assert isinstance(said, Halted)
    assert said.number == 4
    return said


def test_a_halt_lets_go_of_everything() -> None:
    assert prepared().hear(Halt(4, "w9 is gone")) == [
        PoisonFabric("w9 is gone"),
        Close(2),
        SendReport(Halted(4, 1, 0, voted=False, holds=True, able=True)),
    ]


def test_how_far_it_has_come() -> None:
    assert report(WorkerProtocol("w0")) == Halted(4, 0, 0, voted=False, holds=False)
    worker = training(step=3)
    assert report(worker) == Halted(4, 1, 3, voted=False, holds=True, able=True)
    worker = training(step=3)
    worker.ballot()
    assert report(worker) == Halted(4, 1, 3, voted=True, holds=True, able=True)
    worker = training(step=3)
    worker.ballot()
    worker.counted(VoteOutcome(None))
    assert report(worker) == Halted(4, 1, 4, voted=False, holds=True, able=True)
    worker.applied()
    assert report(worker) == Halted(4, 1, 4, voted=False, holds=True, able=True)
    worker = training(step=3)
    worker.ballot(over=True)
    worker.counted(VoteOutcome(None, over=True))
    assert report(worker) == Halted(4, 1, 3, voted=False, holds=True, able=True, over=True)


def test_nothing_passes_while_it_is_halted() -> None:
    worker = training()
    worker.ballot()
    worker.hear(Halt(1, "x"))
    assert worker.counted(VoteOutcome(None)) is None
    assert worker.ballot() is None
    assert worker.verdict() is None
    assert worker.boundary() == Wait()
    assert worker.interrupted("eof", "y") == []
    assert worker.hear(Prepare(SECOND)) == [SendReport(Unprepared(2, "w0 has halted"))]
    assert worker.hear(Cancel(2)) == []


def test_a_worker_reports_a_failure_that_it_notices_once() -> None:
    worker = prepared()
    worker.ballot()
    assert worker.interrupted("eof", "w1 is gone", "w1") == [
        Close(2),
        SendReport(Halted(0, 1, 0, voted=True, holds=True, how="eof", reason="w1 is gone", who="w1", able=True)),
    ]
    assert worker.interrupted("eof", "w1 is gone", "w1") == []


@pytest.mark.parametrize("voted", [False, True])
def test_the_step_is_begun_again(voted: bool) -> None:
    worker = training(step=3)
    if voted:
        worker.ballot()
    worker.hear(Halt(1, "x"))
    assert worker.hear(Resume(THIRD, 3)) == [Open(THIRD)]
    assert worker.verdict() is False
    assert worker.ballot() is None
    worker.opened(3)
    assert worker.boundary() == SwitchTo(3)
    worker.entered(3)
    assert worker.boundary() == Begin(3)
    assert worker.ballot() == Ballot(0, 3, 3)


def test_the_step_is_applied_although_it_did_not_see_the_outcome() -> None:
    worker = training(step=3)
    worker.ballot()
    worker.hear(Halt(1, "x"))
    worker.hear(Resume(THIRD, 4))
    assert worker.verdict() is True
    worker.applied()
    worker.opened(3)
    worker.entered(3)
    assert worker.boundary() == Begin(4)


def test_a_joiner_after_a_failure_enters_with_the_state() -> None:
    worker = rehearsed()
    assert worker.hear(Resume(THIRD, 4, (Move(1, W0, W2),))) == [Open(THIRD)]
    worker.opened(3)
    assert worker.boundary() == Wait()
    assert worker.took(3, 4)
    assert worker.boundary() == SwitchTo(3)
    worker.entered(3)
    assert worker.boundary() == Begin(4)


# -- the end -----------------------------------------------------------------------------------------------------------


def test_stop_is_in_the_next_ballot() -> None:
    worker = training()
    assert worker.hear(Stop()) == []
    assert worker.ballot() == Ballot(0, 0, 1, stop=True)


def test_the_last_vote() -> None:
    worker = training(step=2)
    assert worker.ballot(over=True) == Ballot(0, 2, 1, over=True)
    worker.counted(VoteOutcome(None, over=True))
    assert worker.over
    assert worker.verdict() is True


def test_finish_instead_of_the_last_vote() -> None:
    worker = training()
    worker.ballot(over=True)
    worker.hear(Halt(1, "x"))
    assert worker.hear(Finish()) == []
    assert worker.verdict() is True


def test_leave() -> None:
    assert training().hear(Leave()) == [End()]


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
        training(step=3).hear(message)


def test_impossible_reports() -> None:
    with pytest.raises(IllegalTransition, match="applied is not possible while computing"):
        training().applied()
    with pytest.raises(IllegalTransition, match="entered is not possible while absent"):
        prepared().entered(5)
    with pytest.raises(IllegalTransition, match="entered is not possible while entered"):
        training().entered(1)
    worker = training()
    worker.ballot()
    with pytest.raises(IllegalTransition, match="came to the vote is not possible while voted"):
        worker.ballot()


def test_an_error_tells_what_came_before() -> None:
    worker = prepared()
    worker.ballot()
    with pytest.raises(IllegalTransition, match="Rehearse is not possible while training") as caught:
        worker.hear(Rehearse(1))
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
        worker = training()
        worker.validate()
        for name, value in broken.items():
            setattr(worker, name, value)
        with pytest.raises(ProtocolError, match="it does not hold that"):
            worker.validate()

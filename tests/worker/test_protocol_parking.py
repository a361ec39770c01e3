"""Parking: if its replica is vacant, a worker leaves its generation and waits in its role."""

from __future__ import annotations

import pytest

from tests.worker.test_protocol import FIRST, W0, W1, training
from understudy.protocol.messages import Halt, Halted, Move, Park, Parked, Prepare, Resume
from understudy.protocol.vote import VoteOutcome
from understudy.worker.instructions import Begin, Close, Open, SendReport, SwitchTo, Wait, Withdraw
from understudy.worker.protocol import WorkerProtocol

MASKED = FIRST.successor({1: None}, generation=2, fresh=True)
REFILLED = MASKED.successor({1: W1}, generation=3)
MOVE = (Move(1, W0, W1),)


def parked(step: int = 0) -> WorkerProtocol:
    worker = training("w1", step)
    worker.hear(Halt(1, "w9 is gone"))
    assert worker.hear(Park()) == []
    assert worker.boundary() == Withdraw()
    assert worker.withdrew() == [SendReport(Parked(1))]
    return worker


def test_a_parked_worker_waits_and_holds_no_state() -> None:
    worker = parked(3)
    assert worker.boundary() == Wait()
    assert (worker.holds, worker.able, worker.generation, worker.seated) == (False, True, 0, False)


@pytest.mark.parametrize("voted", [False, True])
def test_in_a_step_it_begins_again_and_leaves(voted: bool) -> None:
    worker = training("w1")
    if voted:
        assert worker.ballot() is not None
    worker.hear(Halt(1, "w9 is gone"))
    worker.hear(Park())
    assert worker.ballot() is None
    assert worker.verdict() is False
    assert worker.boundary() == Withdraw()


def test_a_step_that_has_passed_is_applied_first() -> None:
    worker = training("w1")
    assert worker.ballot() is not None
    assert worker.counted(VoteOutcome(None)) == []
    worker.hear(Halt(1, "w9 is gone"))
    worker.hear(Park())
    assert worker.verdict() is True
    worker.applied()
    assert worker.boundary() == Withdraw()


def test_what_is_proposed_is_dropped() -> None:
    worker = training("w1")
    worker.hear(Prepare(FIRST.successor({}, generation=2)))
    assert worker.hear(Park()) == [Close(2)]


def test_a_parked_worker_comes_back_with_state_from_a_giver() -> None:
    worker = parked(2)
    assert worker.hear(Prepare(REFILLED, MOVE)) == [Open(REFILLED)]
    worker.opened(3)
    assert worker.boundary() == Wait()
    assert worker.took(3, 7)
    assert worker.boundary() == SwitchTo(3)
    worker.entered(3)
    assert worker.boundary() == Begin(7)


def test_a_halt_while_it_is_parked_finds_nothing() -> None:
    worker = parked(2)
    effects = worker.hear(Halt(2, "another one"))
    (report,) = [effect.message for effect in effects if isinstance(effect, SendReport)]
    assert isinstance(report, Halted)
    assert (report.holds, report.able, report.voted) == (False, True, False)
    assert worker.boundary() == Wait()


def test_called_back_before_it_has_left() -> None:
    worker = training("w1", 2)
    worker.hear(Halt(1, "w9 is gone"))
    worker.hear(Park())
    again = MASKED.successor({1: W1}, generation=3, fresh=True)
    worker.hear(Halt(2, "another one"))
    assert worker.hear(Resume(again, 4, MOVE)) == [Open(again)]
    worker.opened(3)
    assert worker.boundary() == Wait()
    assert worker.took(3, 4)
    assert worker.boundary() == SwitchTo(3)
    worker.entered(3)
    assert worker.boundary() == Begin(4)

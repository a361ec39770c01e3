"""A worker whose replica is vacant leaves its generation and waits in its role."""

from __future__ import annotations

import pytest

from tests.worker.test_protocol import FIRST, W0, W1, playing
from understudy.protocol.messages import Halt, Halted, Move, Park, Parked, Prepare, Resume
from understudy.protocol.vote import VoteOutcome
from understudy.worker.instructions import Begin, Close, Open, SendReport, SwitchTo, Wait, Wake, Withdraw
from understudy.worker.protocol import WorkerProtocol

MASKED = FIRST.successor({1: None}, generation=2, fresh=True)
REFILLED = MASKED.successor({1: W1}, generation=3)
MOVE = (Move(1, W0, W1),)


def parked(step: int = 0) -> WorkerProtocol:
    part = playing("w1", step)
    part.hear(Halt(1, "w9 is gone"))
    assert part.hear(Park()) == [Wake()]
    assert part.boundary() == Withdraw()
    assert part.withdrew() == [SendReport(Parked(1))]
    return part


def test_it_waits_and_holds_nothing() -> None:
    part = parked(3)
    assert part.boundary() == Wait()
    assert (part.holds, part.able, part.generation, part.seated) == (False, True, 0, False)


@pytest.mark.parametrize("voted", [False, True])
def test_in_a_step_it_begins_again_and_leaves(voted: bool) -> None:
    part = playing("w1")
    if voted:
        assert part.ballot() is not None
    part.hear(Halt(1, "w9 is gone"))
    part.hear(Park())
    assert part.ballot() is None
    assert part.verdict() is False
    assert part.boundary() == Withdraw()


def test_a_step_that_has_passed_is_applied_first() -> None:
    part = playing("w1")
    assert part.ballot() is not None
    assert part.counted(VoteOutcome(None)) == []
    part.hear(Halt(1, "w9 is gone"))
    part.hear(Park())
    assert part.verdict() is True
    part.applied()
    assert part.boundary() == Withdraw()


def test_what_is_proposed_is_dropped() -> None:
    part = playing("w1")
    part.hear(Prepare(FIRST.successor({}, generation=2)))
    assert part.hear(Park()) == [Close(2), Wake()]


def test_it_comes_back_with_a_state_from_elsewhere() -> None:
    part = parked(2)
    assert part.hear(Prepare(REFILLED, MOVE)) == [Open(REFILLED)]
    part.opened(3)
    assert part.boundary() == Wait()
    assert part.took(3, 7)
    assert part.boundary() == SwitchTo(3)
    part.entered(3)
    assert part.boundary() == Begin(7)


def test_a_halt_while_it_is_parked_finds_nothing() -> None:
    part = parked(2)
    effects = part.hear(Halt(2, "another one"))
    (report,) = [effect.message for effect in effects if isinstance(effect, SendReport)]
    assert isinstance(report, Halted)
    assert (report.holds, report.able, report.voted) == (False, True, False)
    assert part.boundary() == Wait()


def test_called_back_before_it_has_left() -> None:
    part = playing("w1", 2)
    part.hear(Halt(1, "w9 is gone"))
    part.hear(Park())
    again = MASKED.successor({1: W1}, generation=3, fresh=True)
    part.hear(Halt(2, "another one"))
    assert part.hear(Resume(again, 4, MOVE)) == [Open(again), Wake()]
    part.opened(3)
    assert part.boundary() == Wait()
    assert part.took(3, 4)
    assert part.boundary() == SwitchTo(3)
    part.entered(3)
    assert part.boundary() == Begin(4)

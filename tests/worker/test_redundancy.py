"""What a role knows of the state of the others: the agreement after a failure, and what a joiner takes over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from understudy.comm.fabric import Fabric
from understudy.protocol.messages import Compared
from understudy.worker.process import TrainingProcess
from understudy.worker.redundancy import HandedRedundancy, Redundancy

KNOWN = HandedRedundancy(twins=(0, 1), own=(("position", False),), exchanging=True, late=False, known={}, made=3)


class Others:
    """The other roles' part of an agreement."""

    def __init__(self, made: int, exchanging: bool, late: bool, *, fault: str | None = None) -> None:
        self.numbers = [made, int(exchanging), int(late)]
        self.fabric = SimpleNamespace(fault=fault, roster=None)

    def least(self, numbers: list[int]) -> list[int]:
        return [min(pair) for pair in zip(numbers, [*self.numbers, *(-each for each in self.numbers)], strict=True)]

    def redundancy(self) -> Redundancy:
        fabric, process = cast(Fabric, self.fabric), cast(TrainingProcess, self)
        found = Redundancy(fabric, process, {}, role=lambda: 1, expected=lambda: (0, 1))
        found.take(KNOWN)
        return found


def test_roles_that_know_the_same_keep_it() -> None:
    redundancy = Others(3, True, False).redundancy()
    assert redundancy.agree(5) is None
    assert redundancy.handed() == KNOWN


@pytest.mark.parametrize(
    ("made", "exchanging", "late"), [(2, True, False), (4, True, False), (3, False, False), (3, True, True)]
)
def test_roles_that_know_different_things_begin_anew_and_say_so(made: int, exchanging: bool, late: bool) -> None:
    redundancy = Others(made, exchanging, late).redundancy()
    assert redundancy.agree(5) == Compared(1, 5, ())
    assert redundancy.twins == ()
    assert redundancy.handed().made == 0
    assert Others(0, False, False).redundancy().agree(5) is not None


def test_an_interrupted_agreement_changes_nothing() -> None:
    redundancy = Others(0, False, False, fault="w0 is gone").redundancy()
    assert redundancy.agree(5) is None
    assert redundancy.handed() == KNOWN


def test_a_role_that_takes_a_copy_of_an_earlier_step_knows_nothing() -> None:
    redundancy = Others(3, True, False).redundancy()
    redundancy.take(None)
    assert (redundancy.twins, redundancy.handed().made) == ((), 0)

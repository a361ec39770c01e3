"""Sources of state: what comparisons of bits say about the roles that can give one another their state."""

from __future__ import annotations

import pytest

from tests.controller.core.rig import Rig
from understudy.controller.core.sources import StateSource, source_of
from understudy.protocol.messages import Compared

BOTH = (0, 1)


def compared(rig: Rig, own: tuple[str, ...] = ()) -> None:
    for role, uid in enumerate(rig.seats()):
        rig.say(uid, Compared(role, 1, BOTH, own))


def test_roles_with_equal_bits_can_give_one_another_their_state() -> None:
    rig = Rig.training(copies=False)
    assert {source_of(rig.job, role) for role in BOTH} == {StateSource.NONE}
    compared(rig)
    assert {source_of(rig.job, role) for role in BOTH} == {StateSource.REPLICA}
    (said,) = rig.told("redundancy")
    assert said == "a lost machine is replaced: roles 0 and 1 from a live replica"


@pytest.mark.parametrize("own", [(), ("sampler",)])
def test_a_comparison_that_holds_no_more_costs_roles_with_a_state_of_their_own_their_source(
    own: tuple[str, ...],
) -> None:
    """Without such a state the bits are still equal."""
    rig = Rig.training(copies=False)
    compared(rig, own)
    for role, uid in enumerate(rig.seats()):
        rig.say(uid, Compared(role, 5, ()))
    assert {source_of(rig.job, role) for role in BOTH} == {StateSource.NONE if own else StateSource.REPLICA}


def test_a_masked_job_keeps_its_replicas() -> None:
    rig = Rig.training(copies=False, mask="anywhere")
    compared(rig, ("sampler",))
    rig.say("w0", Compared(0, 5, ()))
    assert source_of(rig.job, 0) is StateSource.REPLICA

"""The plan of a check: role classes, the disturbed machines, and the steps of the disturbances."""

from __future__ import annotations

import msgspec

from understudy.verify.script.observation import Observation
from understudy.verify.script.runs import (
    Disturbance,
    Run,
    classes_of,
    described,
    held_at,
    left_over,
    machines_of,
    plan,
    primary_of,
    rounds,
    settled,
)


def observation(role: int, machine: str = "m0", step: int = 0, twins: tuple[int, ...] = ()) -> Observation:
    return Observation(role, step, f"w{role}", machine, {}, twins=twins)


def test_roles_that_hold_the_same_are_a_class() -> None:
    found = classes_of(
        [observation(0, twins=(0, 2)), observation(1, twins=(1, 3)), observation(2, twins=(0, 2)), observation(3)]
    )
    assert found == [(0, 2), (1, 3), (3,)]


def test_roles_of_machines() -> None:
    assert machines_of([observation(2, "m0"), observation(0, "m1"), observation(1, "m1"), observation(2, "m0", 1)]) == [
        (0, 1),
        (2,),
    ]


def test_one_class_needs_one_machine_of_each_kind_and_the_primary_meets_both() -> None:
    assert plan([(0, 1, 2)], [(0,), (1,), (2,)], 0) == [
        Disturbance("replace", 0, (0,), (0,)),
        Disturbance("kill", 1, (1,), (0,)),
        Disturbance("kill", 0, (0,), (0,)),
    ]
    assert [(each.kind, each.role) for each in plan([(0, 1)], [(0,), (1,)], 1)] == [
        ("replace", 1),
        ("kill", 0),
        ("kill", 1),
    ]


def test_a_machine_with_roles_of_all_classes_is_enough() -> None:
    found = plan([(0, 2), (1, 3)], [(0, 1), (2, 3)], 3)
    assert [(each.kind, each.roles, each.classes, each.orphans) for each in found] == [
        ("replace", (2, 3), (0, 1), False),
        ("kill", (0, 1), (0, 1), False),
        ("kill", (2, 3), (0, 1), False),
    ]


def test_machines_with_the_only_copy_of_a_state_are_marked() -> None:
    found = plan([(0, 1), (2, 3)], [(0, 1), (2, 3)], 3)
    assert [(each.kind, each.roles, each.orphans) for each in found] == [
        ("replace", (2, 3), False),
        ("replace", (0, 1), False),
        ("kill", (0, 1), True),
        ("kill", (2, 3), True),
    ]


def test_the_primary_role_is_the_one_that_says_so() -> None:
    assert primary_of([observation(0), msgspec.structs.replace(observation(1), primary=True)]) == 1
    assert primary_of([observation(0)]) is None


def test_what_a_run_had_no_steps_for_is_left_over() -> None:
    wanted = plan([(0, 1)], [(0,), (1,)], 1)
    run = Run("a", [], disturbances=tuple(wanted[:2]))
    assert left_over(wanted, run) == wanted[2:]
    assert left_over(wanted, msgspec.structs.replace(run, status="failed")) == []
    assert left_over(wanted, Run("a", [])) == []  # not even the first: another run would be the same


def test_as_many_in_one_run_as_there_is_room_for() -> None:
    four = plan([(0,), (1,)], [(0,), (1,)], 1)
    assert [len(each) for each in rounds(four, 8)] == [2, 2]
    assert [len(each) for each in rounds(four, 12)] == [4]
    assert [len(each) for each in rounds(four, 6)] == [1, 1, 1, 1]
    assert [len(each) for each in rounds(four[:3], 8)] == [2, 1]
    assert sorted(map(described, (each for some in rounds(four, 8) for each in some))) == sorted(map(described, four))
    assert held_at(1) - held_at(0) == 2


def test_how_far_a_run_has_come() -> None:
    run = Run("a", [observation(0, step=3), observation(1, step=2), observation(0, step=1)])
    assert run.steps == 2
    assert run.whole
    assert Run("a", [], "failed").steps == 0


def test_a_disturbance_has_no_effect_before_it_happens() -> None:
    """All workers are held before step 4 for the first one and before step 6 for the second; then they go back."""
    old = [
        Observation(0, step, "w0", "m0", {}, disturbances=act)
        for step, act in ((3, 0), (4, 1), (5, 1), (6, 2), (5, 2), (6, 2))
    ]
    new = [Observation(1, step, "w9", "m9", {}, disturbances=act) for step, act in ((5, 1), (6, 2), (7, 2))]
    begun = [Disturbance("kill", 0, (0,), step=4), Disturbance("kill", 0, (0,), step=6)]
    late = [Observation(1, step, "w8", "m8", {}, disturbances=2) for step in (4, 5, 6)]
    assert [observation.disturbances for observation in settled([*old, *new, *late], begun)] == [
        0,
        0,
        1,
        1,
        2,
        2,
        1,
        1,
        2,
        2,
        2,
        2,
    ]

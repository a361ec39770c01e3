"""Every way in which a step can be missing or be there twice is found, and what is allowed is not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.verify.chaos.invariants import (
    AppliedStep,
    applied_once,
    ever_vacant,
    machines_lost,
    read_records,
    repeated_by_successors,
    roll_backs,
    same_digests,
    same_values,
    shortened,
)

Event = Mapping[str, Any]
ROLES, STEPS = 2, 6


def exactly_once(
    records: list[AppliedStep], *, lost: Collection[str] = (), back: Collection[int] = (), also: Sequence[Event] = ()
) -> list[str]:
    """The complaints after these losses, roll-backs and other events."""
    events = [{"kind": "lost", "data": {"machine": machine}} for machine in lost]
    events += [{"kind": "decided", "data": {"step": step, "repeated": 1}} for step in back]
    return applied_once(records, [*events, *also], ROLES, STEPS)


def perfect(machine: str = "") -> list[AppliedStep]:
    return [
        AppliedStep(machine or f"m{role}", role, step, {"loss": 1.0 / (1 + step)})
        for role in range(ROLES)
        for step in range(STEPS)
    ]


def test_a_perfect_run() -> None:
    assert exactly_once(perfect()) == []
    assert exactly_once(list(reversed(perfect()))) == []


@given(st.integers(0, ROLES - 1), st.integers(0, STEPS - 1))
def test_each_missing_step_is_found(role: int, step: int) -> None:
    records = [record for record in perfect() if (record.role, record.step) != (role, step)]
    assert exactly_once(records) == [f"role {role} has not applied step {step}"]


@given(st.integers(0, ROLES - 1), st.integers(0, STEPS - 1), st.sampled_from(["m0", "m9"]))
def test_each_repeated_step_is_found(role: int, step: int, machine: str) -> None:
    records = [*perfect(), AppliedStep(machine, role, step)]
    (found,) = exactly_once(records, lost={"m0", "m1", "m9"})
    assert found.startswith(f"role {role} has applied step {step} 2 times, on m{role}, {machine}")


def test_steps_and_roles_that_there_are_not() -> None:
    for stray in (AppliedStep("m0", 0, STEPS), AppliedStep("m0", 0, -1), AppliedStep("m0", ROLES, 0)):
        (found,) = exactly_once([*perfect(), stray])
        assert found == f"role {stray.role} has applied step {stray.step}, which does not exist"


def test_notes_may_be_lost_with_their_machine_only() -> None:
    records = [record for record in perfect() if record.role or record.step not in (2, 3)]
    records = [
        AppliedStep("m9", record.role, record.step) if record.role == 0 and record.step > 3 else record
        for record in records
    ]
    assert exactly_once(records, lost={"m0"}) == []
    assert exactly_once(records, lost={"m9"}) == ["role 0 has not applied step 2"]
    assert exactly_once(records) == ["role 0 has not applied step 2"]


def test_a_gap_at_the_beginning_and_at_the_end() -> None:
    late = [record for record in perfect() if record.role or record.step > 0]
    assert exactly_once(late, lost={"m5"}) == []
    assert exactly_once(late) == ["role 0 has not applied step 0"]
    early = [record for record in perfect() if record.role or record.step < STEPS - 1]
    assert exactly_once(early, lost={"m0"}) == []
    assert exactly_once(early, lost={"m1"}) == [f"role 0 has not applied step {STEPS - 1}"]


def test_a_role_that_was_never_there() -> None:
    found = exactly_once([record for record in perfect() if record.role == 1])
    assert found == ["role 0 has not applied step 0"]


def test_a_roll_back_allows_repeats_from_there_on() -> None:
    again = [record for record in perfect("m7") if record.step >= 3]
    assert exactly_once([*perfect(), *again], back=[3]) == []
    assert len(exactly_once([*perfect(), *again], back=[4])) == ROLES
    assert len(exactly_once([*perfect(), *again, *again], back=[3])) == ROLES * 3
    assert exactly_once([*perfect(), *again, *again], back=[3, 0]) == []


def test_values_are_compared_if_both_runs_have_them() -> None:
    nan = float("nan")
    assert same_values(perfect(), perfect("m9")) == []
    assert same_values([AppliedStep("m0", 0, 99, {"loss": 1.0})], perfect()) == []
    assert same_values([AppliedStep("m0", 0, 0, {"loss": nan})], [AppliedStep("m0", 0, 0, {"loss": nan})]) == []
    (found,) = same_values([AppliedStep("m0", 1, 2, {"loss": 0.5})], [AppliedStep("m0", 1, 2, {"loss": 0.25})])
    assert found.startswith("role 1 logged {'loss': 0.5} in step 2, undisturbed it was")
    assert same_values([AppliedStep("m0", 1, 2, {})], perfect())


def test_digests() -> None:
    assert same_digests({"0": "a", "1": "b"}, {"1": "b", "0": "a"}) == []
    assert same_digests({"0": "a", "10": "b"}, {"0": "x", "2": "b", "10": "b"}) == [
        "the final state of role 0 differs from the undisturbed run's",
        "role 2 has not told its final state",
    ]
    assert same_digests({"1": "b"}, {"0": "a", "1": "b"}, lost={"m0"}) == []
    assert same_digests({"1": "x"}, {"0": "a", "1": "b"}, lost={"m0"}) != []
    assert same_digests({}, {"0": "a"}, lost={"m0"}) == ["role 0 has not told its final state"]


def test_what_agents_write(tmp_path: Path) -> None:
    (tmp_path / "metrics-m0.jsonl").write_text(
        '{"step": 0, "role": 1, "seconds": 0.5, "loss": 2.0}\n{"step": 1, "role": 1, "seconds": 0.5}\n{"step": 2, "ro'
    )
    (tmp_path / "metrics-m1.jsonl").write_text("")
    assert read_records(tmp_path) == [AppliedStep("m0", 1, 0, {"loss": 2.0}), AppliedStep("m0", 1, 1)]


def test_what_the_controller_tells() -> None:
    events = [
        {"kind": "machine", "data": {"machine": "m0"}},
        {"kind": "died", "data": {"machine": "m1", "uid": "w1"}},
        {"kind": "lost", "data": {"machine": "m2"}},
        {"kind": "released", "data": {"machine": "m3"}},
        {"kind": "decided", "data": {"step": 7, "missing": [0]}},
        {"kind": "decided", "data": {"step": 4, "repeated": 3}},
    ]
    assert machines_lost(events) == {"m1", "m2", "m3"}
    assert roll_backs(events) == [4]


@pytest.mark.parametrize("count", range(9))
def test_a_long_list_is_cut(count: int) -> None:
    found = shortened([str(number) for number in range(count)])
    assert len(found) == min(count, 6)
    assert count <= 5 or found[-1] == f"and {count - 5} more"


def test_a_step_that_began_again_after_a_worker_had_applied_it() -> None:
    decided = {"kind": "decided", "data": {"step": 3, "roles": [1]}}
    other = {"kind": "decided", "data": {"step": 4}}
    events = [decided, other, {"kind": "halt", "data": {}}]
    assert repeated_by_successors(events) == {(1, 3): 1}
    assert exactly_once([*perfect(), AppliedStep("m9", 1, 3)], lost={"m9"}, also=events) == []
    for role, step in ((1, 2), (0, 3)):
        assert exactly_once([*perfect(), AppliedStep("m9", role, step)], lost={"m9"}, also=events)
    assert exactly_once([*perfect(), *[AppliedStep("m9", 1, 3)] * 2], lost={"m9"}, also=events)


def test_steps_that_were_made_without_a_role() -> None:
    events: list[Event] = [{"kind": "masked", "data": {"roles": [1], "live": 1}}, {"kind": "halt", "data": {}}]
    assert ever_vacant(events) == {1}
    records = [record for record in perfect() if record.role == 0 or record.step not in (2, 3)]
    assert exactly_once(records, also=events) == []
    assert exactly_once(records) == ["role 1 has not applied step 2"]

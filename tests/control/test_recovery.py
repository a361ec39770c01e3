from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.control.recovery import STRIPES, Holder, Hopeless, settle
from understudy.worker.messages import Halted


def holder(role: int, machine: str, step: int, voted: bool = False) -> Holder:
    return Holder(f"w-{machine}-{role}", machine, role, Halted(1, 1, step, voted, True))


class Ruin:
    """What a failure may leave behind, of a job that keeps to the protocol: whoever has not applied step S-1, which
    somebody else has, has voted for it."""

    def __init__(self, cells: list[int], twins: dict[int, list[int]], holders: list[Holder], step: int) -> None:
        self.cells, self.twins, self.holders, self.step = cells, twins, holders, step

    def __repr__(self) -> str:
        return f"Ruin(cells={self.cells}, twins={self.twins}, holders={self.holders}, step={self.step})"


@st.composite
def ruins(draw: st.DrawFn) -> Ruin:
    machines, nproc = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    roles = machines * nproc
    cells = [role // nproc for role in range(roles)]
    copies = draw(st.sampled_from([n for n in range(1, roles + 1) if roles % n == 0]))
    stride = roles // copies
    twins = {role: [twin for twin in range(roles) if twin % stride == role % stride] for role in range(roles)}
    step = draw(st.integers(1, 9))
    ahead = draw(st.booleans())
    """Whether somebody has applied step - 1 already; else all are in step."""
    holders = []
    for role in range(roles):
        homes = [f"m{cells[role]}"] + ([f"s{cells[role]}"] if draw(st.integers(0, 5)) == 0 else [])
        for home in homes:
            if draw(st.integers(0, 4)) == 0:
                continue
            if ahead and draw(st.booleans()):
                holders.append(holder(role, home, step - 1, voted=True))
            else:
                holders.append(holder(role, home, step, voted=not ahead and draw(st.booleans())))
    return Ruin(cells, twins, holders, step)


@given(ruins())
def test_every_role_has_exactly_one_source_or_it_is_hopeless(ruin: Ruin) -> None:
    by_role = defaultdict(list)
    for each in ruin.holders:
        by_role[each.role].append(each)
    copies = {role: [h for twin in {*ruin.twins[role], role} for h in by_role[twin]] for role in range(len(ruin.cells))}
    try:
        settlement = settle(ruin.holders, ruin.cells, ruin.twins)
    except Hopeless as error:
        assert not all(copies.values())
        assert not ruin.holders or str(error).startswith("role ")  # noqa: PT017
        return
    assert all(copies.values())
    assert settlement.step == max(h.report.step for h in ruin.holders)
    assert {*settlement.kept} | {*settlement.missing} == set(ruin.cells)
    assert not {*settlement.kept} & {*settlement.missing}
    by_uid = {h.uid: h for h in ruin.holders}
    for role, cell in enumerate(ruin.cells):
        if cell in settlement.kept:
            assert role not in settlement.givers
            assert settlement.kept[cell] in {h.machine for h in by_role[role]}
        else:
            assert len(settlement.givers[role]) == len(set(settlement.givers[role])) <= STRIPES
            for giver in (by_uid[uid] for uid in settlement.givers[role]):
                assert giver in copies[role]
                assert giver.role == role or not by_role[role]
    assert len(set(settlement.kept.values())) == len(settlement.kept)
    assert f"step {settlement.step} " in settlement.reason


@given(ruins(), st.data())
def test_a_step_is_only_applied_by_those_who_have_voted_for_it(ruin: Ruin, data: st.DataObject) -> None:
    """Reports that no job that keeps to the protocol makes, too: a source is where the others are, or can get there."""
    holders = [holder(h.role, h.machine, data.draw(st.integers(0, 4)), data.draw(st.booleans())) for h in ruin.holders]
    try:
        settlement = settle(holders, ruin.cells, ruin.twins)
    except Hopeless:
        return
    by_uid = {h.uid: h for h in holders}
    sources = [by_uid[uid] for uids in settlement.givers.values() for uid in uids]
    sources += [
        by_uid[f"w-{settlement.kept[cell]}-{role}"] for role, cell in enumerate(ruin.cells) if cell in settlement.kept
    ]
    for source in sources:
        behind = settlement.step - source.report.step
        assert behind == 0 or (behind == 1 and source.report.voted)


@given(ruins())
def test_it_does_not_depend_on_who_reported_first(ruin: Ruin) -> None:
    results = []
    for holders in (ruin.holders, ruin.holders[::-1]):
        try:
            settlement = settle(holders, ruin.cells, ruin.twins)
            results.append((settlement.step, settlement.kept, settlement.missing, settlement.reason))
        except Hopeless as error:
            results.append(str(error))  # type: ignore[arg-type]
    assert results[0] == results[1]


def test_nobody_is_left() -> None:
    with pytest.raises(Hopeless, match="nobody who is left holds any state"):
        settle([], [0, 1], {})


def test_the_role_that_is_lost_is_named() -> None:
    with pytest.raises(Hopeless, match="role 1: no live replica holds its state"):
        settle([holder(0, "m0", 3)], [0, 1], {0: [0], 1: [1]})


def test_a_twin_that_is_behind_and_has_not_voted_is_no_source() -> None:
    with pytest.raises(Hopeless, match="role 1"):
        settle([holder(0, "m0", 3), holder(2, "m2", 2)], [0, 1, 2], {1: [1, 2], 2: [1, 2]})


def test_machines_that_are_preferred_go_on() -> None:
    holders = [holder(0, "m0", 3), holder(0, "m5", 3)]
    assert settle(holders, [0], {}).kept == {0: "m0"}
    assert settle(holders, [0], {}, prefer=["m5"]).kept == {0: "m5"}


def test_the_work_is_spread_over_the_twins() -> None:
    """Four copies, two machines lost: the two that live each give once."""
    holders = [holder(0, "m0", 3), holder(1, "m1", 3)]
    twins = {role: [0, 1, 2, 3] for role in range(4)}
    settlement = settle(holders, [0, 1, 2, 3], twins)
    assert sorted(settlement.givers.values()) == [("w-m0-0",), ("w-m1-1",)]


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([(3, False), (3, False)], "step 3 begins again"),
        ([(3, True), (3, False)], "step 3 begins again"),
        ([(3, True), (3, True)], "step 3 begins again"),
        ([(4, False), (3, True)], "step 4 is next: somebody has applied step 3"),
    ],
)
def test_the_reason_is_what_happens(steps: list[tuple[int, bool]], says: str) -> None:
    holders = [holder(role, f"m{role}", step, voted) for role, (step, voted) in enumerate(steps)]
    assert settle(holders, [0, 1], {}).reason == says

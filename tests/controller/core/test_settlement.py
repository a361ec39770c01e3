from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.controller.core.settlement import STRIPES, Holder, StateLost, fall_back, settle
from understudy.protocol.messages import Halted


def holder(role: int, machine: str, step: int, voted: bool = False) -> Holder:
    return Holder(f"w-{machine}-{role}", machine, role, Halted(1, 1, step, voted, True))


class Ruin:
    """The reports that a failure may leave in a job that keeps to the protocol: if a worker has applied step S-1, all
    others have voted for it."""

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
    """Whether a worker has applied step - 1 already; else all are in step."""
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
    except StateLost as error:
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
def test_a_step_is_applied_only_by_workers_that_have_voted_for_it(ruin: Ruin, data: st.DataObject) -> None:
    """Reports that no job that keeps to the protocol makes, too: a source is where the others are, or can get there."""
    holders = [holder(h.role, h.machine, data.draw(st.integers(0, 4)), data.draw(st.booleans())) for h in ruin.holders]
    try:
        settlement = settle(holders, ruin.cells, ruin.twins)
    except StateLost:
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
def test_a_settlement_does_not_depend_on_the_order_of_reports(ruin: Ruin) -> None:
    results = []
    for holders in (ruin.holders, ruin.holders[::-1]):
        try:
            settlement = settle(holders, ruin.cells, ruin.twins)
            results.append((settlement.step, settlement.kept, settlement.missing, settlement.reason))
        except StateLost as error:
            results.append(str(error))  # type: ignore[arg-type]
    assert results[0] == results[1]


def test_no_worker_is_left() -> None:
    with pytest.raises(StateLost, match="no worker that is left holds any state"):
        settle([], [0, 1], {})


def test_the_role_that_is_lost_is_named() -> None:
    with pytest.raises(StateLost, match="role 1: no live replica holds its state"):
        settle([holder(0, "m0", 3)], [0, 1], {0: [0], 1: [1]})


def test_a_twin_that_is_behind_and_has_not_voted_is_no_source() -> None:
    with pytest.raises(StateLost, match="role 1"):
        settle([holder(0, "m0", 3), holder(2, "m2", 2)], [0, 1, 2], {1: [1, 2], 2: [1, 2]})


def test_machines_that_are_preferred_go_on() -> None:
    holders = [holder(0, "m0", 3), holder(0, "m5", 3)]
    assert settle(holders, [0], {}).kept == {0: "m0"}
    assert settle(holders, [0], {}, prefer=["m5"]).kept == {0: "m5"}


def test_the_work_is_spread_over_the_twins() -> None:
    """Four copies, two machines lost: both live ones give a part to each joiner, and begin with different joiners."""
    holders = [holder(0, "m0", 3), holder(1, "m1", 3)]
    twins = {role: [0, 1, 2, 3] for role in range(4)}
    settlement = settle(holders, [0, 1, 2, 3], twins)
    assert sorted(settlement.givers.values()) == [("w-m0-0", "w-m1-1"), ("w-m1-1", "w-m0-0")]


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([(3, False), (3, False)], "step 3 begins again"),
        ([(3, True), (3, False)], "step 3 begins again"),
        ([(3, True), (3, True)], "step 3 begins again"),
        ([(4, False), (3, True)], "step 4 is next: step 3 has been applied"),
    ],
)
def test_the_reason_is_what_happens(steps: list[tuple[int, bool]], says: str) -> None:
    holders = [holder(role, f"m{role}", step, voted) for role, (step, voted) in enumerate(steps)]
    assert settle(holders, [0, 1], {}).reason == says


def test_the_givers_are_the_workers_with_the_least_to_give() -> None:
    """Five live replicas and room for four givers: the second joiner begins with the one that has given nothing."""
    holders = [holder(role, f"m{role}", 3) for role in range(5)]
    settlement = settle(holders, range(7), {role: range(7) for role in range(7)})
    first, second = settlement.givers[5], settlement.givers[6]
    assert len(first) == len(second) == STRIPES == 4
    assert {second[0]} == {h.uid for h in holders} - set(first)


@given(ruins())
def test_no_worker_gives_twice_while_a_twin_gives_nothing(ruin: Ruin) -> None:
    """If all roles are twins and each has a machine of its own, loads differ by one at most."""
    roles = len(ruin.cells)
    holders = [holder(h.role, f"m{h.role}", ruin.step) for h in ruin.holders]
    twins = {role: range(roles) for role in range(roles)}
    holders = list({h.uid: h for h in holders}.values())
    if not holders:
        return
    settlement = settle(holders, range(roles), twins)
    loads = dict.fromkeys((h.uid for h in holders), 0)
    for uids in settlement.givers.values():
        for uid in uids:
            loads[uid] += 1
    assert max(loads.values()) - min(loads.values()) <= 1


# -- going back --------------------------------------------------------------------------------------------------------


def keeper(role: int, machine: str, step: int, *kept: tuple[int, int]) -> Holder:
    return Holder(f"w-{machine}-{role}", machine, role, Halted(1, 1, step, False, False, able=True, kept=kept))


@st.composite
def wrecks(draw: st.DrawFn) -> tuple[Ruin, int | None]:
    """Survivors with copies of any roles' states at a few steps, and the latest checkpoint."""
    ruin = draw(ruins())
    roles = len(ruin.cells)
    keys = st.tuples(st.integers(0, roles - 1), st.integers(1, 4))
    generous = draw(st.booleans())
    whole = [(role, step) for role in range(roles) for step in (2, 3)]
    holders = [
        keeper(h.role, h.machine, ruin.step, *draw(st.lists(st.sampled_from(whole) if generous else keys, max_size=12)))
        for h in ruin.holders
    ]
    return Ruin(ruin.cells, ruin.twins, holders, ruin.step), draw(st.none() | st.integers(0, 5))


def complete(ruin: Ruin) -> list[int]:
    """The steps that the survivors have copies of, for every role."""
    kept = {key for h in ruin.holders for key in h.report.kept}
    return [
        step
        for step in sorted({step for _, step in kept})
        if all(any((twin, step) in kept for twin in {role, *ruin.twins[role]}) for role in range(len(ruin.cells)))
    ]


@given(wrecks())
def test_all_go_back_to_the_latest_step_that_is_there_for_every_role(wreck: tuple[Ruin, int | None]) -> None:
    ruin, saved = wreck
    steps = complete(ruin)
    try:
        settlement = fall_back(ruin.holders, ruin.cells, ruin.twins, saved, "role 1 is lost")
    except StateLost as error:
        assert str(error) == "role 1 is lost"  # noqa: PT017
        assert not steps
        assert saved is None
        return
    latest = max(steps, default=-1)
    if saved is not None and saved > latest:
        assert (settlement.back, settlement.step) == ("checkpoint", saved)
        assert settlement.givers == {}
    else:  # memory is faster than a disk
        assert (settlement.back, settlement.step) == ("copy", latest)
    reached = max((h.report.step for h in ruin.holders), default=0)
    assert settlement.repeated == max(0, reached - settlement.step)
    assert settlement.reason.startswith("role 1 is lost: all go back to ")
    assert f" step {settlement.step}" in settlement.reason
    assert {*settlement.kept} | {*settlement.missing} == set(ruin.cells)


@given(wrecks())
def test_a_copy_comes_from_a_live_worker_that_has_it(wreck: tuple[Ruin, int | None]) -> None:
    ruin, _ = wreck
    try:
        settlement = fall_back(ruin.holders, ruin.cells, ruin.twins, None, "lost")
    except StateLost:
        return
    by_uid = {h.uid: h for h in ruin.holders}

    def has(uid: str, role: int) -> bool:
        return any((twin, settlement.step) in by_uid[uid].report.kept for twin in {role, *ruin.twins[role]})

    for role, cell in enumerate(ruin.cells):
        if role in settlement.givers:
            (giver,) = settlement.givers[role]
            assert has(giver, role)
        else:  # from its own memory
            assert has(f"w-{settlement.kept[cell]}-{role}", role)


@pytest.mark.parametrize(
    ("saved", "back", "step", "says"),
    [
        (None, "copy", 4, "the copies of step 4 in memory, 2 steps are made again"),
        (3, "copy", 4, "the copies of step 4 in memory, 2 steps are made again"),
        (4, "copy", 4, "the copies of step 4 in memory, 2 steps are made again"),
        (5, "checkpoint", 5, "the checkpoint of step 5, 1 step is made again"),
        (6, "checkpoint", 6, "the checkpoint of step 6"),
    ],
)
def test_copies_in_memory_come_before_a_checkpoint_that_is_not_newer(
    saved: int | None, back: str, step: int, says: str
) -> None:
    holders = [keeper(0, "m0", 6, (0, 4), (1, 4), (0, 5))]
    settlement = fall_back(holders, [0, 1], {0: [0], 1: [1]}, saved, "role 1 is lost")
    assert (settlement.back, settlement.step) == (back, step)
    assert settlement.reason == f"role 1 is lost: all go back to {says}"
    assert settlement.givers == ({1: ("w-m0-0",)} if back == "copy" else {})
    assert settlement.missing == (1,)


def test_a_worker_with_a_copy_of_its_own_takes_none() -> None:
    holders = [keeper(0, "m0", 6, (0, 4)), keeper(1, "m1", 6, (1, 4), (2, 4))]
    settlement = fall_back(holders, [0, 1, 2], {}, None, "lost")
    assert settlement.kept == {0: "m0", 1: "m1"}
    assert settlement.givers == {2: ("w-m1-1",)}


def test_a_buddy_gives_back_what_a_survivor_has_no_copy_of() -> None:
    holders = [keeper(0, "m0", 6, (0, 4), (1, 4)), keeper(1, "m1", 6)]
    settlement = fall_back(holders, [0, 1], {}, None, "lost")
    assert settlement.missing == ()
    assert settlement.givers == {1: ("w-m0-0",)}

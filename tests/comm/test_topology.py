"""The properties of a roster's links, for machines of every size, groups of every shape and any vacancies."""

from __future__ import annotations

from collections.abc import Iterable
from math import log2
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tests.comm.strategies import rosters, seated
from understudy.comm.topology import Delta, GroupKey, LinkId, control_links, delta, layout
from understudy.protocol.roster import Roster, WorkerAddress


class Case(NamedTuple):
    roster: Roster
    key: GroupKey


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A roster and a group over some of its roles, in any order."""
    roster = draw(rosters())
    roles = list(range(len(roster.seats)))
    shape = draw(st.sampled_from(["all", "stride", "some", "shuffled"]))
    if shape == "stride":
        step = draw(st.integers(1, 5))
        roles = roles[draw(st.integers(0, step - 1)) % len(roles) :: step]
    elif shape != "all":
        chosen = draw(st.sets(st.sampled_from(roles), min_size=1))
        roles = sorted(chosen) if shape == "some" else draw(st.permutations(sorted(chosen)))
    return Case(roster, GroupKey(tuple(roles), draw(st.integers(0, 2))))


def control(roster: Roster) -> frozenset[LinkId]:
    return frozenset().union(*(control_links(roster, uid) for uid in seated(roster)))


def links_needed(roster: Roster, key: GroupKey) -> frozenset[LinkId]:
    return frozenset().union(*(layout(roster, key).links_of(uid) for uid in seated(roster)))


def replaced(roster: Roster, cell: int) -> tuple[Roster, set[str], set[str]]:
    """The roster with one cell on a new machine, with the leavers and the joiners."""
    roles = [role for role, of in enumerate(roster.cells) if of == cell and roster.seats[role] is not None]
    leavers = {uid for role in roles if (uid := roster.seats[role]) is not None}
    joiners = {role: WorkerAddress(f"joiner{role}", "new") for role in roles}
    return roster.successor(joiners), leavers, {worker.uid for worker in joiners.values()}


def touched(change: Delta) -> frozenset[LinkId]:
    return change.opened | change.dropped


def parts(nodes: set[str], links: Iterable[LinkId]) -> list[set[str]]:
    """Connected components."""
    around: dict[str, set[str]] = {node: set() for node in nodes}
    for link in links:
        if link.source in nodes and link.target in nodes:
            around[link.source].add(link.target)
            around[link.target].add(link.source)
    found, left = [], set(nodes)
    while left:
        part, edge = set(), {left.pop()}
        while edge:
            part |= edge
            edge = set().union(*(around[node] for node in edge)) - part
        found.append(part)
        left -= part
    return found


@given(cases(), st.data())
def test_a_replacement_touches_the_machine_only(case: Case, data: st.DataObject) -> None:
    roster, key = case
    cell = data.draw(st.sampled_from(sorted({c for c, uid in zip(roster.cells, roster.seats, strict=True) if uid})))
    after, leavers, joiners = replaced(roster, cell)
    for old, new in ((links_needed(roster, key), links_needed(after, key)), (control(roster), control(after))):
        change = delta(old, new)
        assert all(link.source in leavers or link.target in leavers for link in change.dropped)
        assert all(link.source in joiners or link.target in joiners for link in change.opened)
        assert len(change.dropped) == len(change.opened)


@given(cases(), st.data())
def test_how_much_a_replacement_touches(case: Case, data: st.DataObject) -> None:
    """A ring in and a ring out per rail; a parent and two children, plus at most one child per vacant cell."""
    roster, key = case
    cell = data.draw(st.sampled_from(sorted({c for c, uid in zip(roster.cells, roster.seats, strict=True) if uid})))
    after, leavers, _ = replaced(roster, cell)
    plan = layout(roster, key)
    vacant = len(plan.cells) - len(plan.alive)
    change = delta(links_needed(roster, key), links_needed(after, key))
    assert len(change.dropped) <= 2 * plan.rails + 3 + vacant
    if not plan.vacant:
        assert len(change.dropped) <= 5 * len(leavers)
    world = layout(roster, GroupKey(tuple(range(len(roster.seats)))))
    empty = len(world.cells) - len(world.alive)
    assert len(delta(control(roster), control(after)).dropped) <= len(leavers) - 1 + 3 + empty


@given(cases(), st.data())
def test_the_others_have_nothing_to_do(case: Case, data: st.DataObject) -> None:
    roster, key = case
    cell = data.draw(st.sampled_from(sorted({c for c, uid in zip(roster.cells, roster.seats, strict=True) if uid})))
    after, leavers, joiners = replaced(roster, cell)
    change = touched(delta(links_needed(roster, key), links_needed(after, key)))
    affected = {end for link in change for end in (link.source, link.target)}
    plan, then = layout(roster, key), layout(after, key)
    for uid in seated(roster) - leavers:
        mine = touched(delta(plan.links_of(uid), then.links_of(uid)))
        assert mine == {link for link in change if link.touches(uid)}
        assert bool(mine) == (uid in affected)
        if uid in plan.uids:
            rank = plan.uids.index(uid)
            assert plan.members[plan.cell_of[rank]] == then.members[then.cell_of[rank]]
        alone = touched(delta(control_links(roster, uid), control_links(after, uid)))
        assert all(link.peer(uid) in leavers | joiners for link in alone)


@given(cases())
def test_both_ends_agree(case: Case) -> None:
    roster, key = case
    plan = layout(roster, key)
    members = {uid for uid in plan.uids if uid is not None}
    machine = {worker.uid: worker.machine for worker in roster.workers}
    for link in links_needed(roster, key):
        assert {link.source, link.target} <= members
        assert machine[link.source] != machine[link.target]
        assert link in plan.links_of(link.source)
        assert link in plan.links_of(link.target)
    for uid in members:
        assert all(link.touches(uid) for link in plan.links_of(uid))
    for uid in seated(roster) - members:
        assert plan.links_of(uid) == frozenset()
    for link in control(roster):
        assert link in control_links(roster, link.source)
        assert link in control_links(roster, link.target)


@given(cases())
def test_every_rail_is_one_cycle_over_the_live_cells(case: Case) -> None:
    plan, links = layout(*case), links_needed(*case)
    if len(plan.alive) < 2:
        assert not links
        return
    cell_of = {plan.uid(rank): cell for cell, ranks in enumerate(plan.members) for rank in ranks}
    for rail in range(plan.rails):
        ring = [link for link in links if link.kind == "ring" and link.rail == rail]
        onward = {cell_of[link.source]: cell_of[link.target] for link in ring}
        assert len(onward) == len(ring) == len(plan.alive)
        at, seen = plan.alive[0], []
        for _ in plan.alive:
            seen.append(at)
            at = onward[at]
        assert at == plan.alive[0]
        assert seen == list(plan.alive)


@given(cases())
def test_the_tree_spans_the_live_cells(case: Case) -> None:
    plan = layout(*case)
    leaders = {plan.uid(plan.leader(cell)) for cell in plan.alive}
    tree = [link for link in links_needed(*case) if link.kind == "tree"]
    assert len(tree) == max(0, len(plan.alive) - 1)
    if plan.alive:
        assert parts(leaders, tree) == [leaders]
    for cell in plan.alive:
        depth, above = 0, plan.parents[cell]
        while above is not None:
            depth, above = depth + 1, plan.parents[above]
        assert depth <= log2(len(plan.cells)) + (0 if plan.members[0] else 1)


@given(rosters(), st.data())
def test_every_part_of_the_control_links_hears_of_the_dead(roster: Roster, data: st.DataObject) -> None:
    everyone = seated(roster)
    links = control(roster)
    assert parts(everyone, links) == [everyone]
    assert len(links) == len(everyone) - 1
    dead = data.draw(st.sets(st.sampled_from(sorted(everyone)), min_size=1))
    for part in parts(everyone - dead, links):
        assert any(link.peer(uid) in dead for uid in part for link in links if link.touches(uid))


@given(cases(), st.data())
def test_a_vacancy_is_closed_by_its_neighbours(case: Case, data: st.DataObject) -> None:
    """Emptying a machine joins its former neighbours; filling it again gives the same links as a replacement."""
    roster, key = case
    cell = data.draw(st.sampled_from(sorted({c for c, uid in zip(roster.cells, roster.seats, strict=True) if uid})))
    roles = [role for role, of in enumerate(roster.cells) if of == cell]
    gone = {uid for role in roles if (uid := roster.seats[role]) is not None}
    if gone == seated(roster):
        return
    after = roster.successor(dict.fromkeys(roles))
    change = delta(links_needed(roster, key), links_needed(after, key))
    assert all(link.source in gone or link.target in gone for link in change.dropped)
    beside: dict[tuple[str, int], set[str]] = {}
    for link in change.dropped:
        beside.setdefault((link.kind, link.rail), set()).update({link.source, link.target} - gone)
    for link in change.opened:
        assert {link.source, link.target} <= beside[link.kind, link.rail]
    refill, _, joiners = replaced(roster, cell)
    again = after.successor({role: refill.worker_of(role) for role in roles})
    assert links_needed(again, key) == links_needed(refill, key)
    reopened = delta(links_needed(after, key), links_needed(again, key))
    assert all(link.source in joiners or link.target in joiners for link in reopened.opened)


@given(cases(), st.data())
def test_one_vacant_role_of_a_machine(case: Case, data: st.DataObject) -> None:
    roster, key = case
    role = data.draw(st.sampled_from([role for role, uid in enumerate(roster.seats) if uid is not None]))
    mates = [other for other, of in enumerate(roster.cells) if of == roster.cells[role]]
    near = {uid for mate in mates if (uid := roster.seats[mate]) is not None}
    if near == {roster.seats[role]}:
        return
    after = roster.successor({role: None})
    for old, new in ((links_needed(roster, key), links_needed(after, key)), (control(roster), control(after))):
        change = touched(delta(old, new))
        plan = layout(after, key)
        empties = not any(plan.cell_of.get(plan.rank_of.get(mate, -1)) in plan.alive for mate in mates)
        if not empties:
            assert all(link.source in near or link.target in near for link in change)


@given(cases())
def test_only_roles_matter(case: Case) -> None:
    """Other workers on other machines in the same seats have the same links, under their own names."""
    roster, key = case
    renamed = {worker.uid: f"x{number}" for number, worker in enumerate(reversed(roster.workers))}
    other = Roster(
        roster.generation + 5,
        tuple(None if uid is None else renamed[uid] for uid in roster.seats),
        tuple(WorkerAddress(renamed[worker.uid], f"other {worker.machine}", "h", 9) for worker in roster.workers),
        roster.cells,
        roster.since,
        fresh=True,
    )

    def rename(links: Iterable[LinkId]) -> set[LinkId]:
        return {link._replace(source=renamed[link.source], target=renamed[link.target]) for link in links}

    assert rename(links_needed(roster, key)) == links_needed(other, key)
    assert rename(control(roster)) == control(other)
    for cell in layout(roster, key).alive:
        assert renamed[layout(roster, key).provider(cell)] == layout(other, key).provider(cell)


@given(cases(), st.data())
def test_the_provider_of_an_arena_already_has_it(case: Case, data: st.DataObject) -> None:
    """After any number of changes the provider is a stayer if the cell has one."""
    roster, key = case
    for number in range(data.draw(st.integers(1, 4))):
        changes: dict[int, WorkerAddress | None] = {}
        for role in data.draw(st.sets(st.sampled_from(range(len(roster.seats))))):
            fill = data.draw(st.booleans())
            mates = [roster.worker_of(other) for other, of in enumerate(roster.cells) if of == roster.cells[role]]
            machine = next((mate.machine for mate in mates if mate is not None), f"m{roster.cells[role]}")
            changes[role] = WorkerAddress(f"late{number}-{role}", machine) if fill else None
        if len([uid for role, uid in enumerate(roster.seats) if uid and role not in changes]) == 0:
            continue
        old, roster = roster, roster.successor(changes)
        plan = layout(roster, key)
        for cell in plan.alive:
            here = [plan.uid(rank) for rank in plan.members[cell]]
            stayers = [uid for uid in here if old.role_of(uid) is not None]
            assert plan.provider(cell) in (stayers or here)


@given(st.lists(cases(), min_size=2, max_size=6))
def test_names_tell_groups_apart(several: list[Case]) -> None:
    keys = {case.key for case in several}
    assert len({str(key) for key in keys}) == len(keys)
    assert all(len(str(key)) < 80 for key in keys)


def test_names() -> None:
    assert str(GroupKey((0, 1, 2, 3))) == "g0[0-3]"
    assert str(GroupKey((0, 2, 5), 1)) == "g1[0,2,5]"
    assert str(GroupKey((1, 0))) == "g0[1,0]"
    assert str(GroupKey((4,))) == "g0[4-4]"
    assert str(GroupKey(tuple(range(0, 40, 2)))).startswith("g0[0..38:")


def test_one_and_two_machines() -> None:
    workers = [WorkerAddress("a", "m0"), WorkerAddress("b", "m1")]
    key = GroupKey((0, 1))
    assert links_needed(Roster.of(1, [(0, "a")], workers), GroupKey((0,))) == frozenset()
    links = links_needed(Roster.of(1, [(0, "a"), (1, "b")], workers), key)
    assert links == {
        LinkId("ring", "g0[0-1]", 0, "a", "b"),
        LinkId("ring", "g0[0-1]", 0, "b", "a"),
        LinkId("tree", "g0[0-1]", 0, "a", "b"),
    }

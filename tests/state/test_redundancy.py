"""Which roles can give one another their state, by the units that they tell: the pure comparison."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from understudy.state.inventory import digest, take_inventory
from understudy.state.redundancy import OWN_BYTES, Comparison, RoleUnits, compare, differences
from understudy.state.units import Unit, layout_of, merged, pack, units_of, unpack


def role(*digests: int, loose: tuple[int, ...] = (), sizes: tuple[int, ...] = (), expected: int = 2) -> RoleUnits:
    return RoleUnits(7, tuple(range(expected)), digests, sizes or (8,) * len(digests), loose)


def test_equal_roles_are_twins() -> None:
    assert compare({0: role(1, 2), 1: role(1, 2)}) == Comparison({0: (0, 1), 1: (0, 1)}, {0: (), 1: ()})


def test_a_small_loose_unit_does_not_take_the_redundancy_of_the_others() -> None:
    found = compare({0: role(1, 2, loose=(1,)), 1: role(1, 3, loose=(1,))})
    assert found == Comparison({0: (0, 1), 1: (0, 1)}, {0: (1,), 1: (1,)})


def test_parameters_that_differ_part_twins() -> None:
    assert compare({0: role(1, 2), 1: role(1, 3)}).twins == {0: (0,), 1: (1,)}


def test_a_loose_unit_that_is_too_large_parts_twins() -> None:
    sizes = (8, OWN_BYTES + 1)
    found = compare({n: role(1, n, loose=(1,), sizes=sizes) for n in range(2)})
    assert found == Comparison({0: (0,), 1: (1,)}, {0: (), 1: ()})


def test_what_only_one_role_changes_leaves_the_others_twins() -> None:
    found = compare({0: role(1, 5), 1: role(1, 2), 2: role(1, 2)})
    assert found.twins == {0: (0,), 1: (1, 2), 2: (1, 2)}


def test_roles_with_other_objects_are_never_twins() -> None:
    other = RoleUnits(8, (0, 1), (1, 2), (8, 8), ())
    assert compare({0: role(1, 2), 1: other}).twins == {0: (0,), 1: (1,)}


TABLES = st.integers(1, 4).flatmap(
    lambda units: st.tuples(
        st.sets(st.integers(0, units - 1)),
        st.lists(st.lists(st.integers(0, 2), min_size=units, max_size=units), min_size=1, max_size=6),
        st.lists(st.sampled_from([1, OWN_BYTES // 2, OWN_BYTES * 2]), min_size=units, max_size=units),
    )
)


@given(TABLES)
def test_twins_share_everything_but_what_they_tell(table: tuple[set[int], list[list[int]], list[int]]) -> None:
    loose, contents, sizes = table
    roles = {n: RoleUnits(1, (), tuple(each), tuple(sizes), tuple(sorted(loose))) for n, each in enumerate(contents)}
    found = compare(roles)
    for me, twins in found.twins.items():
        assert me in twins
        assert set(found.own[me]) <= loose
        assert sum(sizes[number] for number in found.own[me]) <= OWN_BYTES
        for twin in twins:
            assert found.twins[twin] == twins
            assert found.own[twin] == found.own[me]
            differing = {n for n in range(len(sizes)) if contents[me][n] != contents[twin][n]}
            assert differing <= set(found.own[me])
    strangers = [(a, b) for a in roles for b in roles if b not in found.twins[a]]
    for one, other in strangers:
        differing = {n for n in range(len(sizes)) if contents[one][n] != contents[other][n]}
        assert differing - loose or sum(sizes[number] for number in differing) > 1


def test_a_difference_is_named_with_the_roles_that_differ() -> None:
    roles: Mapping[int, RoleUnits] = {0: role(1, 5, expected=3), 1: role(1, 2, expected=3), 2: role(1, 2, expected=3)}
    (found,) = differences(0, roles, ["model", "ema"])
    assert (found.item, found.roles, found.bytes, found.exchanged) == ("ema", ((0,), (1, 2)), 8, False)


# -- units -------------------------------------------------------------------------------------------------------------


class Counter:
    def __init__(self, number: int) -> None:
        self.number = number

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


def tracked(number: int, mean: float) -> dict[str, object]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].running_mean.fill_(mean)  # type: ignore[operator]
    optim = torch.optim.AdamW(model.parameters())
    model(torch.ones(3, 2)).sum().backward()
    model[1].running_mean.fill_(mean)  # type: ignore[operator]
    optim.step()
    return {"model": model, "optim": optim, "counter": Counter(number)}


def test_buffers_and_objects_are_loose_and_parameters_are_not() -> None:
    units = units_of(take_inventory(tracked(1, 0.5)))
    loose = {unit.name for unit in units if unit.loose}
    assert {"counter", "model.1.running_mean", "model.1.num_batches_tracked"} <= loose
    assert {unit.item for unit in units} == {"model", "optim", "counter"}
    assert not any(unit.loose for unit in units if unit.item == "optim" or unit.name.endswith("weight"))


def test_only_the_units_that_differ_have_other_digests() -> None:
    mine, other = units_of(take_inventory(tracked(1, 0.5))), units_of(take_inventory(tracked(2, 0.7)))
    assert layout_of(mine) == layout_of(other)
    differing = {a.name for a, b in zip(mine, other, strict=True) if a.digest != b.digest}
    assert differing == {"counter", "model.1.running_mean"}


def test_a_twin_gives_its_own_state_with_the_loose_units_of_the_other_role() -> None:
    lost, giver = take_inventory(tracked(1, 0.5)), take_inventory(tracked(2, 0.7))
    keys = [("counter", False), ("model.1.running_mean", True)]
    given_state = unpack(giver, pack(lost, keys))
    assert digest(given_state) == digest(lost)
    assert digest(giver) != digest(lost)


@pytest.mark.parametrize("parts", [1, 3])
def test_merged_units_are_one_for_each_object(parts: int) -> None:
    units = [Unit("model", f"model.{n}", True, False, 4, n) for n in range(parts)] + [Unit("x", "x", False, True, 2, 9)]
    found = merged(units)
    assert [(unit.item, unit.bytes, unit.loose) for unit in found] == [("model", 4 * parts, False), ("x", 2, True)]

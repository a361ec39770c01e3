from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.protocol.mesh import (
    Mesh,
    MeshError,
    alike,
    check_mesh,
    coordinates,
    counterpart,
    describe,
    dimensions,
    first_replicas,
    parse_mesh,
    primary_of,
    replica_of,
    roles_of,
)

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
meshes = st.lists(st.tuples(names, st.integers(1, 5)), min_size=1, max_size=4, unique_by=lambda d: d[0]).map(tuple)


@given(meshes, st.sampled_from(["", " ", "  "]))
def test_a_mesh_is_read_back_as_it_was_written(mesh: Mesh, gap: str) -> None:
    text = ",".join(f"{gap}{name}{gap}={gap}{size}{gap}" for name, size in mesh)
    assert parse_mesh(text) == mesh
    assert dimensions(mesh) == ([name for name, _ in mesh], [size for _, size in mesh])


@given(meshes)
def test_roles_walk_the_mesh_with_the_last_dimension_fastest(mesh: Mesh) -> None:
    walked = [coordinates(mesh, role) for role in range(roles_of(mesh))]
    sizes = [range(size) for _, size in mesh]
    assert walked == [dict(zip((name for name, _ in mesh), places, strict=True)) for places in product(*sizes)]
    assert all(list(places) == [name for name, _ in mesh] for places in walked)


@given(meshes, st.integers(1, 12), st.integers(1, 12))
def test_a_mesh_fits_exactly_if_the_numbers_agree(mesh: Mesh, machines: int, nproc: int) -> None:
    if roles_of(mesh) == machines * nproc:
        check_mesh(mesh, machines, nproc)
    else:
        with pytest.raises(MeshError) as raised:
            check_mesh(mesh, machines, nproc)
        text = str(raised.value)
        assert str(roles_of(mesh)) in text
        assert str(machines * nproc) in text
        assert "--mesh" in text


@given(st.text(max_size=20))
def test_any_text_is_a_mesh_or_a_mistake_that_is_shown(text: str) -> None:
    try:
        mesh = parse_mesh(text)
    except MeshError as error:
        assert str(error).startswith(f"mesh {text!r}: ")  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert roles_of(mesh) >= 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is not of the form name=size"),
        ("dp", "'dp' is not of the form name=size"),
        ("dp=", "'dp=' is not of the form"),
        ("dp=2,", "'' is not of the form"),
        ("dp=-1", "'dp=-1' is not of the form"),
        ("dp=2.0", "'dp=2.0' is not of the form"),
        ("2=dp", "'2=dp' is not of the form"),
        ("dp=0", "dp must be at least 1"),
        ("dp=2,tp=2,dp=2", "dp is there twice"),
    ],
)
def test_what_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(MeshError, match=f"^mesh {text!r}: ") as raised:
        parse_mesh(text)
    assert says in str(raised.value)


def test_roles_that_differ_only_in_the_given_axes_are_alike() -> None:
    mesh = (("pp", 2), ("dp", 2), ("tp", 2))
    assert alike(mesh, 5, ["dp"]) == (5, 7)
    assert alike(mesh, 5, ["dp", "tp"]) == (4, 5, 6, 7)
    assert alike(mesh, 5, []) == (5,)
    assert alike((("pp", 2), ("dp", 1)), 1, ["dp"]) == (1,)


def test_a_role_is_described_by_its_places() -> None:
    assert describe((("pp", 2), ("dp", 2), ("tp", 2)), 5) == "role 5 (pp=1 dp=0 tp=1)"


@pytest.mark.parametrize(
    ("group", "role", "other", "found"),
    [
        ((0, 1, 2, 3, 4, 5, 6, 7), 1, 3, (0, 1, 2, 3, 4, 5, 6, 7)),  # all roles
        ((1,), 1, 3, (3,)),
        ((1, 5), 1, 3, (3, 7)),  # along pp
        ((1, 3), 1, 3, (1, 3)),  # along dp, in which they differ
        ((0, 1), 1, 3, (2, 3)),  # along tp
        ((0, 2, 4, 6), 0, 2, (0, 2, 4, 6)),  # pp and dp
        ((0, 3), 0, 2, None),  # no dimension
        ((0, 1, 2), 0, 2, None),  # not all along it
        ((5, 1), 1, 3, None),  # another order
    ],
)
def test_the_group_of_another_role(
    group: tuple[int, ...], role: int, other: int, found: tuple[int, ...] | None
) -> None:
    assert counterpart(parse_mesh("pp=2,dp=2,tp=2"), group, role, other) == found


@pytest.mark.parametrize(
    ("mesh", "nproc", "found"),
    [
        ("dp=4", 1, {1: (0,), 2: (0, 1), 3: (0, 1, 2), 4: (0, 1, 2, 3)}),
        ("dp=4", 2, {1: (0,), 2: (0, 1)}),
        ("dp=2,pp=2", 1, {2: (0, 1), 4: (0, 1, 2, 3)}),
        ("pp=2,dp=2", 1, {2: (0, 2), 4: (0, 1, 2, 3)}),
        ("pp=2,dp=2", 2, {2: (0, 1)}),
        ("dp_replicate=2,shard=2", 2, {1: (0,), 2: (0, 1)}),
    ],
)
def test_machines_of_the_first_replicas(mesh: str, nproc: int, found: dict[int, tuple[int, ...]]) -> None:
    assert first_replicas(parse_mesh(mesh), nproc) == found


@given(meshes, st.integers(1, 3))
def test_the_first_replicas_are_whole(mesh: Mesh, nproc: int) -> None:
    mesh = (*mesh, ("dp_x", nproc))
    for cells in first_replicas(mesh, nproc).values():
        numbers = {replica_of(mesh, role)[1] for cell in cells for role in range(cell * nproc, (cell + 1) * nproc)}
        assert numbers == set(range(len(numbers)))
        assert len(cells) * nproc * replica_of(mesh, 0)[0] == len(numbers) * roles_of(mesh)


@pytest.mark.parametrize(
    ("mesh", "vacant", "primary"),
    [
        ("dp=4", (), 0),
        ("dp=4", (0, 1), 2),
        ("dp=2,tp=2", (), 0),
        ("pp=2,dp=2", (), 2),  # the last stage has the loss
        ("pp=2,dp=2", (0, 2), 3),
        ("dp=2,pp=3", (), 2),
        ("dp=2,pp=3", (0, 1, 2), 5),
        ("pp=1,dp=2", (), 0),
        ("dp=2", (0, 1), None),
    ],
)
def test_the_primary_role_is_the_first_that_has_the_loss(mesh: str, vacant: tuple[int, ...], primary: int) -> None:
    parsed = parse_mesh(mesh)
    seats = [None if role in vacant else f"w{role}" for role in range(roles_of(parsed))]
    assert primary_of(parsed, seats) == primary

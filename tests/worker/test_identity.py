"""A joiner may take any twin of its role as long as its script has not asked for its rank."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from understudy.comm.group import install, renamed, uninstall
from understudy.comm.network import NetworkFabric
from understudy.comm.sandbox import Echo
from understudy.protocol.mesh import Mesh, parse_mesh
from understudy.worker.identity import Identity, Places, watch_environment

MESH = parse_mesh("pp=2,dp=2")
ROLE, TWIN = 2, 3
"""pp=1, and both places along dp."""


class Joiner:
    """A worker that rehearses a role, and what its script has asked."""

    def __init__(self, mesh: Mesh, role: int) -> None:
        self.fabric = NetworkFabric("w9", "m9", job="test", secret=b"secret")
        self.identity = Identity(mesh)
        self.fabric.assume(role, Echo())
        install(self.fabric, 4)
        self.identity.begin()
        self.mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        for endpoint in self.fabric.endpoints():
            endpoint.asked = self.identity.told_rank

    def others(self) -> tuple[int, ...]:
        return self.identity.others(self.fabric, ROLE, (ROLE, TWIN))


@pytest.fixture
def joiner() -> Iterator[Joiner]:
    found = Joiner(MESH, ROLE)
    yield found
    uninstall()
    found.fabric.close()


def test_a_script_that_has_not_asked_may_be_any_twin(joiner: Joiner) -> None:
    assert joiner.others() == (TWIN,)


def test_the_groups_of_a_joiner_become_those_of_the_other_role(joiner: Joiner) -> None:
    groups = joiner.identity.groups(joiner.fabric, ROLE, TWIN)
    assert groups is not None
    pp, dp = joiner.mesh["pp"].get_group(), joiner.mesh["dp"].get_group()
    assert (dist.get_process_group_ranks(pp), dist.get_process_group_ranks(dp)) == ([0, 2], [2, 3])
    joiner.fabric.become(TWIN, groups)
    renamed()
    assert joiner.fabric.role == dist.get_rank() == TWIN
    assert (dist.get_process_group_ranks(pp), dist.get_process_group_ranks(dp)) == ([1, 3], [2, 3])
    assert (dist.get_rank(pp), dist.get_rank(dp)) == (1, 1)
    assert dist.get_global_rank(pp, 0) == 1
    assert {endpoint.name for endpoint in joiner.fabric.endpoints()} == {"g0[0-3]", "g0[1,3]", "g0[2-3]"}


@pytest.mark.parametrize(
    ("asks", "others"),
    [
        (lambda new: dist.get_rank(), ()),
        (lambda new: new.mesh.get_rank(), ()),
        (lambda new: new.mesh["dp"].get_local_rank(), ()),
        (lambda new: dist.get_rank(new.mesh["dp"].get_group()), ()),
        (lambda new: new.mesh["pp"].get_local_rank(), (TWIN,)),  # its twins have the same
        (lambda new: dist.get_world_size(), (TWIN,)),
        (lambda new: dist.all_reduce(__import__("torch").ones(1)), (TWIN,)),
        (lambda new: Places(MESH, ROLE, new.identity)["dp"], ()),
        (lambda new: Places(MESH, ROLE, new.identity)["pp"], (TWIN,)),
        (lambda new: dict(Places(MESH, ROLE, new.identity)), ()),
        (lambda new: repr(Places(MESH, ROLE, new.identity)), ()),
        (lambda new: new.identity.told(), ()),
    ],
)
def test_what_it_asks(joiner: Joiner, asks: Callable[[Joiner], object], others: tuple[int, ...]) -> None:
    asks(joiner)
    assert joiner.others() == others


def test_what_it_asks_within_a_step_does_not_count(joiner: Joiner) -> None:
    joiner.identity.watching = False
    dist.get_rank()
    joiner.identity.told()
    assert joiner.others() == (TWIN,)


def test_a_group_that_follows_no_dimension_ties_it_to_its_role(joiner: Joiner) -> None:
    dist.new_group([0, 2, 3])
    assert joiner.others() == ()


def test_the_identity_is_open_again_when_the_training_function_begins(joiner: Joiner) -> None:
    dist.get_rank()
    joiner.identity.begin()
    assert joiner.others() == (TWIN,)


@pytest.mark.parametrize(("name", "others"), [("RANK", ()), ("WORLD_SIZE", (TWIN,))])
def test_the_environment_tells(
    joiner: Joiner, monkeypatch: pytest.MonkeyPatch, name: str, others: tuple[int, ...]
) -> None:
    monkeypatch.setenv(name, "3")
    kind = type(os.environ)
    try:
        watch_environment(joiner.identity)
        assert (os.environ[name], os.environ.get(name)) == ("3", "3")
        assert joiner.others() == others
    finally:
        os.environ.__class__ = kind


def test_a_library_that_looks_through_the_environment_has_not_asked(
    joiner: Joiner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    code = "found = {name: value for name, value in os.environ.items()}"
    kind = type(os.environ)
    try:
        watch_environment(joiner.identity)
        exec(compile(code, "/x/site-packages/library.py", "exec"), {"os": os})
        assert joiner.others() == (TWIN,)
        exec(compile("found = os.environ['RANK']", "/x/site-packages/library.py", "exec"), {"os": os})
        assert joiner.others() == ()
        joiner.identity.begin()
        exec(compile(code, "/home/user/script.py", "exec"), {"os": os})
        assert joiner.others() == ()
    finally:
        os.environ.__class__ = kind


def test_a_way_to_ask_that_cannot_be_seen_is_found_in_the_code(joiner: Joiner, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("users")
    module.__file__ = "/home/user/users.py"
    exec("def where(mesh):\n    return [part for part in (mesh.get_coordinate(),)]\n", vars(module))
    monkeypatch.setitem(sys.modules, "users", module)
    assert joiner.others() == ()


def test_objects_of_a_script_that_raise_when_asked_for_attributes_do_no_harm(
    joiner: Joiner, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("users")
    module.__file__ = "/home/user/users.py"
    exec("from torch import classes\nops = classes.ops\n", vars(module))
    monkeypatch.setitem(sys.modules, "users", module)
    assert joiner.others() != ()


def test_what_is_asked_before_the_training_function_is_entered_fixes_the_process(joiner: Joiner) -> None:
    joiner.identity.inside = True
    joiner.identity.told()
    assert joiner.identity.closed
    assert not joiner.identity.fixed  # it asks again when it is entered again
    joiner.identity.inside = False
    joiner.identity.begin()
    dist.get_rank()
    assert joiner.identity.fixed

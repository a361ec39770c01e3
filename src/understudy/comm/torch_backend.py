"""Installing a fabric as the backend of `torch.distributed`."""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from .group import RoleGroup
from .network import NetworkFabric

BACKEND = "understudy"
_fabric: NetworkFabric | None = None


def _create(options: Any, _: Any) -> RoleGroup:
    if _fabric is None:
        raise RuntimeError("no fabric is installed; call understudy's install(fabric) before init_process_group")
    roles = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    return RoleGroup(_fabric.group(roles), _fabric.forget, _fabric.devices)


def install(fabric: NetworkFabric, roles: int) -> None:
    """Make `fabric` the default process group of this process, over this many roles."""
    global _fabric
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=list(fabric.devices))
    if fabric.role is None:
        raise RuntimeError(f"{fabric.uid} has no role yet; switch to a roster or assume a role first")
    _fabric = fabric
    dist.init_process_group(BACKEND, store=HashStore(), rank=fabric.role, world_size=roles)


def renamed() -> None:
    """Tell torch the members of its groups after the fabric has changed its role."""
    for group in dist.distributed_c10d._world.pg_group_ranks:
        if isinstance(group, RoleGroup):
            members = group.endpoint.key.roles
            dist.distributed_c10d._world.pg_group_ranks[group] = {role: rank for rank, role in enumerate(members)}


def uninstall() -> None:
    """Destroy the process group. The fabric itself stays as it is."""
    global _fabric
    if dist.is_initialized():
        dist.destroy_process_group()
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import _redistribute, debug

        debug._clear_sharding_prop_cache()  # it knows groups by their names, and they are used again
        _redistribute._gen_transform_infos.cache_clear()
    _fabric = None

"""Calls that begin and end the default process group, as scripts for torchrun make them.

The runtime has made the group: these calls accept it as it is, or raise an error that says what does not fit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist

from understudy.comm.group import RoleGroup
from understudy.comm.network import NetworkFabric

log = logging.getLogger("understudy.worker")

_DEVICE_OF = {"gloo": "cpu", "nccl": "cuda"}
"""Backends of torch that the group can stand for, and the devices whose tensors they move."""
_ANY = ("", "undefined", "understudy")
_KNOWN = {"backend", "world_size", "rank", "device_id", "timeout", "group_name"}
"""Arguments of init_process_group that are checked or used, or that torch itself ignores."""
_USELESS = {
    "init_method": "the workers know one another already",
    "store": "the workers know one another already",
}


class GivenGroup:
    """The default process group of this process, which a script may ask for and may not end."""

    def __init__(self) -> None:
        self._fabric: NetworkFabric | None = None
        self._roles = 0
        self._hinted = False

    def stand(self, fabric: NetworkFabric, roles: int) -> None:
        """Answer the script's calls from now on."""
        self._fabric, self._roles = fabric, roles
        for module in (dist, dist.distributed_c10d):
            for name, answer in (("init_process_group", self._begin), ("destroy_process_group", self._end)):
                real = getattr(module, name)
                if not hasattr(real, "given"):
                    setattr(module, name, _instead(real, answer))

    def fall(self) -> None:
        """Leave the calls to torch from now on."""
        self._fabric = None

    def _begin(self, given: dict[str, Any]) -> bool:
        """Accept a call of init_process_group. Raises ValueError if the group is not the one that is asked for."""
        fabric = self._fabric
        if fabric is None:
            return False
        self._check_backend(str(given.get("backend") or ""), fabric)
        self._check_device(given.get("device_id"), fabric)
        for name, asked, actual in (
            ("rank", given.get("rank"), fabric.role),
            ("world_size", given.get("world_size"), self._roles),
        ):
            if asked not in (None, -1, actual):
                raise ValueError(
                    f"init_process_group({name}={asked}): the {name} of this process is {actual}, since it has role "
                    f"{fabric.role} of {self._roles}; leave {name} out, or read it from os.environ"
                )
        unused = {name: value for name, value in given.items() if name not in _KNOWN and value is not None}
        if (timeout := given.get("timeout")) is not None:
            group = dist.group.WORLD
            assert isinstance(group, RoleGroup)
            group.set_timeout(timeout)
        self._hint("init_process_group", unused)
        return True

    def _check_backend(self, backend: str, fabric: NetworkFabric) -> None:
        """`backend` may name one for each device, such as "cpu:gloo,cuda:nccl"."""
        backend = backend.lower()
        names = [part.rpartition(":")[2] for part in backend.split(",")]
        if backend not in _ANY and not any(_DEVICE_OF.get(name) in fabric.devices for name in names):
            raise ValueError(
                f'init_process_group("{backend}"): the workers of this job exchange tensors in {_memory(fabric)}; '
                "write init_process_group(), which takes the group that is there"
            )

    def _check_device(self, device: Any, fabric: NetworkFabric) -> None:
        if device is None:
            return
        found = torch.device("cuda" if isinstance(device, int) else device)
        if found.type not in fabric.devices:
            raise ValueError(
                f"init_process_group(device_id={device!r}): the workers of this job exchange tensors in "
                f"{_memory(fabric)}; leave device_id out, and take job.device"
            )

    def _end(self, given: dict[str, Any]) -> bool:
        if self._fabric is None or given.get("group") not in (None, dist.group.WORLD):
            return False
        self._hint("destroy_process_group", {})
        return True

    def _hint(self, call: str, unused: dict[str, Any]) -> None:
        """Say once, on one role, that the call is not needed, and always which arguments have no effect."""
        fabric = self._fabric
        assert fabric is not None
        if fabric.role != 0 or not fabric.generation:
            return
        if not self._hinted:
            log.warning("%s is not needed: the runtime begins and ends the process group", call)
            self._hinted = True
        for name, value in unused.items():
            why = _USELESS.get(name, "the process group is there already")
            log.warning("init_process_group(%s=%s) has no effect: %s", name, value, why)


def _memory(fabric: NetworkFabric) -> str:
    return f"{' and '.join(fabric.devices)} memory"


def _instead(real: Callable[..., Any], answer: Callable[[dict[str, Any]], bool]) -> Any:
    """torch's function, which is called unless `answer` takes the call."""
    parameters = signature(real)

    @wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        return None if answer(parameters.bind(*args, **kwargs).arguments) else real(*args, **kwargs)

    call.given = True  # type: ignore[attr-defined]
    return call


GIVEN = GivenGroup()
"""A process has one default process group."""

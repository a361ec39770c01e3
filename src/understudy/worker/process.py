"""The process that a runtime lives in, as an interface: the simulation has several runtimes in one process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from understudy.comm.endpoint import Endpoint
from understudy.comm.group import RoleGroup, install, renamed, uninstall
from understudy.comm.network import NetworkFabric
from understudy.comm.objects import answer_objects
from understudy.device.cpu import HOST

from .torchrun import GIVEN

_NOTHING = 1 << 40
"""The size of what a vacant role tells: greater than any other."""
_FILL = 255
"""A byte that is never less than another role's."""


class TrainingProcess(Protocol):
    """The process that a runtime lives in: its default process group and what scripts read of it."""

    @property
    def pid(self) -> int: ...

    @property
    def waits_known(self) -> bool:
        """Whether the time that operations block is measured on this process's devices."""

    def group(self, roles: Sequence[int], *, recorded: bool = True) -> RoleGroup:
        """A process group over these roles."""

    def install(self, roles: int) -> Endpoint:
        """Make the fabric the default process group, over this many roles. Returns the endpoint of the votes."""

    def least(self, numbers: list[int]) -> list[int]:
        """The minimum over all roles, number by number. Undefined if the fabric is poisoned meanwhile."""

    def gather(self, data: bytes) -> list[bytes]:
        """The data of all roles, by role; empty for vacant ones. Undefined if the fabric is poisoned meanwhile."""

    def uninstall(self) -> None: ...

    def role_changed(self) -> None:
        """The fabric has changed to another role before its first generation."""

    def announce(self, role: int, machine: int) -> None:
        """Set the environment variables by which scripts and libraries learn their rank, and the number of
        their machine."""


class TorchProcess:
    """This process, with torch.distributed over a fabric."""

    def __init__(self, fabric: NetworkFabric) -> None:
        self._fabric = fabric
        self._votes: RoleGroup | None = None

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def waits_known(self) -> bool:
        return self._fabric.devices == (HOST.name,)

    def group(self, roles: Sequence[int], *, recorded: bool = True) -> RoleGroup:
        return RoleGroup(self._fabric.group(roles, recorded=recorded))

    def install(self, roles: int) -> Endpoint:
        self._votes = self.group(range(roles))
        install(self._fabric, roles)
        answer_objects()
        GIVEN.stand(self._fabric, roles)
        return self._votes.endpoint

    def least(self, numbers: list[int]) -> list[int]:
        assert self._votes is not None
        tensor = torch.tensor(numbers)
        self._reduce_least(tensor)
        return [int(number) for number in tensor.tolist()]

    def _reduce_least(self, tensor: torch.Tensor) -> None:
        assert self._votes is not None
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MIN)
        options.asyncOp = False
        self._votes.allreduce([tensor], options).wait()

    def gather(self, data: bytes) -> list[bytes]:
        assert self._votes is not None
        roles, me = self._votes.size(), self._votes.rank()
        sizes = self.least([len(data) if role == me else _NOTHING for role in range(roles)])
        if self._fabric.fault is not None:
            return []
        sizes = [0 if size == _NOTHING else size for size in sizes]
        room = torch.full((sum(sizes),), _FILL, dtype=torch.uint8)
        parts = room.split(sizes)
        if data:
            parts[me].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        self._reduce_least(room)
        return [part.numpy().tobytes() for part in parts]

    def uninstall(self) -> None:
        self._votes = None
        GIVEN.fall()
        uninstall()

    def role_changed(self) -> None:
        renamed()

    def announce(self, role: int, machine: int) -> None:
        os.environ["RANK"], os.environ["GROUP_RANK"] = str(role), str(machine)

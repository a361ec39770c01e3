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
from understudy.device.cpu import HOST


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

    def uninstall(self) -> None: ...

    def role_changed(self) -> None:
        """The fabric has changed to another role before its first generation."""

    def announce(self, role: int) -> None:
        """Set the environment variables by which scripts and libraries learn their rank."""


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
        return self._votes.endpoint

    def least(self, numbers: list[int]) -> list[int]:
        assert self._votes is not None
        tensor = torch.tensor(numbers)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MIN)
        options.asyncOp = False
        self._votes.allreduce([tensor], options).wait()
        return [int(number) for number in tensor.tolist()]

    def uninstall(self) -> None:
        self._votes = None
        uninstall()

    def role_changed(self) -> None:
        renamed()

    def announce(self, role: int) -> None:
        os.environ["RANK"] = os.environ["GROUP_RANK"] = str(role)

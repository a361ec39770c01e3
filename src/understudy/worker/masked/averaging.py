"""The gradients of plain modules, averaged over replicas at the end of a step's shards."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from understudy.comm.group import RoleGroup
from understudy.state.kinds import Tracked, module_tensors
from understudy.worker.runtime import JobError

from .buckets import local_gradient


def check_tracked(modules: Sequence[nn.Module], tracked: Tracked) -> None:
    known = {id(tensor) for _, tensor in module_tensors(tracked)}
    if any(id(parameter) not in known for module in modules for parameter in module.parameters()):
        raise JobError("job.average: a module is averaged that is not tracked; name it in job.track(...), too")


class Averaging:
    """What `job.average` asks for where steps are not masked: one all-reduce for each parameter, in their order."""

    def __init__(self, modules: Sequence[nn.Module], group: RoleGroup) -> None:
        self._parameters = list({id(p): p for module in modules for p in module.parameters()}.values())
        self._group = group

    @torch.no_grad()
    def run(self) -> None:
        size = self._group.endpoint.size
        for parameter in self._parameters if size > 1 else ():
            if parameter.grad is not None:
                local, options = local_gradient(parameter.grad), dist.AllreduceOptions()
                options.asyncOp = False
                self._group.allreduce([local], options).wait()
                local /= size

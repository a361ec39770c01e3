"""What torch's C++ finds if it looks for the backend of a group: a thin backend that hands every call to the group.

A group whose creator returns a `ProcessGroup` has no backend. Calls that reach the group itself need none. Others look
one up for a device: the flight recorder when a group is made, hooks, and batches of messages inside compiled graphs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch.library import Library

from understudy.device import torch_private

FROM = "2.14"
"""The first version of torch in which a backend can be written in Python."""

_CALLS = (
    "allgather",
    "allgather_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "all_to_all_single",
    "alltoall",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "scatter",
    "send",
)
"""Operations, under the only names by which C++ calls a backend."""


class LookedUp(torch_private.CppBackend):  # type: ignore[misc]
    """The backend of one group, which it does not keep alive.

    A backend's rank is that of its start, since torch cannot change it. torch reads the group's rank instead."""

    supports_splitting = False
    supports_coalescing = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    supports_abort_hooks = False
    supports_completion_hooks = False
    _supports_time_estimate = False

    def __init__(self, group: dist.ProcessGroup, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._group = weakref.ref(group)

    def getBackendName(self) -> str:
        return str(self.group.name())

    @property
    def group(self) -> Any:
        group = self._group()
        assert group is not None
        return group

    def supports_tensor_alloc(self, _: int) -> bool:
        return False

    def set_timeout(self, timeout: Any) -> None:
        """Operations have the limit of the job."""

    def abort(self) -> None:
        """The group ends its operations itself."""

    shutdown = abort


def _handed_over(name: str) -> Callable[..., Any]:
    def call(self: LookedUp, *args: Any) -> Any:
        return getattr(self.group, name)(*args)

    return call


for _name in _CALLS:
    setattr(LookedUp, _name, _handed_over(_name))


def register(group: Any, rank: int, size: int, devices: Iterable[str]) -> None:
    """Let C++ find a backend of the group, or answer for C++ if this version of torch has no backends in Python."""
    if torch.__version__ < FROM:
        _groups.add(group)
        for device in devices:
            _answer(device)
        return
    group.backend = LookedUp(group, rank, size)
    torch_private.give_backend(group, devices, group.backend)


# -- torch 2.13 --------------------------------------------------------------------------------------------------------

_groups: weakref.WeakSet[dist.ProcessGroup] = weakref.WeakSet()


@cache
def _answer(device: str) -> Library:
    """Answer the two functional collectives whose C++ looks up a backend, for tensors on this type of device.

    Other groups reach torch's own answer. Ours wait for the result, because C++ does not keep a work that is written in
    Python."""
    answers = Library(torch_private.FUNCTIONAL, "IMPL")
    for name, answer in (("all_gather_into_tensor_out", _all_gather_out), ("batch_p2p_ops", _batch)):
        answers.impl(name, partial(answer, torch_private.functional(name)), device.upper())
    return answers


def _all_gather_out(op: Any, given: torch.Tensor, size: int, group: Any, *, out: torch.Tensor) -> torch.Tensor:
    found = torch_private.resolve_group(group) if isinstance(group, str) else group
    if found not in _groups:
        torch_private.torchs_own(op, given, size, group, out=out)
        return out
    found.all_gather_single(out, given).wait()
    return out


def _batch(
    op: Any, kinds: list[str], peers: list[int], tags: list[int], tensors: list[torch.Tensor], name: Any
) -> list[torch.Tensor]:
    group = torch_private.resolve_group(name)
    if group not in _groups:
        torch_private.torchs_own(op, kinds, peers, tags, tensors, name)
        return tensors
    works = [
        (group.send if kind == "isend" else group.recv)([tensor], peer, tag)
        for kind, peer, tag, tensor in zip(kinds, peers, tags, tensors, strict=True)
    ]
    for work in works:
        work.wait()
    return tensors

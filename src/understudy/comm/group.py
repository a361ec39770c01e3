"""The process group that torch sees."""

# torch declares overloads of which C++ and Python each use one; a subclass answers them all in one signature.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from understudy.device import torch_private
from understudy.device.cpu import HOST

from . import lookup
from .calls import (
    Tensors,
    as_input,
    as_list,
    distinct,
    folded_here,
    limit_of,
    operation,
    reduce_op,
    root_of,
    same,
)
from .endpoint import Endpoint
from .faults import InvalidCall
from .links.pairs import Receive, Send
from .monitored import monitored_barrier
from .network import NetworkFabric
from .ops import Op, OpKind, Reduction, as_real, reduction
from .sparse import SparseSum
from .waits import GroupWork, MessageWork, untraced

T = TypeVar("T")
Timeout = timedelta | None
BACKEND = "understudy"
_FEW, _WORKS = 16, 64
"""Elements of results whose Works are kept, and the number of these Works."""
_fabric: NetworkFabric | None = None


@untraced
class RoleGroup(dist.ProcessGroup):
    """A process group over roles. `size()` counts vacant roles too. The worker of a role may change between steps."""

    def __init__(
        self,
        endpoint: Endpoint,
        forget: Callable[[Endpoint], None] | None = None,
        devices: tuple[str, ...] = (HOST.name,),
    ) -> None:
        super().__init__(endpoint.rank, endpoint.size)  # type: ignore[call-arg]  # the form without a store
        self.endpoint = endpoint
        self._forget = forget
        self._devices = devices
        self._name = endpoint.name
        self._desc = "undefined"
        self.limit: float | None = None
        """The seconds that an operation may take, if the script has set them; None: as many as the fabric allows."""
        self._works: deque[GroupWork] = deque(maxlen=_WORKS)
        """The last Works with small results: DDP.join leaves a Work to C++, which does not keep its Python half."""

    # -- identity --------------------------------------------------------------------------------------------------

    def size(self) -> int:
        return self.endpoint.size

    def rank(self) -> int:
        if self.endpoint.asked is not None:
            self.endpoint.asked(self.endpoint)
        return self.endpoint.rank

    getSize = size
    getRank = rank

    def getBackendName(self) -> str:
        return BACKEND

    name = getBackendName

    def _set_group_name(self, name: str) -> None:
        self._name = name

    setGroupName = _set_group_name

    def getGroupName(self) -> str:
        return self._name

    group_name = property(getGroupName)

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    setGroupDesc = _set_group_desc

    def getGroupDesc(self) -> str:
        return self._desc

    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        """Devices between which the group moves tensors; checkpoints and state dicts ask before they use it."""
        return [torch.device(device) for device in self._devices]

    def _get_backend(self, device: torch.device) -> RoleGroup:
        """The group is its own backend, for every device it serves."""
        return self

    supports_splitting = True
    supports_shrinking = supports_coalescing = False

    @property
    def options(self) -> Any:
        """The options of the group, as those of torch's backends: the timeout, the members and the name."""
        seconds = self.limit
        timeout = default_pg_timeout if seconds is None else timedelta(seconds=seconds)
        options: Any = torch_private.CppBackend.Options(BACKEND, timeout)
        options.global_ranks_in_group, options.group_name = list(self.endpoint.key.roles), self._name
        return options

    def set_timeout(self, timeout: timedelta) -> None:
        """Let operations take this long. Once the time is over, the generation is poisoned and the wait raises."""
        self.limit = limit_of(None, timeout, None)

    _set_default_timeout = set_timeout

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: Timeout = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> RoleGroup | None:
        """A group of some ranks of this one; None for the others. All ranks of the new group call it."""
        if self.endpoint.rank not in ranks:
            return None
        members = self.endpoint.key.roles
        made = _made(tuple(members[rank] for rank in sorted(ranks)), timeout or torch_private.timeout_of(opts))
        if group_name is not None:
            made._set_group_name(group_name)
        made._set_group_desc(group_desc or f"{self._desc}:split")
        return made

    def shutdown(self) -> None:
        """Close the group. `destroy_process_group` calls this."""
        if self._forget is not None:
            self._forget(self.endpoint)

    def abort(self) -> None:
        pass

    # -- reductions ------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Timeout = None, *, op: Any = None) -> GroupWork:
        tensors, how = as_list(tensors), reduce_op(opts, op)
        if self._is_deferred(how, tensors):
            return GroupWork(tensors, done=True)
        if len(tensors) == 1:
            return self._go([self._all_reduce(tensors[0], how)], tensors, opts, timeout)
        total = folded_here([self._checked(tensor, "all_reduce") for tensor in tensors], how, self.endpoint.size)
        last = self._all_reduce(total, how)
        last.copy_back += [(tensor.detach(), total) for tensor in tensors]
        return self._go([last], tensors, opts, timeout)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> GroupWork:
        tensors, how = as_list(tensors), reduce_op(opts)
        if self._is_deferred(how, tensors):
            return GroupWork(tensors, done=True)
        return self._go([self._all_reduce(tensor, how) for tensor in distinct(tensors)], tensors, opts)

    def _is_deferred(self, how: Any, tensors: Tensors) -> bool:
        defer = self.endpoint.defer
        if defer is None or torch_private.backward_pass() == -1:
            return False
        defer(how)
        return True

    def _all_reduce(self, tensor: torch.Tensor, how: Any) -> Op:
        if tensor.layout != torch.strided:
            return SparseSum(tensor, how, self.endpoint.size).op()
        return self._fold_in_place("all_reduce", tensor, how)

    def _fold_in_place(self, kind: OpKind, tensor: torch.Tensor, how: Any, root: int = 0) -> Op:
        real = as_real(how, self._checked(tensor, kind))
        return operation(kind, [], [real], reduction(how, real.dtype, self.endpoint.size), root)

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Timeout = None, *, root: int | None = None
    ) -> GroupWork:
        (tensor,) = as_list(tensors)
        how = reduce_op(None if isinstance(opts, int) else opts, op)
        return self._go([self._fold_in_place("reduce", tensor, how, self._root(opts, root))], [tensor], opts, timeout)

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Timeout = None, *, op: Any = None
    ) -> GroupWork:
        outputs, inputs = ([outputs], [inputs]) if isinstance(outputs, torch.Tensor) else (list(outputs), inputs)
        how = reduce_op(opts, op)
        ops = [self._reduce_scatter(out, list(blocks), how) for out, blocks in zip(outputs, inputs, strict=True)]
        return self._go(ops, outputs, opts, timeout)

    def _reduce_scatter(self, out: torch.Tensor, blocks: Tensors, how: Any) -> Op:
        real = as_real(how, self._checked(out, "reduce_scatter"))
        fold = reduction(how, real.dtype, self.endpoint.size)
        given = [as_real(how, block) for block in self._one_per_rank(blocks, "reduce_scatter")]
        if len({block.numel() for block in given}) > 1:
            return self._reduce_scatter_uneven(real, given, fold)
        op = operation("reduce_scatter", given, [real], fold)
        same("reduce_scatter", op.inputs, op.outputs[0])
        return op

    def _reduce_scatter_uneven(self, out: torch.Tensor, blocks: Tensors, fold: Reduction) -> Op:
        """Blocks of different sizes: all are reduced everywhere, and each rank keeps its own."""
        mine = blocks[self.endpoint.rank]
        same("reduce_scatter", [mine], out)
        flat = [block.detach().reshape(-1) for block in blocks]
        op = operation("all_reduce", [], [torch.cat(flat)], fold)
        kept = op.outputs[0].split([len(block) for block in flat])[self.endpoint.rank]
        op.copy_back.append((out.detach(), kept.view_as(mine).reshape(out.shape)))
        return op

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> GroupWork:
        return self._go([self._reduce_scatter_from(output, input, opts, "reduce_scatter_single")], [output], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> GroupWork:
        both = zip(outputs, inputs, strict=True)
        ops = [self._reduce_scatter_from(out, given, opts, "reduce_scatter_single_coalesced") for out, given in both]
        return self._go(ops, list(outputs), opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter_from(self, out: torch.Tensor, given: torch.Tensor, opts: Any, name: str) -> Op:
        flat = given.contiguous().view(-1)
        return self._reduce_scatter(out, self._rows(flat, out.numel(), f"{name}: the input"), reduce_op(opts))

    # -- copies ----------------------------------------------------------------------------------------------------

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Timeout = None) -> GroupWork:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        outputs = [list(outs) for outs in outputs]
        ops = [self._all_gather(outs, given) for outs, given in zip(outputs, inputs, strict=True)]
        return self._go(ops, outputs[0] if len(outputs) == 1 else outputs, opts, timeout)

    def _all_gather(self, outs: Tensors, given: torch.Tensor) -> Op:
        checked = self._checked(given, "all_gather")
        op = operation("all_gather", [checked], self._one_per_rank(outs, "all_gather"))
        same("all_gather", op.outputs, op.inputs[0])
        return op

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> GroupWork:
        """`outputs` holds one list per role, each with one tensor per input."""
        by_input = [list(outs) for outs in zip(*self._one_per_rank(outputs, "all_gather_coalesced"), strict=True)]
        return self.allgather(by_input, inputs, opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> GroupWork:
        return self._go([self._gather_into(output, input, "all_gather_single")], [output], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> GroupWork:
        both = zip(outputs, inputs, strict=True)
        ops = [self._gather_into(out, given, "all_gather_single_coalesced") for out, given in both]
        return self._go(ops, list(outputs), opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gather_into(self, output: torch.Tensor, given: torch.Tensor, name: str) -> Op:
        op = operation("all_gather", [self._checked(given, name)], [self._checked(output, name)])
        op.outputs = self._rows(op.outputs[0], given.numel(), f"{name}: the output")
        same(name, op.outputs, op.inputs[0])
        return op

    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: Timeout = None, *, root: int | None = None
    ) -> GroupWork:
        tensors, source = as_list(tensors), self._root(opts, root)
        ops = [operation("broadcast", [], [self._checked(tensor, "broadcast")], root=source) for tensor in tensors]
        return self._go(ops, tensors, opts, timeout)

    def gather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Timeout = None, *, root: int | None = None
    ) -> GroupWork:
        (given,), target = as_list(inputs), self._root(opts, root)
        outs = list(outputs) if outputs and isinstance(outputs[0], torch.Tensor) else list(*outputs)
        filled = self._one_per_rank(outs, "gather") if self.endpoint.rank == target else []
        op = operation("gather", [self._checked(given, "gather")], filled, root=target)
        same("gather", op.outputs, op.inputs[0])
        return self._go([op], outs, opts, timeout)

    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Timeout = None, *, root: int | None = None
    ) -> GroupWork:
        (out,), source = as_list(outputs), self._root(opts, root)
        given = list(inputs) if inputs and isinstance(inputs[0], torch.Tensor) else list(*inputs)
        blocks = self._one_per_rank(given, "scatter") if self.endpoint.rank == source else []
        op = operation("scatter", blocks, [self._checked(out, "scatter")], root=source)
        same("scatter", op.inputs, op.outputs[0])
        return self._go([op], [out], opts, timeout)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> GroupWork:
        given = [self._checked(block, "all_to_all") for block in self._one_per_rank(inputs, "all_to_all")]
        op = operation("all_to_all", given, self._one_per_rank(outputs, "all_to_all"))
        return self._go([op], list(outputs), opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: Timeout = None,
    ) -> GroupWork:
        given, out = (self._checked(tensor, "all_to_all_single") for tensor in (input, output))
        op = operation("all_to_all", [given], [out])
        op.inputs = self._split(op.inputs[0], input, input_split_sizes)
        op.outputs = self._split(op.outputs[0], output, output_split_sizes)
        return self._go([op], [output], opts, timeout)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: Timeout = None) -> GroupWork:
        return self._go([Op("barrier")], [], opts, timeout)

    def monitored_barrier(self, timeout: Timeout = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the ranks that have not reached it in time: to rank 0, which waits for all others."""
        limit = limit_of(None, timeout, self.limit if timeout is None else 0.0)
        monitored_barrier(self.endpoint, limit, wait_all_ranks)

    # -- messages --------------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, dst: int, tag: int) -> GroupWork:
        (tensor,) = tensors
        return self._message(tensors, Send(dst, tag, as_input(self._checked(tensor, "send"))), [])

    def recv_anysource(self, tensors: Tensors, tag: int) -> GroupWork:
        return self.recv(tensors, None, tag)

    def recv(self, tensors: Tensors, src: int | None, tag: int) -> GroupWork:
        (tensor,) = tensors
        op = operation("barrier", [], [self._checked(tensor, "recv")])
        return self._message(tensors, Receive(src, tag, op.outputs[0]), op.copy_back)

    def _message(
        self, tensors: Tensors, job: Send | Receive, back: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> GroupWork:
        if self.limit is not None:
            job.deadline = time.monotonic() + self.limit
        work = MessageWork(tensors, job, back, self.endpoint, limited=self.limit is not None)
        self.endpoint.message(job)
        return work

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _go(self, ops: list[Op], result: Any, opts: Any, timeout: Timeout = None) -> GroupWork:
        endpoint, limit = self.endpoint, limit_of(opts, timeout, self.limit)
        for op in ops if limit is not None else ():
            op.limit = limit
        if not ops or not getattr(opts, "asyncOp", True):
            for op in ops:
                endpoint.run(op)
            if limit is not None:
                endpoint.check_expired()
            return GroupWork(result, done=True)
        work = GroupWork(result, endpoint, limited=limit is not None)
        for op in ops[:-1]:
            endpoint.submit(op, _nothing)
        endpoint.submit(ops[-1], work.finish)
        if len(result) == 1 and isinstance(result[0], torch.Tensor) and result[0].numel() <= _FEW:
            self._works.append(work)
        return work

    def _checked(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        if tensor.layout != torch.strided:
            raise InvalidCall(f"{name}: sparse tensors are not supported; densify with .to_dense() first")
        if tensor.device.type not in self._devices:
            raise InvalidCall(
                f"{name}: a tensor on {tensor.device}, but this transport moves {' and '.join(self._devices)} memory; "
                "move it, or take a transport such as torch:nccl"
            )
        return tensor

    def _root(self, opts: Any, root: int | None) -> int:
        return root_of(opts, root, self.endpoint.size)

    def _one_per_rank(self, tensors: list[T], name: str) -> list[T]:
        if len(tensors) != self.endpoint.size:
            raise InvalidCall(f"{name}: {len(tensors)} tensors given for {self.endpoint.size} roles; give one per role")
        return tensors

    def _rows(self, flat: torch.Tensor, width: int, what: str) -> Tensors:
        """A flat tensor in one row per role."""
        size = self.endpoint.size
        if flat.numel() != size * width:
            raise InvalidCall(f"{what} has {flat.numel()} elements; {size} roles × {width} are due")
        return list(flat.view(size, -1).unbind(0)) if width else [flat] * size

    def _split(self, flat: torch.Tensor, tensor: torch.Tensor, sizes: Sequence[int]) -> Tensors:
        """Blocks of a tensor by rows of its first dimension; of equal size if no sizes are given."""
        rows, size = tensor.shape[0] if tensor.dim() else 1, self.endpoint.size
        if not sizes:
            if rows % size:
                raise InvalidCall(f"all_to_all_single: {rows} rows do not divide evenly among {size} roles")
            sizes = [rows // size] * size
        if len(sizes) != size or sum(sizes) != rows:
            raise InvalidCall(f"all_to_all_single: split sizes {list(sizes)} do not cut {rows} rows for {size} roles")
        width = flat.numel() // rows if rows else 0
        return list(torch.split_with_sizes(flat, [int(count) * width for count in sizes]))


def _nothing() -> None:
    pass


def _create(options: Any, given: Any) -> RoleGroup:
    roles = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    return _made(roles, options.timeout)


def _made(roles: tuple[int, ...], timeout: Timeout) -> RoleGroup:
    if _fabric is None:
        raise RuntimeError("no fabric is installed; call understudy's install(fabric) before init_process_group")
    group = RoleGroup(_fabric.group(roles), _fabric.forget, _fabric.devices)
    if timeout is not None and timeout != default_pg_timeout:
        group.set_timeout(timeout)
    lookup.register(group, group.endpoint.rank, group.endpoint.size, _fabric.devices)
    return group


def register(fabric: NetworkFabric) -> int:
    """Let `torch.distributed` make its groups of this backend from `fabric`. Returns the role of this process."""
    global _fabric
    if BACKEND.upper() not in torch_private.plugins:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=list(fabric.devices))
    if fabric.role is None:
        raise RuntimeError(f"{fabric.uid} has no role yet; switch to a roster or assume a role first")
    _fabric = fabric
    return fabric.role


def install(fabric: NetworkFabric, roles: int) -> None:
    """Make `fabric` the default process group of this process, over this many roles."""
    role = register(fabric)
    dist.init_process_group(BACKEND, store=torch_private.HashStore(), rank=role, world_size=roles)


def renamed() -> None:
    """Tell torch the members of its groups after the fabric has changed its role."""
    known = torch_private.ranks_of_groups()
    for group in known:
        if isinstance(group, RoleGroup):
            known[group] = {role: rank for rank, role in enumerate(group.endpoint.key.roles)}


def uninstall() -> None:
    """Destroy the process group. The fabric itself stays as it is."""
    global _fabric
    if dist.is_initialized():
        dist.destroy_process_group()
    torch_private.forget_groups()
    _fabric = None

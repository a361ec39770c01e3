"""The process group that torch sees."""

# torch declares overloads of which C++ and Python each use one; a subclass answers them all in one signature.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from understudy.device import torch_private
from understudy.device.cpu import HOST

from . import lookup
from .endpoint import Endpoint
from .links.pairs import Receive, Send
from .network import NetworkFabric
from .ops import Op, OpKind, Reduction, as_real, reduction
from .waits import GroupWork, MessageWork, untraced

T = TypeVar("T")
Tensors = list[torch.Tensor]
BACKEND = "understudy"
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

    supports_splitting = supports_shrinking = supports_coalescing = False

    def split_group(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("an understudy group cannot be split; make a new one with torch.distributed.new_group")

    def shutdown(self) -> None:
        """Close the group. `destroy_process_group` calls this."""
        if self._forget is not None:
            self._forget(self.endpoint)

    def abort(self) -> None:
        pass

    # -- reductions ------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> GroupWork:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        how = _reduce_op(opts)
        defer = self.endpoint.defer
        if defer is not None and torch_private.backward_pass() != -1:
            defer(how)
            return GroupWork(tensors, done=True)
        ops = [self._fold_in_place("all_reduce", tensor, how) for tensor in tensors]
        return self._go(ops, tensors, opts)

    allreduce_coalesced = allreduce

    def _fold_in_place(self, kind: OpKind, tensor: torch.Tensor, how: Any, root: int = 0) -> Op:
        real = as_real(how, self._checked(tensor, kind))
        return _op(kind, [], [real], reduction(how, real.dtype, self.endpoint.size), root)

    def reduce(self, tensors: Any, opts: Any = None, **_: Any) -> GroupWork:
        (tensor,) = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        op = self._fold_in_place("reduce", tensor, _reduce_op(opts), self._root(opts))
        return self._go([op], [tensor], opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, **_: Any) -> GroupWork:
        outputs, inputs = ([outputs], [inputs]) if isinstance(outputs, torch.Tensor) else (list(outputs), inputs)
        ops = [self._reduce_scatter(out, list(blocks), opts) for out, blocks in zip(outputs, inputs, strict=True)]
        return self._go(ops, outputs, opts)

    def _reduce_scatter(self, out: torch.Tensor, blocks: Tensors, opts: Any) -> Op:
        how = _reduce_op(opts)
        real = as_real(how, self._checked(out, "reduce_scatter"))
        fold = reduction(how, real.dtype, self.endpoint.size)
        given = [as_real(how, block) for block in self._one_per_rank(blocks, "reduce_scatter")]
        op = _op("reduce_scatter", given, [real], fold)
        _same("reduce_scatter", op.inputs, op.outputs[0])
        return op

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None, **_: Any) -> GroupWork:
        op = self._reduce_scatter_from(output, input, opts, "reduce_scatter_single")
        return self._go([op], [output], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> GroupWork:
        both = zip(outputs, inputs, strict=True)
        ops = [self._reduce_scatter_from(out, given, opts, "reduce_scatter_single_coalesced") for out, given in both]
        return self._go(ops, list(outputs), opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter_from(self, out: torch.Tensor, given: torch.Tensor, opts: Any, name: str) -> Op:
        flat = given.contiguous().view(-1)
        return self._reduce_scatter(out, self._rows(flat, out.numel(), f"{name}: the input"), opts)

    # -- copies ----------------------------------------------------------------------------------------------------

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, **_: Any) -> GroupWork:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        ops = [self._all_gather(list(outs), given) for outs, given in zip(outputs, inputs, strict=True)]
        return self._go(ops, [list(outs) for outs in outputs], opts)

    def _all_gather(self, outs: Tensors, given: torch.Tensor) -> Op:
        checked = self._checked(given, "all_gather")
        op = _op("all_gather", [checked], self._one_per_rank(outs, "all_gather"))
        _same("all_gather", op.outputs, op.inputs[0])
        return op

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> GroupWork:
        """`outputs` holds one list per role, each with one tensor per input."""
        by_input = [list(outs) for outs in zip(*self._one_per_rank(outputs, "all_gather_coalesced"), strict=True)]
        return self.allgather(by_input, inputs, opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None, **_: Any) -> GroupWork:
        return self._go([self._gather_into(output, input, "all_gather_single")], [output], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> GroupWork:
        both = zip(outputs, inputs, strict=True)
        ops = [self._gather_into(out, given, "all_gather_single_coalesced") for out, given in both]
        return self._go(ops, list(outputs), opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gather_into(self, output: torch.Tensor, given: torch.Tensor, name: str) -> Op:
        op = _op("all_gather", [self._checked(given, name)], [self._checked(output, name)])
        op.outputs = self._rows(op.outputs[0], given.numel(), f"{name}: the output")
        _same(name, op.outputs, op.inputs[0])
        return op

    def broadcast(self, tensors: Any, opts: Any = None, **_: Any) -> GroupWork:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        root = self._root(opts)
        ops = [_op("broadcast", [], [self._checked(tensor, "broadcast")], root=root) for tensor in tensors]
        return self._go(ops, tensors, opts)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, **_: Any) -> GroupWork:
        (given,) = [inputs] if isinstance(inputs, torch.Tensor) else inputs
        root, outs = self._root(opts), list(outputs[0]) if outputs else []
        filled = self._one_per_rank(outs, "gather") if self.endpoint.rank == root else []
        op = _op("gather", [self._checked(given, "gather")], filled, root=root)
        _same("gather", op.outputs, op.inputs[0])
        return self._go([op], outs, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, **_: Any) -> GroupWork:
        (out,) = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        root = self._root(opts)
        blocks = self._one_per_rank(list(inputs[0]), "scatter") if self.endpoint.rank == root else []
        op = _op("scatter", blocks, [self._checked(out, "scatter")], root=root)
        _same("scatter", op.inputs, op.outputs[0])
        return self._go([op], [out], opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> GroupWork:
        given = [self._checked(block, "all_to_all") for block in self._one_per_rank(inputs, "all_to_all")]
        return self._go([_op("all_to_all", given, self._one_per_rank(outputs, "all_to_all"))], list(outputs), opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        **_: Any,
    ) -> GroupWork:
        given, out = (self._checked(tensor, "all_to_all_single") for tensor in (input, output))
        op = _op("all_to_all", [given], [out])
        op.inputs = self._split(op.inputs[0], input, input_split_sizes)
        op.outputs = self._split(op.outputs[0], output, output_split_sizes)
        return self._go([op], [output], opts)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, **_: Any) -> GroupWork:
        return self._go([Op("barrier")], [], opts)

    # -- messages --------------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, dst: int, tag: int) -> GroupWork:
        (tensor,) = tensors
        return self._message(tensors, Send(dst, tag, _input(self._checked(tensor, "send"))), [])

    def recv_anysource(self, tensors: Tensors, tag: int) -> GroupWork:
        return self.recv(tensors, None, tag)

    def recv(self, tensors: Tensors, src: int | None, tag: int) -> GroupWork:
        (tensor,) = tensors
        op = _op("barrier", [], [self._checked(tensor, "recv")])
        return self._message(tensors, Receive(src, tag, op.outputs[0]), op.copy_back)

    def _message(
        self, tensors: Tensors, job: Send | Receive, back: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> GroupWork:
        if job.peer == self.endpoint.rank:
            raise ValueError("a role cannot send to or receive from itself")
        work = MessageWork(tensors, job, back)
        self.endpoint.message(job)
        return work

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _go(self, ops: list[Op], result: Any, opts: Any) -> GroupWork:
        if not ops or not getattr(opts, "asyncOp", True):
            for op in ops:
                self.endpoint.run(op)
            return GroupWork(result, done=True)
        work = GroupWork(result)
        for op in ops[:-1]:
            self.endpoint.submit(op, _nothing)
        self.endpoint.submit(ops[-1], work.finish)
        return work

    def _checked(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        if tensor.layout != torch.strided:
            raise ValueError(f"{name}: sparse tensors are not supported; densify with .to_dense() first")
        if tensor.device.type not in self._devices:
            raise ValueError(
                f"{name}: a tensor on {tensor.device}, but this transport moves {' and '.join(self._devices)} memory; "
                "move it, or take a transport such as torch:nccl"
            )
        return tensor

    def _root(self, opts: Any) -> int:
        root = int(opts.rootRank) if opts is not None else 0
        if not 0 <= root < self.endpoint.size:
            raise ValueError(f"root {root} is not in the group of {self.endpoint.size} roles")
        return root

    def _one_per_rank(self, tensors: list[T], name: str) -> list[T]:
        if len(tensors) != self.endpoint.size:
            raise ValueError(f"{name}: {len(tensors)} tensors given for {self.endpoint.size} roles; give one per role")
        return tensors

    def _rows(self, flat: torch.Tensor, width: int, what: str) -> Tensors:
        """A flat tensor in one row per role."""
        size = self.endpoint.size
        if flat.numel() != size * width:
            raise ValueError(f"{what} has {flat.numel()} elements; {size} roles × {width} are due")
        return list(flat.view(size, -1).unbind(0)) if width else [flat] * size

    def _split(self, flat: torch.Tensor, tensor: torch.Tensor, sizes: Sequence[int]) -> Tensors:
        """Blocks of a tensor by rows of its first dimension; of equal size if no sizes are given."""
        rows, size = tensor.shape[0] if tensor.dim() else 1, self.endpoint.size
        if not sizes:
            if rows % size:
                raise ValueError(f"all_to_all_single: {rows} rows do not divide evenly among {size} roles")
            sizes = [rows // size] * size
        if len(sizes) != size or sum(sizes) != rows:
            raise ValueError(f"all_to_all_single: split sizes {list(sizes)} do not cut {rows} rows for {size} roles")
        width = flat.numel() // rows if rows else 0
        return list(torch.split_with_sizes(flat, [int(count) * width for count in sizes]))


def _nothing() -> None:
    pass


def _reduce_op(opts: Any) -> Any:
    if opts is None:
        return dist.ReduceOp.SUM
    return opts if isinstance(opts, dist.ReduceOp | dist.ReduceOp.RedOpType) else opts.reduceOp


def _op(kind: OpKind, inputs: Tensors, outputs: Tensors, fold: Reduction | None = None, root: int = 0) -> Op:
    op = Op(kind, [_input(tensor) for tensor in inputs], reduction=fold, root=root)
    op.outputs = [_output(op, tensor) for tensor in outputs]
    return op


def _input(tensor: torch.Tensor) -> torch.Tensor:
    return _flat(tensor.detach().resolve_conj().resolve_neg().contiguous())


def _output(op: Op, tensor: torch.Tensor) -> torch.Tensor:
    """Flat memory for a result: the tensor's own if it is plain and contiguous, otherwise a dense copy to copy back."""
    tensor = tensor.detach()
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return _flat(tensor)
    dense = tensor.resolve_conj().resolve_neg().contiguous()
    op.copy_back.append((tensor, dense))
    return _flat(dense)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as one row, with stride 1 even for a single element, so that it can be viewed as bytes."""
    flat = tensor.view(-1)
    return flat if flat.stride(0) == 1 else flat.as_strided(flat.shape, (1,))


def _same(name: str, tensors: Tensors, like: torch.Tensor) -> None:
    for tensor in tensors:
        if tensor.dtype != like.dtype or tensor.numel() != like.numel():
            raise ValueError(
                f"{name}: a tensor of {tensor.numel()} {tensor.dtype} among tensors of {like.numel()} {like.dtype}; "
                "all must agree"
            )


def _create(options: Any, _: Any) -> RoleGroup:
    if _fabric is None:
        raise RuntimeError("no fabric is installed; call understudy's install(fabric) before init_process_group")
    roles = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    group = RoleGroup(_fabric.group(roles), _fabric.forget, _fabric.devices)
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

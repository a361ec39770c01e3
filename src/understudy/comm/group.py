"""The process group that torch sees."""

# torch declares overloads of which C++ and Python each use one; a subclass answers them all in one signature.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from understudy.device.cpu import HOST

from .endpoint import Endpoint
from .links.pairs import Receive, Send
from .ops import Op, OpKind
from .reduction import as_real, reduction
from .work import GroupWork, MessageWork, untraced

T = TypeVar("T")
Tensors = list[torch.Tensor]


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
        return "understudy"

    def name(self) -> str:
        return "understudy"

    def _set_group_name(self, name: str) -> None:
        self._name = name

    setGroupName = _set_group_name

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupName(self) -> str:
        return self._name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    setGroupDesc = _set_group_desc

    @property
    def group_desc(self) -> str:
        return self._desc

    def getGroupDesc(self) -> str:
        return self._desc

    @property
    def _device_types(self) -> list[torch.device]:
        """Devices between which the group moves tensors; checkpoints and state dicts ask before they use it."""
        return [torch.device(device) for device in self._devices]

    def _get_backend(self, device: torch.device) -> RoleGroup:
        """The group is its own backend, for every device it serves."""
        return self

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
        if defer is not None and torch._C._current_graph_task_id() != -1:
            defer(how)
            return GroupWork(tensors, done=True)
        ops = [self._fold_in_place("all_reduce", tensor, how) for tensor in tensors]
        return self._go(ops, tensors, _is_async(opts))

    allreduce_coalesced = allreduce

    def _fold_in_place(self, kind: OpKind, tensor: torch.Tensor, how: Any, root: int = 0) -> Op:
        real = as_real(how, self._checked(tensor, kind))
        op = Op(kind, reduction=reduction(how, real.dtype, self.endpoint.size), root=root)
        op.outputs = [_output(op, real)]
        return op

    def reduce(self, tensors: Any, opts: Any = None, **_: Any) -> GroupWork:
        (tensor,) = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        op = self._fold_in_place("reduce", tensor, _reduce_op(opts), self._root(opts))
        return self._go([op], [tensor], _is_async(opts))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, **_: Any) -> GroupWork:
        pairs = [(outputs, inputs)] if isinstance(outputs, torch.Tensor) else zip(outputs, inputs, strict=True)
        ops, given = [], []
        for out, blocks in pairs:
            ops.append(self._reduce_scatter(out, list(blocks), opts))
            given.append(out)
        return self._go(ops, given, _is_async(opts))

    def _reduce_scatter(self, out: torch.Tensor, blocks: Tensors, opts: Any) -> Op:
        how = _reduce_op(opts)
        real = as_real(how, self._checked(out, "reduce_scatter"))
        op = Op("reduce_scatter", reduction=reduction(how, real.dtype, self.endpoint.size))
        op.inputs = [_input(as_real(how, block)) for block in self._one_per_rank(blocks, "reduce_scatter")]
        op.outputs = [_output(op, real)]
        _same("reduce_scatter", op.inputs, op.outputs[0])
        return op

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None, **_: Any) -> GroupWork:
        op = self._reduce_scatter(output, self._cut(input, output, "reduce_scatter_single"), opts)
        return self._go([op], [output], _is_async(opts))

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> GroupWork:
        ops = [
            self._reduce_scatter(out, self._cut(given, out, "reduce_scatter_single_coalesced"), opts)
            for out, given in zip(outputs, inputs, strict=True)
        ]
        return self._go(ops, list(outputs), _is_async(opts))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # -- copies ----------------------------------------------------------------------------------------------------

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, **_: Any) -> GroupWork:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        ops = [self._all_gather(list(outs), given) for outs, given in zip(outputs, inputs, strict=True)]
        return self._go(ops, [list(outs) for outs in outputs], _is_async(opts))

    def _all_gather(self, outs: Tensors, given: torch.Tensor) -> Op:
        op = Op("all_gather", inputs=[_input(self._checked(given, "all_gather"))])
        op.outputs = [_output(op, out) for out in self._one_per_rank(outs, "all_gather")]
        _same("all_gather", op.outputs, op.inputs[0])
        return op

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> GroupWork:
        """`outputs` holds one list per role, each with one tensor per input."""
        by_input = [list(outs) for outs in zip(*self._one_per_rank(outputs, "all_gather_coalesced"), strict=True)]
        return self.allgather(by_input, inputs, opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None, **_: Any) -> GroupWork:
        return self._go([self._gather_into(output, input, "all_gather_single")], [output], _is_async(opts))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> GroupWork:
        ops = [
            self._gather_into(out, given, "all_gather_single_coalesced")
            for out, given in zip(outputs, inputs, strict=True)
        ]
        return self._go(ops, list(outputs), _is_async(opts))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gather_into(self, output: torch.Tensor, given: torch.Tensor, name: str) -> Op:
        op = Op("all_gather", inputs=[_input(self._checked(given, name))])
        flat = _output(op, self._checked(output, name))
        if flat.numel() != self.endpoint.size * given.numel():
            raise ValueError(
                f"{name}: the output has {flat.numel()} elements; {self.endpoint.size} roles × {given.numel()} are due"
            )
        op.outputs = list(flat.view(self.endpoint.size, -1).unbind(0)) if given.numel() else [flat] * self.endpoint.size
        _same(name, op.outputs, op.inputs[0])
        return op

    def broadcast(self, tensors: Any, opts: Any = None, **_: Any) -> GroupWork:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        ops = []
        for tensor in tensors:
            op = Op("broadcast", root=self._root(opts))
            op.outputs = [_output(op, self._checked(tensor, "broadcast"))]
            ops.append(op)
        return self._go(ops, tensors, _is_async(opts))

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, **_: Any) -> GroupWork:
        (given,) = [inputs] if isinstance(inputs, torch.Tensor) else inputs
        op = Op("gather", inputs=[_input(self._checked(given, "gather"))], root=self._root(opts))
        outs = list(outputs[0]) if outputs else []
        if self.endpoint.rank == op.root:
            op.outputs = [_output(op, out) for out in self._one_per_rank(outs, "gather")]
            _same("gather", op.outputs, op.inputs[0])
        return self._go([op], outs, _is_async(opts))

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, **_: Any) -> GroupWork:
        (out,) = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        op = Op("scatter", root=self._root(opts))
        op.outputs = [_output(op, self._checked(out, "scatter"))]
        if self.endpoint.rank == op.root:
            op.inputs = [_input(block) for block in self._one_per_rank(list(inputs[0]), "scatter")]
            _same("scatter", op.inputs, op.outputs[0])
        return self._go([op], [out], _is_async(opts))

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> GroupWork:
        op = Op("all_to_all")
        op.inputs = [_input(self._checked(b, "all_to_all")) for b in self._one_per_rank(inputs, "all_to_all")]
        op.outputs = [_output(op, out) for out in self._one_per_rank(outputs, "all_to_all")]
        return self._go([op], list(outputs), _is_async(opts))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        **_: Any,
    ) -> GroupWork:
        op = Op("all_to_all")
        op.inputs = self._split(_input(self._checked(input, "all_to_all_single")), input, input_split_sizes)
        op.outputs = self._split(_output(op, self._checked(output, "all_to_all_single")), output, output_split_sizes)
        return self._go([op], [output], _is_async(opts))

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, **_: Any) -> GroupWork:
        return self._go([Op("barrier")], [], _is_async(opts))

    # -- messages --------------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, dst: int, tag: int) -> GroupWork:
        (tensor,) = tensors
        return self._message(tensors, Send(dst, tag, _input(self._checked(tensor, "send"))), [])

    def recv_anysource(self, tensors: Tensors, tag: int) -> GroupWork:
        return self.recv(tensors, None, tag)

    def recv(self, tensors: Tensors, src: int | None, tag: int) -> GroupWork:
        (tensor,) = tensors
        op = Op("barrier")
        return self._message(tensors, Receive(src, tag, _output(op, self._checked(tensor, "recv"))), op.copy_back)

    def _message(
        self, tensors: Tensors, job: Send | Receive, back: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> GroupWork:
        if job.peer == self.endpoint.rank:
            raise ValueError("a role cannot send to or receive from itself")
        work = MessageWork(tensors, job, back)
        self.endpoint.message(job)
        return work

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _go(self, ops: list[Op], result: Any, asynchronous: bool) -> GroupWork:
        if not asynchronous or not ops:
            for op in ops:
                self.endpoint.submit(op, _nothing, wait=True)
            return GroupWork(result, done=True)
        work = GroupWork(result)
        for op in ops[:-1]:
            self.endpoint.submit(op, _nothing, wait=False)
        self.endpoint.submit(ops[-1], work.finish, wait=False)
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

    def _cut(self, given: torch.Tensor, out: torch.Tensor, name: str) -> Tensors:
        if given.numel() != self.endpoint.size * out.numel():
            raise ValueError(
                f"{name}: the input has {given.numel()} elements; {self.endpoint.size} roles × {out.numel()} are due"
            )
        flat = given.contiguous().view(-1)
        return list(flat.view(self.endpoint.size, -1).unbind(0)) if out.numel() else [flat] * self.endpoint.size

    def _split(self, flat: torch.Tensor, tensor: torch.Tensor, sizes: Sequence[int]) -> Tensors:
        """Blocks of a tensor by rows of its first dimension; of equal size if no sizes are given."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes:
            if rows % self.endpoint.size:
                raise ValueError(
                    f"all_to_all_single: {rows} rows do not divide evenly among {self.endpoint.size} roles"
                )
            sizes = [rows // self.endpoint.size] * self.endpoint.size
        if len(sizes) != self.endpoint.size or sum(sizes) != rows:
            raise ValueError(
                f"all_to_all_single: split sizes {list(sizes)} do not cut {rows} rows for {self.endpoint.size} roles"
            )
        width = flat.numel() // rows if rows else 0
        return list(torch.split_with_sizes(flat, [int(size) * width for size in sizes]))


def _nothing() -> None:
    pass


def _reduce_op(opts: Any) -> Any:
    if opts is None:
        return dist.ReduceOp.SUM
    return opts if isinstance(opts, dist.ReduceOp | dist.ReduceOp.RedOpType) else opts.reduceOp


def _is_async(opts: Any) -> bool:
    return bool(getattr(opts, "asyncOp", True))


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

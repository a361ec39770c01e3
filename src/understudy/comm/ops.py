"""An operation, as a transport is asked to run it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from .reduction import Reduction
from .signature import signature

OpKind = Literal[
    "barrier", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all"
]


@dataclass(slots=True)
class Op:
    """A collective over flat, contiguous CPU tensors.

    `inputs` and `outputs` hold one tensor, or one per rank where the operation takes or gives one per rank; on ranks
    that take no part in one side that side is empty. `copy_back` pairs are copied once the operation has finished.
    """

    kind: OpKind
    inputs: list[torch.Tensor] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    reduction: Reduction | None = None
    root: int = 0
    copy_back: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    @property
    def signature(self) -> int:
        """Equal on all ranks that agree about this operation."""
        if self.kind in ("barrier", "all_to_all"):
            return signature(self.kind)
        sample = (self.inputs or self.outputs)[0]
        code = -1 if self.reduction is None else self.reduction.code
        return signature(self.kind, sample.dtype, sample.numel(), code, self.root)

    def needs(self, size: int) -> range | tuple[int, ...]:
        """The ranks without which this operation makes no sense."""
        if self.kind in ("all_gather", "gather", "scatter", "all_to_all"):
            return range(size)
        return (self.root,) if self.kind in ("broadcast", "reduce") else ()

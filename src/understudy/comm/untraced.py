"""Keeping torch.compile out of code that cannot be part of a graph."""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

T = TypeVar("T", bound=type)
_SKIP = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)


def untraced(cls: T) -> T:
    """The methods of a class run as they are, with all that they call, wherever they are called from.

    torch's C++ calls into a group while torch.compile watches every frame of the thread: when DDP rebuilds its buckets,
    when a graph has broken before a collective. What `torch.compiler.disable` does, without its import of seconds.
    """
    for method in vars(cls).values():
        if isinstance(method, FunctionType):
            set_code_exec_strategy(method.__code__, _SKIP)
    return cls

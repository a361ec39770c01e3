"""The CPU and its memory: the device of a worker without an accelerator, and the host of one with it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch


class CpuDevice:
    """Implements `Device`. Operations are complete when their call returns, so there is nothing to wait for."""

    name = "cpu"

    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu"

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")

    def host_empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self.empty(shape, dtype)

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().cpu().contiguous()

    def side_stream(self) -> AbstractContextManager[None]:
        return nullcontext()

    def synchronize(self) -> None:
        return

    def seed(self, number: int) -> None:
        if _accelerated():
            torch.manual_seed(number)
        else:  # the same for the CPU; for devices that are absent torch.manual_seed notes the whole stack, about 1 ms
            torch.default_generator.manual_seed(number)

    def rng_state(self) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)


HOST = CpuDevice()
"""The host's memory: what goes over a socket or to a disk is there first."""


@cache
def _accelerated() -> bool:
    return torch.accelerator.is_available()

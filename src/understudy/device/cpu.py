"""The devices of a worker: the host's memory and the device that it trains on, which so far is the CPU as well.

Code outside of this room names no device type: it asks a device. An accelerator is another class with these methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch


class CpuDevice:
    """The CPU and its memory. Operations are complete when their call returns, so there is nothing to wait for."""

    name = "cpu"
    """The type of a `torch.device` and of a device mesh."""

    def torch_device(self) -> torch.device:
        """The device on which this worker's tensors belong."""
        return torch.device("cpu")

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's memory is on this kind of device."""
        return tensor.device.type == "cpu"

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor in the memory of this device, not initialised."""
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")

    host_empty = empty
    """A contiguous tensor in host memory from and to which this device copies at full speed: pinned, if necessary."""

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a tensor of any device, contiguous in the memory of this one when the call returns; without a
        copy if they already are."""
        return tensor.detach().cpu().contiguous()

    def side_stream(self) -> AbstractContextManager[None]:
        """Launches what runs inside beside training, after all that was launched before. Complete at the end."""
        return nullcontext()

    def synchronize(self) -> None:
        """Wait until everything that was launched on this device is complete."""

    def seed(self, number: int) -> None:
        """Seed torch's global generators, the host's among them."""
        if _accelerated():
            torch.manual_seed(number)
        else:  # the same for the CPU; for devices that are absent torch.manual_seed notes the whole stack, about 1 ms
            torch.default_generator.manual_seed(number)

    def rng_state(self) -> torch.Tensor:
        """The state of this device's global generator."""
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)


HOST = CpuDevice()
"""The host's memory: what goes over a socket or to a disk is there first."""


def local_device() -> CpuDevice:
    """The device on which this worker trains."""
    return HOST


@cache
def _accelerated() -> bool:
    return torch.accelerator.is_available()

"""The interface of a device, and which one this worker trains on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from .cpu import HOST


class Device(Protocol):
    """One device of a worker. Code outside of this room names no device type: it asks a `Device`."""

    @property
    def name(self) -> str:
        """The type of a `torch.device` and of a device mesh, such as `cpu`."""
        ...

    def torch_device(self) -> torch.device:
        """The device on which this worker's tensors belong."""
        ...

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's memory is on this kind of device."""
        ...

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor in the memory of this device, not initialised."""
        ...

    def host_empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor in host memory that this device copies from and to at full speed: pinned, if it needs
        that. Not initialised."""
        ...

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a tensor of any device, contiguous in the memory of this one; without a copy if they already
        are. The values are there when the call returns."""
        ...

    def side_stream(self) -> AbstractContextManager[None]:
        """Launches what runs inside beside training, after all that was launched before. Complete at the end."""
        ...

    def synchronize(self) -> None:
        """Wait until everything that was launched on this device is complete."""
        ...

    def seed(self, number: int) -> None:
        """Seed torch's global generators, the host's among them."""
        ...

    def rng_state(self) -> torch.Tensor:
        """The state of this device's global generator."""
        ...

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Set the state of this device's global generator to what `rng_state` returned."""
        ...


def local_device() -> Device:
    """The device on which this worker trains."""
    return HOST

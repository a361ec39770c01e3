"""The CPU in the place of GPUs, for tests that ask for them only to have one device per rank."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
_DEVICE_OF = {"to": 1, "_parse_to": 0}
"""The argument that may be a device, by name of the function."""


def _is_gpu(value: object) -> bool:
    return (isinstance(value, torch.device) and value.type == "cuda") or (
        isinstance(value, str) and value.split(":")[0] == "cuda"
    )


class OnCpu(TorchFunctionMode):
    """Creates on the CPU what a script wants on a GPU, and leaves there what it wants to move."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        place = _DEVICE_OF.get(getattr(func, "__name__", ""))
        if place is not None and len(args) > place and type(args[place]) is int:
            args = (*args[:place], CPU, *args[place + 1 :])
        if type(kwargs.get("device")) is int:
            kwargs["device"] = CPU
        args = tuple(CPU if _is_gpu(value) else value for value in args)
        return func(*args, **{name: CPU if _is_gpu(value) else value for name, value in kwargs.items()})


class NoStream:
    """A stream or an event of the CPU, on which all is done at once."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def take_the_cpu(suite: Any, helpers: Any, devices: int) -> None:
    """Let torch and its suite find this many GPUs, all of which are the CPU. Use it within `OnCpu`."""
    helpers.TEST_CUDA = True
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: devices
    cuda.current_device = lambda: 0
    for name in ("set_device", "synchronize", "empty_cache", "manual_seed_all", "manual_seed", "init", "_lazy_init"):
        setattr(cuda, name, lambda *_, **__: None)
    for name in ("device", "stream"):
        setattr(cuda, name, lambda *_, **__: nullcontext())
    for name in ("Stream", "Event", "current_stream", "default_stream"):
        setattr(cuda, name, NoStream)
    wrap = torch.nn.parallel.DistributedDataParallel.__init__

    def without_devices(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, **rest: Any) -> None:
        wrap(self, module, **rest)

    torch.nn.parallel.DistributedDataParallel.__init__ = without_devices  # type: ignore[assignment, method-assign]
    profile = torch.autograd.profiler.profile

    def on_cpu(*args: Any, use_cuda: bool = False, **rest: Any) -> Any:
        return profile(*args, **rest)

    torch.autograd.profiler.profile = on_cpu  # type: ignore[assignment, misc]

"""Every private name of torch that Understudy uses: what for, and what happens if a version of torch lacks it.

`tests/device/test_torch_private.py` refuses private names of torch in all other modules. Names that a class must define
because torch calls them are the exception: `ProcessGroup._get_backend` and the like in `comm/group.py`, flags of a
backend in `comm/lookup.py`, `Work._source_rank` in `comm/waits.py`.

All names are in torch 2.13.0, 2.14.1 and 2.15.0. If a later version lacks one, the import of this module, or the use of
the name if its module is imported on demand, raises ImportError with the name and the range of versions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from importlib import import_module
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch.utils.data import DataLoader

__all__ = ["HashStore", "PrefixStore", "Store", "TCPStore"]
"""Stores: torch.distributed has them under public names, but not in its types."""

VERSIONS = "2.13 to 2.15"
"""The versions of torch with which Understudy is tested."""


def needed(module: str, name: str) -> Any:
    """What a module of torch has under this private name, or path of names."""
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        raise ImportError(
            f"torch {torch.__version__} has no {module}.{name}; Understudy runs with torch {VERSIONS}: "
            "install one of these"
        ) from None
    return found


# -- backward passes and graphs ----------------------------------------------------------------------------------------

backward_pass: Callable[[], int] = needed("torch._C", "_current_graph_task_id")
"""The number of the backward pass that runs on this thread; -1 if none does. The time that a step waits for others is
measured by it, and masked steps know gradients by it."""

_set_strategy: Callable[[CodeType, Any], None] = needed("torch._C._dynamo.eval_frame", "set_code_exec_strategy")
_skip: Any = needed("torch._C._dynamo.eval_frame", "_FrameAction").SKIP
_UNTRACED: Any = needed("torch._C._dynamo.eval_frame", "_FrameExecStrategy")(_skip, _skip)


def leave_untraced(code: CodeType) -> None:
    """Keep torch.compile out of this code and of all that it calls: its public counterpart takes seconds to import."""
    _set_strategy(code, _UNTRACED)


# -- groups and backends -----------------------------------------------------------------------------------------------

CppBackend: Any = needed("torch._C._distributed_c10d", "Backend")
"""The base of a backend that C++ can look up, and the options of groups. torch 2.13 has the class, but no backend in
Python can be made of it."""

resolve_group: Callable[[str], Any] = needed("torch._C._distributed_c10d", "_resolve_process_group")
"""The group of this name."""

FUNCTIONAL = "_c10d_functional"
"""The library of functional collectives. Two of them are answered in Python with torch 2.13."""

plugins: dict[str, Any] = needed("torch.distributed", "Backend._plugins")
"""The backends that were registered, by their names in capitals."""


def give_backend(group: Any, devices: Iterable[str], backend: Any) -> None:
    """Let C++ find this backend of a group, for these types of devices. Not used with torch 2.13."""
    custom = dist.ProcessGroup.BackendType.CUSTOM
    group._set_default_backend(custom)
    for device in devices:
        group._register_backend(torch.device(device), custom, backend)


def functional(name: str) -> Any:
    """A functional collective, such as `batch_p2p_ops`."""
    return getattr(needed("torch", f"ops.{FUNCTIONAL}"), name).default


def torchs_own(operation: Any, *args: Any, **options: Any) -> Any:
    """What an operation does without an answer of ours."""
    return operation._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **options)


def ranks_of_groups() -> dict[Any, dict[int, int]]:
    """For each group: global rank → rank in the group. A worker that changes its role has to change them."""
    ranks: dict[Any, dict[int, int]] = needed("torch.distributed.distributed_c10d", "_world").pg_group_ranks
    return ranks


def forget_groups() -> None:
    """Empty DTensor's caches. They know groups by their names, which are used again."""
    if "torch.distributed.tensor" in sys.modules:
        needed("torch.distributed.tensor.debug", "_clear_sharding_prop_cache")()
        needed("torch.distributed.tensor._redistribute", "_gen_transform_infos").cache_clear()


def timeout_of(options: object) -> timedelta | None:
    """The timeout in the options of a backend; None if there are no options."""
    timeout: timedelta | None = getattr(options, "_timeout", None)
    return timeout


def gloo(store: Store, rank: int, size: int, host: str, setup: timedelta) -> Any:
    """A group of Gloo that listens on this address only and is connected when this returns."""
    kind: Any = dist.ProcessGroupGloo
    options = needed("torch.distributed", "ProcessGroupGloo._Options")()
    options._devices = [kind.create_device(hostname=host, lazy_init=False)]
    options._timeout = setup
    options._threads = 1
    return kind(store, rank, size, options)


def nccl(store: Store, rank: int, size: int, limit: timedelta) -> Any:
    """A group of NCCL with this time limit, which public options do not set."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    return dist.ProcessGroupNCCL(store, rank, size, options)


def from_plugin(name: str, store: Store, rank: int, size: int, limit: timedelta) -> Any:
    """A group of a registered backend, made as `init_process_group` makes it."""
    plugin = plugins[name.upper()]
    if not plugin.extended_api:
        return plugin.creator_fn(store, rank, size, limit)
    wanted = needed("torch._C._distributed_c10d", "_DistributedBackendOptions")()
    wanted.store, wanted.group_rank, wanted.group_size, wanted.timeout = store, rank, size, limit
    return plugin.creator_fn(wanted, None)


# -- state -------------------------------------------------------------------------------------------------------------

NormBase: Any = needed("torch.nn.modules.batchnorm", "_NormBase")
"""The base of all layers with statistics of the batch, which differ between replicas."""

foreach_norm: Callable[..., tuple[torch.Tensor, ...]] = needed("torch", "_foreach_norm")
"""Norms of many tensors at once, to find gradients that are not finite."""

ASYNC_TENSOR = ("torch.distributed._functional_collectives", "AsyncCollectiveTensor")
"""Module and name of the class of tensors whose collective may still run; they are waited for before they move."""


def version(tensor: torch.Tensor) -> int:
    """A number that grows with every write to the tensor: state that has not changed is not sent twice."""
    return tensor._version


def base(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor of which this one is a view."""
    return tensor._base


def forget_unscaled(scaler: torch.amp.GradScaler) -> None:
    """Let a GradScaler forget the optimizers that it has unscaled in this step: `load_state_dict` does not."""
    scaler._per_optimizer_states.clear()


# -- scripts -----------------------------------------------------------------------------------------------------------

UNWATCHED = ("_coordinate_on_dim",)
"""Functions of a device mesh that call `get_coordinate` for a rank, in some versions."""


def pipeline_stage() -> Any:
    """The base class of torch's pipeline stages; None if no pipeline is used."""
    stages = "torch.distributed.pipelining.stage"
    return needed(stages, "_PipelineStageBase") if stages in sys.modules else None


def wrap_index_sampler(wrap: Callable[[Any], Any]) -> None:
    """Let all loaders of this process take their indices from `wrap(sampler)`, which may end an epoch early."""
    whole: Any = needed("torch.utils.data", "DataLoader._index_sampler")
    DataLoader._index_sampler = property(lambda loader: wrap(whole.fget(loader)))  # type: ignore[assignment]


def taken(iterator: object) -> int | None:
    """The number of batches that were taken from the iterator of a DataLoader; None for other objects."""
    count: int | None = getattr(iterator, "_num_yielded", None)
    return count

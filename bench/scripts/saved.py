"""The checkpoint of a plain job: one file that rank 0 writes, or a folder of torch.distributed.checkpoint.

The old checkpoint stays until the new one is complete. Saving does not wait for the disk.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def save(place: Path, model: nn.Module, optim: torch.optim.Optimizer, step: int, *, dcp: bool) -> None:
    """Save a checkpoint; called on all workers."""
    if not dcp:
        if dist.get_rank() == 0:
            half = place.with_suffix(".half")
            torch.save({"model": model.state_dict(), "optim": optim.state_dict(), "step": step}, half)
            half.replace(place)
        return
    from torch.distributed.checkpoint.state_dict_saver import save as save_dcp

    before = _latest(place)
    folder = place.with_name(f"{place.name}-{step}")
    save_dcp(_whole(model, optim), checkpoint_id=folder)
    if dist.get_rank() == 0:
        half = place.with_suffix(".half")
        half.write_text(str(step))
        half.replace(place)
        if before is not None and before != step:
            shutil.rmtree(place.with_name(f"{place.name}-{before}"), ignore_errors=True)


def load(place: Path, model: nn.Module, optim: torch.optim.Optimizer, *, dcp: bool) -> int:
    """Load the checkpoint, if any. Returns the step to continue from, else 0."""
    if not place.exists():
        return 0
    if not dcp:
        saved = torch.load(place)
        model.load_state_dict(saved["model"])
        optim.load_state_dict(saved["optim"])
        return int(saved["step"])
    from torch.distributed.checkpoint.state_dict import set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load as load_dcp

    step = _latest(place)
    assert step is not None
    state = _whole(model, optim)
    load_dcp(state, checkpoint_id=place.with_name(f"{place.name}-{step}"))
    set_state_dict(model, optim, model_state_dict=state["model"], optim_state_dict=state["optim"])
    return step


def _latest(place: Path) -> int | None:
    return int(place.read_text()) if place.exists() else None


def _whole(model: nn.Module, optim: torch.optim.Optimizer) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, moments = get_state_dict(model, optim)
    return {"model": weights, "optim": moments}

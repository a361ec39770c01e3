"""What it costs a worker to measure its steps, for whoever looks for slow ones: the same loop with and without it."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from understudy.protocol.messages import TO_AGENT, Progress
from understudy.protocol.samples import Sample
from understudy.worker.meter import Meter
from understudy_bench.harness import interleave, median

ROUNDS, STEPS, MICRO = 15, 400, 4
BAR = 0.001
"""Of a step."""


def _steps(meter: Meter | None) -> tuple[float, int]:
    """Seconds of a step, and bytes of what is told after it."""
    module, given = nn.Identity(), torch.zeros(1)
    if meter is not None:
        meter.watch([module])
    sample: Sample | None = None
    began = time.perf_counter()
    for step in range(STEPS):
        if meter is not None:
            meter.begin(1, step)
        for _ in range(MICRO):
            if meter is not None:
                meter.shard()
            module(given)
            if meter is not None:
                meter.update()
        if meter is not None:
            sample = meter.end("m0/0", 0, step)
        told = TO_AGENT.encode(Progress(0, step, 0.4, {"loss": 1.0}, primary=False, sample=sample))
    return (time.perf_counter() - began) / STEPS, len(told)


def row() -> dict[str, Any]:
    """Medians, of turns that alternate."""
    found: dict[str, list[tuple[float, int]]] = {"with": [], "without": []}
    for _, kind in interleave(("with", "without"), ROUNDS):
        found[kind].append(_steps(Meter() if kind == "with" else None))
    took = {kind: median(seconds for seconds, _ in turns) for kind, turns in found.items()}
    return {
        "part": "measuring",
        "us_per_step": round(1e6 * (took["with"] - took["without"]), 1),
        "bytes_per_step": found["with"][0][1] - found["without"][0][1],
    }

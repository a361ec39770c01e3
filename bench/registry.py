"""The list of benchmarks. A module is imported when its benchmark runs: a broken one does not affect the others."""

from __future__ import annotations

from importlib import import_module

from understudy_bench.harness.bench import Bench

BENCHES: dict[str, str] = {
    "collectives": "understudy_bench.collectives:BENCH",
    "failure": "understudy_bench.failure:BENCH",
    "mask": "understudy_bench.mask:BENCH",
    "memory": "understudy_bench.memory:BENCH",
    "overhead": "understudy_bench.overhead:BENCH",
    "reality": "understudy_bench.reality:BENCH",
    "rebalance": "understudy_bench.rebalance:BENCH",
    "rehearsal": "understudy_bench.rehearsal.bench:BENCH",
    "reorder": "understudy_bench.reorder:BENCH",
    "replace": "understudy_bench.replace:BENCH",
    "scale": "understudy_bench.scale:BENCH",
    "setup": "understudy_bench.setup:BENCH",
    "straggler": "understudy_bench.straggler:BENCH",
}

SLOW = ("reality", "rebalance", "rehearsal", "straggler")
"""Benchmarks that take minutes even with `--quick`; `bench all --quick` leaves them out unless `--only` names them."""
TYPICAL: dict[str, tuple[float, float]] = {
    "collectives": (210, 40),
    "failure": (780, 125),
    "mask": (480, 130),
    "memory": (140, 50),
    "overhead": (350, 35),
    "reality": (650, 300),
    "rebalance": (1280, 300),
    "rehearsal": (920, 240),
    "reorder": (35, 10),
    "replace": (620, 110),
    "scale": (65, 30),
    "setup": (45, 15),
    "straggler": (580, 170),
}
"""Approximate seconds of a full run and of a quick one on two cores, for the estimate of the remaining time."""
UNKNOWN = (600.0, 90.0)
"""The default for a benchmark without an entry."""


class BenchUnavailable(Exception):
    """A benchmark cannot be loaded; the message says why."""


def load(name: str) -> Bench:
    """Import a benchmark; raise `BenchUnavailable` if that fails."""
    module_name, _, attribute = BENCHES[name].partition(":")
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise BenchUnavailable(str(error)) from error
    bench = getattr(module, attribute, None)
    if not isinstance(bench, Bench):
        raise BenchUnavailable(f"{BENCHES[name]} is not a Bench")
    return bench


def typical(name: str, quick: bool) -> float:
    """The expected seconds of a benchmark."""
    return TYPICAL.get(name, UNKNOWN)[quick]

"""Which benchmarks there are. A module is imported only when it is needed, so that one broken one harms no other."""

from __future__ import annotations

from importlib import import_module

from understudy_bench.harness import Bench

BENCHES: dict[str, str] = {
    "collectives": "understudy_bench.collectives:BENCH",
    "failure": "understudy_bench.failure:BENCH",
    "mask": "understudy_bench.mask:BENCH",
    "memory": "understudy_bench.footprint:BENCH",
    "overhead": "understudy_bench.overhead:BENCH",
    "reality": "understudy_bench.reality:BENCH",
    "rebalance": "understudy_bench.rebalance:BENCH",
    "rehearsal": "understudy_bench.rehearsal:BENCH",
    "reorder": "understudy_bench.reorder:BENCH",
    "replace": "understudy_bench.replace:BENCH",
    "scale": "understudy_bench.scale:BENCH",
    "setup": "understudy_bench.setup:BENCH",
    "straggler": "understudy_bench.straggler:BENCH",
}

SLOW = ("reality", "rebalance", "rehearsal", "straggler")
"""Those that take minutes even when they are quick; a quick run of all leaves them out unless they are named."""
TYPICAL: dict[str, tuple[float, float]] = {
    "collectives": (200, 35),
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
"""About how many seconds a full run and a quick one take on two cores, for the estimate of what is left of all."""
UNKNOWN = (600.0, 90.0)
"""The same of a benchmark that nobody has timed."""


class BenchUnavailable(Exception):
    """A registered benchmark cannot be loaded; the message says why."""


def load(name: str) -> Bench:
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
    """Seconds that a benchmark takes, as far as anybody knows beforehand."""
    return TYPICAL.get(name, UNKNOWN)[quick]

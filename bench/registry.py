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
}


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

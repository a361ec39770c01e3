"""Small results of benchmarks, for tests of the code that reads and shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from understudy_bench.harness.bench import Check, Environment, Load, Report
from understudy_bench.report.folder import Results

ENV = Environment(
    cores=2,
    platform="Linux 6 x86_64",
    versions={"python": "3.11", "torch": "2.13", "understudy": "0", "torchft": "not installed"},
    load=Load((0.5, 0.4, 0.3), (1.5, 0.6, 0.4)),
    quick=False,
)
SERIES = {"from_s": -1.0, "every_s": 0.5, "share": [1.0, 1.0, 0.25, None]}


def report(bench: str, rows: Sequence[dict[str, Any]], checks: Sequence[Check] = ()) -> Report:
    return Report(bench, ENV, rows, checks)


def replaced(system: str, lost: float, **more: Any) -> list[dict[str, Any]]:
    single = {"system": system, "round": 0, "lost_s": lost, "phases": {"rehearse": 3.0, "switch": lost}}
    total = {"system": system, "round": "all", "lost_s": lost, "step_s": 0.25, "lost_spread": [0.9 * lost, 1.1 * lost]}
    around = {"part": "around", "system": system, "interruptions": 1, "series": SERIES}
    return [single, {**total, **more}, around]


def died(system: str, loss: str, stall: float, **more: Any) -> list[dict[str, Any]]:
    total = {
        **{"system": system, "loss": loss, "round": "all 10", "stall_s": stall, "stall_spread": [stall, 2 * stall]},
        **{"full_strength_s": 5 * stall, "new_step_s": 2 * stall, "step_s": 0.3, "repeated": 1.0, "dropped": 0.0},
        "restarted": "0 of 10",
    }
    around = {"part": "around", "system": system, "loss": loss, "interruptions": 10, "series": SERIES}
    return [{**total, **more}, around]


def everything() -> Results:
    """One result of each benchmark that is drawn; one contestant is missing, one is better, and one check fails."""
    replace = [
        *replaced("understudy", 0.2, beside_s=1.2, ready_s=4.0),
        *replaced("no delta", 0.21, ready_s=4.1),
        *replaced("no overlap", 0.15, ready_s=4.0),
        *replaced("naive", 2.8, ready_s=5.0),
        *replaced("restart", 8.0),
    ]
    failure = [
        *died("understudy", "worker", 0.2),
        *died("understudy", "machine", 0.25),
        *died("torchrun", "worker", 4.6, repeated=6.0, restarted="10 of 10"),
        {"system": "torchft", "absent": "not installed: pip install it"},
    ]
    mask = [
        {**died("masking", "worker", 0.04, degraded=0.8, full_strength_s=None)[0], "round": "all 8"},
        {**died("torchrun", "worker", 8.7, degraded=None)[0], "round": "all 8"},
        {"system": "torchft", "round": "0, cut short", "why": "it has not gone on"},
    ]
    collectives = [
        {"op": "all_reduce", "path": "tcp", "workers": 2, "bytes": size, "understudy_us": ours, "gloo_us": 100.0}
        for size, ours in ((4096, 50.0), (1 << 20, 110.0))
    ]
    setup = [
        {
            **{"roles": roles, "links_total": 3 * roles, "links_opened": 11, "switch_us": 40.4, "phase_one_ms": 20.0},
            **{"switch_all_ms": 0.04 * roles, "rebuild_ms": 5.0 * roles},
        }
        for roles in (32, 1024)
    ]
    overhead = [
        {"workers": 2, "start": "0", "understudy_ms": 250.0, "plain_ms": 251.0, "ratio": 0.996},
        {"workers": 2, "start": "all", "understudy_ms": 250.0, "plain_ms": 251.0, "ratio": 0.996},
    ]
    curve = {"seconds": [0.0, 0.1, 0.2], "bytes": [10e6, 10e6, 10.1e6], "marks": {"asked": 0.0}}
    memory: list[dict[str, Any]] = [
        {"part": "a replacement", "worker": part, "round": number, "curve": curve}
        for number in (0, 1)
        for part in ("stayer", "stayer", "leaver")
    ]
    memory += [
        {"part": "state", "parameters_and_moments_mb": 122.3},
        {"part": "a replacement", "worker": "stayer", "round": "all 4", "growth": 0.0008},
        {"part": "a replacement", "worker": "leaver", "round": "all 2", "growth": -0.01},
    ]
    rebalance = [
        {
            **{"part": "spacing", "system": "understudy", "spacing": 25, "made": 26.0},
            **{"wall": 0.9, "replacing": 0.99, "step_s": 0.2},
        },
        {"part": "spacing", "system": "restart", "spacing": 25, "made": 25.0, "wall": 0.4},
        *(
            {"part": "at once", "links": links, "machines": 2, "of": 8, "round": "all 6", "lost_s": lost}
            for links, lost in (("own", 0.08), ("shared", 0.03))
        ),
    ]
    straggler = [
        {"part": "undisturbed", "round": 0, "steps": 84, "alarms": 0},
        {"part": "slowed", "round": 0, "slow": "m0", "blamed": "m0", "noticed": 17},
        {"part": "slowed", "round": 1, "slow": "m0", "blamed": "m1", "noticed": 19},
        {"part": "an hour", "system": "understudy", "lost_s": 1.6, "efficiency": 0.9995},
        {"part": "an hour", "system": "restart", "lost_s": 6.4, "efficiency": 0.9982},
        {"part": "an hour", "system": "no action", "efficiency": 0.84},
    ]
    scale = [
        {"part": "changes", "what": what, "machines": machines, "cpu_s": machines / 1000, "frames": 9.5}
        | ({"decided_s": machines / 500, "resident_mb": 100.0 + machines / 64} if what == "failure" else {})
        for what in ("failure", "planned")
        for machines in (1024, 256, 64)
    ]
    scale += [{"part": "at rest", "machines": machines, "cpu_us_per_beat": 50.0} for machines in (64, 256, 1024)]
    rehearsal: list[dict[str, Any]] = [
        *(
            {
                **{"part": "first step", "model": "eager", "how": how, "round": "all 6", "graphs_after": 0.0},
                **{"ratio": ratio, "ratio_spread": reach, "lost_s": 0.14},
            }
            for how, ratio, reach in (("rehearsed", 0.93, [0.8, 1.06]), ("cold", 1.08, [1.0, 1.2]))
        ),
        {
            **{"part": "promotion", "mesh": "pp=3,dp=2,tp=1", "how": "entered again", "round": "all 4"},
            **{"full_strength_s": 0.7, "full_strength_spread": [0.51, 0.93]},
        },
        {"part": "recording", "round": "all 20", "ratio": 1.0, "ratio_spread": [0.9, 1.1]},
        {"part": "recording", "model": "gpt_3d.py", "recorded_mb": [1.3, 1.8, 1.3]},
        {
            **{"part": "memory", "round": "0", "ratio": 0.97, "parked_mb": 440.0, "training_mb": [453.0, 453.0]},
            **{"parked_own_mb": 276.0, "training_own_mb": [282.0, 282.0]},
        },
    ]
    reality = [
        {"system": "recovery", "stretch": "calibration", "what": "step", "value_s": 0.16, "why": "9 steps"},
        {
            **{"system": "recovery", "stretch": "all 3", "seconds": 180.0, "step_s": 0.16, "deaths": 30},
            **{"measured": 0.915, "simulated": 0.922, "naive": 1.093},
        },
    ]
    reports = [
        report("replace", replace, [Check("ratio_restart", 40.0, ">= 40", True)]),
        report("failure", failure, [Check("ratio_torchft", 1.9, ">= 2", False)]),
        report("mask", mask),
        report("collectives", collectives),
        report("setup", setup),
        report("overhead", overhead),
        report("memory", memory),
        report("rebalance", rebalance),
        report("straggler", straggler, [Check("after", 0.999, ">= 0.98", True)]),
        report("scale", scale),
        report("rehearsal", rehearsal),
        report("reality", reality),
    ]
    return Results({each.bench: each for each in reports})

"""`understudy simulate --steward`: weeks of a job under the steward's own decision function."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.table import Table

from understudy.cli import cluster_options
from understudy.cli.command import UsageError
from understudy.cli.output import deliver, progress_bar, table
from understudy.protocol.durations import readable
from understudy.protocol.sentences import counted

if TYPE_CHECKING:
    from understudy.planning.outcome import Mean
    from understudy.planning.simulation.steward import StewardScenario
    from understudy.protocol.settings import StewardSettings

OPTIONS = ("pool", "cool_down", "budget", "looks", "replacements", "slow", "noticed", "lasting", "mistaken", "mistake")
MOST_EVENTS = 2_000_000
"""Interruptions of all runs: some minutes."""
MOST_RUNS = 20
"""Default number of runs: each has many events."""


def add_options(parser: argparse.ArgumentParser) -> None:
    about = "with --steward: simulate its decisions about slow machines and standbys, and their value"
    add = parser.add_argument_group("the steward", about).add_argument
    both = "simulate the steward, with and without the replacement of slow machines"
    add("--steward", action="store_true", help=both)
    add("--pool", metavar="N", help="standbys that are kept (default: enough that one is nearly always ready)")
    pause = "time between two requests for machines, and before a release (default 30s)"
    add("--cool-down", metavar="SPAN", help=pause)
    add("--budget", metavar="N", help="machines requested per hour, at most (default: unlimited)")
    add("--looks", metavar="N", help="seconds for which a machine is found slow before it is replaced (default 10)")
    add("--replacements", metavar="N", help="slow machines replaced per hour, at most (default 4)")
    add("--slow", metavar="SHARE", help="slow-down of a slow machine (default 0.2)")
    add("--noticed", metavar="SPAN", help="time until the detector finds a slow machine (default 10m)")
    add("--lasting", metavar="SPAN", help="time for which a machine stays slow if it is not replaced (default 1d)")
    add("--mistaken", metavar="SPAN", help="mean time until a machine is found slow by mistake (default: never)")
    add("--mistake", metavar="SPAN", help="mean duration of such a mistake (default 60s)")


def refuse(args: argparse.Namespace) -> None:
    """Refuse the options of the steward without --steward."""
    for name in OPTIONS:
        if getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} needs --steward: give that as well")


def run(args: argparse.Namespace, runs: int, horizon: float, seed: int) -> int:
    from understudy.planning.simulation.steward import simulate

    for name, given in (("--timeline", args.timeline), ("--sweep", args.sweep), ("--report", args.report)):
        if given:
            raise UsageError(f"{name} is about strategies; leave it out with --steward")
    scenario, settings, domain = _asked(args)
    if args.runs == "100":
        runs = MOST_RUNS
    _feasible(scenario, runs, horizon)
    how: Any = {"runs": runs, "horizon": horizon, "seed": seed}
    off = dataclasses.replace(settings, mode="off")
    with progress_bar("simulate") as progress:
        done = simulate(scenario, settings, **how, progress=lambda share: progress(share / 2))
        without = simulate(scenario, off, **how, progress=lambda share: progress(0.5 + share / 2))
    data: dict[str, Any] = {
        "machines": scenario.machines,
        "pool": settings.pool,
        "runs": runs,
        "weeks": horizon / 604800,
        "steward": msgspec.to_builtins(done),
        "without": msgspec.to_builtins(without),
        "notes": _notes(scenario, domain),
    }

    def show(out: Console) -> None:
        arrives = f"a machine arrives after {readable(scenario.arrival)}"
        out.print(f"{scenario.machines:,} machines, {settings.pool:,} standbys kept, {arrives}")
        out.print(_table(done, without))
        for note in data["notes"]:
            out.print(note)
        out.print(f"{counted(runs, 'run')} of {readable(horizon)} each", style="dim")

    return deliver(args, data, show)


def _asked(args: argparse.Namespace) -> tuple[StewardScenario, StewardSettings, int]:
    from understudy.planning.closed_form import enough_standbys
    from understudy.planning.inputs.assume import assume
    from understudy.planning.simulation.steward import StewardScenario
    from understudy.protocol.settings import HOUR, StewardSettings

    count, span = cluster_options.count, cluster_options.span
    assumed = assume(cluster_options.ask(args))
    machines, durations = assumed.setting.cluster.machines, assumed.setting.durations
    failures = msgspec.structs.replace(
        assumed.failures,
        slow=_within(args, "slow", cluster_options.real, 0.001, 100.0, assumed.failures.slow),
        noticed=_within(args, "noticed", span, 0.0, 3.2e7, assumed.failures.noticed),
    )
    needed = 1 / failures.mtbf + sum(1 / each for each in (failures.maintenance, failures.straggling) if each)
    enough = enough_standbys(needed * machines, durations.cold)
    scenario = StewardScenario(
        machines,
        failures,
        arrival=durations.cold,
        planned=durations.planned,
        lasting=_within(args, "lasting", span, 1.0, 3.2e8, 86400.0),
        mistaken=_within(args, "mistaken", span, 0.0, 3.2e10, 0.0),
        mistake=_within(args, "mistake", span, 0.0, 3.2e7, 60.0),
    )
    usual = StewardSettings()
    settings = StewardSettings(
        "act",
        _within(args, "pool", count, 0, 1_000_000, enough),
        cool_down=_within(args, "cool_down", span, 0.0, HOUR, usual.cool_down),
        budget=_within(args, "budget", count, 0, 1_000_000, usual.budget),
        looks=_within(args, "looks", count, 1, 1_000_000, usual.looks),
        replacements=_within(args, "replacements", count, 0, 1_000_000, usual.replacements),
        arrival=max(HOUR, 2 * durations.cold),
    )
    return scenario, settings, assumed.setting.cluster.domain


def _within(args: argparse.Namespace, name: str, read: Any, low: float, high: float, default: Any) -> Any:
    """An option's value, or its default; `UsageError` if it is out of range."""
    found = cluster_options.number(args, name, read)
    if found is None:
        return default
    if not low <= found <= high:
        option = f"--{name.replace('_', '-')} {getattr(args, name)}"
        unit = " s" if read is cluster_options.span else ""
        raise UsageError(f"{option}: give a number from {low:,g} to {high:,g}{unit}")
    return found


def _feasible(scenario: StewardScenario, runs: int, horizon: float) -> None:
    """Refuse a simulation that would take hours."""
    failures = scenario.failures
    rates = (failures.mtbf, failures.maintenance, failures.straggling, scenario.mistaken)
    events = 2 * runs * horizon * scenario.machines * sum(1 / each for each in rates if each)
    if events > MOST_EVENTS:
        many = f"{events:.2g} interruptions are too many to simulate"
        raise UsageError(f"{many}; ask for fewer --runs or a shorter --for")


def _notes(scenario: StewardScenario, domain: int) -> list[str]:
    found = []
    if not scenario.failures.straggling:
        found.append("no machine becomes slow here: give --straggling, the mean time until one does")
    if scenario.failures.together and domain > 1:
        found.append("--together is not simulated with --steward: machines fail one by one")
    return found


def _table(done: dict[str, Mean], without: dict[str, Mean]) -> Table:
    rows = (
        ("machines that fail", "failed", 1.0),
        ("machines maintained", "maintained", 1.0),
        ("machines that become slow", "became_slow", 1.0),
        ("machines replaced because they are slow", "replaced", 1.0),
        ("  of these, not slow", "falsely", 1.0),
        ("machine-hours lost to slow machines", "slowed", 3600.0),
        ("machine-hours lost by replacing them", "paused", 3600.0),
        ("standby-hours", "standing_by", 3600.0),
        ("hours that a place is vacant", "vacant", 3600.0),
        ("machines requested", "requested", 1.0),
        ("  at most in any hour", "at_most", 1.0),
        ("machines released", "released", 1.0),
        ("no standby when one was needed", "missed", 1.0),
    )
    made = table("in a week", "with the steward", "95 %", "slow machines stay", "95 %")
    for title, name, unit in rows:
        made.add_row(title, *_cells(done[name], unit), *_cells(without[name], unit))
    return made


def _cells(mean: Mean, unit: float) -> tuple[str, str]:
    value, low, high = mean.value / unit, mean.low / unit, mean.high / unit
    return _said(value), f"{_said(max(low, 0.0))} to {_said(high)}" if value else ""


def _said(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

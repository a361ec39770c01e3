"""`understudy simulate --steward`: weeks of a job under the function that decides in a running one."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from understudy.cli import asking
from understudy.cli.errors import UsageError
from understudy.cli.output import ProgressBar, deliver, table

if TYPE_CHECKING:
    from rich.console import Console

    from understudy.planning.outcome import Mean
    from understudy.planning.simulation.steward import StewardMeans, StewardScenario
    from understudy.protocol.settings import StewardSettings

OPTIONS = ("pool", "cool_down", "budget", "looks", "replacements", "slow", "noticed", "lasting", "mistaken", "mistake")
MOST_EVENTS = 2_000_000
"""Of all runs: some minutes."""
MOST_RUNS = 20
"""Unless told otherwise: there are many events in each."""


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "the steward", "with --steward: what it would do about slow machines and standbys, and what that buys"
    )
    add = group.add_argument
    add("--steward", action="store_true", help="simulate it, with slow machines replaced and without")
    add("--pool", metavar="N", help="standbys that are kept (default: so many that nearly always one is there)")
    add("--cool-down", metavar="SPAN", help="between two requests for machines, and before a release (default 30s)")
    add("--budget", metavar="N", help="machines asked for in an hour, at most (default: any number)")
    add("--looks", metavar="N", help="looks, one a second, in which a machine is slow before it goes (default 10)")
    add("--replacements", metavar="N", help="of slow machines in an hour, at most (default 4)")
    add("--slow", metavar="SHARE", help="by how much a slow machine is slower (default 0.2)")
    add("--noticed", metavar="SPAN", help="until the detector finds one (default 10m)")
    add("--lasting", metavar="SPAN", help="for how long it stays slow if nobody does anything (default 1d)")
    add(
        "--mistaken",
        metavar="SPAN",
        help="mean time of a machine until it is taken for slow by mistake (default: never)",
    )
    add("--mistake", metavar="SPAN", help="for how long it is, in the mean (default 60s)")


def refuse(args: argparse.Namespace) -> None:
    """These options mean nothing without it."""
    for name in OPTIONS:
        if getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} belongs to --steward: give that as well")


def run(args: argparse.Namespace, runs: int, horizon: float, seed: int) -> int:
    from understudy.planning.simulation.steward import simulate

    for name, given in (("--timeline", args.timeline), ("--sweep", args.sweep), ("--report", args.report)):
        if given:
            raise UsageError(f"{name} is about strategies; leave it out with --steward")
    scene, settings, domain = _asked(args)
    if args.runs == "100":
        runs = MOST_RUNS
    _feasible(scene, runs, horizon)
    with ProgressBar("simulate") as bar:
        done = simulate(
            scene, settings, runs=runs, horizon=horizon, seed=seed, progress=lambda share: bar.show(share / 2)
        )
        without = simulate(
            scene,
            _off(settings),
            runs=runs,
            horizon=horizon,
            seed=seed,
            progress=lambda share: bar.show(0.5 + share / 2),
        )
    data = {
        "machines": scene.machines,
        "pool": settings.pool,
        "runs": runs,
        "weeks": done.weeks,
        "steward": _figures(done),
        "without": _figures(without),
    }
    notes = _notes(scene, domain)
    return deliver(args, {**data, "notes": notes}, lambda out: _show(scene, settings, done, without, notes, out))


def _off(settings: StewardSettings) -> StewardSettings:
    return dataclasses.replace(settings, mode="off")


def _asked(args: argparse.Namespace) -> tuple[StewardScenario, StewardSettings, int]:
    import msgspec

    from understudy.planning.closed_form import enough_standbys
    from understudy.planning.inputs.assume import assume
    from understudy.planning.simulation.steward import StewardScenario
    from understudy.protocol.settings import HOUR, StewardSettings

    assumed = assume(asking.ask(args))
    machines, durations = assumed.setting.cluster.machines, assumed.setting.durations
    failures = msgspec.structs.replace(
        assumed.failures,
        slow=_within(args, "slow", asking.real, 0.001, 100.0, assumed.failures.slow),
        noticed=_within(args, "noticed", asking.span, 0.0, 3.2e7, assumed.failures.noticed),
    )
    needed = 1 / failures.mtbf + sum(1 / each for each in (failures.maintenance, failures.straggling) if each)
    pool = _within(args, "pool", asking.count, 0, 1_000_000, enough_standbys(needed * machines, durations.cold))
    scene = StewardScenario(
        machines,
        failures,
        arrival=durations.cold,
        planned=durations.planned,
        lasting=_within(args, "lasting", asking.span, 1.0, 3.2e8, 86400.0),
        mistaken=_within(args, "mistaken", asking.span, 0.0, 3.2e10, 0.0),
        mistake=_within(args, "mistake", asking.span, 0.0, 3.2e7, 60.0),
    )
    settings = StewardSettings(
        "act",
        pool,
        cool_down=_within(args, "cool_down", asking.span, 0.0, HOUR, 30.0),
        budget=_within(args, "budget", asking.count, 0, 1_000_000, 0),
        looks=_within(args, "looks", asking.count, 1, 1_000_000, 10),
        replacements=_within(args, "replacements", asking.count, 0, 1_000_000, 4),
        arrival=max(HOUR, 2 * durations.cold),
    )
    return scene, settings, assumed.setting.cluster.domain


def _within(args: argparse.Namespace, name: str, read: Any, low: float, high: float, default: Any) -> Any:
    """What an option says, where that can be meant."""
    found = asking.number(args, name, read)
    if found is None:
        return default
    if not low <= found <= high:
        option = f"--{name.replace('_', '-')} {getattr(args, name)}"
        raise UsageError(f"{option}: give a number from {low:,g} to {high:,g}" + (" s" if read is asking.span else ""))
    return found


def _feasible(scene: StewardScenario, runs: int, horizon: float) -> None:
    """Refuse what would take hours, before it begins."""
    failures = scene.failures
    rates = (failures.mtbf, failures.maintenance, failures.straggling, scene.mistaken)
    events = 2 * runs * horizon * scene.machines * sum(1 / each for each in rates if each)
    if events > MOST_EVENTS:
        raise UsageError(
            f"{events:.2g} interruptions are too many to simulate; ask for fewer --runs or a shorter --for"
        )


def _notes(scene: StewardScenario, domain: int) -> list[str]:
    found = []
    if not scene.failures.straggling:
        found.append("no machine becomes slow here: say with --straggling how often one does")
    if scene.failures.together and domain > 1:
        found.append("--together is not simulated with --steward: machines fail one by one")
    return found


def _figures(found: StewardMeans) -> dict[str, dict[str, float]]:
    import msgspec

    return {name: msgspec.to_builtins(mean) for name, mean in found.means.items()}


def _show(
    scene: StewardScenario,
    settings: StewardSettings,
    done: StewardMeans,
    without: StewardMeans,
    notes: list[str],
    out: Console,
) -> None:
    from understudy.planning.spans import said

    rows = (
        ("machines that fail", "failed", 1.0),
        ("machines maintained", "maintained", 1.0),
        ("machines that become slow", "became_slow", 1.0),
        ("replaced because they are slow", "replaced", 1.0),
        ("  though they are not", "falsely", 1.0),
        ("machine-hours lost to slow machines", "slowed", 3600.0),
        ("machine-hours lost by replacing them", "paused", 3600.0),
        ("standby-hours", "standing_by", 3600.0),
        ("hours that a place is vacant", "vacant", 3600.0),
        ("machines asked for", "requested", 1.0),
        ("  in any one hour at most", "at_most", 1.0),
        ("machines released", "released", 1.0),
        ("no standby when one was needed", "missed", 1.0),
    )
    made = table("in a week", "with the steward", "95 %", "slow ones are left alone", "95 %")
    for title, name, unit in rows:
        cells = [cell for found in (done, without) for cell in _cells(found.means[name], unit)]
        made.add_row(title, *cells)
    out.print(
        f"{scene.machines:,} machines, {settings.pool:,} standbys kept, a machine comes after {said(scene.arrival)}"
    )
    out.print(made)
    for note in notes:
        out.print(note)
    out.print(f"{done.runs:,} run{'s' if done.runs > 1 else ''} of {said(done.weeks * 604800)} each", style="dim")


def _cells(mean: Mean, unit: float) -> tuple[str, str]:
    value, low, high = mean.value / unit, mean.low / unit, mean.high / unit
    return _said(value), f"{_said(max(low, 0.0))} to {_said(high)}" if value else ""


def _said(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

"""`understudy simulate`: simulate strategies side by side, one week of one of them in detail, or a sweep."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from understudy.cli import cluster_options, simulate_steward
from understudy.cli.command import Subparsers, UsageError, add_command
from understudy.cli.output import deliver, made, progress_bar, table, writable
from understudy.protocol.durations import readable

if TYPE_CHECKING:
    from understudy.planning.inputs.assume import PlanAssumptions, PlanRequest
    from understudy.planning.outcome import SimulationOutcome
    from understudy.planning.planner import FixedChoices, PlanOption

DESCRIPTION = """\
Simulate a cluster's failures and how strategies deal with them. Without --standbys, --r and --period, each strategy
gets its best settings. Means have a 95 % confidence interval; the same seed gives the same result.
"""
EPILOG = """\
examples:
  understudy simulate --gpus 65536                                    all strategies side by side
  understudy simulate --gpus 65536 --strategy mask-and-refill,trainmover --runs 1000 --for 30d
  understudy simulate --gpus 65536 --strategy trainmover --timeline   the events of one week
  understudy simulate --gpus 1024 --strategy mask-and-refill --sweep gpus=1024,16384,65536,600000
  understudy simulate --gpus 16384 --strategy trainmover --sweep standbys=0,2,8,16
  understudy simulate --gpus 8192 --steward --straggling 180d --mistaken 30d   the value of replacing slow machines

Engines: jump goes from event to event, many runs at once; steps goes from step to step, slower and exact; simgrid is an
independent simulator for small cases (install it with make simgrid).
"""
ENGINES = ("jump", "steps", "simgrid")
SWEPT = ("gpus", "mtbf", "standbys", "r", "period", "restart", "save", "cold", "repair", "replicas", "step-seconds")

MOST_EVENTS = 500_000
"""Interruptions that are simulated one after the other: a minute or two."""
MOST_TOLD = 20_000
MOST_STEPS = 5_000_000
"""Steps of all runs, for an engine that goes step by step."""
MOST_STEPPING = 10_000

Row = dict[str, Any]


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "simulate", run, "simulate strategies against failures", DESCRIPTION, EPILOG)
    cluster_options.add_options(parser)
    add = parser.add_argument_group("the simulation").add_argument
    add("--strategy", default="all", metavar="NAMES", help="strategies, separated by commas, or all (default all)")
    add("--standbys", metavar="N", help="standbys that are kept (default: the best number)")
    add("--r", metavar="N", help="holders of a shard (default: the best number)")
    add("--period", metavar="SPAN", help="time between two checkpoints (default: the best one)")
    add("--runs", metavar="N", default="100", help="number of simulated runs (default 100)")
    add("--for", dest="horizon", metavar="SPAN", default="30d", help="simulated time of a run (default 30d)")
    add("--seed", default="0", metavar="N", help="seed of all random draws (default 0)")
    add("--engine", choices=ENGINES, default="jump", help="simulator, see below (default jump)")
    add("--sweep", metavar="NAME=V,V", help=f"simulate several values of one of: {', '.join(SWEPT)}")
    add("--timeline", action="store_true", help="print one week of one strategy, event by event")
    simulate_steward.add_options(parser)
    add = parser.add_argument
    as_json = "write the result as JSON to FILE, or print it instead of the table"
    add("--json", nargs="?", const="-", metavar="FILE", help=as_json)
    add("--report", type=Path, metavar="FILE", help="write an HTML page with the plan, this result and plots")


def run(args: argparse.Namespace) -> int:
    writable(args)
    runs = cluster_options.number(args, "runs", cluster_options.count) or 0
    if not 1 <= runs <= 100_000:
        raise UsageError(f"--runs {args.runs}: give a number from 1 to 100,000")
    seed = cluster_options.seed(args)
    horizon = cluster_options.number(args, "horizon", cluster_options.span, "for") or 0.0
    if horizon < 60:
        raise UsageError(f"--for {args.horizon}: simulate at least a minute")
    if args.steward:
        return simulate_steward.run(args, runs, horizon, seed)
    simulate_steward.refuse(args)
    if args.timeline and args.sweep is not None:
        raise UsageError("--timeline shows one cluster; leave out --sweep")
    if args.report is not None and (args.sweep is not None or args.timeline):
        raise UsageError("--report shows strategies on one cluster; leave out --sweep and --timeline")
    simulate, refusals = _engine(args.engine)
    if args.timeline:
        return _timeline(args, seed)
    rows: list[Row] = []
    points = list(_points(args))
    with progress_bar("simulate") as show:
        for place, (label, ask, only) in enumerate(points):
            assumed, options = _chosen(args, ask, only)
            _feasible(assumed, len(options), runs, horizon, args)
            for number, option in enumerate(options):
                begun, share = (place + number / len(options)) / len(points), 1 / len(options) / len(points)
                setting, failures, repair = assumed.setting, assumed.failures, assumed.repair
                how = {"runs": runs, "horizon": horizon, "seed": seed, "progress": _part(show, begun, share)}
                try:
                    outcome = simulate(setting, failures, option.strategy, repair, **how)
                except refusals as error:
                    raise UsageError(f"--engine {args.engine}: {error}") from None
                rows.append(_row(label, assumed, option, outcome))
    return deliver(args, rows, lambda out: _show(rows, out, runs), lambda: _page(points[0][1], seed, rows))


def _page(ask: PlanRequest, seed: int, rows: list[Row]) -> str:
    from understudy.planning.outcome import Mean
    from understudy.planning.planner import plan
    from understudy.planning.report.page import page
    from understudy.planning.report.plan_data import Simulated

    found = []
    for row in rows:
        inflation = Mean(row["inflation"], row["inflation_low"], row["inflation_high"])
        found.append(Simulated(row["strategy"], inflation, row["closed_form"]))
    return page(plan(ask, seed), made(), found)


def _part(show: Callable[[float], None], begun: float, share: float) -> Callable[[float], None]:
    return lambda done: show(begun + share * done)


def _engine(name: str) -> tuple[Callable[..., SimulationOutcome], tuple[type[Exception], ...]]:
    """The simulator of this name, and what it raises if it refuses a case; `UsageError` if it is not installed."""
    from understudy.planning.simgrid import engine, prepare
    from understudy.planning.simulation import jump, steps

    if name != "simgrid":
        return (jump if name == "jump" else steps).simulate, ()
    try:
        engine.interpreter()
    except engine.SimgridMissing as error:
        raise UsageError(f"--engine simgrid: {error}") from None
    return engine.simulate, (engine.SimgridError, prepare.SimgridUnsupported)


def _feasible(assumed: PlanAssumptions, strategies: int, runs: int, horizon: float, args: argparse.Namespace) -> None:
    """Refuse a simulation that would take hours."""
    from understudy.planning.simulation.jump import AT_ONCE

    events = horizon * assumed.interruptions
    rounds = events * strategies * -(-runs * assumed.setting.cluster.machines // AT_ONCE)
    asked = f"--for {args.horizon} sees" if not args.timeline else "--timeline: a week has"
    if rounds > (MOST_TOLD if args.timeline else MOST_EVENTS):
        every = readable(1 / assumed.interruptions)
        less = "" if args.timeline else " ask for a shorter --for, one --strategy or fewer --runs, or"
        raise UsageError(f"{asked} {events:.2g} interruptions, one every {every};{less} check --mtbf")
    steps = strategies * runs * horizon / assumed.setting.work.step
    if args.engine != "jump" and steps > MOST_STEPS:
        raise UsageError(
            f"--engine {args.engine} would take {steps:.2g} steps one by one, at most {MOST_STEPS:,} are accepted; "
            "ask for fewer --runs, a shorter --for or one --strategy, or take --engine jump"
        )
    if args.engine != "jump" and (machines := assumed.setting.cluster.machines) > MOST_STEPPING:
        most = f"up to {MOST_STEPPING:,} machines, not {machines:,}"
        raise UsageError(f"--engine {args.engine} is for {most}; take --engine jump")


def _points(args: argparse.Namespace) -> Iterator[tuple[str, PlanRequest, FixedChoices]]:
    """The clusters to simulate: one, or one for every value of the sweep."""
    if args.sweep is None:
        yield "", cluster_options.ask(args), _only(args)
        return
    name, equals, values = args.sweep.partition("=")
    if name not in SWEPT or not equals or not values:
        raise UsageError(f"--sweep {args.sweep}: write NAME=V1,V2 with a NAME of {', '.join(SWEPT)}")
    for value in values.split(","):
        if not value.strip():
            raise UsageError(f"--sweep {args.sweep}: a value is empty; write NAME=V1,V2")
        at = argparse.Namespace(**{**vars(args), name.replace("-", "_"): value.strip()})
        yield f"{name}={value.strip()}", cluster_options.ask(at), _only(at)


def _only(args: argparse.Namespace) -> FixedChoices:
    from understudy.planning.planner import FixedChoices

    standbys = cluster_options.number(args, "standbys", cluster_options.count)
    r = cluster_options.number(args, "r", cluster_options.count)
    period = cluster_options.number(args, "period", cluster_options.span)
    if standbys is not None and not 0 <= standbys <= 1_000_000:
        raise UsageError(f"--standbys {args.standbys}: give a number from 0 to 1,000,000")
    if r is not None and r < 2:
        raise UsageError(f"--r {args.r}: a shard needs at least two holders if one may fail; give 2 or more")
    if period is not None and period <= 0:
        raise UsageError(f"--period {args.period}: checkpoints need some time between them")
    return FixedChoices(standbys, r, period)


def _chosen(args: argparse.Namespace, ask: PlanRequest, only: FixedChoices) -> tuple[PlanAssumptions, list[PlanOption]]:
    """The strategies that the options name, each with its best settings."""
    from understudy.planning.inputs.assume import assume
    from understudy.planning.planner import best_of_kinds, kinds

    assumed = assume(ask)
    known = [kind for kind, _, _ in kinds(assumed, ask, only)]
    names = None if args.strategy == "all" else _named(args.strategy, known)
    found = best_of_kinds(assumed, ask, lambda done: None, only, names)
    if not found:
        raise UsageError(f"--strategy {args.strategy}: no strategy allows these settings; leave out --standbys or --r")
    return assumed, list(found.values())


def _named(text: str, known: list[str]) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise UsageError(f"--strategy {name!r}: here there are {', '.join(known)}{hint}")
    return names


def _row(label: str, assumed: PlanAssumptions, option: PlanOption, outcome: SimulationOutcome) -> Row:
    strategy = option.strategy
    inflation = outcome.inflation
    return {
        "point": label or None,
        "gpus": assumed.setting.cluster.gpus,
        "strategy": strategy.name,
        "standbys": strategy.standbys,
        "placement": strategy.placement if strategy.answer == "mask" else None,
        "q": strategy.q or None,
        "checkpoint_period_s": strategy.period,
        "inflation": inflation.value,
        "inflation_low": inflation.low,
        "inflation_high": inflation.high,
        "closed_form": option.inflation if option.inflation < float("inf") else None,
        "cost": outcome.cost.value,
        "ettr": outcome.efficiency.value,
        "availability": outcome.availability.value,
        "failures": float(outcome.failures.mean()),
        "restarts": float(outcome.restarts.mean()),
        "waste": outcome.shares,
    }


def _show(rows: list[Row], out: Console, runs: int) -> None:
    from understudy.planning.planner import WORTHLESS

    swept = any(row["point"] for row in rows)
    titles = [*(["point"] if swept else []), "strategy", "settings", "checkpoint"]
    titles += ["inflation", "95 %", "closed form", "ETTR", "availability", "restarts", "most time lost by"]
    made = table(*titles)
    made.columns[-1].justify = "left"
    if swept:
        made.columns[1].justify = "left"
    for row in rows:
        most = max(row["waste"].items(), key=lambda item: item[1], default=("", 0.0))
        settings = [f"{row['standbys']:,} standbys" if row["standbys"] else "", row["placement"] or ""]
        settings.append(f"q={row['q']}" if row["q"] else "")
        closed = row["closed_form"]
        made.add_row(
            *([row["point"]] if swept else []),
            row["strategy"],
            ", ".join(filter(None, settings)),
            readable(row["checkpoint_period_s"]),
            f"{row['inflation']:.4f}" if row["inflation"] <= WORTHLESS else "never",
            f"{row['inflation_low']:.4f} to {row['inflation_high']:.4f}" if row["inflation"] <= WORTHLESS else "",
            "never" if closed is None or closed > WORTHLESS else f"{closed:.4f}",
            f"{row['ettr']:.2%}",
            f"{row['availability']:.2%}",
            f"{row['restarts']:.1f}",
            f"{most[0]} ({most[1]:.2%})" if most[0] else "",
        )
    out.print(made)
    out.print(f"{runs:,} run{'s' if runs > 1 else ''} each", style="dim")


def _timeline(args: argparse.Namespace, seed: int) -> int:
    from understudy.planning.setting import WEEK
    from understudy.planning.simulation.jump import EventLog, simulate

    assumed, options = _chosen(args, cluster_options.ask(args), _only(args))
    if len(options) != 1:
        raise UsageError("--timeline shows one strategy: name it, for example --strategy mask-and-refill")
    if args.engine != "jump":
        raise UsageError(f"--timeline: only the engine jump lists events, not {args.engine}; leave --engine out")
    _feasible(assumed, 1, 1, WEEK, args)
    strategy = options[0].strategy
    story: EventLog = []
    setting, failures, repair = assumed.setting, assumed.failures, assumed.repair
    outcome = simulate(setting, failures, strategy, repair, runs=1, horizon=WEEK, seed=seed, log=story)
    lines = [{"at_s": at, "what": what} for at, what in story]

    def show(out: Console) -> None:
        out.print(f"a week of {strategy.name}: {strategy.words}")
        for at, what in story:
            day, rest = divmod(at, 86400)
            hour, minute = divmod(rest / 60, 60)
            out.print(f"day {int(day) + 1}  {int(hour):02}:{int(minute):02}  {what}")
        lost = float(outcome.seconds[0] - outcome.useful[0])
        out.print(f"{int(outcome.failures[0])} failures, {readable(lost)} of the week lost:")
        for name, share in sorted(outcome.shares.items(), key=lambda item: -item[1]):
            out.print(f"  {readable(share * WEEK):>9}  {name}")

    return deliver(args, {"strategy": strategy.name, "events": lines, "waste": outcome.shares}, show)

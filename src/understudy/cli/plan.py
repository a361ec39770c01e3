"""`understudy plan`: the best strategy for a cluster: standbys, redundancy, checkpoints, and their value."""

from __future__ import annotations

import argparse
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from understudy.cli import cluster_options
from understudy.cli.command import Subparsers, add_command
from understudy.cli.output import deliver, made, progress_bar, table, writable, write
from understudy.masking.placement import holders_of
from understudy.protocol.durations import readable
from understudy.protocol.sentences import counted

if TYPE_CHECKING:
    from understudy.planning.planner import Plan, PlanOption

DESCRIPTION = """\
Compare strategies against failures on your cluster: each one with its best settings, its time to train and its cost.
Recommend one, and show which of your numbers matter most. Numbers that you do not give are estimated, and the estimates
are shown. The recommendation is computed in closed form, then simulated. It takes some seconds.
"""
EPILOG = """\
examples:
  understudy plan --gpus 65536 --model-params 405B
  understudy plan --gpus 1024 --step-seconds 12 --mtbf 5000h --restart 20m --goal time
  understudy plan --gpus 16384 --failures-csv incidents.csv --report plan.html
  understudy plan --example-csv incidents.csv            write an example of a log of incidents
  understudy plan --gpus 8192 --calibrate RUN --json     with durations that a run of yours measured

Durations are written 90s, 15m, 6000h or 14d. docs/planning.md explains every model and formula.
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "plan", run, "find the best strategy for your cluster", DESCRIPTION, EPILOG)
    cluster_options.add_options(parser)
    add = parser.add_argument
    add("--goal", choices=("cost", "time"), default="cost", help="quantity to minimise (default cost)")
    add("--seed", default="0", metavar="N", help="seed of the simulation (default 0)")
    add("--report", type=Path, metavar="FILE", help="write an HTML page with interactive plots")
    example = "write an example of a log of incidents, and do nothing else"
    add("--example-csv", type=Path, metavar="FILE", help=example)
    as_json = "write the plan as JSON to FILE, or print it instead of the table"
    add("--json", nargs="?", const="-", metavar="FILE", help=as_json)


def run(args: argparse.Namespace) -> int:
    from understudy.planning.planner import plan

    if args.example_csv is not None:
        return _example(args.example_csv)
    seed = cluster_options.seed(args)
    writable(args)
    ask = msgspec.structs.replace(cluster_options.ask(args), goal=args.goal)
    with progress_bar("plan") as progress:
        found = plan(ask, seed, progress)
    return deliver(args, as_dict(found), lambda out: show(found, out), lambda: _page(found))


def _example(path: Path) -> int:
    from understudy.planning.inputs.incidents import example_log

    write(path, example_log(), "--example-csv")
    what = "54 days of incidents on 2,048 machines, made up"
    print(f"{path}: {what}; understudy plan --gpus 16384 --failures-csv {path}")
    return 0


def _page(found: Plan) -> str:
    from understudy.planning.report.page import page

    return page(found, made())


def settings(option: PlanOption) -> str:
    """The settings of a strategy in a few words."""
    strategy = option.strategy
    parts = []
    if strategy.standbys:
        parts.append(f"{strategy.standbys:,} standby" + ("s" if strategy.standbys > 1 else ""))
    if strategy.answer == "mask" and not strategy.evenly:
        parts.append(strategy.placement.replace("blocks:", "").replace("spare:", ""))
    if strategy.q:
        parts.append(f"q={strategy.q}")
    if strategy.restart_after:
        parts.append(f"restart after {strategy.restart_after:,}")
    return ", ".join(parts)


def as_dict(found: Plan) -> dict[str, Any]:
    """The plan as plain data for JSON; infinite values become null."""

    def finite(value: float) -> float | None:
        return value if isfinite(value) else None

    def option(each: PlanOption) -> dict[str, Any]:
        strategy = each.strategy
        return {
            "strategy": strategy.name,
            "words": strategy.words,
            "offered": each.offered,
            "standbys": strategy.standbys,
            "placement": strategy.placement if strategy.answer == "mask" else None,
            "r": holders_of(strategy.placement) if strategy.answer == "mask" else None,
            "q": strategy.q or None,
            "restart_after": strategy.restart_after or None,
            "checkpoint_period_s": strategy.period,
            "inflation": finite(each.inflation),
            "time_to_train_s": finite(found.seconds(each)),
            "ettr": each.estimate.efficiency,
            "availability": each.estimate.availability,
            "cost": finite(each.cost),
            "wasted_gpu_hours_week": found.wasted_gpu_hours(each),
            "wasted_money_week": found.money(each),
            "waste": {kind.words: share for kind, share in each.estimate.shares.items()},
        }

    cluster, checked = found.assumed.setting.cluster, found.simulated
    return {
        "gpus": cluster.gpus,
        "machines": cluster.machines,
        "replicas": cluster.replicas,
        "goal": found.request.goal,
        "interrupted_every_s": 1 / found.assumed.rate,
        "recommended": option(found.best),
        "runner_up": None if found.runner_up is None else option(found.runner_up),
        "simulated": {
            "inflation": checked.inflation.value,
            "low": checked.inflation.low,
            "high": checked.inflation.high,
            "runs": checked.runs,
            "days": checked.days,
        },
        "options": [option(each) for each in found.options],
        "sensitivity": [{"input": each.name, "halved": each.low, "doubled": each.high} for each in found.sensitivity],
        "assumptions": msgspec.to_builtins(found.assumed.notes),
    }


def show(found: Plan, out: Console) -> None:
    cluster, best = found.assumed.setting.cluster, found.best
    machines, replicas = counted(cluster.machines, "machine"), counted(cluster.replicas, "replica")
    every = readable(1 / found.assumed.rate)
    out.print(f"{counted(cluster.gpus, 'GPU')} in {machines}, {replicas}; a machine fails every {every}")
    out.print()
    how = ", ".join(filter(None, [settings(best), f"a checkpoint every {readable(best.strategy.period)}"]))
    out.print(Text.assemble("recommended: ", (best.strategy.name, "bold green"), f" ({how})"))
    out.print(f"  {best.strategy.words}")
    if not best.progresses:
        out.print("  Even so training makes no progress: failures come faster than any strategy recovers.")
    else:
        _expected(found, out)
    out.print()
    out.print(_table(found))
    out.print("Strategies with * are for comparison; Understudy implements the others.", style="dim")
    if found.sensitivity and best.progresses:
        out.print()
        out.print(_swings(found))
    if found.assumed.notes:
        out.print()
        out.print(_notes(found))


def _expected(found: Plan, out: Console) -> None:
    """Print the recommendation's results, computed and simulated, and the runner-up."""
    from understudy.planning.planner import makes_progress

    best, ask = found.best, found.request
    out.print(
        f"  {readable(ask.days * 86400)} of training take {readable(found.seconds(best))}: "
        f"ETTR {best.estimate.efficiency:.2%}, availability {best.estimate.availability:.2%}"
    )
    hours, money = found.wasted_gpu_hours(best), found.money(best)
    out.print(f"  wasted: {hours:,.0f} GPU-hours a week, {money:,.0f} at {ask.price:g} an hour")
    checked, mean = found.simulated, found.simulated.inflation
    seen = f"{mean.value:.4f} ({mean.low:.4f} to {mean.high:.4f})"
    seen = seen if makes_progress(mean.value) else "as making no progress"
    out.print(
        f"  inflation {best.inflation:.4f}; simulated {seen} in {checked.runs} runs of {readable(checked.days * 86400)}"
    )
    other = found.runner_up
    if other is not None and other.progresses:
        more = other.by(ask.goal) / best.by(ask.goal) - 1
        out.print(
            f"  runner-up: {other.strategy.name} ({settings(other) or 'no settings'}), "
            f"{more:.2%} {'dearer' if ask.goal == 'cost' else 'slower'}"
        )


def _table(found: Plan) -> Table:
    losses = ("wasted GPU-h/week", "money/week")
    made = table("strategy", "settings", "checkpoint", "time to train", "ETTR", "availability", *losses)
    for option in found.options:
        name = option.strategy.name + ("" if option.offered else " *")
        if not option.progresses:
            made.add_row(name, settings(option), "", "never", "0 %", "", "all", "")
            continue
        made.add_row(
            name,
            settings(option),
            readable(option.strategy.period),
            readable(found.seconds(option)),
            f"{option.estimate.efficiency:.2%}",
            f"{option.estimate.availability:.2%}",
            f"{found.wasted_gpu_hours(option):,.0f}",
            f"{found.money(option):,.0f}",
        )
    return made


def _swings(found: Plan) -> Table:
    base = found.best.by(found.request.goal)
    made = table("what matters most", f"{found.request.goal} if halved", "if doubled")
    for swing in found.sensitivity[:6]:
        made.add_row(swing.name, f"{swing.low / base - 1:+.2%}", f"{swing.high / base - 1:+.2%}")
    return made


def _notes(found: Plan) -> Table:
    made = table("assumed", "", "why", right=False)
    for note in found.assumed.notes:
        made.add_row(note.name, note.value, note.why)
    return made

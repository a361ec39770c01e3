"""`understudy reproduce`: compute published results again from their authors' parameters, ours beside theirs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from understudy.cli.bench import measure
from understudy.cli.command import Subparsers, UsageError, add_command
from understudy_bench.harness.bench import Bench, Report
from understudy_bench.report.table import render

if TYPE_CHECKING:
    from understudy.cli.reproductions import Reproduction

EXAMPLES = """\
examples:
  understudy reproduce spare                    the published rows, 20 runs each
  understudy reproduce spare --n 200 --r 8 --runs 100 --json spare.json
  understudy reproduce trainmover
"""
SIZES = (200, 600, 1000)
MOST_RUNS = 10_000
MOST_GROUPS = 20_000
SPARE_HELP = """\
Simulate the time to train and the availability of SPARe and of replication, both with checkpoints, with the parameters
of SPARe's authors. Rows show the published values too. Exit code 1: a row is too far from its published value.
"""
TRAINMOVER_HELP = """\
Compute the wasted GPU-hours per week at 1,024 to 131,072 GPUs from the assumptions of TrainMover's authors, and with
other readings of what the paper leaves open. Exit code 1: a result is too far from the published one.
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "reproduce",
        run,
        "compute published results again",
        "Compute published results again. Progress goes to stderr, tables go to stdout.",
        EXAMPLES,
    )
    which = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    spare = which.add_parser("spare", help="SPARe's time to train and availability", description=SPARE_HELP)
    add = spare.add_argument
    add("--n", metavar="N,…", help="numbers of groups (default 200,600,1000)")
    add("--r", metavar="R,…", help="holders of each shard (default: the published best one for each n, and 3)")
    lives = "distribution of a group's life (default weibull)"
    add("--dist", choices=("weibull", "exponential"), default="weibull", help=lives)
    add("--runs", metavar="K", default="20", help="simulated runs of each row (default %(default)s)")
    add("--seed", metavar="S", default="0", help="seed of the simulation (default %(default)s)")
    engines = "simulator; steps goes step by step, slower, to verify jump (default jump)"
    add("--engine", choices=("jump", "steps"), default="jump", help=engines)
    projection = "TrainMover's projection to 131,072 GPUs"
    trainmover = which.add_parser("trainmover", help=projection, description=TRAINMOVER_HELP)
    for one in (spare, trainmover):
        one.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE as JSON")


def run(args: argparse.Namespace) -> int:
    reproduction = prepare(args)

    def show(report: Report, stdout: Console) -> None:
        reproduction.show(report.rows, stdout)
        render(Report(report.bench, report.env, (), report.checks), stdout)

    return measure(Bench(f"reproduce {args.what}", "", reproduction.measure), args.json, show)


def prepare(args: argparse.Namespace) -> Reproduction:
    """The reproduction that the options name; `UsageError` before any work if it is impossible."""
    from understudy.cli import reproductions

    if args.what == "trainmover":
        return reproductions.TrainMoverReproduction()
    sizes = numbers("--n", args.n, 2, MOST_GROUPS) if args.n is not None else SIZES
    holders = numbers("--r", args.r, 1, MOST_GROUPS) if args.r is not None else None
    runs = number("--runs", args.runs, 1, MOST_RUNS)
    seed = number("--seed", args.seed, 0, 2**63 - 1)
    return reproductions.SpareReproduction(sizes, holders, args.dist, runs, seed, args.engine)


def numbers(option: str, text: str, least: int, most: int) -> tuple[int, ...]:
    """Parse whole numbers that are separated by commas; each counts once."""
    return tuple(dict.fromkeys(number(option, part, least, most) for part in text.split(",")))


def number(option: str, text: str, least: int, most: int) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()):
        raise UsageError(
            f"{option} {text}: {digits!r} is not a whole number; write for example {option} {max(least, 3)}"
        )
    value = int(digits[:20])
    if not least <= value <= most:
        raise UsageError(f"{option} {digits[:20]}: give a number from {least:,} to {most:,}")
    return value

"""`understudy check`: prove that a script survives replacement, and name what was forgotten."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.cli import options
from understudy.cli import run as run_command
from understudy.cli.command import Subparsers, UsageError, add_command
from understudy.cli.output import writable_target, write_atomically
from understudy.protocol.options import options as all_options
from understudy.protocol.settings import JobSpec

if TYPE_CHECKING:
    from understudy.verify.script.check import CheckResult

STEPS, MACHINES, EPOCH = 12, 2, 5
DESCRIPTION = """\
Prove on this computer that a script survives replacement, and name what it forgot.

The script runs undisturbed for a few steps. Then it runs again: for every role class (roles that hold the same state)
one machine is replaced as planned, and another one is killed in the middle of a step and a standby takes its roles; the
machine with the primary role meets both. At every step boundary, all that is tracked must have the same bits in every
role. If it has not, variables that change from step to step and are not tracked are named, with their line, their
values and the way out. What may change later is named, too: schedulers, samplers, generators, positions in data.
"""
EPILOG = """\
examples:
  understudy check train.py
  understudy check --machines 2 --nproc 2 --mesh pp=2,dp=1,tp=2 examples/gpt_3d.py --width 64 --layers 2
  understudy check --json - train.py > check.json       for CI

Small sizes will do: what is forgotten in a small model is forgotten in a large one.
The runs have the options of understudy run; each option that the check adds is shown. A kill -9 that ends the job with
them is a finding: give the options that the job will have, such as --copy-every 1.
Exit code 0: all bits are the same; a mere suspicion is shown as a warning. 1: a problem is proven. 3: machines died
that the check did not kill, so that nothing is proven.
"""
OPTIONS = ("machines", "nproc", "mesh", "steps", "seed", "threads", "transport", "copy_every")
"""Keys of the options of a job that a check has, too."""
_CODES = {"clean": 0, "found": 1, "unclear": 3}
"""Verdict → exit code."""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "check", run, "prove that a script survives replacement", DESCRIPTION, EPILOG)
    add = parser.add_argument
    epoch = f"batches in an epoch of each DataLoader, so that epochs end within a run (default {EPOCH}); 0: all"
    within = "a run in which nothing happens for this time is stuck (default 5m)"
    known = all_options(JobSpec)
    known |= {key: replace(known[key], default=value) for key, value in (("machines", MACHINES), ("steps", STEPS))}
    for key in OPTIONS:
        options.add_option(parser, known[key])
    add("--epoch", type=int, default=EPOCH, metavar="N", help=epoch)
    add("--within", type=options.duration, default=300.0, metavar="SPAN", help=within)
    add("--keep", type=Path, metavar="DIR", help="keep logs and the observations of every boundary in DIR")
    add("--json", metavar="FILE", help="write runs, findings and verdict to FILE as JSON; - for stdout")
    add("script", metavar="SCRIPT", help="a training script, or a TOML file as for understudy run")
    add("args", nargs=argparse.REMAINDER, metavar="…", help="the script's own arguments")


def run(args: argparse.Namespace) -> int:
    spec = _spec(args)
    target = None if args.json in (None, "-") else writable_target(Path(args.json))
    if args.keep is not None and args.keep.exists() and (not args.keep.is_dir() or any(args.keep.iterdir())):
        raise UsageError(f"--keep {args.keep}: it exists already; name a new folder")
    result = asyncio.run(_check(spec, args))
    if result is None:
        print("understudy check: interrupted; all processes are ended", file=sys.stderr)
        return 130
    from understudy.verify.script.findings import verdict

    document = json.dumps(_document(spec, result), indent=2) + "\n"
    if args.json == "-":
        print(document, end="")
    elif target is not None:
        write_atomically(Path(args.json), document.encode(), after="; the findings are only shown")
    return _CODES[verdict(result.found)]


def _spec(args: argparse.Namespace) -> JobSpec:
    from understudy.verify.script.runs import LEAST

    args.steps = STEPS if args.steps is None else args.steps
    if args.machines is None and not args.script.endswith(".toml"):
        args.machines = MACHINES
    if args.steps < LEAST:
        raise UsageError(f"--steps {args.steps}: at least {LEAST} are needed to see what a joiner lacks")
    if not args.within > 0:
        raise UsageError(f"--within {args.within:g}: it must be more than 0 seconds")
    if args.epoch < 0:
        raise UsageError(f"--epoch {args.epoch}: it must be 0 or more batches")
    spec = run_command.spec_of(args)
    if spec.machines < 2:
        raise UsageError("with one machine there is no other to give a joiner its state; use --machines 2")
    return spec


async def _check(spec: JobSpec, args: argparse.Namespace) -> CheckResult | None:
    """None if the check was interrupted. Leaves nothing behind."""
    from understudy.cli.checked import CheckScreen
    from understudy.host.temporary import scratch
    from understudy.verify.leftovers import enclosure
    from understudy.verify.script.check import check_script

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    steps = spec.settings.training.steps
    assert steps is not None
    screen = CheckScreen(Path(spec.script).name, steps, stderr=args.json == "-")
    with enclosure(), scratch("understudy-check-") as place:
        folder = place if args.keep is None else args.keep.resolve()
        try:
            with screen.bar:
                result = await check_script(spec, folder, screen.progress, within=args.within, epoch=args.epoch)
        except asyncio.CancelledError:
            return None
    screen.show(result, spec.dimensions)
    if args.keep is not None:
        screen.print(f"logs and the observations of every boundary are in {args.keep}")
    return result


def _document(spec: JobSpec, result: CheckResult) -> dict[str, Any]:
    import msgspec

    from understudy.protocol.mesh import describe
    from understudy.verify.script.findings import verdict

    return {
        "type": "check",
        "verdict": verdict(result.found),
        "script": spec.script,
        "args": list(spec.args),
        "machines": spec.machines,
        "nproc": spec.nproc,
        "mesh": dict(spec.dimensions),
        "steps": spec.settings.training.steps,
        "seed": spec.settings.training.seed,
        "classes": [[describe(spec.dimensions, role) for role in roles] for roles in result.classes],
        "runs": [
            {
                "name": run.name,
                "status": run.status,
                "reason": run.reason,
                "steps": run.steps,
                "seconds": round(run.seconds, 3),
                "options": list(run.options),
                "disturbances": msgspec.to_builtins(run.disturbances),
            }
            for run in result.runs
        ],
        "findings": msgspec.to_builtins(result.found),
    }

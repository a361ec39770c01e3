"""`understudy chaos`: let faults happen in a job, and see whether it comes through unharmed."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from understudy.cli import connection
from understudy.cli import run as run_command
from understudy.cli.command import Subparsers, UsageError, add_command, cancel_on_signals
from understudy.cli.options import duration_of
from understudy.controller.client import Client, ControllerError
from understudy.launch import registry
from understudy.protocol.durations import DurationError, parse_duration
from understudy.protocol.settings import ELSEWHERE, FAULTS
from understudy.verify.chaos import mix
from understudy.verify.chaos.invariants import applied_once, read_records, shortened

if TYPE_CHECKING:
    from understudy.verify.chaos.campaign import FaultRecord

DESCRIPTION = """\
Let faults happen in a running job, one after another, chosen by a seed from a mix. After each fault the command waits
until the job trains again, and asks for a standby if none is left. The only copy of a role's state is spared.

Faults from outside (signals to its processes, requests to its controller) can happen to any job on this computer,
faults inside its processes only to jobs that were started with understudy run --chaos.

understudy chaos run SCRIPT runs the script under chaos, then undisturbed for as many steps, and checks that all bits
of the final state and all logged values are the same, that every role has applied every step exactly once, and that no
process, shared memory or temporary file is left.
"""
EPILOG = """\
examples:
  understudy chaos --list                                          all kinds of faults
  understudy chaos --faults 3 --mix kill-worker                    to the job that runs here
  understudy chaos --seed 7 --mix kill-worker=3,pause-agent=1 --every 5s
  understudy chaos --mix usual,pause-worker=0 --expect 0f3c…       wait for its end and compare its fingerprint
  understudy chaos run --machines 3 --standbys 1 examples/gpt_ddp.py

Exit code 1: the job did not recover, or did not end as an undisturbed one. The same seed draws the same faults; their
moments and victims also depend on the progress of the job.
"""
RUN = """\
Run a script under chaos, then undisturbed, and compare. Options are those of understudy run, and those of the faults.
Without --steps the job goes on until all faults have happened.
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers, "chaos", run, "let faults happen, and check that the job survives them", DESCRIPTION, EPILOG
    )
    parser.add_argument("--list", action="store_true", help="print all kinds of faults, one line each")
    _add_options(parser)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the faults (default 0)")
    connection.add_options(parser)
    actions = parser.add_subparsers(dest="action", metavar="[run]")
    both = actions.add_parser(
        "run",
        help="run a script with and without faults, and compare",
        description=RUN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_options(both, argparse.SUPPRESS)
    run_command.add_options(both, without=(ELSEWHERE,))


def _add_options(parser: argparse.ArgumentParser, absent: object = None) -> None:
    def add(name: str, default: object, help: str, **more: Any) -> None:
        parser.add_argument(name, default=default if absent is None else absent, help=help, **more)

    add("--faults", 10, "number of faults (default 10)", type=int, metavar="N")
    add("--mix", "usual", "kind=weight,… or usual, outside, inside, all (default usual)", metavar="MIX")
    add("--every", "3s", "average time between a recovery and the next fault (default 3s)", metavar="SPAN")
    add("--recover-within", "60s", "time limit for the recovery from each fault (default 60s)", metavar="SPAN")
    add("--keep-standbys", 1, "number of standbys that are kept ready (default 1)", type=int, metavar="N")
    add("--reckless", False, "also strike the only copy of a role's state", action="store_true")
    add("--expect", "", "fingerprint of the final state, as understudy run prints it", metavar="FINGERPRINT")


def run(args: argparse.Namespace) -> int:
    if args.list:
        return _list(as_json=args.json)
    if args.faults < 1:
        raise UsageError(f"--faults {args.faults}: ask for at least one")
    if args.keep_standbys < 1:
        raise UsageError(f"--keep-standbys {args.keep_standbys}: without a standby the job cannot recover")
    return _run(args) if args.action == "run" else _attach(args)


def _list(*, as_json: bool) -> int:
    from understudy.verify.chaos.faults import KINDS

    for kind in KINDS.values():
        if as_json:
            fields = {"kind": kind.name, "origin": kind.origin, "summary": kind.summary, "needs": kind.needs}
            print(json.dumps(fields))
        else:
            print(f"{kind.name:<27} {kind.origin:<8} {kind.summary}" + (f" ({kind.needs})" if kind.needs else ""))
    if not as_json:
        print("\nThe usual mix has all kinds but those that need an option, with the weight 1 each.")
    return 0


def _plan(args: argparse.Namespace, *, inside: bool) -> Iterator[mix.PlannedFault]:
    from understudy.verify.chaos import faults

    known = faults.origins()
    try:
        weights = mix.parse_mix(args.mix, known, faults.usual(inside=inside))
        every = parse_duration(args.every)
    except (mix.MixError, DurationError) as error:
        raise UsageError(str(error)) from None
    if not inside and any(known[kind] == "inside" for kind in weights):
        what = next(kind for kind in weights if known[kind] == "inside")
        raise UsageError(f"{what} happens inside processes, which this job does not allow; start it with --chaos")
    return mix.schedule(args.seed or 0, weights, every)


def _tell(record: FaultRecord, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"type": "fault", **msgspec.to_builtins(record)}), flush=True)
    elif record.outcome == "passed":
        print(f"   – {record.kind}: not now: {record.text}", flush=True)
    else:
        said = f"{record.number:4} {record.kind}: {record.text}"
        print(f"{said}; {record.outcome} after {record.seconds:.1f} s", flush=True)


# -- a job that runs -------------------------------------------------------------------------------------------------


def _attach(args: argparse.Namespace) -> int:
    from understudy.verify.chaos.campaign import run_campaign
    from understudy.verify.running_job import RunningJob

    client = connection.connect(args)
    entry = None if args.controller else registry.find(args.job)
    inside = FAULTS in client.call("GET", "/extensions")
    plan = _plan(args, inside=inside)
    job = RunningJob(
        client,
        None if entry is None else entry.pid,
        inside=inside,
        reckless=args.reckless,
        standbys=args.keep_standbys,
        patience=duration_of(args.recover_within, "--recover-within"),
    )
    if not inside and not args.json:
        print("this job was started without --chaos: only faults from outside are possible", flush=True)
    campaign = run_campaign(job, plan, args.faults, lambda record: _tell(record, as_json=args.json))
    complaints = [campaign.problem] if campaign.problem else []
    if args.expect and not complaints:
        complaints += _ends_as(client, args.expect, Path(entry.run_dir) if entry is not None else None)
    return _judge(campaign.faults, complaints, {"seed": args.seed}, as_json=args.json)


def _ends_as(client: Client, expect: str, run_dir: Path | None) -> list[str]:
    """Wait for the job's end; returns complaints about its final state."""
    from understudy.controller.core.state import OVER

    events: list[dict[str, Any]] = []
    try:
        roles = len(client.call("GET", "/roster"))
        for event in client.follow():
            events.append(event)
            if event["kind"] in OVER:
                break
        job = client.job()
    except ControllerError as error:
        return [f"the end of the job is not known: {error}"]
    if job["status"] == "failed":
        return [f"the job has failed: {job['reason']}"]
    found = run_command.combined(job["digests"])
    complaints = [] if found == expect else [f"the final state is {found}, not {expect} as expected"]
    if run_dir is not None:
        time.sleep(1.0)  # agents write their last lines
        complaints += applied_once(read_records(run_dir), events, roles, job["step"])
    return complaints


# -- a job of its own ------------------------------------------------------------------------------------------------


def _run(args: argparse.Namespace) -> int:
    from understudy.verify.chaos.trial import TrialProgress, TrialSettings, run_trial

    if args.expect and args.steps is None:
        raise UsageError("--expect needs --steps: a final state belongs to a number of steps")
    spec = run_command.spec_of(args)
    if not spec.run_dir:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        args.run_dir = f"runs/chaos-{spec.title}-{stamp}-{os.getpid()}"
        spec = run_command.spec_of(args)
    plan = _plan(args, inside=True)
    patience = duration_of(args.recover_within, "--recover-within")
    settings = TrialSettings(args.faults, args.reckless, args.keep_standbys, patience)
    progress = TrialProgress(
        say=lambda text: None if args.json else print(text, flush=True),
        fault=lambda record: _tell(record, as_json=args.json),
    )

    async def whole() -> int:
        cancel_on_signals()
        try:
            result = await run_trial(
                spec, plan, settings, progress, fingerprint=run_command.combined, expect=args.expect
            )
        except asyncio.CancelledError:
            print("understudy chaos: interrupted; all processes are ended", file=sys.stderr)
            return 130
        print_to = sys.stderr if args.json else sys.stdout
        print(f"ledgers, logs and metrics in {result.run_dir}", file=print_to)
        facts = {"seed": args.seed or 0, "steps": result.steps, "fingerprint": run_command.combined(result.digests)}
        return _judge(result.faults, result.complaints, facts, as_json=args.json)

    return asyncio.run(whole())


def _judge(faults: int, complaints: list[str], facts: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        verdict = {"type": "verdict", "ok": not complaints, "faults": faults, **facts, "complaints": complaints}
        print(json.dumps(verdict))
    elif complaints:
        print(f"not unharmed, after {faults} faults (--seed {facts['seed']}):", file=sys.stderr)
        for complaint in shortened(complaints):
            print(f"  {complaint}", file=sys.stderr)
    else:
        more = "".join(f", {name} {value}" for name, value in facts.items())
        print(f"unharmed after {faults} faults{more}")
    return 1 if complaints else 0

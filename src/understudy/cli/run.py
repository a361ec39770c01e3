"""`understudy run`: start a job on this computer and follow it to its end."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.cli.errors import UsageError

if TYPE_CHECKING:
    from understudy.cli.main import Subparsers
    from understudy.launch.spec import JobSpec

DESCRIPTION = """\
Run a training script on several machines, each played by an agent with its own process tree on this computer; others
may come from other computers with understudy join. While it runs, any machine can be replaced: understudy replace m1.

The script defines train(job) and calls understudy.run(train). Instead of a script, a TOML file may be given that has
the options below as keys (script, args, machines, standbys, nproc, mesh, seed, steps, checkpoint, checkpoint_every, …);
options on the command line come before those in the file.
"""
EPILOG = """\
examples:
  understudy run --machines 2 --standbys 1 examples/gpt_ddp.py
  understudy run --machines 4 --nproc 2 --mesh pp=2,dp=2,tp=2 examples/gpt_3d.py
  understudy run job.toml --steps 100
  understudy run --machines 4 --begin-with 2 --mask anywhere train.py   more with: understudy scale --replicas 4
  understudy run --machines 4 --local 1 --listen 10.0.0.1 train.py      the others come with understudy join
  understudy run --machines 4 --pool 1 --steward act train.py           keeps a standby, replaces slow machines

Ctrl-C ends the job at its next step boundary; a second Ctrl-C ends it at once.
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "run",
        help="start a job and follow it to its end",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--begin-with", type=int, metavar="N", help="begin with N of the machines (whole replicas); see: scale --help")
    add("--local", type=int, metavar="N", help="start only N of the machines here; the others join (default: all)")
    add("--listen", metavar="HOST[:PORT]", help="where the controller listens (default 127.0.0.1, any port)")
    add("--host", metavar="ADDRESS", help="where workers started here listen (default: the controller's address)")
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What describes a job, for every command that starts one."""
    add = parser.add_argument
    add("--machines", type=int, metavar="N", help="machines that play (default 1)")
    add("--standbys", type=int, metavar="N", help="machines that wait (default 0)")
    add("--nproc", type=int, metavar="N", help="workers per machine (default 1)")
    add("--mesh", metavar="DIMS", help="dimensions, outermost first: pp=2,dp=2,tp=2 (default dp over all roles)")
    add("--seed", type=int, metavar="N", help="of all random numbers (default 0)")
    add("--steps", type=int, metavar="N", help="how many; comes before what the script says")
    add("--checkpoint", metavar="DIR", help="begin with the latest checkpoint in DIR, if there is one")
    add("--checkpoint-every", type=int, metavar="N", help="write one to DIR every N steps, beside training")
    add("--name", help="of the job (default: the script's)")
    add("--threads", type=int, metavar="N", help="torch threads per worker (default 1)")
    add("--transport", help="native (default), or torch:gloo")
    add("--heartbeat", type=float, metavar="S", help="silence after which a machine is gone (default 2)")
    add("--limit", type=float, metavar="S", help="time limit of one collective operation (default 300)")
    add("--rehearsal-limit", type=float, metavar="S", help="time limit of a newcomer's rehearsal (default 900)")
    add("--step-limit", type=float, metavar="S", help="time limit of one step (default: none)")
    add("--answer-limit", type=float, metavar="S", help="after which a silent or stopped worker is dead (default 10)")
    add(
        "--no-standby",
        metavar="wait|stop|shrink",
        help="after a failure with no standby left: wait for a machine (default), stop with a checkpoint, or mask",
    )
    add("--patience", type=float, metavar="S", help="how long to wait for one before stopping (default 600)")
    add("--repair", type=float, metavar="S", help="start a dead machine's agent again after S (default 2; 0: never)")
    add("--quarantine", type=int, metavar="N", help="failures after which a machine is not used any more (default 3)")
    add(
        "--steward",
        metavar="off|tell|act",
        help="slow machines: do not look, say what would be done (default), or replace them",
    )
    add("--steward-looks", type=int, metavar="N", help="for how many looks, one a second, it is slow (default 10)")
    add("--steward-replacements", type=int, metavar="N", help="of slow machines in an hour at most (default 4)")
    add("--pool", type=int, metavar="N", help="keep N standbys: ask for one when one is used, release what is too many")
    add("--cool-down", type=seconds, metavar="SPAN", help="between two requests, and before a release (default 30s)")
    add("--budget", type=int, metavar="N", help="ask for at most N machines an hour (default: any number)")
    add("--provider-command", metavar="CMD", help="brings machines: run as CMD request N and CMD release NAME")
    add("--warm", type=int, metavar="N", help="for how many machines' roles a standby rehearses ahead (default 1)")
    add("--recordings", metavar="DIR", help="for what standbys rehearse with (default: a temporary file)")
    add("--recording-limit", type=float, metavar="MB", help="size of it for each role (default 1024; 0: no recording)")
    add("--copy-every", type=int, metavar="N", help="keep copies of state in other machines' memory, renewed every N")
    add("--mask", metavar="PLACEMENT", help="go on without lost replicas: anywhere, or data placed as spare:r=3")
    add("--deterministic", action="store_true", default=None, help="masked steps give the same bits as whole ones")
    add("--keep-gradients", metavar="own|copy|none", help="what survivors keep of an interrupted step (default own)")
    add("--check-gradients", action="store_true", default=None, help="repeat a step once that has NaN or inf in them")
    add("--at-once", type=int, metavar="K", help="drain no more than K machines at one boundary (default: any number)")
    add("--grace", type=float, metavar="S", help="time for a machine that gets SIGTERM to be replaced (default 30)")
    add("--label", action="append", metavar="M:KEY=VALUE", help="say something of a machine, such as m0:rack=r1")
    add("--straggler-threshold", type=float, metavar="X", help="how much slower is a straggler (default 0.1; 0: off)")
    add("--straggler-window", type=int, metavar="N", help="for how many steps before it is told (default 20)")
    add("--run-dir", metavar="DIR", help="for the ledger, logs and metrics (default runs/NAME-TIME)")
    add("--chaos", action="store_true", default=None, help="let understudy chaos have faults happen inside processes")
    add("--json", action="store_true", help="events and result as JSON lines on stdout; the script's output on stderr")
    add("--plain", action="store_true", help="lines instead of a live screen, also on a terminal")
    add("script", metavar="SCRIPT", help="a training script, or a TOML file")
    add("args", nargs=argparse.REMAINDER, metavar="…", help="the script's own arguments")


def seconds(text: str) -> float:
    """A time span on the command line: `30s`, `2m`, `30`."""
    from understudy.protocol.durations import DurationError, parse_duration

    try:
        return parse_duration(text)
    except DurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    from understudy.launch.spec import SpecError

    try:
        return asyncio.run(_follow(spec_of(args), as_json=args.json, plain=args.plain))
    except SpecError as error:
        raise UsageError(str(error)) from None


def spec_of(args: argparse.Namespace) -> JobSpec:
    """The job that these options describe."""
    import msgspec

    from understudy.launch.spec import JobSpec, SpecError, from_toml, make

    names = {field.name for field in msgspec.structs.fields(JobSpec)} - {"script", "args"}
    given = {name: value for name in sorted(names) if (value := getattr(args, name, None)) is not None}
    if getattr(args, "label", None):
        given["labels"] = labels(args.label)
    where = ""
    try:
        if args.script.endswith(".toml"):
            where = args.script
            settings: dict[str, Any] = from_toml(Path(args.script)) | given
            if args.args:
                settings["args"] = args.args
        else:
            settings = given | {"script": args.script, "args": args.args}
        return make(settings, where)
    except SpecError as error:
        raise UsageError(str(error)) from None


def labels(words: list[str]) -> dict[str, dict[str, str]]:
    """Machine → key → value."""
    found: dict[str, dict[str, str]] = {}
    for word in words:
        machine, colon, label = word.partition(":")
        if not colon or not machine:
            raise UsageError(f"--label {word}: write it as MACHINE:KEY=VALUE, such as m0:rack=r1")
        key, value = one_label(label, word)
        found.setdefault(machine, {})[key] = value
    return found


def one_label(text: str, word: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z0-9_.-]+", key) or not value:
        raise UsageError(f"--label {word}: write a label as KEY=VALUE, such as rack=r1")
    return key, value


QUIET = ("phase", "signal", "finished", "stopped", "failed")
"""Events that plain output leaves out: too many, or said at the end anyway."""


async def _follow(spec: Any, *, as_json: bool, plain: bool) -> int:
    from rich.console import Console

    from understudy.cli.live import Screen
    from understudy.controller.client import ControllerError
    from understudy.launch.local import LocalJob

    def tale(event: dict[str, Any]) -> None:
        if as_json:
            print(json.dumps(event), flush=True)
        elif live is not None:
            live.tale(event)
        elif event["kind"] not in QUIET:
            print(f"understudy: {event['text']}", flush=True)

    def line(text: str) -> None:
        if live is not None:
            live.line(text)
        else:
            print(text, file=sys.stderr if as_json else sys.stdout, flush=True)

    live = None if as_json or plain or not sys.stdout.isatty() else Screen(Console(highlight=False))
    loop = asyncio.get_running_loop()
    waiting: asyncio.Task[Any] | None = None
    stopping: asyncio.Task[None] | None = None
    pressed = 0

    def interrupt() -> None:
        nonlocal pressed
        pressed += 1
        if pressed == 1:
            text = "understudy: stopping at the next step boundary; Ctrl-C again to end at once"
            print(text, file=sys.stderr, flush=True)
        heed()

    def heed() -> None:
        nonlocal stopping
        if waiting is None:
            return  # as soon as everything is started and can be ended properly
        if pressed > 1:
            waiting.cancel()
        elif pressed == 1:
            stopping = asyncio.ensure_future(stop(waiting))

    async def stop(waiting: asyncio.Task[Any]) -> None:
        try:
            await job.stop()
        except ControllerError:
            waiting.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    view = None if live is None else live.view
    async with LocalJob(spec, on_line=line, on_tale=tale, on_view=view) as job:
        waiting = asyncio.ensure_future(job.wait())
        heed()
        try:
            with live or nullcontext():
                ended = await waiting
        except asyncio.CancelledError:
            print("understudy: ended", file=sys.stderr, flush=True)
            return 130
        finally:
            if stopping is not None:
                stopping.cancel()
    if as_json:
        print(json.dumps({"kind": "ended", "text": ended.status, "data": ended.view}), flush=True)
    elif ended.status == "failed":
        print(f"understudy: the job has failed: {ended.reason}", file=sys.stderr)
    else:
        digests = set(ended.view["digests"].values())
        print(f"understudy: {ended.status} after {ended.view['step']} steps; logs and metrics in {job.run_dir}")
        print(f"understudy: final state {combined(ended.view['digests'])} ({len(digests)} distinct)")
    return ended.code if pressed == 0 or ended.status != "stopped" else 130


def combined(digests: dict[str, str]) -> str:
    """One fingerprint of all roles' final states."""
    import hashlib

    text = json.dumps({int(role): digest for role, digest in digests.items()}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

"""`understudy run`: start a job on this computer and follow it to its end."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import sys
from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from understudy.cli import options
from understudy.cli.command import Subparsers, UsageError, add_command
from understudy.cli.live import LiveScreen
from understudy.controller.client import ControllerError
from understudy.launch.spec import SpecError, from_toml, make
from understudy.protocol.settings import JobSpec

DESCRIPTION = """\
Run a training script on several machines. Each machine is an agent with its own process tree on this computer; others
may come from other computers with understudy join. While the job runs, any machine can be replaced: understudy replace
m1.

The script defines train(job) and calls understudy.run(train). Instead of a script, a TOML file may be given that has
the options below as keys (script, args, machines, standbys, checkpoint_every, …), at the top or in a table for each
group ([recovery], [steward], …). Options on the command line override those in the file. A SPAN is a time span such as
500ms, 30s, 2m or 1.5h; a number alone is in seconds.
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
    parser = add_command(subparsers, "run", run, "start a job and follow it to its end", DESCRIPTION, EPILOG)
    add_options(parser)


def add_options(parser: argparse.ArgumentParser, *, without: Collection[str] = ()) -> None:
    """Add the options of a job, except for the groups with these titles."""
    parser.add_argument("script", metavar="SCRIPT", help="a training script, or a TOML file")
    parser.add_argument("args", nargs=argparse.REMAINDER, metavar="…", help="the script's own arguments")
    parser.add_argument("--json", action="store_true", help="print events and result as JSON; the script's on stderr")
    parser.add_argument("--plain", action="store_true", help="print lines instead of a live screen")
    options.add_options(parser, without=without)
    label = "add a label to a machine, such as m0:rack=r1"
    parser.add_argument("--label", action="append", metavar="M:KEY=VALUE", help=label)


def run(args: argparse.Namespace) -> int:
    try:
        return asyncio.run(_follow(spec_of(args), as_json=args.json, plain=args.plain))
    except SpecError as error:
        raise UsageError(str(error)) from None


def spec_of(args: argparse.Namespace) -> JobSpec:
    """The job that the options describe."""
    given = options.given_options(args)
    script, words = given.pop("script"), given.pop("args")
    if getattr(args, "label", None):
        given["labels"] = labels(args.label)
    try:
        if script.endswith(".toml"):
            values = from_toml(Path(script)) | given
            return make(values | {"args": words} if words else values, script)
        return make({**given, "script": script, "args": words})
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
"""Kinds of events that plain output leaves out: too many, or printed at the end anyway."""


async def _follow(spec: JobSpec, *, as_json: bool, plain: bool) -> int:
    from understudy.launch.local import LocalJob

    def show(event: dict[str, Any]) -> None:
        if as_json:
            print(json.dumps(event), flush=True)
        elif live is not None:
            live.event(event)
        elif event["kind"] not in QUIET:
            print(f"understudy: {event['text']}", flush=True)

    def line(text: str) -> None:
        if live is not None:
            live.line(text)
        else:
            print(text, file=sys.stderr if as_json else sys.stdout, flush=True)

    live = None if as_json or plain or not sys.stdout.isatty() else LiveScreen(Console(highlight=False))
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
            return  # called again once all processes have started and can be ended properly
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
    bar = None if live is None else live.bar
    async with LocalJob(spec, on_line=line, on_bar=bar, on_event=show, on_view=view) as job:
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
    """One fingerprint of the final states of all roles."""
    import hashlib

    text = json.dumps({int(role): digest for role, digest in digests.items()}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

"""`understudy replace` and `understudy drain`: replace machines by standbys while training continues."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime
from typing import Any
from urllib.parse import quote

from understudy.cli import connection
from understudy.cli.command import Subparsers, UsageError, add_command
from understudy.cli.operate import tell
from understudy.controller.client import Client
from understudy.protocol.durations import parse_deadline

MEANING = {
    "rehearse": "the joiner enters the training function in the sandbox",
    "prepare": "workers open links while training continues",
    "armed": "all workers are ready; the next vote agrees",
    "switch": "the boundary: workers swap links",
    "hand-over": "the leaver sends the rest of its state, the joiner verifies all of it",
    "first step": "the joiner trains; the leaver waits until it has made a step",
    "cancel": "the replacement is given up; training continues as before",
}
"""Phase → what happens in it."""

REPLACE = """\
Replace machines of a running job by standbys, all at one step boundary. Training does not stop.
"""
REPLACE_EXAMPLES = """\
examples:
  understudy replace m2
  understudy replace m1 m3 --with m4 m5
"""
DRAIN = """\
Replace machines and release them, by a deadline if one is given. If there are fewer standbys ready than machines, or
more machines than `run --at-once` allows, they are replaced in turns; of several requests, the one with the earliest
deadline goes first. An impossible request is refused at once; a machine that will be late is announced as soon as that
is known.
"""
DRAIN_EXAMPLES = """\
examples:
  understudy drain m2
  understudy drain m1 m2 --by 30m --why 'new firmware'
  understudy drain m2 --by 18:30
  understudy drain --cancel m2      while it waits for its turn
"""


def add_parser(subparsers: Subparsers) -> None:
    one = add_command(subparsers, "replace", run_replace, "replace machines by standbys", REPLACE, REPLACE_EXAMPLES)
    one.add_argument("machines", nargs="+", metavar="MACHINE", help="machines that leave")
    standbys = "standbys that join (default: those that are ready)"
    one.add_argument("--with", dest="standbys", nargs="+", default=[], metavar="STANDBY", help=standbys)
    connection.add_options(one)
    other = add_command(subparsers, "drain", run_drain, "free machines for maintenance", DRAIN, DRAIN_EXAMPLES)
    add = other.add_argument
    add("machines", nargs="+", metavar="MACHINE", help="machines that leave")
    add("--by", metavar="TIME", help="deadline: a duration such as 30m or 2h, or a time of day such as 18:30")
    add("--why", default="", metavar="TEXT", help="one sentence, for the events")
    add("--cancel", action="store_true", help="take the request back for machines that still wait for their turn")
    connection.add_options(other)


def run_replace(args: argparse.Namespace) -> int:
    body = {"type": "replace", "machines": args.machines, "standbys": args.standbys}
    return request(connection.connect(args), body, as_json=args.json)


def run_drain(args: argparse.Namespace) -> int:
    if args.cancel:
        if args.by or args.why:
            raise UsageError("--cancel takes a drain back; leave --by and --why out")
        client = connection.connect(args)
        answers = [client.call("DELETE", f"/drain/{quote(name, safe='')}") for name in args.machines]
        return max(tell(answer, as_json=args.json) for answer in answers)
    body = {"machines": args.machines, "by": _moment(args.by), "why": args.why}
    return request(connection.connect(args), body, as_json=args.json, path="/drain")


def _moment(text: str | None) -> float | None:
    """Seconds since the epoch, by this computer's clock."""
    try:
        return None if text is None else parse_deadline(text, datetime.now())
    except ValueError as error:
        raise UsageError(f"--{error}") from None


def request(client: Client, body: dict[str, Any], *, as_json: bool, path: str = "/replace") -> int:
    """Send a request, print its phases as they happen, and end with what training lost. Returns the exit code."""
    after = client.events()["next"]
    answer = client.call("POST", path, body)
    id = answer["id"]
    begun: tuple[str, float] | None = None
    """The present phase, and when it began."""
    done = False
    while not done:
        done = answer["done"]
        page = client.events(after, wait=0.0 if done else 5.0)
        after = page["next"]
        for event in page["events"]:
            kind, data = event["kind"], event["data"]
            if id not in (data.get("change"), data.get("id")) or kind == "asked":
                continue
            if as_json:
                print(json.dumps(event), flush=True)
            elif kind in ("change", "late"):
                print(event["text"], flush=True)
            elif kind in ("phase", "settled", "cancelled", "released"):
                _show(begun, event["at"])
                begun = (data["phase"], event["at"]) if kind == "phase" else None
                if kind == "released":
                    print(f"  {event['text']}", flush=True)
        answer = answer if done else client.answer(id)
    if as_json:
        print(json.dumps(answer), flush=True)
    elif answer["ok"]:
        _show(begun, answer["at"])
        print(answer["text"])
    else:
        print(f"understudy: not replaced: {answer['text']}", file=sys.stderr)
    return 0 if answer["ok"] else 1


def _show(phase: tuple[str, float] | None, until: float) -> None:
    """Print a phase that is over, if there is one."""
    if phase is not None:
        name, began = phase
        print(f"  {name:<10} {until - began:8.3f} s   {MEANING.get(name, '')}", flush=True)

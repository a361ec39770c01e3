"""`understudy replace` and `understudy drain`: put a standby in a machine's place while training goes on."""

from __future__ import annotations

import argparse
import json
import re
import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from understudy.cli import connection
from understudy.cli.errors import UsageError

if TYPE_CHECKING:
    from understudy.cli.main import Subparsers
    from understudy.control.client import Client

MEANING = {
    "rehearse": "the newcomer enters the training function in the sandbox",
    "prepare": "links are opened while the others train",
    "armed": "everybody is ready; the next vote agrees",
    "switch": "the boundary: links are swapped",
    "hand-over": "the leaver gives what is left of its state, the newcomer checks it",
    "first step": "the newcomer plays; the leaver stays until it has made a step",
    "cancel": "given up",
}


class Replace:
    @staticmethod
    def add_parser(subparsers: Subparsers) -> None:
        parser = subparsers.add_parser(
            "replace",
            help="put a standby in a machine's place",
            description="Replace machines of a running job, all at one step boundary. Training does not stop for it.",
            epilog="examples:\n  understudy replace m2\n  understudy replace m1 m3 --with m4 m5",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("machines", nargs="+", metavar="MACHINE", help="who goes")
        parser.add_argument(
            "--with",
            dest="standbys",
            nargs="+",
            default=[],
            metavar="STANDBY",
            help="who comes (default: who is ready)",
        )
        connection.add_options(parser)

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        body = {"type": "replace", "machines": args.machines, "standbys": args.standbys}
        return request(connection.connect(args), body, as_json=args.json)


class Drain:
    @staticmethod
    def add_parser(subparsers: Subparsers) -> None:
        parser = subparsers.add_parser(
            "drain",
            help="free a machine, for maintenance",
            description="Replace a machine and release it, by a given time where one is given.",
            epilog="examples:\n  understudy drain m2\n  understudy drain m2 --by 30m\n  understudy drain m2 --by 18:30",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("machine", metavar="MACHINE", help="who goes")
        parser.add_argument("--by", metavar="TIME", help="30m, 2h, 90s, or a time of day such as 18:30")
        connection.add_options(parser)

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        by = None if args.by is None else moment(args.by, datetime.now())
        body = {"type": "replace", "machines": [args.machine], "by": by}
        return request(connection.connect(args), body, as_json=args.json)


def moment(text: str, now: datetime) -> float:
    """`30m`, `2h`, `90s` from now, or the next `18:30`, in seconds since the epoch."""
    if span := re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text):
        return now.timestamp() + float(span[1]) * {"s": 1, "m": 60, "h": 3600}[span[2]]
    if clock := re.fullmatch(r"(\d{1,2}):(\d{2})", text):
        hour, minute = int(clock[1]), int(clock[2])
        if hour < 24 and minute < 60:
            at = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            return (at if at > now else at + timedelta(days=1)).timestamp()
    raise UsageError(f"--by {text}: write a time span such as 30m or 2h, or a time of day such as 18:30")


def request(client: Client, body: dict[str, Any], *, as_json: bool) -> int:
    """Ask, show the phases as they happen, and end with what training lost."""
    after = client.events()["next"]
    answer = client.call("POST", "/replace", body)
    id = answer["id"]
    began: tuple[str, float] | None = None
    done = False
    while not done:
        done = answer["done"]
        page = client.events(after, wait=0.0 if done else 5.0)
        after = page["next"]
        for tale in page["events"]:
            if tale["data"].get("change") != id:
                continue
            if as_json:
                print(json.dumps(tale), flush=True)
            elif tale["kind"] == "change":
                print(tale["text"], flush=True)
            elif tale["kind"] in ("phase", "settled", "cancelled", "released"):
                _show(began, tale["at"])
                began = (tale["text"], tale["at"]) if tale["kind"] == "phase" else None
                if tale["kind"] == "released":
                    print(f"  {tale['text']}", flush=True)
        answer = answer if done else client.answer(id)
    if as_json:
        print(json.dumps(answer), flush=True)
    elif answer["ok"]:
        _show(began, answer["at"])
        print(answer["text"])
    else:
        print(f"understudy: not replaced: {answer['text']}", file=sys.stderr)
    return 0 if answer["ok"] else 1


def _show(phase: tuple[str, float] | None, until: float) -> None:
    """A phase that is over, if there is one."""
    if phase is not None:
        name, began = phase
        print(f"  {name:<10} {until - began:8.3f} s   {MEANING.get(name, '')}", flush=True)

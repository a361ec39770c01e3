"""`understudy replace` and `understudy drain`: put a standby in a machine's place while training goes on."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from understudy.cli import connection
from understudy.cli.errors import UsageError
from understudy.cli.operate import tell

if TYPE_CHECKING:
    from understudy.cli.main import Subparsers
    from understudy.controller.client import Client

MEANING = {
    "rehearse": "the newcomer enters the training function in the sandbox",
    "prepare": "links are opened while the others train",
    "armed": "everybody is ready; the next vote agrees",
    "switch": "the boundary: links are swapped",
    "hand-over": "the leaver gives what is left of its state, the newcomer checks it",
    "first step": "the newcomer plays; the leaver stays until it has made a step",
    "cancel": "given up",
}


DRAINING = """\
Replace machines and release them, by a given time where one is given. Where there are fewer standbys ready than
machines, or more machines than `run --at-once` allows, they go in turns; of several requests, the one with the earliest
deadline first. What cannot be done is refused at once, and who will be late is told as soon as that is known.
"""


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
            help="free machines, for maintenance",
            description=DRAINING,
            epilog="examples:\n  understudy drain m2\n  understudy drain m1 m2 --by 30m --why 'new firmware'\n"
            "  understudy drain m2 --by 18:30\n  understudy drain --cancel m2      while it still waits for its turn",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("machines", nargs="+", metavar="MACHINE", help="who goes")
        parser.add_argument("--by", metavar="TIME", help="30m, 2h, 90s, or a time of day such as 18:30")
        parser.add_argument("--why", default="", metavar="TEXT", help="one sentence, for the events")
        parser.add_argument("--cancel", action="store_true", help="they stay, where their turn has not come")
        connection.add_options(parser)

    @staticmethod
    def run(args: argparse.Namespace) -> int:
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
    from understudy.protocol.durations import parse_deadline

    try:
        return None if text is None else parse_deadline(text, datetime.now())
    except ValueError as error:
        raise UsageError(f"--{error}") from None


def request(client: Client, body: dict[str, Any], *, as_json: bool, path: str = "/replace") -> int:
    """Ask, show the phases as they happen, and end with what training lost."""
    after = client.events()["next"]
    answer = client.call("POST", path, body)
    id = answer["id"]
    began: tuple[str, float] | None = None
    done = False
    while not done:
        done = answer["done"]
        page = client.events(after, wait=0.0 if done else 5.0)
        after = page["next"]
        for tale in page["events"]:
            if id not in (tale["data"].get("change"), tale["data"].get("id")) or tale["kind"] == "asked":
                continue
            if as_json:
                print(json.dumps(tale), flush=True)
            elif tale["kind"] in ("change", "late"):
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

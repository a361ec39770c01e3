"""`understudy standby`, `report`, `events` and `stop`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from understudy.cli import connection

if TYPE_CHECKING:
    from understudy.cli.main import Subparsers


class Standby:
    @staticmethod
    def add_parser(subparsers: Subparsers) -> None:
        parser = subparsers.add_parser(
            "standby",
            help="add or remove standby machines",
            description="Change how many machines wait. A standby rehearses every role class, so that it can take the "
            "place of any machine at once.",
        )
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        add = actions.add_parser("add", help="start one more machine, or several")
        add.add_argument("count", nargs="?", type=int, default=1, metavar="N", help="how many (default 1)")
        connection.add_options(add)
        readmit = actions.add_parser("readmit", help="use a machine again that is in quarantine")
        readmit.add_argument("machine", metavar="MACHINE", help="as understudy status names it")
        connection.add_options(readmit)
        remove = actions.add_parser("remove", help="dismiss a standby")
        remove.add_argument("machine", metavar="MACHINE", help="one that waits; who plays is replaced or drained")
        connection.add_options(remove)

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        client = connection.connect(args)
        if args.action == "add":
            answer = client.call("POST", "/standbys", {"type": "add-standby", "count": args.count})
        elif args.action == "readmit":
            answer = client.call("POST", f"/machines/{quote(args.machine, safe='')}/readmit")
        else:
            answer = client.call("DELETE", f"/standbys/{quote(args.machine, safe='')}")
        return tell(answer, as_json=args.json)


class Report:
    @staticmethod
    def add_parser(subparsers: Subparsers) -> None:
        parser = subparsers.add_parser(
            "report",
            help="say that a machine is ill",
            description="What a health checker, or you, have found: a machine that plays is replaced while it still "
            "works, one that waits is put into quarantine. Checkers may also POST to /machines/NAME/fault.",
        )
        parser.add_argument("machine", metavar="MACHINE", help="which one is ill")
        parser.add_argument("why", metavar="WHY", help="one sentence, for the history")
        parser.add_argument(
            "--fatal", action="store_true", help="do not trust what it holds: end its workers, take the state elsewhere"
        )
        connection.add_options(parser)

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        path = f"/machines/{quote(args.machine, safe='')}/fault"
        answer = connection.connect(args).call("POST", path, {"why": args.why, "fatal": args.fatal})
        return tell(answer, as_json=args.json)


class Events:
    @staticmethod
    def add_parser(subparsers: Subparsers) -> None:
        parser = subparsers.add_parser(
            "events",
            help="what has happened",
            description="Everything of note that has happened to a job, each with its time, its kind and a sentence.",
        )
        parser.add_argument("--follow", "-f", action="store_true", help="go on until the job ends or Ctrl-C")
        connection.add_options(parser)

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        client = connection.connect(args)
        for event in client.follow() if args.follow else client.events()["events"]:
            print(json.dumps(event) if args.json else _line(event), flush=True)
            if event["kind"] in ("finished", "stopped", "failed"):
                break
        return 0


class Stop:
    @staticmethod
    def add_parser(subparsers: Subparsers) -> None:
        parser = subparsers.add_parser(
            "stop",
            help="end a job at its next step boundary",
            description="End a job at a step boundary that is the same for all roles, so that no step is half done.",
        )
        connection.add_options(parser)

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        return tell(connection.connect(args).call("POST", "/stop"), as_json=args.json)


def _line(event: dict[str, Any]) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(event["at"]))
    return f"{clock}  {event['kind']:<10} {event['text']}"


def tell(answer: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(answer))
    elif answer["ok"]:
        print(answer["text"])
    else:
        print(f"understudy: {answer['text']}", file=sys.stderr)
    return 0 if answer["ok"] else 1

"""Short requests to a running job: `understudy standby`, `scale`, `report`, `events` and `stop`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any
from urllib.parse import quote

from understudy.cli import connection
from understudy.cli.command import Subparsers, add_command
from understudy.cli.options import duration_of
from understudy.cli.status import clock
from understudy.controller.client import Client

OVER = ("finished", "stopped", "failed")
LOOK_S = 0.2


def tell(answer: dict[str, Any], *, as_json: bool) -> int:
    """Print the answer to a request. Returns the exit code: 1 if the request was refused."""
    if as_json:
        print(json.dumps(answer))
    elif answer["ok"]:
        print(answer["text"])
    else:
        print(f"understudy: {answer['text']}", file=sys.stderr)
    return 0 if answer["ok"] else 1


def add_parser(subparsers: Subparsers) -> None:
    for add in (_add_standby, _add_scale, _add_report, _add_events, _add_stop):
        add(subparsers)


# -- standby -----------------------------------------------------------------------------------------------------------

STANDBY = """\
Change which machines wait as standbys. A standby rehearses every role class: it can replace any machine at once.
"""
STANDBY_EXAMPLES = """\
examples:
  understudy standby add              start one more standby
  understudy standby remove m3
  understudy standby readmit m2       use a machine again that failed too often
"""


def _add_standby(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers, "standby", run_standby, "add or remove standby machines", STANDBY, STANDBY_EXAMPLES
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="start standby machines")
    add.add_argument("count", nargs="?", type=int, default=1, metavar="N", help="number of machines (default 1)")
    readmit = actions.add_parser("readmit", help="use a machine in quarantine again")
    readmit.add_argument("machine", metavar="MACHINE", help="its name, as understudy status prints it")
    remove = actions.add_parser("remove", help="dismiss a standby")
    remove.add_argument("machine", metavar="MACHINE", help="a standby; to free a machine with roles, drain it")
    for action in (add, readmit, remove):
        connection.add_options(action)


def run_standby(args: argparse.Namespace) -> int:
    client = connection.connect(args)
    if args.action == "add":
        answer = client.call("POST", "/standbys", {"type": "add-standby", "count": args.count})
    elif args.action == "readmit":
        answer = client.call("POST", f"/machines/{quote(args.machine, safe='')}/readmit")
    else:
        answer = client.call("DELETE", f"/standbys/{quote(args.machine, safe='')}")
    return tell(answer, as_json=args.json)


# -- scale -------------------------------------------------------------------------------------------------------------

SCALE = """\
Change the number of replicas while training continues. A job with --mask has at most as many replicas as its mesh says.
If there are fewer, they compute the share of the missing ones, so that the batch of a step stays the same. Standbys are
used first; further machines are requested. Machines in excess leave at a step boundary.
"""
SCALE_EXAMPLES = """\
examples:
  understudy run --machines 4 --begin-with 2 --mask anywhere train.py      in another terminal:
  understudy scale --replicas 4                          two more, as soon as machines are ready
  understudy scale --replicas 2 --wait 1m                two leave; ends when they have left
  understudy scale --replicas 3 --without m1 --keep      m1 leaves, and waits as a standby
"""


def _add_scale(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "scale", run_scale, "train with more or fewer replicas", SCALE, SCALE_EXAMPLES)
    add = parser.add_argument
    add("--replicas", type=int, required=True, metavar="N", help="number of replicas that train")
    add("--without", nargs="+", default=[], metavar="MACHINE", help="machines that leave first")
    add("--keep", action="store_true", help="make machines that leave standbys, and do not release them")
    add("--wait", default="0s", metavar="SPAN", help="wait for the change, for at most this time (default 0s)")
    connection.add_options(parser)


def run_scale(args: argparse.Namespace) -> int:
    limit = duration_of(args.wait, "--wait")
    client = connection.connect(args)
    body = {"replicas": args.replicas, "without": args.without, "keep": args.keep}
    answer = client.call("POST", "/scale", body)
    if answer["ok"] and limit:
        answer |= _scaled(client, args.replicas, limit)
    return tell(answer, as_json=args.json)


def _scaled(client: Client, wanted: int, limit: float) -> dict[str, Any]:
    """Wait until so many replicas train, or cannot any more; returns what has become of the request."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        job = client.job()
        count = job["replicas"]
        if job["status"] in OVER:
            return {"ok": False, "text": f"the job is {job['status']}"}
        if count["target"] != wanted:
            return {"ok": False, "text": f"a later request wants {count['target']} replicas"}
        if count["live"] == wanted and job["change"] is None:
            return {"ok": True, "text": f"{wanted} of {count['most']} replicas train", "live": wanted}
        time.sleep(LOOK_S)
    text = f"{wanted} replicas do not train after {limit:g} s; the request stands, see understudy status"
    return {"ok": False, "text": text}


# -- report ------------------------------------------------------------------------------------------------------------

REPORT = """\
Report a fault of a machine, as a health checker does. A machine with roles is replaced while it still works; a standby
is put into quarantine. Health checkers may also POST to /machines/NAME/fault.
"""
REPORT_EXAMPLES = """\
examples:
  understudy report m2 "fan 3 has stopped"
  understudy report m2 "memory errors" --fatal      do not trust the state that it holds
"""


def _add_report(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "report", run_report, "report a fault of a machine", REPORT, REPORT_EXAMPLES)
    add = parser.add_argument
    add("machine", metavar="MACHINE", help="the machine with the fault")
    add("why", metavar="WHY", help="one sentence, for the machine's history")
    add("--fatal", action="store_true", help="end its workers at once and take the state from elsewhere")
    connection.add_options(parser)


def run_report(args: argparse.Namespace) -> int:
    path = f"/machines/{quote(args.machine, safe='')}/fault"
    answer = connection.connect(args).call("POST", path, {"why": args.why, "fatal": args.fatal})
    return tell(answer, as_json=args.json)


# -- events and stop ---------------------------------------------------------------------------------------------------

EVENTS = "List the events of a job: the time, the kind and one sentence of each."
EVENTS_EXAMPLES = """\
examples:
  understudy events
  understudy events --follow --json
"""
STOP = "End a job at a step boundary that is the same for all roles, so that no step is half applied."
STOP_EXAMPLES = """\
examples:
  understudy stop
  understudy stop --job gpt
"""


def _add_events(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "events", run_events, "list the events of a job", EVENTS, EVENTS_EXAMPLES)
    parser.add_argument("--follow", "-f", action="store_true", help="print new events until the job ends or Ctrl-C")
    connection.add_options(parser)


def run_events(args: argparse.Namespace) -> int:
    client = connection.connect(args)
    for event in client.follow() if args.follow else client.events()["events"]:
        plain = f"{clock(event['at'])}  {event['kind']:<10} {event['text']}"
        print(json.dumps(event) if args.json else plain, flush=True)
        if event["kind"] in OVER:
            break
    return 0


def _add_stop(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "stop", run_stop, "end a job at its next step boundary", STOP, STOP_EXAMPLES)
    connection.add_options(parser)


def run_stop(args: argparse.Namespace) -> int:
    return tell(connection.connect(args).call("POST", "/stop"), as_json=args.json)

"""`understudy scale`: train with more or fewer replicas from the next boundary on."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from understudy.cli import connection
from understudy.cli.errors import UsageError

if TYPE_CHECKING:
    from understudy.cli.main import Subparsers
    from understudy.controller.client import Client

DESCRIPTION = """\
Let replicas of the model come or go while training goes on. A job with --mask has as many as its mesh says, at most;
where there are fewer, they compute the share of the others, so that the batch of a step stays the same. Machines that
are missing are asked for; standbys come first. Those that are too many leave at a step boundary. Nobody stops for it.
"""
EPILOG = """\
examples:
  understudy run --machines 4 --begin-with 2 --mask anywhere train.py      in another terminal:
  understudy scale --replicas 4                          two more, as soon as machines are ready
  understudy scale --replicas 2 --wait 60                two go; ends when they have gone
  understudy scale --replicas 3 --without m1 --keep      m1 goes, and waits as a standby
"""
OVER = ("finished", "stopped", "failed")
LOOK_S = 0.2


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "scale",
        help="train with more or fewer replicas",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--replicas", type=int, required=True, metavar="N", help="how many are to train")
    parser.add_argument("--without", nargs="+", default=[], metavar="MACHINE", help="who goes first")
    parser.add_argument("--keep", action="store_true", help="machines that go become standbys, and are not released")
    parser.add_argument("--wait", type=float, default=0.0, metavar="S", help="until it is so, for at most S seconds")
    connection.add_options(parser)


def run(args: argparse.Namespace) -> int:
    if not args.wait >= 0:
        raise UsageError(f"--wait {args.wait:g}: write how many seconds to wait, or leave it out")
    client = connection.connect(args)
    body = {"replicas": args.replicas, "without": args.without, "keep": args.keep}
    answer = client.call("POST", "/scale", body)
    if answer["ok"] and args.wait:
        answer |= _outcome(client, args.replicas, args.wait)
    if args.json:
        print(json.dumps(answer))
    else:
        said, where = (answer["text"], sys.stdout) if answer["ok"] else (f"understudy: {answer['text']}", sys.stderr)
        print(said, file=where)
    return 0 if answer["ok"] else 1


def _outcome(client: Client, wanted: int, limit: float) -> dict[str, Any]:
    """What has become of it, when it is so or cannot be any more."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        job = client.job()
        count = job["replicas"]
        if job["status"] in OVER:
            return {"ok": False, "text": f"the job is {job['status']}"}
        if count["target"] != wanted:
            return {"ok": False, "text": f"somebody else wants {count['target']} replicas now"}
        if count["live"] == wanted and job["change"] is None:
            return {"ok": True, "text": f"{wanted} of {count['most']} replicas train", "live": wanted}
        time.sleep(LOOK_S)
    return {"ok": False, "text": f"it is not so after {limit:g} s, and is still tried; look with: understudy status"}

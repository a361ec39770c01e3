"""`understudy join`: make this computer a machine of a job that runs elsewhere."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.cli.errors import UsageError
from understudy.cli.run import one_label

if TYPE_CHECKING:
    from understudy.cli.main import Subparsers
    from understudy.launch.join import Ticket

DESCRIPTION = """\
Make this computer a machine of a job. Where the job has not begun and still waits for machines, it plays; otherwise it
is a standby. It asks the job for all settings; the script, its arguments and the versions of understudy, torch and
Python must be those of the job. Ctrl-C takes the machine away at once; SIGTERM lets a standby take its place first, for
at most --grace seconds.

The job's secret is in the environment variable UNDERSTUDY_SECRET, or in a file: a copy of the one that
`understudy run` names when it starts (to a --provider-command, in UNDERSTUDY_SECRET_FILE), or one with nothing but the
secret in it.
"""
EPILOG = """\
examples:
  understudy run --machines 2 --local 1 --listen 10.0.0.1:7000 train.py          on the first computer
  understudy join --secret-file gpt.json --host 10.0.0.2 http://10.0.0.1:7000 train.py
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "join",
        help="make this computer a machine of a job",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--host", metavar="ADDRESS", required=True, help="of this computer; its workers listen there")
    add("--name", help="of this machine in the job (default: the computer's)")
    add("--secret-file", type=Path, metavar="FILE", help="with the job's secret (default: from UNDERSTUDY_SECRET)")
    add("--standby", action="store_true", help="wait, even where the job lacks machines to begin with")
    add("--grace", type=float, default=30.0, metavar="S", help="time to be replaced after SIGTERM (default 30)")
    add("--label", action="append", default=[], metavar="KEY=VALUE", help="say something of it, such as rack=r7")
    add("--run-dir", metavar="DIR", help="for metrics (default runs/JOB-NAME)")
    add("url", metavar="URL", help="of the job's controller, as understudy run names it")
    add("script", metavar="SCRIPT", help="the job's training script")
    add("args", nargs=argparse.REMAINDER, metavar="…", help="the script's own arguments")


def run(args: argparse.Namespace) -> int:
    from understudy.launch.join import JoinError, check

    try:
        return asyncio.run(_last(check(_ticket(args))))
    except JoinError as error:
        raise UsageError(str(error)) from None


def _ticket(args: argparse.Namespace) -> Ticket:
    from understudy.launch.join import Ticket, own_name, read_secret

    secret = read_secret(args.secret_file) if args.secret_file else os.environ.get("UNDERSTUDY_SECRET", "")
    if not secret:
        raise UsageError("the job's secret is missing; put it into UNDERSTUDY_SECRET, or give --secret-file")
    name = own_name() if args.name is None else args.name
    script, words, run_dir = args.script, tuple(args.args), args.run_dir or ""
    labels = dict(one_label(word, word) for word in args.label)
    return Ticket(args.url, secret, script, words, name, args.host, run_dir, args.standby, args.grace, labels)


async def _last(ticket: Ticket) -> int:
    from understudy.launch.join import JoinedMachine

    membership = JoinedMachine(ticket, lambda text: print(f"understudy: {text}", file=sys.stderr, flush=True))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, membership.stop)
    loop.add_signal_handler(signal.SIGTERM, membership.leave)
    return await membership.last()

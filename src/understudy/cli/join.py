"""`understudy join`: make this computer a machine of a job that runs elsewhere."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.cli import options
from understudy.cli.command import Subparsers, UsageError, add_command
from understudy.cli.run import one_label
from understudy.protocol.options import options as all_options
from understudy.protocol.settings import ReplacementSettings

if TYPE_CHECKING:
    from understudy.launch.join import Ticket

DESCRIPTION = """\
Make this computer a machine of a job. If the job has not begun and still waits for machines, the machine trains;
otherwise it is a standby. The settings come from the job; the script, its arguments and the versions of understudy,
torch and Python must be those of the job. Ctrl-C takes the machine away at once; SIGTERM lets a standby take its place
first, for at most the time of --grace.

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
    parser = add_command(subparsers, "join", run, "make this computer a machine of a job", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--host", metavar="ADDRESS", required=True, help="address of this computer, at which its workers listen")
    add("--name", help="name of this machine in the job (default: the computer's name)")
    add("--secret-file", type=Path, metavar="FILE", help="file with the job's secret (default: UNDERSTUDY_SECRET)")
    add("--standby", action="store_true", help="be a standby, even if the job waits for machines to begin with")
    options.add_option(parser, all_options(ReplacementSettings)["grace"])
    add("--label", action="append", default=[], metavar="KEY=VALUE", help="add a label to the machine, such as rack=r7")
    add("--run-dir", metavar="DIR", help="folder for metrics (default: runs/JOB-NAME)")
    add("url", metavar="URL", help="address of the job's controller, as understudy run names it")
    add("script", metavar="SCRIPT", help="the job's training script")
    add("args", nargs=argparse.REMAINDER, metavar="…", help="the script's own arguments")


def run(args: argparse.Namespace) -> int:
    from understudy.launch.join import JoinError, check

    try:
        return asyncio.run(_take_part(check(_ticket(args))))
    except JoinError as error:
        raise UsageError(str(error)) from None


def _ticket(args: argparse.Namespace) -> Ticket:
    from understudy.launch.join import Ticket, read_secret

    secret = read_secret(args.secret_file) if args.secret_file else os.environ.get("UNDERSTUDY_SECRET", "")
    if not secret:
        raise UsageError("the job's secret is missing; put it into UNDERSTUDY_SECRET, or give --secret-file")
    grace = {} if args.grace is None else {"grace": args.grace}
    return Ticket(
        url=args.url,
        secret=secret,
        script=args.script,
        args=tuple(args.args),
        name=socket.gethostname().partition(".")[0] if args.name is None else args.name,
        host=args.host,
        run_dir=args.run_dir or "",
        standby=args.standby,
        labels=dict(one_label(word, word) for word in args.label),
        **grace,
    )


async def _take_part(ticket: Ticket) -> int:
    from understudy.launch.join import JoinedMachine

    machine = JoinedMachine(ticket, lambda text: print(f"understudy: {text}", file=sys.stderr, flush=True))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, machine.stop)
    loop.add_signal_handler(signal.SIGTERM, machine.leave)
    return await machine.run()

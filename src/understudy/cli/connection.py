"""How commands reach the controller of a running job."""

from __future__ import annotations

import argparse
import os

from understudy.cli.command import UsageError
from understudy.controller.client import Client
from understudy.launch import registry


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--job", metavar="NAME", help="name of the job, if several run on this computer")
    add("--controller", metavar="URL", help="URL of a job elsewhere; set UNDERSTUDY_SECRET to the job's secret")
    add("--json", action="store_true", help="print JSON, for programs")


def connect(args: argparse.Namespace) -> Client:
    """A client of the job that the options name."""
    if args.controller:
        secret = os.environ.get("UNDERSTUDY_SECRET")
        if not secret:
            raise UsageError("--controller needs the job's secret in the environment variable UNDERSTUDY_SECRET")
        if not args.controller.startswith(("http://", "https://")):
            raise UsageError(f"--controller {args.controller}: write it as http://HOST:PORT")
        return Client(args.controller, secret)
    try:
        entry = registry.find(args.job)
    except registry.NoJob as error:
        raise UsageError(str(error)) from None
    return Client(entry.url, entry.secret)

"""What all commands share: the shape of their parsers, and the error for mistakes that the user can correct."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Callable
from typing import TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class UsageError(Exception):
    """A message for the user in one sentence. The command ends with exit code 2 and no traceback."""


def add_command(
    subparsers: Subparsers,
    name: str,
    run: Callable[[argparse.Namespace], int],
    help: str,
    description: str,
    epilog: str | None = None,
) -> argparse.ArgumentParser:
    """Add the parser of a command, which `run` carries out. The help keeps the lines of `description` and `epilog`."""
    made = subparsers.add_parser(name, help=help, description=description, epilog=epilog)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.set_defaults(run=run)
    return made


def cancel_on_signals() -> None:
    """Let SIGINT and SIGTERM cancel the current task."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)

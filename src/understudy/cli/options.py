"""Flags of the command line, made of the declarations in `protocol/settings.py`."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any, get_type_hints

from understudy.cli.command import UsageError
from understudy.protocol.durations import DurationError, parse_duration
from understudy.protocol.options import Option, options
from understudy.protocol.settings import JobSpec, Settings


def duration(text: str) -> float:
    """The type of a flag that takes a duration: `30s`, `2m`, `30`."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return parse_duration(text)
    except DurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def duration_of(text: str, flag: str) -> float:
    """The duration that a flag gives; `UsageError` if it is none."""
    try:
        return parse_duration(text)
    except DurationError as error:
        raise UsageError(f"{flag}: {error}") from None


def add_option(parser: argparse._ActionsContainer, option: Option) -> None:
    """Add the flag of an option. Its value is None unless the user gives one."""
    help = option.help.replace("%", "%%")
    if option.plain_type is bool:
        parser.add_argument(option.flag, dest=option.key, action="store_true", default=None, help=help)
        return
    kind: Any = option.plain_type if option.plain_type in (int, float) else str
    kind = duration if option.declared.unit == "s" else kind
    parser.add_argument(option.flag, dest=option.key, type=kind, metavar=option.metavar, help=help)


def add_options(parser: argparse.ArgumentParser, *, without: Collection[str] = ()) -> None:
    """Add the flags of all options of a job, in groups, except for the groups with these titles."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    about = {name: kind.__doc__ for name, kind in get_type_hints(Settings).items()}
    for option in options(JobSpec).values():
        if option.flag and option.group not in without:
            if option.group not in groups:
                groups[option.group] = parser.add_argument_group(option.group, about.get(option.group))
            add_option(groups[option.group], option)


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options that the user has given, by key."""
    return {key: value for key in options(JobSpec) if (value := getattr(args, key, None)) is not None}

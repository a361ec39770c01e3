"""The command line, from its argument parsers. argparse's own layout differs between versions of Python."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from understudy.cli.main import build_parser

from .sources import item, joined


def section() -> str:
    parser = build_parser()
    parts = ["## On the command line: `understudy`", joined(parser.description)]
    helps = dict(_helps(parser))
    parts.append("\n".join(item(f"`{name}`", text) for name, text in helps.items()))
    for name, command in _commands(parser):
        parts += _command(f"understudy {name}", command)
    return "\n\n".join(parts)


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    inner = list(_commands(parser))
    places = " ".join(_metavar(action) for action in _plain(parser) if not action.option_strings)
    yield f"### `{' '.join(filter(None, [name, _choice(parser), places]))}`"
    if parser.description:
        yield joined(parser.description)
    if _plain(parser):
        yield _items(parser)
    if parser.epilog:
        yield f"```\n{parser.epilog.rstrip()}\n```"
    helps = dict(_helps(parser))
    for action, each in inner:
        yield joined(f"**`{name} {action}`**: {helps[action]}.\n\n{each.description or ''}").rstrip()
        yield _items(each)


def _items(parser: argparse.ArgumentParser) -> str:
    return "\n".join(item(f"`{_head(action)}`", _help(action)) for action in _plain(parser))


def _plain(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """All arguments but `--help`, hidden ones and subcommands; positional ones first."""
    found = [
        action
        for action in parser._actions
        if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
        and action.help is not argparse.SUPPRESS
    ]
    return sorted(found, key=lambda action: bool(action.option_strings))


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _choice(parser: argparse.ArgumentParser) -> str:
    """The placeholder of the subcommand, if there are subcommands."""
    found = [action.metavar for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return str(found[0]) if found else ""


def _helps(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from ((choice.dest, choice.help or "") for choice in action._choices_actions)


def _head(action: argparse.Action) -> str:
    if not action.option_strings:
        return _metavar(action)
    value = f" {_metavar(action)}" if action.nargs != 0 else ""
    return ", ".join(action.option_strings) + value


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar is None and action.choices is not None:
        return "|".join(map(str, action.choices))
    text = action.metavar or action.dest.upper()
    return f"{text} …" if action.nargs in ("+", "*") else f"[{text}]" if action.nargs == "?" else text


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {**vars(action), "prog": "understudy"}

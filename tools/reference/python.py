"""The public surface of the packages: the names that scripts may import."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import understudy
import understudy.data
import understudy.testing
from understudy.data import sampler

from .sources import filled, item, joined, told, told_attributes, tree_of

MADE_BY_THE_RUNTIME = ("Job", "LiveFlag", "Step", "Shard", "Report", "LocalWorker", "WorkerHandle")
"""Classes that only the runtime instantiates; the reference shows no constructor."""
SURFACE = ("run", "Job", "LiveFlag", "Step", "Shard")
"""In the order in which a script uses them."""
DATA = ("Tokens", "MapData", "Sampler", "MicroShard", "cut", "Local", "Report", "partition", "check", "DataError")
TESTING = ("run_workers", "LocalWorkers", "WorkerHandle", "LocalWorker", "first_roster", "FakeClock", "InjectedError")
FAULTS = ("WORKER_FAULTS", "AGENT_FAULTS")
"""Tables of `understudy.testing`: name → a line."""


def section() -> str:
    public = {*understudy.__all__, *understudy.data.__all__, *understudy.testing.__all__}
    left = public - {*SURFACE, *DATA, *TESTING, *FAULTS, "__version__"}
    if left:
        raise SystemExit(
            f"name them in SURFACE, DATA or TESTING of tools/reference/python.py: {', '.join(sorted(left))}"
        )
    parts = ["## In a script: `understudy`", "`understudy.__version__` is the version."]
    parts += [_entry("understudy", name, getattr(understudy, name)) for name in SURFACE]
    parts += ["## Data by index: `understudy.data`", joined(understudy.data.__doc__)]
    parts += [_entry("understudy.data", name, getattr(understudy.data, name)) for name in DATA]
    head, _, _ = (understudy.testing.__doc__ or "").partition("\n\n")
    parts += ["## In tests: `understudy.testing`", joined(head)]
    parts += [_entry("understudy.testing", name, getattr(understudy.testing, name)) for name in TESTING]
    parts += [_table("understudy.testing", name, getattr(understudy.testing, name)) for name in FAULTS]
    return "\n\n".join(parts)


def _entry(package: str, name: str, thing: Any) -> str:
    if inspect.isclass(thing):
        return "\n\n".join([f"### `{package}.{name}`", *_class(name, thing)])
    if inspect.isfunction(thing):
        return f"### `{package}.{name}{signature(thing)}`\n\n{joined(thing.__doc__)}"
    return f"### `{package}.{name}`\n\n{_told_alias(name)}"


def _table(package: str, name: str, table: dict[str, str]) -> str:
    lines = [item(f"`{key}`", text) for key, text in table.items()]
    return "\n".join([f"### `{package}.{name}`", "", *lines])


def _told_alias(name: str) -> str:
    """The docstring of a type alias: the string below its definition in the module."""
    body = ast.parse(inspect.getsource(sampler)).body
    for statement, after in pairwise(body):
        named = isinstance(statement, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in statement.targets
        )
        if named:
            return told(after)
    raise SystemExit(f"tools/reference/python.py: {name} has no docstring below its definition")


def _class(name: str, kind: type) -> Iterator[str]:
    yield joined(kind.__doc__)
    if name not in MADE_BY_THE_RUNTIME and not issubclass(kind, Exception):
        yield f"```\n{filled(name + signature(kind), '    ')}\n```"
    members = [*_attributes(kind), *_methods(kind)]
    if members:
        yield "\n".join(item(f"`{head}`", text) for head, text in members)


def _attributes(kind: type) -> Iterator[tuple[str, str]]:
    yield from told_attributes(kind).items()
    for name, thing in vars(kind).items():
        if not name.startswith("_") and isinstance(thing, property | cached_property):
            text = joined(thing.__doc__)
            if not text:
                raise SystemExit(f"tools/reference/python.py: {kind.__name__}.{name} has no docstring")
            yield name, text


def _methods(kind: type) -> Iterator[tuple[str, str]]:
    for name, thing in vars(kind).items():
        if not name.startswith("_") and inspect.isfunction(thing):
            yield f"{name}{signature(thing)}", joined(thing.__doc__)


def signature(thing: Any) -> str:
    """The signature as written, without `self`, and with the values of constants, which may be private."""
    if dataclasses.is_dataclass(thing):
        found: Any = thing
        return str(inspect.signature(found)).replace("'", "").removesuffix(" -> None")
    function = thing.__init__ if inspect.isclass(thing) else thing
    tree = tree_of(function)
    assert isinstance(tree, ast.FunctionDef)
    for default in (*tree.args.defaults, *tree.args.kw_defaults):
        if isinstance(default, ast.Name) and default.id.isupper():
            default.id = repr(function.__globals__[default.id])
    tree.args.args = [each for each in tree.args.args if each.arg != "self"]
    gives = "" if tree.returns is None else f" -> {ast.unparse(tree.returns)}"
    return f"({ast.unparse(tree.args)}){gives}".removesuffix(" -> None")

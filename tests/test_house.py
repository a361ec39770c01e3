"""The measured rules of the house, counted in the sources. The sources are parsed, never imported."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SRC, BENCH = ROOT / "src" / "understudy", ROOT / "bench"

DEEPEST = 2
"""Classes of a chain of inheritance, the last one included."""
MOST_POSITIONAL = 6
PRONOUN = re.compile(
    r"\b(who|whoever|whose|whom|somebody|someone|everybody|everyone|nobody|anybody|anyone)\b", re.IGNORECASE
)


class Source(NamedTuple):
    place: str
    """The path, relative to the repository."""
    module: str
    tree: ast.Module


class Rule(NamedTuple):
    name: str
    offences: Callable[[], list[str]]
    limit: int
    """Offences that are allowed."""


@cache
def sources(root: Path) -> tuple[Source, ...]:
    """All Python files of a folder. The modules of `bench` are those of the package `understudy_bench`."""
    package = "understudy" if root == SRC else "understudy_bench"
    found = []
    for file in sorted(root.rglob("*.py")):
        module = ".".join((package, *file.relative_to(root).with_suffix("").parts))
        found.append(Source(file.relative_to(ROOT).as_posix(), module, ast.parse(file.read_text(encoding="utf-8"))))
    return tuple(found)


def classes(source: Source) -> Iterator[ast.ClassDef]:
    return (node for node in source.tree.body if isinstance(node, ast.ClassDef))


# -- the rules ---------------------------------------------------------------------------------------------------------


def duplicate_names() -> list[str]:
    places: dict[str, list[str]] = {}
    for source in sources(SRC):
        for node in classes(source):
            if not node.name.startswith("_"):
                places.setdefault(node.name, []).append(source.place)
    return [f"{name}: {', '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1]


def deep_classes() -> list[str]:
    """Classes, exceptions aside, that stand at the end of too long a chain of our own classes."""
    bases = {
        f"{source.module}.{node.name}": _bases(source, node) for source in sources(SRC) for node in classes(source)
    }

    def is_exception(name: str) -> bool:
        if name in bases:
            return any(map(is_exception, bases[name]))
        kind = getattr(builtins, name, None)
        return isinstance(kind, type) and issubclass(kind, BaseException)

    def depth(name: str) -> int:
        return 1 + max(map(depth, bases[name]), default=0) if name in bases else 0

    return [f"{name}: {depth(name)}" for name in sorted(bases) if depth(name) > DEEPEST and not is_exception(name)]


def _bases(source: Source, node: ast.ClassDef) -> list[str]:
    """The full names of a class's bases: defined in the same module, imported, or of another package."""
    known = {each.name: f"{source.module}.{each.name}" for each in classes(source)}
    for statement in ast.walk(source.tree):
        if isinstance(statement, ast.ImportFrom):
            above = source.module.split(".")[: -statement.level] if statement.level else []
            origin = ".".join(filter(None, [*above, statement.module]))
            known |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in statement.names}
    found = []
    for base in node.bases:
        first, _, rest = ast.unparse(base.value if isinstance(base, ast.Subscript) else base).partition(".")
        found.append(".".join(filter(None, [known.get(first, first), rest])))
    return found


def stubs() -> list[str]:
    return [
        f"{source.place}:{node.lineno}"
        for source in sources(SRC)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Raise) and node.exc is not None and "NotImplementedError" in ast.unparse(node.exc)
    ]


def positional_calls() -> list[str]:
    """Constructor calls with many positional arguments, in the package and in the benchmarks."""
    everywhere = (*sources(SRC), *sources(BENCH))
    names = {node.name for source in everywhere for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)}
    found = []
    for source in everywhere:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and len(node.args) > MOST_POSITIONAL and _called(node) in names:
                found.append(f"{source.place}:{node.lineno}: {_called(node)} has {len(node.args)}")
    return found


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def pronouns() -> list[str]:
    """Indefinite pronouns in docstrings, those of attributes included."""
    return [
        f"{source.place}:{node.lineno}: {word}"
        for source in sources(SRC)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for word in PRONOUN.findall(node.value.value)
    ]


RULES = (
    Rule("public class names that are used twice", duplicate_names, 0),
    Rule(f"classes at the end of a chain of more than {DEEPEST}", deep_classes, 0),
    Rule("methods that raise NotImplementedError", stubs, 0),
    Rule(f"constructor calls with more than {MOST_POSITIONAL} positional arguments", positional_calls, 0),
    Rule("indefinite pronouns in docstrings", pronouns, 40),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_house(rule: Rule) -> None:
    found = rule.offences()
    assert len(found) <= rule.limit, "\n".join([f"{rule.name}: {len(found)}, at most {rule.limit}", *found])

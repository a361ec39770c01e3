"""Docstrings of attributes, which only the source of a class has."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise

WIDTH = 140


def tree_of(thing: type | object) -> ast.AST:
    """The syntax tree of a class or function."""
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]  # type: ignore[arg-type]


def told_attributes(kind: type) -> dict[str, str]:
    """Public attribute → the docstring below its assignment, in the class or in `__init__`."""
    found: dict[str, str] = {}
    for body in _bodies(tree_of(kind)):
        for statement, after in pairwise(body):
            text = told(after)
            found |= {name: text for name in _assigned(statement) if text and not name.startswith("_")}
    return found


def told(statement: ast.stmt) -> str:
    """The text of a statement that is only a string; else empty."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return joined(statement.value.value if isinstance(statement.value.value, str) else "")
    return ""


def joined(text: str | None) -> str:
    """A docstring's paragraphs, wrapped for the page; an indented one is code."""
    return "\n\n".join(map(_paragraph, inspect.cleandoc(text or "").split("\n\n")))


def _paragraph(text: str) -> str:
    return f"```\n{textwrap.dedent(text)}\n```" if text.startswith("    ") else filled(text)


def item(head: str, text: str) -> str:
    """A list item."""
    return filled(f"- {head}: {text}" if text else f"- {head}", "  ")


def filled(text: str, indent: str = "") -> str:
    """The text, wrapped."""
    return textwrap.fill(
        " ".join(text.split()), WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _bodies(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    assert isinstance(tree, ast.ClassDef)
    yield tree.body
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            yield statement.body


def _assigned(statement: ast.stmt) -> Iterator[str]:
    """The attributes of the class, or of `self`, that a statement assigns or annotates."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    for target in targets:
        for part in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(part, ast.Name):
                yield part.id
            elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
                yield part.attr

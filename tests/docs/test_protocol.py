"""What docs/protocol.md names is there, and no message is missing from it."""

from __future__ import annotations

import ast
import re
from typing import get_args

import msgspec
import pytest

from tests.docs.pages import PAGES, ROOT
from understudy.protocol.frames import Frame, Order, Report
from understudy.protocol.messages import ExtensionMessage, FromWorker, ToWorker

PROTOCOL = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::([\w.]+))?`")


def defined(path: str) -> set[str]:
    """Functions and classes of a file, and `Class.method`."""
    found = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_pages_name_are_there(page: object) -> None:
    missing = [
        f"{path}::{name}" if name else path
        for path, name in NAMED.findall(page.read_text(encoding="utf-8"))  # type: ignore[attr-defined]
        if not (ROOT / path).exists() or (name and name not in defined(path))
    ]
    assert not missing


def test_every_invariant_has_tests() -> None:
    parts = re.split(r"^\*\*\d\. ", PROTOCOL, flags=re.MULTILINE)[1:]
    assert len(parts) == 6
    assert all(len(NAMED.findall(part)) >= 3 for part in parts)


def test_no_message_is_missing() -> None:
    """Extensions are not part of the protocol."""
    kinds = {*get_args(Frame), *get_args(Order), *get_args(Report), *get_args(ToWorker), *get_args(FromWorker)} - {
        ExtensionMessage
    }
    tags = {str(kind.__struct_config__.tag) for kind in kinds if issubclass(kind, msgspec.Struct)}
    assert not {tag for tag in tags if f"`{tag}`" not in PROTOCOL}

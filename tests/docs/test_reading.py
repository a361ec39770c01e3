"""The walks of docs/reading.md: short, and everything that they name is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
WALKS = {part.splitlines()[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:4]}
STOP = re.compile(r"^\d+\. \[[\w/.]+\]\(\.\./(src/[\w/.]+)\) ((?:`[\w.]+`,?\s+)*`[\w.]+`):(.*)", re.MULTILINE)


def stops(walk: str) -> list[tuple[str, list[str]]]:
    """(file, names) of each stop of a walk."""
    flat = re.sub(r"\n {2,}", " ", walk)
    return [(file, re.findall(r"`([\w.]+)`", names)) for file, names, _ in STOP.findall(flat)]


def defined(file: str) -> Iterator[str]:
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            functions = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            yield from (f"{node.name}.{each.name}" for each in functions)


def test_there_are_three_walks() -> None:
    assert list(WALKS) == ["A step", "A planned replacement", "A `kill -9`"]


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_passes_at_most_ten_files(name: str) -> None:
    found = stops(WALKS[name])
    assert 5 <= len(found) <= 10
    assert len(found) == len(re.findall(r"^\d+\. ", WALKS[name], flags=re.MULTILINE))


@pytest.mark.parametrize("name", WALKS)
def test_what_a_walk_names_is_there(name: str) -> None:
    missing = [f"{file}: {each}" for file, names in stops(WALKS[name]) for each in set(names) - set(defined(file))]
    assert not missing

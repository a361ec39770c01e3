"""Links lead somewhere, and commands that pages show can be given."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, blocks, without_blocks
from understudy.cli.main import build_parser

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them from headings."""
    found = HEADING.findall(without_blocks(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(without_blocks(page)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_the_readme_lists_all_pages() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in text]
    assert not missing


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in blocks(page):
            for line in block.text.splitlines():
                words = line.strip().removeprefix("$ ").removeprefix(".venv/bin/")
                if words.startswith("understudy ") and "…" not in words:
                    found.append((str(page.relative_to(ROOT)), words))
    return found


def test_commands_can_be_given() -> None:
    """What follows a bar or a gap is left out: an explanation, or the names of further commands."""
    parser, wrong = build_parser(), []
    for page, line in commands():
        said = io.StringIO()
        words = shlex.split(re.split(r"\||  | > ", line)[0], comments=True)[1:]
        try:
            with contextlib.redirect_stderr(said):
                parser.parse_args(words)
        except SystemExit as end:
            if end.code:
                wrong.append(f"{page}: {line}\n{said.getvalue().splitlines()[-1]}")
    assert not wrong, "\n".join(wrong)


def test_python_in_pages_is_python() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python":
                ast.parse(block.text)

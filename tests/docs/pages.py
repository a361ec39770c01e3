"""The pages of the documentation, and what they have in their code blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")],
    key=lambda path: str(path),
)
_BLOCK = re.compile(r"(?:^<!-- (\w+): (\S+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A code block; `kind` and `name` are those of the comment above it, if there is one."""

    kind: str
    name: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*(part or "" for part in found)) for found in _BLOCK.findall(page.read_text(encoding="utf-8"))]


def without_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)

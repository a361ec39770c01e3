"""The output of a program as lines of styled pieces. Colours only: cursor movements are dropped."""

from __future__ import annotations

import re
from typing import NamedTuple

_ESCAPE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b.")
_STYLES = {1: "bold", 2: "dim", 31: "red", 32: "green", 33: "yellow", 34: "blue", 35: "magenta", 36: "cyan"}


class Piece(NamedTuple):
    """Text in one style."""

    text: str
    style: str = ""
    """CSS classes, separated by spaces."""


Line = tuple[Piece, ...]


def parse(text: str, width: int) -> list[Line]:
    """Split text into lines of at most `width` letters."""
    lines: list[list[Piece]] = [[]]
    styles: list[str] = []
    place = 0
    for found in [*_ESCAPE.finditer(text), None]:
        end = len(text) if found is None else found.start()
        for part in re.split(r"(\n)", text[place:end].replace("\r", "")):
            if part == "\n":
                lines.append([])
            elif part:
                _put(lines, part, " ".join(styles), width)
        if found is not None:
            place = found.end()
            if found[2] == "m":
                styles = _changed(styles, found[1])
    return [tuple(line) for line in lines]


def _put(lines: list[list[Piece]], text: str, style: str, width: int) -> None:
    while text:
        room = width - sum(len(piece.text) for piece in lines[-1])
        if room <= 0:
            lines.append([])
            continue
        lines[-1].append(Piece(text[:room], style))
        text = text[room:]


def _changed(styles: list[str], codes: str) -> list[str]:
    for code in (int(part or 0) for part in codes.split(";") if part.isdigit() or not part):
        if code == 0:
            styles = []
        elif code in _STYLES:
            styles = [*(style for style in styles if style != _STYLES[code]), _STYLES[code]]
    return styles

"""Recorded sessions: what was written to a terminal is drawn, line by line and in time."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tools.recording.__main__ import PICTURE
from tools.recording.session import Terminal, panes
from tools.recording.svg import Pane, drawn
from tools.recording.terminal import Piece, parse

SVG = "{http://www.w3.org/2000/svg}"


def test_colours_and_line_ends() -> None:
    assert parse("a \x1b[1;31mred\x1b[0m b\r\n\x1b[?25lc\x1b[K", 80) == [
        (Piece("a "), Piece("red", "bold red"), Piece(" b")),
        (Piece("c"),),
    ]


@given(st.text(st.characters(exclude_characters="\x1b\r\n"), max_size=60), st.integers(1, 20))
def test_long_lines_are_broken_and_nothing_is_lost(text: str, width: int) -> None:
    lines = parse(text, width)
    assert "".join(piece.text for line in lines for piece in line) == text
    assert all(sum(len(piece.text) for piece in line) <= width for line in lines)


def test_a_picture_has_every_line_once_and_both_schemes() -> None:
    lines = [(0.5 * number, (Piece(f"line <{number}>", "bold"),)) for number in range(30)]
    picture = drawn([Pane("one", 5, lines), Pane("two", 3, [])], 40)
    tree = ET.fromstring(picture)
    assert [each.text for each in tree.iter(f"{SVG}tspan")] == [f"line <{number}>" for number in range(30)]
    assert "prefers-color-scheme: dark" in picture
    assert "prefers-reduced-motion" in picture
    first, last = re.findall(r"translateY\((-?\d+)px\) }", picture)[0:30:29]
    assert int(first) > int(last)


def test_a_real_terminal(tmp_path: Path) -> None:
    terminal = Terminal("t", 5, 20, tmp_path, {})
    terminal.begin([sys.executable, "-c", "import sys, os; print(sys.stdout.isatty(), os.getcwd())"], "python")
    assert terminal.end() == 0
    (pane,) = panes([terminal], {"True": "bold"})
    said = ["".join(piece.text for piece in line) for _, line in pane.lines]
    assert said == ["$ python", "True ~"]
    assert [line[0].style for _, line in pane.lines] == ["bold", "bold"]
    assert [when for when, _ in pane.lines] == sorted(when for when, _ in pane.lines)


def test_the_committed_picture() -> None:
    data = PICTURE.read_bytes()
    assert len(data) < 200_000
    text = "".join(ET.fromstring(data).itertext())
    assert "understudy replace m1" in text
    assert "training lost" in text
    assert len({*re.findall(r"final state (\w+)", text)}) == 1
    assert "/tmp/" not in text

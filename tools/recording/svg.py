"""A recorded session as an animated SVG: each pane moves up as lines come. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from .terminal import Line

LETTER, ROW, MARGIN, TITLE = 7.8, 17, 14, 26
"""Width of a letter, height of a line, space around the text, height of a pane's title."""
PEEK = 4
"""Pixels of the line above the top row that are hidden."""
STILL_S = 6.0
"""Seconds for which the end is shown before the animation begins again."""
STYLE = """\
text { font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre; fill: #24292f }
.pane { fill: #f6f8fa; stroke: #d0d7de }
.title { fill: #57606a }
.bold { font-weight: bold } .dim { fill: #6e7781 } .red { fill: #cf222e } .green { fill: #1a7f37 }
.yellow { fill: #9a6700 } .blue { fill: #0969da } .magenta { fill: #8250df } .cyan { fill: #1b7c83 }
@media (prefers-color-scheme: dark) {
text { fill: #c9d1d9 } .pane { fill: #0d1117; stroke: #30363d } .title { fill: #8b949e }
.dim { fill: #8b949e } .red { fill: #ff7b72 } .green { fill: #3fb950 }
.yellow { fill: #d29922 } .blue { fill: #58a6ff } .magenta { fill: #bc8cff } .cyan { fill: #39c5cf }
}"""


class Pane(NamedTuple):
    """A terminal: its title, its number of rows, and its lines with their times."""

    title: str
    rows: int
    lines: Sequence[tuple[float, Line]]


def drawn(panes: Sequence[Pane], columns: int) -> str:
    """The whole picture. Viewers that prefer no motion see its end."""
    total = max((when for pane in panes for when, _ in pane.lines), default=0.0) + STILL_S
    width = columns * LETTER + 2 * MARGIN
    height = 0.0
    parts: list[str] = []
    motions: list[str] = []
    for number, pane in enumerate(panes):
        parts += _pane(pane, number, height, width)
        motions.append(_motion(pane, number, total))
        height += _height(pane) + MARGIN / 2
    moving = "\n".join(["@media (prefers-reduced-motion: no-preference) {", *motions, "}"])
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img">'
    )
    title = f"<title>{escape(', '.join(pane.title for pane in panes))}</title>"
    return "\n".join([head, title, f"<style>\n{STYLE}\n{moving}\n</style>", *parts, "</svg>", ""])


def _height(pane: Pane) -> float:
    return TITLE + pane.rows * ROW + MARGIN


def _pane(pane: Pane, number: int, top: float, width: float) -> Iterator[str]:
    """A frame with the text in it; the last line is on the lowest row."""
    inner = pane.rows * ROW + MARGIN / 2 - PEEK
    yield f'<rect class="pane" x="0.5" y="{top + 0.5:g}" width="{width - 1:g}" height="{_height(pane) - 1:g}" rx="6"/>'
    yield f'<text class="title" x="{MARGIN}" y="{top + 18:g}">{escape(pane.title)}</text>'
    seen = f'width="{width:g}" height="{inner:g}" viewBox="0 {PEEK} {width:g} {inner:g}"'
    yield f'<svg x="0" y="{top + TITLE + PEEK:g}" {seen}>'
    yield f'<g class="p{number}" style="{_up(pane)}">'
    for row, (_, line) in enumerate(pane.lines):
        pieces = "".join(
            f'<tspan class="{piece.style}">{escape(piece.text)}</tspan>' if piece.style else escape(piece.text)
            for piece in line
        )
        if pieces.strip():
            yield f'<text x="{MARGIN}" y="{(row + 1) * ROW:g}" xml:space="preserve">{pieces}</text>'
    yield "</g></svg>"


def _up(pane: Pane) -> str:
    return f"transform: translateY({(pane.rows - len(pane.lines)) * ROW}px)"


def _motion(pane: Pane, number: int, total: float) -> str:
    """The animation: lines enter at the lowest row."""
    shown: dict[str, int] = {"0": 0}
    for count, (when, _) in enumerate(pane.lines, 1):
        shown[f"{100 * when / total:.2f}"] = count
    frames = " ".join(
        f"{at}% {{ transform: translateY({(pane.rows - count) * ROW}px) }}" for at, count in shown.items()
    )
    return f"@keyframes k{number} {{ {frames} }}\n.p{number} {{ animation: k{number} {total:.2f}s step-end infinite }}"

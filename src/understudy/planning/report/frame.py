"""What every page of ours is made of: one string of HTML that holds everything it needs and may load nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from understudy.planning.report.style import POLICY, SCRIPT, STYLE

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "displayModeBar": False,
    "plotlyServerURL": "",
    "showSendToCloud": False,
}


def document(title: str, body: Iterable[str], made: str) -> str:
    """The whole page; `made` says when and by what."""
    from plotly.offline import get_plotlyjs

    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f"<script>{get_plotlyjs()}</script>",
            "</head><body><main>",
            *body,
            f"<footer>{escape(made)}</footer>",
            f"</main><script>{SCRIPT}</script></body></html>",
            "",
        ]
    )


def drawing(name: str, title: str, figure: Figure) -> str:
    from plotly.io import to_html

    plot = to_html(figure, config=CONFIG, include_plotlyjs=False, full_html=False, div_id=f"plot-{name}")
    return f'<figure aria-label="{escape(title)}">{plot}</figure>'


def tiles(found: Iterable[tuple[str, str]]) -> str:
    """(what, value), the value large."""
    shown = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in found)
    return f'<div class="tiles">{shown}</div>'


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

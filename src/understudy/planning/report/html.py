"""HTML of all report pages: one string that contains everything it needs and loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "displayModeBar": False,
    "plotlyServerURL": "",
    "showSendToCloud": False,
}


POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
"""Content security policy: the browser fetches nothing."""

STYLE = """
:root { --ink: #1f2933; --soft: #5b6672; --line: #e3e7ec; --ground: #fbfbfa; --card: #ffffff; --accent: #0d7c7a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --soft: #9aa5b1; --line: #2f3742; --ground: #15191f; --card: #1c2129; --accent: #4fc0bb; }
}
@media print {
  :root { --ink: #1f2933; --soft: #5b6672; --line: #e3e7ec; --ground: #ffffff; --card: #ffffff; --accent: #0d7c7a; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 40px 24px 56px; }
.what { margin: 0; color: var(--soft); font-size: 14px; }
h1 { margin: 2px 0 14px; font-size: 32px; line-height: 1.2; font-weight: 650; color: var(--accent);
  overflow-wrap: anywhere; }
h2 { margin: 0 0 6px; font-size: 19px; font-weight: 620; }
section { margin: 0 0 22px; padding: 20px 22px; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; break-inside: avoid; }
#recommendation { background: none; border: 0; padding: 0; margin-bottom: 28px; }
p { margin: 0 0 12px; color: var(--soft); overflow-wrap: anywhere; }
p.lead { color: var(--ink); font-size: 17px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 18px 0; }
.tiles div { padding: 14px 16px; background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tiles b { display: block; font-size: 21px; font-weight: 640; white-space: nowrap; }
.tiles span { color: var(--soft); font-size: 13px; }
figure { margin: 0; min-width: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); }
th, td { padding: 7px 14px 7px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
summary { cursor: pointer; font-weight: 620; }
details p { margin-top: 12px; }
footer { color: var(--soft); font-size: 13px; }
@media (max-width: 600px) {
  main { padding: 22px 12px 40px; }
  section { padding: 16px 14px; }
  #recommendation { padding: 0; }
  h1 { font-size: 26px; }
  .tiles { grid-template-columns: repeat(2, 1fr); }
  .tiles b { font-size: 18px; }
}
"""

SCRIPT = """
(function () {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  function paint() {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--soft").trim();
    const card = style.getPropertyValue("--card").trim();
    const line = style.getPropertyValue("--line").trim();
    for (const plot of document.querySelectorAll(".js-plotly-plot")) {
      Plotly.relayout(plot, {
        "font.color": ink, "hoverlabel.bgcolor": card, "hoverlabel.bordercolor": line,
        "hoverlabel.font.color": style.getPropertyValue("--ink").trim(),
      });
    }
  }
  dark.addEventListener("change", paint);
  paint();
})();
"""
"""Gives the text in plots the colours of the page."""


def document(title: str, body: Iterable[str], made: str) -> str:
    """The whole page; `made` is the footer with date and version."""
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
    """A plotly figure as HTML."""
    from plotly.io import to_html

    plot = to_html(figure, config=CONFIG, include_plotlyjs=False, full_html=False, div_id=f"plot-{name}")
    return f'<figure aria-label="{escape(title)}">{plot}</figure>'


def tiles(found: Iterable[tuple[str, str]]) -> str:
    """Tiles from pairs of name and value; the value is shown large."""
    shown = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in found)
    return f'<div class="tiles">{shown}</div>'


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as HTML."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

"""The live screen of `understudy run`."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from understudy.cli.live import EVENTS, LINES, LiveScreen, screen

JOB: dict[str, Any] = {
    "job": "gpt",
    "status": "training",
    "step": 12,
    "seconds": 0.25,
    "values": {"loss": 2.5},
    "generation": 2,
    "change": {"kind": "replace", "phase": "armed"},
}
MACHINES: list[dict[str, Any]] = [
    {"name": "m0", "state": "active", "roles": [0, 1], "why": ""},
    {"name": "m1", "state": "gone", "roles": [], "why": "it was replaced"},
    {"name": "m2", "state": "standby", "roles": [], "why": ""},
]


def drawn(**settings: Any) -> tuple[Console, StringIO]:
    out = StringIO()
    return Console(file=out, width=80, **settings), out


def test_everything_that_matters_is_on_it() -> None:
    console, out = drawn()
    events = [{"kind": "halt", "text": f"event {n}", "at": 1.0} for n in range(20)]
    console.print(screen(JOB, MACHINES, events, [f"[m0 role 0] line {n} {'x' * 200}" for n in range(20)]))
    text = out.getvalue()
    for part in (
        "gpt: training",
        "step 12",
        "loss 2.5",
        "generation 2",
        "[replace: armed]",
        "role 0 1",
        "it was replaced",
    ):
        assert part in text
    assert text.count("event ") == EVENTS
    assert text.count("line ") == LINES
    assert all(len(line) <= 80 for line in text.splitlines())


def test_the_screen_begins_with_the_first_view_and_ends_with_the_last() -> None:
    console, out = drawn(force_terminal=True)
    with LiveScreen(console) as live:
        live.line("before anything is known")
        live.event({"kind": "machine", "text": "m0 has come"})
        live.view(JOB, MACHINES)
        live.view({**JOB, "step": 13}, MACHINES)
    assert "step 13" in out.getvalue()
    assert "m0 has come" in out.getvalue()


def test_each_role_has_one_bar() -> None:
    console, out = drawn(force_terminal=True)
    with LiveScreen(console) as live:
        live.view(JOB, MACHINES)
        for percent in range(0, 100, 10):
            live.bar(f"[m0 role 0]  {percent}%|bar")
        live.bar("[m1 role 1]  70%|bar")
        live.bar("[m2 w5]  5%|bar")
        live.bar("[m2 w5] ")
        live.bar("[m3 w6]  5%|bar")
        live.line("[m3 w6] done")
        out.truncate(0)
        live.refresh()
    text = out.getvalue()
    assert [line for line in ("90%", "70%", "80%", "5%") if line in text] == ["90%", "70%"]
    assert "[m3 w6] done" in text

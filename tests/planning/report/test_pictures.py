from __future__ import annotations

import sys

import pytest

from tests.planning.report.digests import digest_in
from tests.planning.report.test_browser import decoded
from understudy.planning.report.chart import (
    BarChart,
    BarGroup,
    Chart,
    ChartBar,
    ChartLine,
    ChartStack,
    LineChart,
    StackChart,
    colours,
    missing,
    short,
)
from understudy.planning.report.pictures import PicturesUnavailable, digest, png_of

BARS = BarChart(
    "seconds",
    "s",
    (
        BarGroup(
            "a worker dies", (ChartBar("understudy", 0.2, 0.1, 0.3), ChartBar("torchft", None, note="not installed"))
        ),
        BarGroup("a machine dies", (ChartBar("understudy", -0.1), ChartBar("torchrun", 8.0, 7.0, 9.0))),
    ),
)
LINES = LineChart("seconds", "share", (ChartLine("understudy", (0.0, 1.0), (1.0, 0.5)),), mark="kill")
CURVES = LineChart("bytes", "µs", (ChartLine("gloo", (1e3, 1e6), (10.0, 1e4), dashed=True),), log=True)
STACKS = StackChart(
    "seconds", (ChartStack("understudy", (("rehearse", 3.0), ("switch", 0.1))), ChartStack("restart", ()))
)


@pytest.mark.parametrize("chart", [BARS, LINES, CURVES, STACKS], ids=["bars", "lines", "log", "stacks"])
def test_the_same_chart_is_the_same_picture_and_says_what_it_shows(chart: Chart) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
    png = png_of("A title", chart)
    assert png == png_of("A title", chart)
    assert digest_in(png) == digest("A title", chart)
    assert len({tuple(map(int, pixel)) for row in decoded(png)[::4] for pixel in row[::4]}) > 10


def test_other_figures_have_another_digest() -> None:
    other = LineChart("seconds", "share", (ChartLine("understudy", (0.0, 1.0), (1.0, 0.51)),), mark="kill")
    assert len({digest("A", LINES), digest("B", LINES), digest("A", other)}) == 3
    assert digest_in(b"no picture") == ""


def test_without_matplotlib_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PicturesUnavailable, match=r"pip install 'understudy\[report\]'"):
        png_of("A title", LINES)


def test_missing_bars_are_named_in_words() -> None:
    assert missing(BARS) == ["a worker dies: torchft is missing (not installed)"]


def test_names_keep_their_colours_and_others_get_their_own() -> None:
    found = colours(["understudy", "torchft", "another", "else"])
    assert found["understudy"] == colours(["x", "understudy"])["understudy"]
    assert len(set(found.values())) == 4
    assert len(colours([f"n{number}" for number in range(30)])) == 30


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0.00"),
        (0.0381, "0.038"),
        (-0.03, "-0.030"),
        (0.19, "0.19"),
        (9.96, "10.0"),
        (41.9, "41.9"),
        (4960.0, "4,960"),
    ],
)
def test_figures_are_short(value: float, words: str) -> None:
    assert short(value) == words

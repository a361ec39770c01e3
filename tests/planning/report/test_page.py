"""The page of a plan: it has everything, loads nothing, and says in words what it cannot draw."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser

import msgspec
import pytest

from tests.planning.plans import planned
from understudy.planning.failures import Repair
from understudy.planning.inputs.assume import Assumption, PlanRequest
from understudy.planning.outcome import Mean
from understudy.planning.planner import Plan
from understudy.planning.report import plan_data as series
from understudy.planning.report import plots
from understudy.planning.report import sentences as words
from understudy.planning.report.page import page
from understudy.planning.report.plan_data import Simulated
from understudy.planning.report.plots import ReportUnavailable

SECTIONS = ("recommendation", "assumptions", "scale", "waste", "landscape", "breakdown", "sensitivity", "numbers")
PLOTS = ("scale", "waste", "landscape", "breakdown", "sensitivity")
LOADING = ("src", "href", "srcset", "data", "action", "poster", "background", "xlink:href")
MADE = "Made today."


class Reader(HTMLParser):
    """What a browser sees: the text outside of scripts, the sections, the plots, and what would be loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.ids, self.loaded, self.tags = "", list[str](), list[str](), set[str]()
        self.policy, self._within = "", ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self._within = tag
        self.tags.add(tag)
        self.ids += filter(None, [found.get("id")])
        self.loaded += [f"{tag} {name}={value}" for name, value in attrs if name in LOADING]
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within not in ("script", "style"):
            self.text += data


@pytest.fixture(scope="module", autouse=True)
def _plotly() -> None:
    pytest.importorskip("plotly", reason="the extra 'report' is not installed")


@pytest.fixture(scope="module")
def usual() -> Plan:
    return planned(PlanRequest(gpus=16_384))


@pytest.fixture(scope="module")
def text(usual: Plan) -> str:
    return page(usual, MADE)


def test_every_section_and_every_plot_is_there_in_order(text: str) -> None:
    ids = Reader(text).ids
    assert [name for name in ids if name in SECTIONS] == list(SECTIONS)
    assert [name for name in ids if name.startswith("plot-")] == [f"plot-{name}" for name in PLOTS]


def test_nothing_is_loaded_and_nothing_may_be(text: str) -> None:
    found = Reader(text)
    assert found.loaded == []
    assert not found.tags & {"link", "img", "iframe", "object", "embed", "base", "form"}
    assert found.policy.startswith("default-src 'none'")
    assert "http" not in found.policy
    own = text[text.index("</script>") :]
    assert not re.search(r"https?://", own), "only plotly's own source may mention addresses"
    assert not re.search(r"@import|url\(", text[: text.index("<script>")])


def test_the_size_of_the_page_is_that_of_plotly_and_little_more(text: str) -> None:
    from plotly.offline import get_plotlyjs

    library = get_plotlyjs()
    assert text.count(library) == 1
    assert 20_000 < len(text) - len(library) < 300_000


def test_the_recommendation_says_what_to_set_and_what_it_brings(text: str, usual: Plan) -> None:
    said = Reader(text).text
    best, other = usual.best, usual.runner_up
    assert other is not None
    for expected in (
        best.strategy.name,
        words.settings(best.strategy),
        words.time_to_train(usual, best),
        words.share(best.estimate.efficiency),
        words.share(best.estimate.availability),
        words.amount(usual.wasted_gpu_hours(best)),
        words.amount(usual.money(best)),
        f"Runner-up: {other.strategy.name}",
        MADE,
    ):
        assert expected in said
    for note in usual.assumed.notes:
        assert note.name in said
        assert note.value in said
        assert note.why in said


def test_what_others_wrote_is_shown_and_never_run(usual: Plan) -> None:
    evil = "</script><script>alert(1)</script><b onclick='x'>&amp;\""
    notes = (Assumption(evil, evil, evil),)
    strategy = msgspec.structs.replace(usual.best.strategy, name=evil, words=evil)
    best = msgspec.structs.replace(usual.best, strategy=strategy)
    assumed = msgspec.structs.replace(usual.assumed, notes=notes)
    swings = tuple(msgspec.structs.replace(swing, name=evil) for swing in usual.sensitivity)
    options = (best, *usual.options[1:])
    plan = msgspec.structs.replace(usual, best=best, options=options, assumed=assumed, sensitivity=swings)
    text = page(plan, evil)
    assert "<script>alert" not in text
    assert "<b onclick" not in text
    assert "alert(1)</script>" not in text
    assert Reader(text).text.count(evil) >= 5


@pytest.mark.parametrize(
    ("ask", "missing", "instead"),
    [
        (PlanRequest(gpus=4096, replicas=1), {"landscape"}, "with a single replica"),
        (PlanRequest(gpus=600_000, replicas=1), {"landscape", "scale"}, "no two scales"),
        (PlanRequest(gpus=1024, replicas=2), {"landscape"}, "No plot: on 2 replicas"),
        (
            PlanRequest(gpus=4096, mtbf=60.0, repair=Repair(60.0)),
            {"landscape", "sensitivity"},
            "Even so training makes no progress",
        ),
    ],
    ids=["one replica", "one scale", "two replicas", "hopeless"],
)
def test_what_cannot_be_drawn_is_said(ask: PlanRequest, missing: set[str], instead: str) -> None:
    text = page(planned(ask), MADE)
    found = Reader(text)
    assert [name for name in found.ids if name in SECTIONS] == list(SECTIONS)
    assert {name for name in PLOTS if f"plot-{name}" not in found.ids} >= missing
    assert instead in found.text
    _no_number_is_missing(text)


def test_a_simulation_without_an_end_is_said(usual: Plan) -> None:
    endless = Mean(float("inf"), float("nan"), float("nan"))
    plan = msgspec.structs.replace(usual, simulated=msgspec.structs.replace(usual.simulated, inflation=endless))
    text = page(plan, MADE)
    assert "Checked by simulation: training makes no progress" in Reader(text).text
    _no_number_is_missing(text)


def test_no_number_is_missing(text: str) -> None:
    _no_number_is_missing(text)


def _no_number_is_missing(text: str) -> None:
    assert not re.search(r"\b(nan|inf|infinity)\b", Reader(text).text, re.IGNORECASE)
    own = text[text.index("</script>") :]
    assert not re.search(r"\b(NaN|Infinity|nan|inf)\b", own)


def test_what_was_simulated_has_a_section_of_its_own(usual: Plan) -> None:
    endless = Mean(float("inf"), float("nan"), float("nan"))
    found = [Simulated("trainmover", Mean(1.01, 1.0, 1.02), None), Simulated("checkpoint", endless, float("inf"))]
    text = page(usual, MADE, found)
    assert "plot-simulated" in Reader(text).ids
    assert "Training makes no progress with checkpoint." in Reader(text).text
    _no_number_is_missing(text)
    assert "plot-simulated" not in Reader(page(usual, MADE, found[1:])).ids


def test_without_plotly_one_is_told_what_to_install(usual: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "plotly" or name.startswith("plotly.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ReportUnavailable, match=r"pip install 'understudy\[report\]'"):
        page(usual, MADE)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3_554_987.6, "3.55 million"), (21_508.2, "21,508"), (3.8058, "3.81"), (0.0, "0"), (float("inf"), "never")],
)
def test_amounts_are_short(value: float, expected: str) -> None:
    assert words.amount(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(1.0, "100 %"), (0.0, "0 %"), (0.969, "96.9 %"), (0.9997, "99.970 %"), (0.992, "99.20 %")]
)
def test_shares_keep_the_figures_that_matter(value: float, expected: str) -> None:
    assert words.share(value).replace(words.NARROW, " ") == expected


def test_parts_of_the_waste_are_listed_in_the_order_in_which_they_are_drawn(usual: Plan) -> None:
    figure = plots.breakdown(series.bars(usual))
    assert [trace.name for trace in figure.data] == [words for words in plots.WASTES if words in figure.to_json()]
    assert figure.layout.legend.traceorder == "normal"

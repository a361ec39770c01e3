"""The figures of the README are those of the committed results, and so are its pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.made import everything
from understudy.report.pictures import digest, digest_in
from understudy_bench.charts import pictured
from understudy_bench.folder import Results, read
from understudy_bench.readme import BLOCKS, IMAGES, MarkersError, filled, seconds

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "bench/results/reference"
AGAIN = "understudy bench report bench/results/reference --png docs/images --readme README.md"


def reference() -> Results:
    return read(REFERENCE) if REFERENCE.is_dir() else Results({})


def page(*names: str) -> str:
    return "before\n" + "".join(f"<!-- bench: {name} -->\nstale\n<!-- /bench -->\nbetween\n" for name in names)


def test_the_readme_shows_the_committed_results_and_nothing_else() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == filled(text, reference()), f"the figures are not those of {REFERENCE.name}: {AGAIN}"


def test_the_pictures_are_of_the_committed_results() -> None:
    for name, (title, chart) in pictured(reference()).items():
        png = ROOT / IMAGES / f"{name}.png"
        assert png.exists(), f"{png.name} is missing: {AGAIN}"
        assert digest_in(png.read_bytes()) == digest(title, chart), f"{png.name} shows something else: {AGAIN}"


def test_no_quick_run_is_committed() -> None:
    assert not [name for name, report in reference().reports.items() if report.env.quick]


def test_blocks_are_made_anew_and_the_rest_stays() -> None:
    text = filled(page(*BLOCKS), everything())
    assert "stale" not in text
    assert text.count("between") == len(BLOCKS)
    assert text.startswith("before\n")
    assert "| by Understudy | **0.20 s** (0.18 to 0.22) |  |" in text
    assert "`understudy bench replace`: medians of 1" in text
    assert "| with Understudy | **0.20 s** (0.20 to 0.40) | **0.25 s** (0.25 to 0.50) |" in text
    assert "torchft: not installed: pip install it" in text
    assert "11 of 3,072" in text
    assert "docs/images/downtime.png" in text
    assert filled(text, everything()) == text


def test_a_benchmark_without_a_result_is_not_shown() -> None:
    assert filled(page(*BLOCKS), Results({})) == page(*BLOCKS).replace("stale\n", "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no markers", "has no marker"),
        ("<!-- bench: replace -->\n", "needs its own end"),
        (page("replace") + "<!-- /bench -->", "needs its own end"),
        (page("nothing"), "there is no block 'nothing'"),
    ],
)
def test_wrong_markers_are_named(text: str, words: str) -> None:
    with pytest.raises(MarkersError, match=words):
        filled(text, everything())


@pytest.mark.parametrize(
    ("value", "words"), [(0.038, "0.038 s"), (0.19, "0.19 s"), (8.02, "8.0 s"), (-0.03, "-0.030 s")]
)
def test_seconds_have_two_figures(value: float, words: str) -> None:
    assert seconds(value) == words

"""The figures of the README are those of the committed results, and so are its pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.made import died, everything, report
from tests.planning.report.digests import digest_in
from understudy.planning.report.pictures import digest
from understudy_bench.report.blocks import BLOCKS, IMAGES, MarkersError, filled
from understudy_bench.report.charts import pictured
from understudy_bench.report.figures import seconds
from understudy_bench.report.folder import Results, read

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "bench/results/reference"
PAGES = ("README.md", "docs/benchmarks.md", "docs/scaling.md", "docs/standby.md", "docs/planning.md")
AGAIN = f"understudy bench report bench/results/reference --png docs/images --readme {' '.join(PAGES)}"


def reference() -> Results:
    return read(REFERENCE) if REFERENCE.is_dir() else Results({})


def page(*names: str) -> str:
    return "before\n" + "".join(f"<!-- bench: {name} -->\nstale\n<!-- /bench -->\nbetween\n" for name in names)


@pytest.mark.parametrize("page", PAGES)
def test_pages_show_the_committed_results_and_nothing_else(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == filled(text, reference()), f"the figures are not those of {REFERENCE.name}: {AGAIN}"


def test_every_block_is_on_some_page() -> None:
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in BLOCKS if f"<!-- bench: {name} -->" not in text] == []


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
    assert text.count("\nbetween\n") == len(BLOCKS)
    assert text.startswith("before\n")
    assert "| by Understudy | **0.20 s** (0.18 to 0.22) |  |" in text
    assert "`understudy bench replace`: medians of 1" in text
    assert "| with Understudy | **0.20 s** (0.20 to 0.40) | **0.25 s** (0.25 to 0.50) |" in text
    assert "torchft: not installed: pip install it" in text
    assert "medians of 10 workers and 10 machines killed" in text
    assert "In 1 of torchft's jobs a worker stayed away" in text
    assert "| by Understudy, opening all links | 0.21 s (0.19 to 0.23) | 1.05 x | 4.1 s |" in text
    assert "11 of 3,072" in text
    assert "state (122 MB): stayers +0.08 % of it, leavers -1.00 % of it; medians of 2 or 4" in text
    assert "- `replace`, a machine is replaced: training loses: understudy 0.2 s, no overlap 0.15 s" in text
    assert "- `collectives`, all_reduce, 1,048,576 bytes, 2 workers, tcp: understudy 110 µs, gloo 100 µs" in text
    assert "a worker becomes a fifth slower, with `--steward act --steward-looks 1`. It is found, 1 times of 2" in text
    assert ", after 19 steps or less, and replaced: 1.6 s lost in all, 6.4 s by a restart" in text
    assert "| 25 steps | 0.900 | 0.400 |" in text
    assert "relative to the state, as real ones: 2 of 8: 0.080 s lost" in text
    eager = "0.93 (0.80 to 1.06) eager | 1.08 (1.00 to 1.20) eager"
    assert f"| first step after the switch, divided by a usual one | {eager} |" in text
    assert "| pp=3,dp=2,tp=1 | another one, entered again | 0.70 s (0.51 to 0.93) | 4 |" in text
    assert (
        "recordings by role class: 1.3 and 1.8 MB for `gpt_3d.py`; a standby's worker has 0.97 times the memory" in text
    )
    assert "| wait for a standby | 0.915 | 0.922 | 9 % off | 30 |" in text
    assert "docs/images/downtime.png" in text
    assert filled(text, everything()) == text


def test_a_system_with_fewer_losses_is_named() -> None:
    rows = [*died("understudy", "worker", 0.2), *died("torchft", "worker", 1.0, round="all 7")]
    text = filled(page("failure"), Results({"failure": report("failure", rows)}))
    assert "medians of 10 workers (torchft: 7 workers) killed" in text


def test_many_comparisons_of_one_benchmark_are_counted() -> None:
    rows = [
        {"op": "all_reduce", "path": "tcp", "workers": 2, "bytes": size, "understudy_us": ours, "gloo_us": 100.0}
        for size, ours in enumerate((50.0, 103.0, 104.0, 105.0, 106.0, 101.0))
    ]
    text = filled(page("behind"), Results({"collectives": report("collectives", rows)}))
    assert "Of all 6 comparisons of medians in these results, Understudy is ahead in 1, even" in text
    assert "(within 2 %) in 1, behind in 4. Not ahead:\n\n- `collectives`: 5 of 6 (1 even)\n" in text
    few = filled(page("behind"), Results({"collectives": report("collectives", rows[-2:])}))
    assert "ahead in 0, even (within 2 %) in 1, behind in 1. Not ahead:\n" in few
    assert "4 bytes, 2 workers, tcp: understudy 106 µs, gloo 100 µs\n" in few
    assert "5 bytes, 2 workers, tcp: understudy 101 µs, gloo 100 µs (even)\n" in few
    ahead = filled(page("behind"), Results({"collectives": report("collectives", rows[:1])}))
    assert "ahead in 1, even (within 2 %) in 0, behind in 0.\n" in ahead


def test_each_result_alone_fills_its_blocks() -> None:
    for name, only in everything().reports.items():
        text = filled(page(*BLOCKS), Results({name: only}))
        assert "stale" not in text
        assert (f"`understudy bench {name}`" in text) == (name in (*BLOCKS, "scale")), name


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


@pytest.mark.parametrize(
    ("system", "words"), [("masking, standby", "for too few steps to tell"), ("recovery", "full speed")]
)
def test_a_system_that_was_without_a_replica_too_briefly_is_not_called_fast(system: str, words: str) -> None:
    row = {"system": system, "round": "all 8", "step_s": 0.16, "stall_s": 0.1, "full_strength_s": 2.1}
    assert f"| {words} | 2.1 s |" in filled(page("mask"), Results({"mask": report("mask", [row])}))

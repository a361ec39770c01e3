"""The report of a plan as one HTML page that loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from understudy.planning.planner import Plan, PlanOption
from understudy.planning.report import plan_data as series
from understudy.planning.report import plots
from understudy.planning.report import sentences as words
from understudy.planning.report.html import document, drawing, table, tiles
from understudy.planning.report.plan_data import Simulated

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def page(plan: Plan, made: str, simulated: Sequence[Simulated] = ()) -> str:
    """The report of a plan; `made` is the footer. Raises ReportUnavailable if plotly is not installed.

    Simulated strategies, if given, get a section.
    """
    plots.require()
    title = f"Plan for {plan.assumed.setting.cluster.gpus:,} GPUs: {plan.best.strategy.name}"
    body = [_top(plan), _assumptions(plan), *_plots(plan), _simulated(simulated) if simulated else "", _numbers(plan)]
    return document(title, body, made)


def _top(plan: Plan) -> str:
    best, expected = plan.best, plan.best.estimate
    figures = [
        ("time to train", words.time_to_train(plan, best)),
        ("efficiency (ETTR)", words.share(expected.efficiency)),
        ("availability", words.share(expected.availability)),
        ("wasted GPU-hours a week", words.amount(plan.wasted_gpu_hours(best))),
        ("wasted money a week", words.amount(plan.money(best))),
    ]
    return (
        f'<header><p class="what">Understudy plan, {plan.assumed.setting.cluster.gpus:,} GPUs</p>'
        f"<h1>{escape(best.strategy.name)}</h1></header>"
        f'<section id="recommendation"><p class="lead">{escape(words.recommendation(plan))}</p>'
        f"{tiles(figures)}"
        f"<p>{escape(words.runner_up(plan))}</p><p>{escape(words.simulated(plan))}</p></section>"
    )


def _assumptions(plan: Plan) -> str:
    if not plan.assumed.notes:
        body = "<p>Nothing was assumed: all inputs of the plan were given.</p>"
    else:
        rows = [(note.name, note.value, note.why) for note in plan.assumed.notes]
        body = "<p>These inputs were not given. Give the right values for those that are wrong, and plan again.</p>"
        body += table(("what", "assumed", "why"), rows)
    return f'<section id="assumptions"><h2>Assumptions</h2>{body}</section>'


def _plots(plan: Plan) -> list[str]:
    best = plan.best.strategy.name
    scale, bars, land, swings = series.over_scale(plan), series.bars(plan), series.landscape(plan), series.tornado(plan)
    seen = words.of_scale(scale, best)
    return [
        _section(
            "scale",
            "Time to train against scale",
            seen or "No plot: with replicas of this size and this failure rate, there are no two scales to compare.",
            plots.over_scale(scale, plan) if seen else None,
        ),
        _section("waste", "Wasted GPU-hours a week", words.of_bars(bars, best), plots.bars(bars)),
        _section(
            "landscape",
            "SPARe: holders and checkpoint period",
            words.of_landscape(land) if land else words.of_no_landscape(plan),
            plots.landscape(land) if land else None,
        ),
        _section(
            "breakdown",
            "What the waste consists of",
            words.of_breakdown(bars, best),
            plots.breakdown(bars) if any(bar.parts for bar in bars) else None,
        ),
        _section(
            "sensitivity",
            "Which inputs matter",
            words.of_tornado(swings, plan.request.goal),
            plots.tornado(swings, words.of_goal(plan.request.goal)) if swings.changes else None,
        ),
    ]


def _simulated(found: Sequence[Simulated]) -> str:
    kept = series.side_by_side(found)
    sentence = words.of_simulated(found, kept)
    return _section("simulated", "Simulated side by side", sentence, plots.simulated(kept) if kept else None)


def _section(name: str, title: str, sentence: str, figure: Figure | None) -> str:
    drawn = "" if figure is None else drawing(name, title, figure)
    return f'<section id="{name}"><h2>{escape(title)}</h2><p>{escape(sentence)}</p>{drawn}</section>'


def _numbers(plan: Plan) -> str:
    titles = ("strategy", "settings", "time to train", "ETTR", "availability", "wasted GPU-hours a week")
    rows = [_row(plan, option) for option in plan.options]
    note = "<p>* for comparison; Understudy implements the others.</p>"
    return (
        '<section id="numbers"><details><summary>All strategies in numbers</summary>'
        f"{note}{table(titles, rows)}</details></section>"
    )


def _row(plan: Plan, option: PlanOption) -> tuple[str, ...]:
    return (
        option.strategy.name + ("" if option.offered else " *"),
        words.settings(option.strategy),
        words.time_to_train(plan, option),
        words.share(option.estimate.efficiency),
        words.share(option.estimate.availability),
        words.amount(plan.wasted_gpu_hours(option)),
    )

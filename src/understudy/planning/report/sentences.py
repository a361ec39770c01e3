"""The sentences of a plan's report. Values that are not finite are put in words."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from understudy.planning.planner import Plan, PlanOption, makes_progress
from understudy.planning.report.plan_data import Landscape, ScaleCurve, Simulated, Tornado, WasteBar
from understudy.planning.setting import DAY
from understudy.planning.strategy import Strategy
from understudy.protocol.durations import readable

NEVER = "never"
NARROW = "\N{NO-BREAK SPACE}"
"""Space between a number and its sign, without a line break."""


def amount(value: float) -> str:
    """The value in words: `3.55 million`, `12,400`, `3.81`."""
    if not isfinite(value):
        return NEVER
    for size, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def share(value: float) -> str:
    """The share in percent: `96.9 %`. Values near 0 or 1 have more digits: `99.97 %`."""
    near = min(abs(value), abs(1 - value))
    digits = 0 if near < 5e-6 else 1 if near >= 0.01 else 2 if near >= 0.0005 else 3
    return f"{100 * value:.{digits}f}{NARROW}%"


def change(value: float) -> str:
    """The relative change in percent: `+1.2 %`, `-0.03 %`."""
    percent = 100 * value
    return f"{percent:+.1f}{NARROW}%" if abs(percent) >= 1 else f"{percent:+.2g}{NARROW}%"


def settings(strategy: Strategy) -> str:
    """The parameters of a strategy in words, with its checkpoint period."""
    count = strategy.standbys
    found = ["no standbys" if not count else f"{count:,} standby{'s' if count > 1 else ''}"]
    if strategy.answer == "mask" and not strategy.evenly:
        found.append(f"placement {strategy.placement}")
    if strategy.q:
        found.append(f"q = {strategy.q} micro-shards")
    if strategy.restart_after:
        found.append(f"a planned restart after {strategy.restart_after:,} losses")
    return ", ".join([*found, f"a checkpoint every {readable(strategy.period)}"])


def time_to_train(plan: Plan, option: PlanOption) -> str:
    """Time to train with an option, in words."""
    return readable(plan.seconds(option)) if option.progresses else NEVER


def recommendation(plan: Plan) -> str:
    """The recommended option and its expected result."""
    best, cluster = plan.best, plan.assumed.setting.cluster
    replicas = f"{cluster.replicas:,} replica{'s' if cluster.replicas > 1 else ''}"
    where = f"{cluster.gpus:,} GPUs ({cluster.machines:,} machines, {replicas}), of which one machine fails every "
    where += readable(1 / plan.assumed.rate)
    use = f"On {where}, use {best.strategy.name} with {settings(best.strategy)}: {best.strategy.words}."
    if not best.progresses:
        return f"{use} Even so training makes no progress: failures come faster than any strategy recovers from them."
    expected = best.estimate
    return (
        f"{use} {readable(plan.request.days * DAY)} of undisturbed training take {time_to_train(plan, best)}, with "
        f"an efficiency (ETTR) of {share(expected.efficiency)} and an availability of {share(expected.availability)}; "
        f"{amount(plan.wasted_gpu_hours(best))} GPU-hours a week are wasted, standbys included, which is "
        f"{amount(plan.money(best))} a week at {plan.request.price:g} a GPU-hour."
    )


def runner_up(plan: Plan) -> str:
    """The second-best option, compared with the best."""
    other, best = plan.runner_up, plan.best
    if other is None:
        return "There is no runner-up: no other strategy of Understudy fits this job."
    with_it = f"Runner-up: {other.strategy.name} with {settings(other.strategy)}"
    if not (other.progresses and best.progresses):
        return f"{with_it}; with it training makes no progress."
    by_cost = plan.request.goal == "cost"
    more = other.by(plan.request.goal) / best.by(plan.request.goal) - 1
    wasted = amount(plan.wasted_gpu_hours(other))
    if round(more, 5) <= 0:
        return f"{with_it}; equally {'cheap' if by_cost else 'fast'}, wasting {wasted} GPU-hours a week."
    return (
        f"{with_it}; {change(more)[1:]} {'more expensive' if by_cost else 'slower'} "
        f"({time_to_train(plan, other)} to train, {wasted} GPU-hours a week wasted)."
    )


def simulated(plan: Plan) -> str:
    """The simulation that checked the recommendation."""
    found, runs = plan.simulated.inflation, f"{plan.simulated.runs} runs of {readable(plan.simulated.days * DAY)}"
    if not (makes_progress(found.value) and isfinite(found.low) and isfinite(found.high)):
        return f"Checked by simulation: training makes no progress in {runs}."
    closed = f"{plan.best.inflation:.4f} times" if plan.best.progresses else "no progress"
    return (
        f"Checked by simulation: in {runs}, training takes {found.value:.4f} times as long as undisturbed "
        f"({found.low:.4f} to {found.high:.4f}); the closed forms give {closed}."
    )


def of_scale(found: Sequence[ScaleCurve], best: str) -> str:
    """The sentence about the plot over scale; empty if no curve has two points."""
    long = [curve for curve in found if len(curve.points) > 1]
    if not long:
        return ""
    told = [curve for curve in long if curve.kind in (best, "checkpoint")] or long[:1]
    lines = " and ".join(
        f"{curve.kind} goes from {readable(curve.points[0].days * DAY)} on {curve.points[0].gpus:,} GPUs to "
        f"{readable(curve.points[-1].days * DAY)} on {curve.points[-1].gpus:,}"
        for curve in told
    )
    return (
        f"With the same replicas and the same days of undisturbed training at every scale, {lines}. The dotted line is "
        "this cluster; dashed lines are strategies for comparison; a line ends if its strategy makes no progress, does "
        "not fit or takes too long to compute."
    )


def of_bars(found: tuple[WasteBar, ...], best: str) -> str:
    """The sentence about wasted GPU-hours."""
    ours = next(bar for bar in found if bar.kind == best)
    most = found[-1]
    seen = f"{best} wastes {amount(ours.gpu_hours)} GPU-hours a week, {share(ours.share)} of what is paid"
    if most.kind == best or not ours.gpu_hours:
        return f"{seen}. Standbys are included."
    times = most.gpu_hours / ours.gpu_hours
    many = f"{amount(times)} times as much" if times >= 1.05 else "hardly more"
    stuck = [bar.kind for bar in found if bar.stuck]
    never = f" Training makes no progress with {', '.join(stuck)}." if stuck else ""
    return f"{seen}; {most.kind} wastes {many}. Standbys are included; pale bars are for comparison.{never}"


def of_breakdown(found: tuple[WasteBar, ...], best: str) -> str:
    """The sentence about kinds of waste."""
    ours = next(bar for bar in found if bar.kind == best)
    if not ours.parts:
        return f"{best} wastes nothing here."
    most = max(ours.parts, key=lambda part: part.gpu_hours)
    return (
        f"The largest part of what {best} wastes: {most.words} ({share(most.share)}). Every bar is scaled to the whole "
        "waste of its strategy."
    )


def of_landscape(found: Landscape) -> str:
    """The sentence about the landscape of SPARe."""
    best = found.best
    further = f" Planned restarts before the wipe-out reach {found.planned:.3f}." if found.planned is not None else ""
    return (
        f"Without refilling, SPARe is fastest with every shard on r = {best.r} replicas and a checkpoint every "
        f"{readable(best.period)} (the star): training then takes {best.inflation:.3f} times as long as undisturbed. "
        f"Darker cells are slower; in blank cells training makes no progress.{further}"
    )


def of_no_landscape(plan: Plan) -> str:
    """The sentence if there is no landscape."""
    replicas = plan.assumed.setting.cluster.replicas
    if replicas == 1:
        return "No plot: with a single replica, no shard can have a second holder."
    return (
        f"No plot: on {replicas:,} replicas shards cannot be placed so that SPARe survives losses, or training makes "
        "no progress with any number of holders and any checkpoint period."
    )


def of_simulated(found: Sequence[Simulated], kept: Sequence[Simulated]) -> str:
    """The sentence about simulated strategies."""
    known = {each.kind for each in kept}
    lost = [each.kind for each in found if each.kind not in known]
    never = f" Training makes no progress with {', '.join(lost)}." if lost else ""
    if not kept:
        return f"Training makes progress with none of the simulated strategies.{never}"
    best = kept[0].inflation
    return (
        f"{kept[0].kind} is best: {best.value:.4f} times as long as undisturbed ({best.low:.4f} to {best.high:.4f}, "
        f"95{NARROW}% confidence). Dots are simulated, crosses are the closed forms.{never}"
    )


def of_goal(goal: str) -> str:
    """The goal in words."""
    return "cost" if goal == "cost" else "time to train"


def of_tornado(found: Tornado, goal: str) -> str:
    """The sentence about the influence of inputs."""
    what = of_goal(goal)
    if found.changes:
        first = found.changes[0]
        seen = (
            f"With all other inputs as planned, {first.name} has the most influence: halving it changes the {what} "
            f"by {change(first.low)}, doubling it by {change(first.high)}."
        )
    else:
        seen = f"No bars: halving or doubling an input does not change the {what} by a finite amount."
    if not found.breaks:
        return seen
    return (
        f"{seen} More important than any bar: training makes no progress with this plan if: "
        f"{' or '.join(found.breaks)}. If that can happen, plan for it."
    )

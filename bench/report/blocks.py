"""The figures in README and docs: blocks of text between markers, generated from results alone.

A block begins with `<!-- bench: NAME -->` and ends with `<!-- /bench -->`; the text between them is generated. If the
benchmark has no result, the block is empty.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from understudy.planning.report.chart import short
from understudy_bench.report import charts, scale_block
from understudy_bench.report.comparison import Comparison, behind, compared, standing
from understudy_bench.report.figures import measured, seconds, source, table
from understudy_bench.report.folder import Results

BLOCK = re.compile(r"(<!-- bench: ([a-z]+) -->\n)(.*?)(<!-- /bench -->)", re.DOTALL)
IMAGES = "docs/images"

Row = Mapping[str, Any]


class MarkersError(ValueError):
    """The page's markers are wrong; the message says how."""


def filled(text: str, results: Results) -> str:
    """The page with its blocks generated again; text outside of blocks stays."""
    begun, ended = len(re.findall(r"<!-- bench: ", text)), text.count("<!-- /bench -->")
    if not begun:
        raise MarkersError("it has no marker such as <!-- bench: replace -->; insert one at the place of the figures")
    if begun != ended or len(BLOCK.findall(text)) != begun:
        raise MarkersError(f"{begun} markers <!-- bench: NAME --> and {ended} <!-- /bench -->; each needs its own end")
    names = [name for _, name, _, _ in BLOCK.findall(text)]
    for name in names:
        if name not in BLOCKS:
            raise MarkersError(f"there is no block {name!r}; there are {', '.join(BLOCKS)}")

    def generated(match: re.Match[str]) -> str:
        body = BLOCKS[match[2]](results)
        return match[1] + (f"\n{body}\n\n" if body else "") + match[4]

    return BLOCK.sub(generated, text)


REPLACED = {
    "understudy": "by Understudy",
    "no delta": "by Understudy, opening all links",
    "no overlap": "by Understudy, handing over all state at the boundary",
    "no standby": "by Understudy, without a standby",
    "no rehearsal": "by Understudy, with a joiner that has not rehearsed",
    "naive": "by Understudy while training waits: no overlap, all links opened",
    "restart": "by saving, restarting all workers with torchrun, loading",
    "restart, DCP": "the same with torch.distributed.checkpoint",
}


def _replace(results: Results) -> str:
    rows = {row["system"]: row for row in results.totals("replace")}
    ours = rows.get("understudy")
    if ours is None:
        return ""
    titles: list[str] = ["one machine is replaced", "training loses", ""]
    ready = any(row.get("ready_s") is not None for row in rows.values())
    cells = []
    for system, row in rows.items():
        times = "" if system == "understudy" else f"{short(row['lost_s'] / max(ours['lost_s'], 1e-3))} x"
        words = [REPLACED.get(system, system), _bold(system, measured(row, "lost")), times]
        cells.append([*words, measured(row, "ready")] if ready else words)
    count = _rounds(results, "understudy")
    fewest = min(_rounds(results, system) for system in rows)
    text = f"medians of {count}, for the others of {fewest} or more, interleaved; 10th to 90th percentile"
    beside, shared = ours.get("beside_s"), ""
    if beside:
        shared = " All machines share these cores: while the joiner rehearses, steps are slower, "
        shared += f"{seconds(beside)} in all; a joiner on a machine of its own would not slow them."
    step = f"A model of 10 million parameters on two machines, AdamW, a step of {seconds(ours['step_s'])}:"
    shown = table([*titles, "the joiner's first step after"] if ready else titles, cells)
    return f"{step}\n\n{shown}\n\n{source(results, 'replace', text)}{shared}"


def _rounds(results: Results, system: str) -> int:
    """The number of measurements of a system."""
    return sum(isinstance(row.get("round"), int) for row in results.rows("replace", system=system))


def _bold(system: str, words: str) -> str:
    return words.replace(words.partition(" (")[0], f"**{words.partition(' (')[0]}**", 1) if system in BOLD else words


BOLD = ("understudy", "masking")

AFTER_A_DEATH = {
    "understudy": "with Understudy",
    "torchft": "with torchft, short time limits",
    "torchrun": "with torchrun, a checkpoint every 10 steps",
    "torchrun, DCP": "… saved by torch.distributed.checkpoint",
    "torchrun, every step": "… after every step",
}


def _failure(results: Results) -> str:
    totals = results.totals("failure")
    cells = []
    for system in dict.fromkeys(str(row["system"]) for row in totals):
        by = {row["loss"]: row for row in totals if row["system"] == system}
        any_of = by.get("worker", next(iter(by.values())))
        restarted = int(str(any_of["restarted"]).split()[0])  # of all losses
        restarts = "all workers restart" if restarted else "no survivor restarts"
        work = f"{any_of['repeated']:g} repeated, {any_of['dropped']:g} dropped; {restarts}"
        stalls = [_bold(system, measured(by[loss], "stall")) if loss in by else "" for loss in ("worker", "machine")]
        rest = (seconds(any_of["full_strength_s"]), work, seconds(any_of["step_s"]))
        cells.append((AFTER_A_DEATH.get(system, system), *stalls, *rest))
    cells += [(f"{system}: {why}", "", "", "", "", "") for system, why in charts.absent(results, "failure")]
    if not totals:
        return ""
    head = "One of two workers, or its whole machine, is killed; a model of 10 million parameters, AdamW:"
    titles = ("the survivors stall", "a worker dies", "a machine dies", "full strength after", "steps", "a usual step")
    text = f"medians of {_counts(totals)} killed with `kill -9`, interleaved; 10th to 90th percentile"
    text += "; the last three columns are those of a worker"
    return f"{head}\n\n{table(titles, cells)}\n\n{source(results, 'failure', text)}{_cut_short(results, 'failure')}"


def _counts(totals: Sequence[Row]) -> str:
    """`10 workers and 5 machines (torchft: 9 workers)`: the runtime's losses, and those of systems with other
    numbers."""
    by: dict[str, dict[str, int]] = {}
    for row in totals:
        by.setdefault(row["system"], {})[row["loss"]] = int(row["round"].removeprefix("all "))
    usual = by.get("understudy", next(iter(by.values())))
    others = {system: kinds for system, kinds in by.items() if any(usual.get(loss) != n for loss, n in kinds.items())}

    def told(kinds: Mapping[str, int]) -> str:
        return " and ".join(f"{count} {loss}s" for loss, count in kinds.items())

    return told(usual) + "".join(f" ({system}: {told(kinds)})" for system, kinds in others.items())


def _cut_short(results: Results, bench: str) -> str:
    """Sentences about other systems' jobs that did not get all workers into one step, at the start or after a death."""
    cut = Counter(str(row["system"]) for row in results.cut_short(bench))
    return "".join(
        f" In {count} of {system}'s jobs a worker stayed away for three minutes." for system, count in cut.items()
    )


WITHOUT_A_REPLICA = {
    "masking": "mask it (`--mask anywhere`)",
    "masking, standby": "mask it, and let a standby join that has not rehearsed",
    "recovery": "wait for a standby that is ready",
    "torchft": "with torchft",
    "torchrun": "with torchrun",
}


def _mask(results: Results) -> str:
    totals = results.totals("mask")
    if not totals:
        return ""
    cells = []
    for row in totals:
        speed = f"{row['degraded']:.2f} of full speed" if row.get("degraded") is not None else "full speed"
        if row.get("degraded") is None and row["system"] == "masking, standby":
            speed = "for too few steps to tell"  # until the standby joins
        until = (
            seconds(row["full_strength_s"])
            if row.get("full_strength_s") is not None
            else "the benchmark delays the joiner"
        )
        words = WITHOUT_A_REPLICA.get(row["system"], row["system"])
        cells.append((words, _bold(row["system"], measured(row, "stall")), speed, until))
    cells += [(f"{system}: {why}", "", "", "") for system, why in charts.absent(results, "mask")]
    low, high = min(row["step_s"] for row in totals), max(row["step_s"] for row in totals)
    head = f"One of four replicas is killed, steps of {seconds(low)} to {seconds(high)}:"
    counts = ", ".join(f"{row['round'].removeprefix('all ')} ({row['system']})" for row in totals)
    text = f"medians of {counts}, interleaved; negative: the worker died late in a step that the survivors completed"
    titles = ("the survivors", "stall for", "then go on at", "full strength after")
    return f"{head}\n\n{table(titles, cells)}\n\n{source(results, 'mask', text)}{_cut_short(results, 'mask')}"


def _setup(results: Results) -> str:
    rows = [row for row in results.rows("setup") if row["roles"] in (32, 1024)]
    if not rows:
        return ""
    lines = [
        ("links opened, of all links", [f"{row['links_opened']} of {row['links_total']:,}" for row in rows]),
        ("switch, at the boundary, for each role", [f"{row['switch_us']:.0f} µs" for row in rows]),
        ("opening all links instead, all roles", [f"{row['rebuild_ms']:,.0f} ms" for row in rows]),
    ]
    titles = ("replacing one machine of", *(f"{row['roles']:,} roles" for row in rows))
    shown = table(titles, [(words, *values) for words, values in lines])
    return f"{shown}\n\n{source(results, 'setup', 'all roles in one process')}"


def _overhead(results: Results) -> str:
    rows = results.rows("overhead", start="all")
    if not rows:
        return ""
    shares = " and ".join(f"{row['ratio']:.2f} with {row['workers']} workers" for row in rows)
    text = f"the time of an undisturbed step, divided by that under plain DDP over Gloo: {shares}"
    return source(results, "overhead", text)


def _memory(results: Results) -> str:
    rows = results.totals("memory", part="a replacement")
    if not rows:
        return ""
    grown = ", ".join(f"{row['worker']}s {100 * row['growth']:+.2f} % of it" for row in rows)
    size = next(iter(results.rows("memory", part="state")), {}).get("parameters_and_moments_mb")
    state = f" ({size:.0f} MB)" if size is not None else ""
    text = "growth of the memory peak by a replacement, beyond the peak of undisturbed steps, relative to the "
    return source(results, "memory", f"{text}state{state}: {grown}; medians of {_repeated(rows)}")


def _repeated(rows: Sequence[Row]) -> str:
    counts = sorted({int(row["round"].removeprefix("all ")) for row in rows})
    return " or ".join(map(str, counts))


def _slow(results: Results) -> str:
    hour = {row["system"]: row for row in results.rows("straggler", part="an hour")}
    slowed = results.rows("straggler", part="slowed")
    ours, restart = hour.get("understudy"), hour.get("restart")
    if ours is None or restart is None or not slowed:
        return ""
    after = {check.name: check.value for check in results.reports["straggler"].checks}["after"]
    steps = sum(row["steps"] for row in results.rows("straggler", part="undisturbed"))
    alarms = sum(row["alarms"] for row in results.rows("straggler", part="undisturbed"))
    found = sum(row["blamed"] == row["slow"] for row in slowed)
    text = (
        f"a worker becomes a fifth slower, with `--steward act --steward-looks 1`. It is found, {found} times of "
        f"{len(slowed)}, after {max(row['noticed'] for row in slowed)} steps or less, and replaced: "
        f"{seconds(ours['lost_s'])} lost in all, {seconds(restart['lost_s'])} by a restart of all workers; "
        f"{after} of full speed afterwards; {alarms} false alarms in {steps} steps beside other busy processes"
    )
    return source(results, "straggler", text)


def _rebalance(results: Results) -> str:
    ours, others = (
        {row["spacing"]: row for row in results.rows("rebalance", part="spacing", system=system)}
        for system in ("understudy", "restart")
    )
    if not ours:
        return ""
    cells = [
        (
            f"{spacing} steps",
            f"{row['wall']:.3f}",
            f"{others[spacing]['wall']:.3f}" if spacing in others else "",
        )
        for spacing, row in sorted(ours.items(), reverse=True)
    ]
    titles = ("a machine is replaced every", "remaining speed", "restarting instead")
    at_once = [
        f"{row['machines']} of {row['of']}: {seconds(row['lost_s'])}"
        for row in results.totals("rebalance", part="at once", links="own")
    ]
    text = (
        f"steps of {seconds(next(iter(ours.values()))['step_s'])}; the joiners start and rehearse on the same cores. "
        f"Replaced at once, over links as fast, relative to the state, as real ones: {', '.join(at_once)} lost"
    )
    return f"{table(titles, cells)}\n\n{source(results, 'rebalance', text)}"


SINGLY = 4
"""Comparisons of one benchmark that are listed; of more, only their number."""


def _behind(results: Results) -> str:
    """The comparisons in which another system is at least as good."""
    all_of, worse = compared(results), behind(results)
    if not all_of:
        return ""
    lines = []
    for bench in dict.fromkeys(each.bench for each in worse):
        mine = [each for each in worse if each.bench == bench]
        if len(mine) > SINGLY:
            level = sum(each.even for each in mine)
            words = f"{len(mine)} of {sum(each.bench == bench for each in all_of)}"
            lines.append(f"- `{bench}`: {words}" + (f" ({level} even)" if level else ""))
        else:
            lines += [f"- `{bench}`, {_said(each)}" for each in mine]
    head = f"Of all {len(all_of)} comparisons of medians in these results, Understudy is {standing(results)}."
    return f"{head} Not ahead:\n\n" + "\n".join(lines) if lines else head


def _said(each: Comparison) -> str:
    ours, other = (
        f"{value:,.0f} {each.unit}" if value >= 1000 else f"{value:.3g} {each.unit}"
        for value in (each.our_value, each.other_value)
    )
    return f"{each.what}: {each.ours} {ours}, {each.other} {other}{' (even)' if each.even else ''}"


def _pictures(results: Results) -> str:
    words = charts.pictured(results)
    return "\n\n".join(f"![{title}]({IMAGES}/{name}.png)" for name, (title, _) in words.items())


TAKEN = {"at once": "that in which the standby waits", "entered again": "another one, entered again"}


def _rehearsal(results: Results) -> str:
    first = {(row["how"], row["model"]): row for row in results.totals("rehearsal", part="first step")}
    if not first:
        return ""
    models = list(dict.fromkeys(model for _, model in first))
    lines = [
        (
            words,
            *(", ".join(f"{value(first[how, model])} {model}" for model in models) for how in ("rehearsed", "cold")),
        )
        for words, value in (
            ("first step after the switch, divided by a usual one", _ratio),
            ("graphs compiled after the switch", lambda row: f"{row['graphs_after']:g}"),
            ("training loses", lambda row: seconds(row["lost_s"])),
        )
    ]
    shown = [table(("", "with rehearsal", "without"), lines)]
    if promoted := results.totals("rehearsal", part="promotion"):
        cells = [
            (row["mesh"], TAKEN[row["how"]], measured(row, "full_strength"), row["round"].removeprefix("all "))
            for row in promoted
        ]
        shown.append(table(("a machine dies in", "its role class was", "full strength after", "times"), cells))
    shown.append(source(results, "rehearsal", f"medians, 10th to 90th percentile{_rehearsal_notes(results)}"))
    return "\n\n".join(shown)


def _ratio(row: Row) -> str:
    low, high = row["ratio_spread"]
    digits = ".2f" if row["ratio"] < 10 else ".0f"
    return f"{row['ratio']:{digits}} ({low:{digits}} to {high:{digits}})"


def _rehearsal_notes(results: Results) -> str:
    """The cost of recording, and the memory of a standby's worker."""
    words = []
    for row in results.totals("rehearsal", part="recording"):
        low, high = row["ratio_spread"]
        words.append(
            f"a step after recording takes {row['ratio']:.2f} ({low:.2f} to {high:.2f}) times one without recording"
        )
    sizes = [
        f"{' and '.join(sorted({f'{size:.1f}' for size in row['recorded_mb']}))} MB for `{row['model']}`"
        for row in results.rows("rehearsal", part="recording")
        if ".py" in str(row.get("model"))
    ]
    if sizes:
        words.append(f"recordings by role class: {', '.join(sizes)}")
    for row in results.rows("rehearsal", part="memory")[-1:]:
        words.append(
            f"a standby's worker has {row['ratio']:.2f} times the memory of one that trains: {row['parked_mb']:.0f} of "
            f"{max(row['training_mb']):.0f} MB resident, {row['parked_own_mb']:.0f} of "
            f"{max(row['training_own_mb']):.0f} MB its own"
        )
    return "".join(f"; {each}" for each in words)


ANSWERS = {"recovery": "wait for a standby", "masking": "mask, and let the machine join again"}
PREDICTED = ("share of time that the job trains", "measured", "simulated", "a prediction without failures", "deaths")


def _reality(results: Results) -> str:
    rows = results.totals("reality")
    if not rows:
        return ""
    cells = [
        (
            ANSWERS.get(row["system"], row["system"]),
            f"{row['measured']:.3f}",
            f"{row['simulated']:.3f}",
            f"{100 * (row['naive'] - 1):.0f} % off",
            str(row["deaths"]),
        )
        for row in rows
    ]
    length = " or ".join(sorted({seconds(row["seconds"]) for row in rows}))
    text = f"{length} under failures each, steps of {seconds(rows[0]['step_s'])}"
    return f"{table(PREDICTED, cells)}\n\n{source(results, 'reality', text)}"


BLOCKS: dict[str, Callable[[Results], str]] = {
    "pictures": _pictures,
    "replace": _replace,
    "failure": _failure,
    "mask": _mask,
    "setup": _setup,
    "overhead": _overhead,
    "memory": _memory,
    "straggler": _slow,
    "rebalance": _rebalance,
    "behind": _behind,
    "scale": scale_block.table_of,
    "scaled": scale_block.extrapolation,
    "rehearsal": _rehearsal,
    "reality": _reality,
}

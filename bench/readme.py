"""The figures of the README and of other pages: text between markers, made from results and from nothing else.

A block begins with `<!-- bench: NAME -->` and ends with `<!-- /bench -->`; what is between them is ours. A block whose
benchmark has no result is empty.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from understudy.planning.report.chart import short
from understudy_bench import charts, predicted, rehearsed, scaled
from understudy_bench.compared import Compared, behind, compared, standing
from understudy_bench.figures import measured, seconds, source, table
from understudy_bench.folder import Results

BLOCK = re.compile(r"(<!-- bench: ([a-z]+) -->\n)(.*?)(<!-- /bench -->)", re.DOTALL)
IMAGES = "docs/images"

Row = Mapping[str, Any]


class MarkersError(ValueError):
    """The page's markers are not right; the message says how."""


def filled(text: str, results: Results) -> str:
    """The page with its blocks made anew; whatever is outside of them stays."""
    begun, ended = len(re.findall(r"<!-- bench: ", text)), text.count("<!-- /bench -->")
    if not begun:
        raise MarkersError("it has no marker such as <!-- bench: replace -->; put one where the figures go")
    if begun != ended or len(BLOCK.findall(text)) != begun:
        raise MarkersError(f"{begun} markers <!-- bench: NAME --> and {ended} <!-- /bench -->; each needs its own end")
    names = [name for _, name, _, _ in BLOCK.findall(text)]
    for name in names:
        if name not in BLOCKS:
            raise MarkersError(f"there is no block {name!r}; there are {', '.join(BLOCKS)}")

    def anew(match: re.Match[str]) -> str:
        body = BLOCKS[match[2]](results)
        return match[1] + (f"\n{body}\n\n" if body else "") + match[4]

    return BLOCK.sub(anew, text)


REPLACED = {
    "understudy": "by Understudy",
    "no delta": "by Understudy, but opening every link anew",
    "no overlap": "by Understudy, but handing all state over at the boundary",
    "no standby": "by Understudy, but with no machine waiting",
    "no rehearsal": "by Understudy, but with a newcomer that has not rehearsed",
    "naive": "by Understudy with the world stopped: no overlap, all links anew",
    "restart": "by saving, restarting everything with torchrun, loading",
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
        shared = " All machines share these cores: while the newcomer rehearses beside them, steps are slower, "
        shared += f"{seconds(beside)} in all, which a machine of its own would not cost."
    step = f"A model of 10 million parameters on two machines, AdamW, a step of {seconds(ours['step_s'])}:"
    shown = table([*titles, "the newcomer's first step after"] if ready else titles, cells)
    return f"{step}\n\n{shown}\n\n{source(results, 'replace', text)}{shared}"


def _rounds(results: Results, system: str) -> int:
    """How often a system was measured."""
    return sum(isinstance(row.get("round"), int) for row in results.rows("replace", system=system))


def _bold(system: str, words: str) -> str:
    return words.replace(words.partition(" (")[0], f"**{words.partition(' (')[0]}**", 1) if system in BOLD else words


BOLD = ("understudy", "masking")

STRUCK = {
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
        restarts = "everybody restarts" if not str(any_of["restarted"]).startswith("0 ") else "nobody restarts"
        work = f"{any_of['repeated']:g} repeated, {any_of['dropped']:g} dropped; {restarts}"
        stalls = [_bold(system, measured(by[loss], "stall")) if loss in by else "" for loss in ("worker", "machine")]
        rest = (seconds(any_of["full_strength_s"]), work, seconds(any_of["step_s"]))
        cells.append((STRUCK.get(system, system), *stalls, *rest))
    cells += [(f"{system}: {why}", "", "", "", "", "") for system, why in charts.absent(results, "failure")]
    if not totals:
        return ""
    head = "One of two workers, or its whole machine, is killed; a model of 10 million parameters, AdamW:"
    titles = ("the survivors stall", "a worker dies", "a machine dies", "full strength after", "steps", "a usual step")
    text = f"medians of {_counts(totals)} killed with `kill -9`, interleaved; 10th to 90th percentile"
    text += "; the last three columns are those of a worker"
    return f"{head}\n\n{table(titles, cells)}\n\n{source(results, 'failure', text)}{_cut_short(results, 'failure')}"


def _counts(totals: Sequence[Row]) -> str:
    """`10 workers and 5 machines (torchft: 9 workers)`: those of the runtime, and who had fewer or others."""
    by: dict[str, dict[str, int]] = {}
    for row in totals:
        by.setdefault(row["system"], {})[row["loss"]] = int(row["round"].removeprefix("all "))
    usual = by.get("understudy", next(iter(by.values())))
    others = {system: kinds for system, kinds in by.items() if any(usual.get(loss) != n for loss, n in kinds.items())}

    def told(kinds: Mapping[str, int]) -> str:
        return " and ".join(f"{count} {loss}s" for loss, count in kinds.items())

    return told(usual) + "".join(f" ({system}: {told(kinds)})" for system, kinds in others.items())


def _cut_short(results: Results, bench: str) -> str:
    """Others' jobs that did not get everybody into one step, at the start or after a death."""
    cut = Counter(str(row["system"]) for row in results.rows(bench) if "cut short" in str(row.get("round")))
    return "".join(
        f" In {count} of {system}'s jobs somebody stayed away for three minutes." for system, count in cut.items()
    )


MASKED = {
    "masking": "mask it (`--mask anywhere`)",
    "masking, standby": "mask it, and let a standby join that begins from nothing",
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
            speed = "for too few steps to tell"  # before the standby is there
        until = (
            seconds(row["full_strength_s"])
            if row.get("full_strength_s") is not None
            else "the benchmark holds the newcomer back"
        )
        words = MASKED.get(row["system"], row["system"])
        cells.append((words, _bold(row["system"], measured(row, "stall")), speed, until))
    cells += [(f"{system}: {why}", "", "", "") for system, why in charts.absent(results, "mask")]
    low, high = min(row["step_s"] for row in totals), max(row["step_s"] for row in totals)
    head = f"One of four replicas is killed, steps of {seconds(low)} to {seconds(high)}:"
    counts = ", ".join(f"{row['round'].removeprefix('all ')} ({row['system']})" for row in totals)
    text = f"medians of {counts}, interleaved; less than nothing is lost where the death came late in a step"
    titles = ("the survivors", "stall for", "then go on at", "full strength after")
    return f"{head}\n\n{table(titles, cells)}\n\n{source(results, 'mask', text)}{_cut_short(results, 'mask')}"


def _setup(results: Results) -> str:
    rows = [row for row in results.rows("setup") if row["roles"] in (32, 1024)]
    if not rows:
        return ""
    lines = [
        ("links opened, of all links", [f"{row['links_opened']} of {row['links_total']:,}" for row in rows]),
        ("switch, at the boundary, for each role", [f"{row['switch_us']:.0f} µs" for row in rows]),
        ("opening every link anew instead, all roles", [f"{row['rebuild_ms']:,.0f} ms" for row in rows]),
    ]
    titles = ("replacing one machine of", *(f"{row['roles']:,} roles" for row in rows))
    shown = table(titles, [(words, *values) for words, values in lines])
    return f"{shown}\n\n{source(results, 'setup', 'all roles in one process')}"


def _overhead(results: Results) -> str:
    rows = results.rows("overhead", start="all")
    if not rows:
        return ""
    shares = " and ".join(f"{row['ratio']:.2f} with {row['workers']} workers" for row in rows)
    text = f"a step without replacements takes this much of one under plain DDP over Gloo: {shares}"
    return source(results, "overhead", text)


def _memory(results: Results) -> str:
    rows = results.totals("memory", part="a replacement")
    if not rows:
        return ""
    grown = ", ".join(f"{row['who']}s {100 * row['growth']:+.2f} % of it" for row in rows)
    size = next(iter(results.rows("memory", part="state")), {}).get("parameters_and_moments_mb")
    state = f" ({size:.0f} MB)" if size is not None else ""
    text = "the peak of memory around a replacement, beyond the peak of steps in which nothing happens, against the "
    return source(results, "memory", f"{text}state{state}: {grown}; medians of {_repeated(rows)}")


def _repeated(rows: Sequence[Row]) -> str:
    counts = sorted({int(row["round"].removeprefix("all ")) for row in rows})
    return " or ".join(map(str, counts))


def _slow(results: Results) -> str:
    hour = {row["who"]: row for row in results.rows("straggler", part="an hour")}
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
        f"{seconds(ours['lost_s'])} lost in all, {seconds(restart['lost_s'])} where everybody restarts without it; "
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
    titles = ("a machine is replaced every", "speed that is left", "restarting instead")
    at_once = [
        f"{row['machines']} of {row['of']}: {seconds(row['lost_s'])}"
        for row in results.rows("rebalance", part="at once")
        if str(row["round"]).startswith("all") and row["links"] == "own"
    ]
    text = (
        f"steps of {seconds(next(iter(ours.values()))['step_s'])}; the newcomers start and rehearse on the same cores. "
        f"Replaced at once, over links paced as real ones are in proportion to state: {', '.join(at_once)} lost"
    )
    return f"{table(titles, cells)}\n\n{source(results, 'rebalance', text)}"


SINGLY = 4
"""Comparisons of one benchmark that are named; of more, only how many there are."""


def _behind(results: Results) -> str:
    """Where another one is at least as good."""
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


def _said(each: Compared) -> str:
    ours, other = (
        f"{value:,.0f} {each.unit}" if value >= 1000 else f"{value:.3g} {each.unit}"
        for value in (each.our_value, each.other_value)
    )
    return f"{each.what}: {each.ours} {ours}, {each.other} {other}{' (even)' if each.even else ''}"


def _pictures(results: Results) -> str:
    words = charts.pictured(results)
    return "\n\n".join(f"![{title}]({IMAGES}/{name}.png)" for name, (title, _) in words.items())


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
    "scale": scaled.table_of,
    "scaled": scaled.carried_on,
    "rehearsal": rehearsed.block,
    "reality": predicted.block,
}

"""What `bench rehearsal` has seen, for the page about standbys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from understudy_bench.figures import measured, seconds, source, table
from understudy_bench.folder import Results

BENCH = "rehearsal"
HOW = {"at once": "the one its standby waits in", "entered again": "another one, entered again"}

Row = Mapping[str, Any]


def block(results: Results) -> str:
    first = {(row["how"], row["model"]): row for row in results.totals(BENCH, part="first step")}
    if not first:
        return ""
    models = list(dict.fromkeys(model for _, model in first))
    lines = [
        (
            words,
            *(", ".join(f"{value(first[how, model])} {model}" for model in models) for how in ("rehearsed", "cold")),
        )
        for words, value in (
            ("first step after the switch, of a usual one", _ratio),
            ("graphs compiled after the switch", lambda row: f"{row['graphs_after']:g}"),
            ("training loses", lambda row: seconds(row["lost_s"])),
        )
    ]
    shown = [table(("", "with rehearsal", "without"), lines)]
    if promoted := results.totals(BENCH, part="promotion"):
        cells = [
            (row["mesh"], HOW[row["how"]], measured(row, "full_strength"), row["round"].removeprefix("all "))
            for row in promoted
        ]
        shown.append(table(("a machine dies in", "its role class was", "full strength after", "times"), cells))
    shown.append(source(results, BENCH, f"medians, 10th to 90th percentile{_others(results)}"))
    return "\n\n".join(shown)


def _ratio(row: Row) -> str:
    low, high = row["ratio_spread"]
    digits = ".2f" if row["ratio"] < 10 else ".0f"
    return f"{row['ratio']:{digits}} ({low:{digits}} to {high:{digits}})"


def _others(results: Results) -> str:
    """What recording costs, and what waiting does."""
    words = []
    for row in results.totals(BENCH, part="recording"):
        low, high = row["ratio_spread"]
        words.append(f"a step after recording takes {row['ratio']:.2f} ({low:.2f} to {high:.2f}) of one never recorded")
    sizes = [
        f"{' and '.join(sorted({f'{size:.1f}' for size in row['recorded_mb']}))} MB for `{row['model']}`"
        for row in results.rows(BENCH, part="recording")
        if ".py" in str(row.get("model"))
    ]
    if sizes:
        words.append(f"recordings by role class: {', '.join(sizes)}")
    for row in results.rows(BENCH, part="memory")[-1:]:
        words.append(
            f"a worker that waits has {row['ratio']:.2f} of the memory of one that trains: {row['parked_mb']:.0f} of "
            f"{max(row['training_mb']):.0f} MB resident, {row['parked_own_mb']:.0f} of "
            f"{max(row['training_own_mb']):.0f} MB its own"
        )
    return "".join(f"; {each}" for each in words)

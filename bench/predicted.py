"""What `bench reality` has seen, for the page about planning."""

from __future__ import annotations

from understudy_bench.figures import seconds, source, table
from understudy_bench.folder import Results

BENCH = "reality"
SYSTEMS = {"recovery": "wait for a standby", "masking": "mask, and take the machine in again"}
TITLES = ("of the time, the survivors train", "measured", "simulated", "without failures in mind", "deaths")


def block(results: Results) -> str:
    rows = [row for row in results.rows(BENCH) if str(row["stretch"]).startswith("all")]
    if not rows:
        return ""
    cells = [
        (
            SYSTEMS.get(row["system"], row["system"]),
            f"{row['measured']:.3f}",
            f"{row['simulated']:.3f}",
            f"{100 * (row['naive'] - 1):.0f} % off",
            str(row["deaths"]),
        )
        for row in rows
    ]
    length = " or ".join(sorted({seconds(row["seconds"]) for row in rows}))
    text = f"{length} under failures each, steps of {seconds(rows[0]['step_s'])}"
    return f"{table(TITLES, cells)}\n\n{source(results, BENCH, text)}"

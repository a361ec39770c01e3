"""A folder of results as an HTML page and as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from understudy.planning.report.chart import short
from understudy.planning.report.pictures import png_of
from understudy.planning.report.sheet import Sheet, SheetSection, SheetTable, html_of
from understudy_bench.harness.bench import Report, Row
from understudy_bench.harness.suite import said
from understudy_bench.registry import BENCHES
from understudy_bench.report import charts
from understudy_bench.report.comparison import behind, compared, lost_work, standing
from understudy_bench.report.folder import Results, checks_failed, environments
from understudy_bench.report.table import cell


def page_of(results: Results) -> str:
    return html_of(sheet_of(results))


def pictures_of(results: Results) -> dict[str, bytes]:
    """File name without suffix → PNG."""
    return {name: png_of(title, chart) for name, (title, chart) in charts.pictured(results).items()}


def sheet_of(results: Results) -> Sheet:
    began = f"Measured on {results.run.began}. " if results.run is not None else ""
    parts = [
        _downtime(results),
        _dips(results),
        _breakdown(results),
        _torchft(results),
        _behind(results),
        _missing(results),
        _memory(results),
        _collectives(results),
        _setup(results),
        _rebalancing(results),
        _checks(results),
        *(_numbers(name, report) for name, report in results.reports.items()),
        _environment(results),
    ]
    made = f"{began}Made by understudy bench report from JSON files; nothing on this page is typed by hand."
    return Sheet("Benchmarks", _lead(results), _tiles(results), tuple(parts), made)


def _lead(results: Results) -> str:
    failed = checks_failed(results)
    quick = " This was a quick run: an impression, not a measurement." if _quick(results) else ""
    return (
        f"{len(results.reports)} of {len(BENCHES)} benchmarks have a result. Of {len(compared(results))} comparisons "
        f"Understudy is {standing(results)}; "
        f"{len(failed)} of {sum(len(report.checks) for report in results.reports.values())} checks fail.{quick}"
    )


def _tiles(results: Results) -> tuple[tuple[str, str], ...]:
    tiles = []
    for words, bench, where, column in (
        ("lost by a planned replacement", "replace", {"system": "understudy"}, "lost_s"),
        ("stall when a worker dies", "failure", {"system": "understudy", "loss": "worker"}, "stall_s"),
        ("stall when a machine dies", "failure", {"system": "understudy", "loss": "machine"}, "stall_s"),
        ("stall when a replica is masked", "mask", {"system": "masking"}, "stall_s"),
    ):
        rows = results.totals(bench, **where)
        if rows:
            tiles.append((words, f"{short(rows[0][column])} s"))
    return tuple(tiles)


def _downtime(results: Results) -> SheetSection:
    bars = charts.downtime(results)
    return SheetSection(
        "downtime",
        "Downtime by kind of interruption",
        ("Medians; the thin lines reach from the 10th to the 90th percentile. Less is better.",) if bars else (),
        (("", bars),) if bars else (),
        missing="There is no result of replace, failure or mask.",
    )


def _dips(results: Results) -> SheetSection:
    found = charts.dips(results)
    return SheetSection(
        "dip",
        "Throughput around an interruption",
        ("The mean of all interruptions of a kind. Work that had been done before and is repeated counts as none.",)
        if found
        else (),
        tuple(found.items()),
        missing="No result has step times around an interruption.",
    )


def _breakdown(results: Results) -> SheetSection:
    off, phases = charts.switched_off(results), charts.phases(results)
    drawn = [("Each technique switched off in turn", off)] if off else []
    return SheetSection(
        "breakdown",
        "What a planned replacement consists of",
        charts=(*drawn, *([("By phase", phases)] if phases else [])),
        missing="There is no result of replace.",
    )


def _torchft(results: Results) -> SheetSection:
    """Figures of one run of `bench failure`."""
    rows = []
    for loss in ("worker", "machine"):
        for row in results.totals("failure", loss=loss):
            work = lost_work(row)
            figures = (row.get("stall_s"), work, row.get("full_strength_s"), row.get("step_s"))
            rows.append((f"a {loss} dies", str(row["system"]), *map(cell, figures), str(row["restarted"])))
    for system, why in charts.absent(results, "failure"):
        rows.append(("", system, why, "", "", "", ""))
    titles = (
        "",
        "system",
        "survivors' stall, s",
        "steps without effect",
        "full strength after, s",
        "a usual step, s",
    )
    sentence = "Stall, lost work, time to full strength and the price of a usual step, all in one run, interleaved."
    return SheetSection(
        "torchft",
        "Against torchft and torchrun",
        (sentence,) if rows else (),
        grids=(SheetTable((*titles, "survivors restarted"), tuple(rows)),) if rows else (),
        missing="There is no result of failure.",
    )


def _behind(results: Results) -> SheetSection:
    rows = [
        (
            each.bench,
            each.what,
            f"{each.ours}: {cell(each.our_value)} {each.unit}",
            f"{each.other}: {cell(each.other_value)} {each.unit}",
            "even" if each.even else "behind",
        )
        for each in behind(results)
    ]
    rows += [
        (name, f"check {check.name}", cell(check.value), f"had to be {check.bar}", "fails")
        for name, check in checks_failed(results)
    ]
    return SheetSection(
        "behind",
        "Where Understudy is not ahead",
        ("All comparisons in which another system is at least as good, by medians, and all checks that fail.",),
        grids=(SheetTable(("benchmark", "what", "Understudy", "the other", ""), tuple(rows)),) if rows else (),
        missing="In no comparison of these results, and no check fails.",
    )


def _missing(results: Results) -> SheetSection:
    rows = [(name, system, why) for name in results.reports for system, why in charts.absent(results, name)]
    for name, report in results.reports.items():
        short = [
            row for row in report.rows if row.get("why") and "round" in row
        ]  # other rows name the source of a value
        rows += [(name, str(row["system"]), f"{row['round']}: {row['why']}") for row in short]
    if results.run is not None:
        rows += [
            (each.bench, "the benchmark", f"{each.state}{': ' + each.why if each.why else ''}")
            for each in results.run.outcomes
            if each.state not in ("ok", "checks failed")
        ]
    asked = {each.bench for each in results.run.outcomes} if results.run is not None else set()
    rows += [(n, "the benchmark", "no result here") for n in BENCHES if n not in results.reports and n not in asked]
    rows += [("", "a file", problem) for problem in results.problems]
    return SheetSection(
        "missing",
        "Missing",
        grids=(SheetTable(("benchmark", "contestant", "why"), tuple(rows)),) if rows else (),
        missing="Nothing: every contestant of every benchmark took part to the end.",
    )


def _memory(results: Results) -> SheetSection:
    lines = charts.memory(results)
    return SheetSection(
        "memory",
        "Memory over time",
        charts=(("", lines),) if lines else (),
        missing="No result has memory over time.",
    )


def _collectives(results: Results) -> SheetSection:
    found = charts.collectives(results)
    missing = "There is no result of collectives."
    return SheetSection("collectives", "Collectives against Gloo", charts=tuple(found.items()), missing=missing)


def _setup(results: Results) -> SheetSection:
    lines, control = charts.setup(results), charts.control(results)
    drawn = [("Replacing one machine: links", lines)] if lines else []
    return SheetSection(
        "setup",
        "Set-up cost against size",
        charts=(*drawn, *([("The controller's work for one change", control)] if control else [])),
        missing="There is no result of setup or scale.",
    )


def _rebalancing(results: Results) -> SheetSection:
    lines = charts.rebalancing(results)
    return SheetSection(
        "rebalancing",
        "Replacing machines all the time",
        charts=(("", lines),) if lines else (),
        missing="There is no result of rebalance.",
    )


def _checks(results: Results) -> SheetSection:
    rows = [
        (name, check.name, cell(check.value), check.bar, "ok" if check.ok else "FAIL")
        for name, report in results.reports.items()
        for check in report.checks
    ]
    titles = ("benchmark", "check", "value", "had to be", "")
    return SheetSection(
        "checks", "Checks", grids=(SheetTable(titles, tuple(rows)),) if rows else (), missing="There are none."
    )


def _numbers(name: str, report: Report) -> SheetSection:
    """All rows of a benchmark as tables, one for each part."""
    grids = []
    for part in dict.fromkeys(str(row.get("part", "")) for row in report.rows):
        if part != "around":
            rows = [row for row in report.rows if str(row.get("part", "")) == part]
            grids.append(_grid(rows, f"{part or 'rows'}: {len(rows)}"))
    return SheetSection(f"rows-{name}", f"bench {name}, in numbers", grids=tuple(grids), missing="It has no rows.")


def _grid(rows: Sequence[Row], title: str) -> SheetTable:
    keys = dict.fromkeys(key for row in rows for key in row if key != "part")
    columns = [key for key in keys if not any(_is_deep(row.get(key)) for row in rows)]
    return SheetTable(tuple(columns), tuple(tuple(cell(row.get(key)) for key in columns) for row in rows), title)


def _is_deep(value: object) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and len(value) > 8)


def _environment(results: Results) -> SheetSection:
    took = {} if results.run is None else {each.bench: each.seconds for each in results.run.outcomes}
    rows = []
    for name, report in results.reports.items():
        env = report.env
        versions = ", ".join(f"{package} {number}" for package, number in env.versions.items())
        load = f"{env.load.start[0]:.2f} to {env.load.end[0]:.2f}"
        how = "quick" if env.quick else "full"
        rows.append((name, how, said(took[name]) if name in took else "", str(env.cores), load, env.platform, versions))
    titles = ("benchmark", "run", "took", "cores", "load", "platform", "versions")
    return SheetSection("environment", "Where and when", grids=(SheetTable(titles, tuple(rows)),), missing="No result.")


def _quick(results: Results) -> bool:
    return any(env.quick for env in environments(results))

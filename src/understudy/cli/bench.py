"""`understudy bench`: run one benchmark or all, show tables, write JSON files, draw the report."""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from understudy.cli.command import Subparsers, UsageError, add_command
from understudy.cli.output import WIDTH_WITHOUT_TERMINAL, writable_target, write_atomically
from understudy_bench import registry
from understudy_bench.harness import suite
from understudy_bench.harness.bench import Bench, Report, to_json
from understudy_bench.harness.bench import run as run_bench
from understudy_bench.harness.progress import Progress
from understudy_bench.harness.suite import said
from understudy_bench.report import folder
from understudy_bench.report.folder import Outcome, Results, RunInfo
from understudy_bench.report.table import render

ALL, REPORT = "all", "report"
"""Words in the place of a benchmark's name."""
RESULTS = Path("bench/results")
PAGE = "report.html"
LOST = "; the result is only in the table"
"""The end of the message about a result that cannot be written."""

DESCRIPTION = """\
Run a benchmark, or all of them, and compare Understudy with what people use today. Progress goes to stderr, tables go
to stdout. Exit code 1: a check fails, or a benchmark does.
"""
EXAMPLES = """\
examples:
  understudy bench --list                          list the benchmarks
  understudy bench replace --quick                 run one of them for an impression, in a minute or two
  understudy bench replace --json replace.json     run one of them in full, and keep its result
  understudy bench all                             run all of them, in two hours; writes a folder with a report
  understudy bench all --quick --only replace,setup
  understudy bench report bench/results/reference  draw the report of a folder again
  understudy bench report DIR --png docs/images --readme README.md docs/scaling.md
"""


def add_parser(subparsers: Subparsers) -> None:
    summary = "run benchmarks against what people use today"
    add = add_command(subparsers, "bench", run, summary, DESCRIPTION, EXAMPLES).add_argument
    add("name", nargs="?", metavar="NAME", help=f"benchmark to run; {ALL!r}: all of them; {REPORT!r}: draw results")
    add("folder", nargs="?", type=Path, metavar="DIR", help=f"with {REPORT!r}: the folder of results")
    add("--list", action="store_true", help="list the benchmarks, with one line about each")
    add("--quick", action="store_true", help="run fewer sizes and rounds: an impression, not a measurement")
    add("--json", type=Path, metavar="FILE", help="write the result of one benchmark to FILE as JSON")
    add("--only", metavar="A,B", help=f"with {ALL!r}: run these benchmarks only")
    add("--results", type=Path, metavar="DIR", help=f"with {ALL!r}: folder for results (default bench/results/DATE)")
    add("--png", type=Path, metavar="DIR", help=f"with {REPORT!r}: folder for pictures (default: that of the results)")
    pages = f"with {REPORT!r}: write the figures between the markers of these pages again"
    add("--readme", type=Path, nargs="+", metavar="FILE", help=pages)


def run(args: argparse.Namespace) -> int:
    _refuse_misplaced(args)
    if args.list:
        _list(standard_output())
        return 0
    if args.name == ALL:
        return _run_all(args, standard_output())
    if args.name == REPORT:
        return _report(args)
    return measure(_find(args.name), args.json, render, quick=args.quick)


def measure(bench: Bench, json: Path | None, show: Callable[[Report, Console], None], *, quick: bool = False) -> int:
    """Run one benchmark, show its result and write it to the file `json`. Returns the exit code: 1 if a check fails."""
    target = None if json is None else writable_target(json)
    with Progress(bench.name, Console(stderr=True)) as progress:
        report = run_bench(bench, quick=quick, progress=progress)
    show(report, standard_output())
    if target is not None:
        write_atomically(target, to_json(report), after=LOST)
    return 0 if report.ok else 1


def standard_output() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL)


def _refuse_misplaced(args: argparse.Namespace) -> None:
    """Refuse options that belong to another use of the command."""
    for option, use in (("only", ALL), ("results", ALL), ("png", REPORT), ("readme", REPORT), ("folder", REPORT)):
        if getattr(args, option) is not None and args.name != use:
            what = f"--{option}" if option != "folder" else repr(str(args.folder))
            raise UsageError(f"{what} is for 'understudy bench {use}' only")
    if args.name in (ALL, REPORT) and args.json is not None:
        raise UsageError(f"--json is for one benchmark; 'bench {args.name}' takes a folder")
    if args.name == REPORT and args.quick:
        raise UsageError("--quick is for running; 'bench report' only draws what was measured")


# -- one benchmark -----------------------------------------------------------------------------------------------------


def _find(name: str | None) -> Bench:
    if name is None:
        raise UsageError("name a benchmark to run; 'understudy bench --list' shows them")
    _require_known(name)
    try:
        return registry.load(name)
    except registry.BenchUnavailable as error:
        raise UsageError(f"benchmark {name!r} cannot run: {error}") from error


def _require_known(name: str) -> None:
    if name not in registry.BENCHES:
        close = difflib.get_close_matches(name, registry.BENCHES)
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        raise UsageError(f"there is no benchmark {name!r}{hint}; 'understudy bench --list' shows them all")


def _list(stdout: Console) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name in registry.BENCHES:
        try:
            summary = Text(registry.load(name).summary)
        except registry.BenchUnavailable as error:
            summary = Text(f"not available: {error}", style="dim")
        table.add_row(Text(name, style="bold"), summary)
    stdout.print(table)


# -- all benchmarks ----------------------------------------------------------------------------------------------------


def _run_all(args: argparse.Namespace, stdout: Console) -> int:
    names = chosen(args.only, quick=args.quick)
    place = _made(args.results or dated(RESULTS, time.strftime("%Y-%m-%d")))
    print(f"results go to {place}", file=sys.stderr)
    info = suite.run_all(
        names,
        place,
        quick=args.quick,
        usual={name: registry.typical(name, args.quick) for name in names},
        start=suite.in_a_process(args.quick),
        tell=lambda line: print(f"\n{line}", file=sys.stderr, flush=True),
    )
    if args.only is None:
        why = "takes minutes even in a quick run; name it with --only"
        left_out = [Outcome(name, "left out", 0.0, why) for name in registry.BENCHES if name not in names]
        info = replace(info, outcomes=(*info.outcomes, *left_out))
    write_atomically(place / folder.RUN, msgspec.json.format(msgspec.json.encode(info), indent=2) + b"\n")
    _show(info, stdout)
    drawn = _draw(folder.read(place), place, place)
    stdout.print(Text(f"report: {place / PAGE}" if drawn else f"results: {place}; the report could not be drawn"))
    if info.interrupted:
        raise KeyboardInterrupt
    return 0 if drawn and all(outcome.state in ("ok", "left out") for outcome in info.outcomes) else 1


def chosen(only: str | None, *, quick: bool) -> list[str]:
    """The benchmarks to run, in the order of the registry."""
    if only is None:
        return [name for name in registry.BENCHES if not (quick and name in registry.SLOW)]
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    for name in wanted:
        _require_known(name)
    if not wanted:
        raise UsageError("--only names no benchmark; 'understudy bench --list' shows them")
    return [name for name in registry.BENCHES if name in wanted]


def dated(parent: Path, day: str) -> Path:
    """A folder named after a day that does not exist yet."""
    place, number = parent / day, 1
    while place.exists():
        number += 1
        place = parent / f"{day}-{number}"
    return place


def _made(place: Path) -> Path:
    try:
        place.mkdir(parents=True, exist_ok=True)
        writable_target(place / folder.RUN)
    except OSError as error:
        raise UsageError(f"cannot make {place}: {error.strerror}; name another folder with --results") from error
    return place


def _show(info: RunInfo, stdout: Console) -> None:
    table = Table(title="all benchmarks", title_justify="left")
    for column in ("benchmark", "", "took", ""):
        table.add_column(column, overflow="fold")
    for outcome in info.outcomes:
        style = {"ok": "green", "checks failed": "bold red", "failed": "bold red"}.get(outcome.state, "dim")
        took = said(outcome.seconds) if outcome.seconds else ""
        table.add_row(outcome.bench, Text(outcome.state, style=style), took, Text(outcome.why))
    stdout.print(table)


# -- the report --------------------------------------------------------------------------------------------------------


def _report(args: argparse.Namespace) -> int:
    if args.folder is None:
        raise UsageError("name the folder of results: understudy bench report DIR")
    try:
        results = folder.read(args.folder)
    except folder.ResultsError as error:
        raise UsageError(str(error)) from error
    for page in args.readme or ():
        _fill(page, results, args.folder)
    return 0 if _draw(results, args.folder, args.png or args.folder) else 1


def _draw(results: Results, place: Path, pictures: Path) -> bool:
    """Write the page and the pictures; print what cannot be drawn. Returns whether there is a page."""
    from understudy.planning.report.pictures import PicturesUnavailable
    from understudy.planning.report.plots import ReportUnavailable
    from understudy_bench.report.page import page_of, pictures_of

    for problem in results.problems:
        print(f"understudy bench: {problem}", file=sys.stderr)
    try:
        write_atomically(place / PAGE, page_of(results).encode())
    except ReportUnavailable as error:
        print(f"understudy bench: {error}", file=sys.stderr)
        return False
    try:
        found = pictures_of(results)
    except PicturesUnavailable as error:
        print(f"understudy bench: {error}", file=sys.stderr)
        return True
    _made(pictures)
    for name, png in found.items():
        write_atomically(pictures / f"{name}.png", png)
    return True


def _fill(page: Path, results: Results, place: Path) -> None:
    """Write the figures between a page's markers again."""
    from understudy_bench.report.blocks import MarkersError, filled

    try:
        before = page.read_text(encoding="utf-8")
        after = filled(before, results)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {page}: {error}") from error
    except MarkersError as error:
        raise UsageError(f"{page}: {error}") from error
    write_atomically(page, after.encode())
    print(f"{page}: {'figures of ' + str(place) if after != before else 'unchanged'}", file=sys.stderr)

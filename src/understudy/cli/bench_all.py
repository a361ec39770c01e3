"""`understudy bench all` and `bench report`: every benchmark, a folder of results, and the page that shows them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from understudy.cli import bench as single
from understudy.cli.errors import UsageError
from understudy.planning.report.plots import ReportUnavailable
from understudy_bench import folder, registry, suite
from understudy_bench.estimate import said
from understudy_bench.folder import Outcome, Results, RunInfo

PLACE = Path("bench/results")
PAGE = "report.html"


def run(args: argparse.Namespace, stdout: Console) -> int:
    names = chosen(args.only, quick=args.quick)
    place = made(args.results or dated(PLACE, time.strftime("%Y-%m-%d")))
    print(f"results go to {place}", file=sys.stderr)
    info = suite.play(
        names,
        place,
        quick=args.quick,
        usual={name: registry.typical(name, args.quick) for name in names},
        start=suite.in_a_process(args.quick),
        tell=lambda line: print(f"\n{line}", file=sys.stderr, flush=True),
    )
    if args.only is None:
        info = replace(info, outcomes=(*info.outcomes, *left_out(names)))
    write(place / folder.RUN, msgspec.json.format(msgspec.json.encode(info), indent=2) + b"\n")
    show(info, stdout)
    drawn = draw(folder.read(place), place, place)
    stdout.print(Text(f"report: {place / PAGE}" if drawn else "the results are there, the report is not"))
    if info.interrupted:
        raise KeyboardInterrupt
    return 0 if drawn and all(outcome.state in ("ok", "left out") for outcome in info.outcomes) else 1


def report(args: argparse.Namespace) -> int:
    if args.folder is None:
        raise UsageError("name the folder with the results: understudy bench report DIR")
    results = read(args.folder)
    for page in args.readme or ():
        fill(page, results, args.folder)
    return 0 if draw(results, args.folder, args.png or args.folder) else 1


def chosen(only: str | None, *, quick: bool) -> list[str]:
    """The benchmarks that are asked for, in the order of the registry."""
    if only is None:
        return [name for name in registry.BENCHES if not (quick and name in registry.SLOW)]
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    for name in wanted:
        single.known(name)
    if not wanted:
        raise UsageError("--only names no benchmark; 'understudy bench --list' shows them")
    return [name for name in registry.BENCHES if name in wanted]


def left_out(names: Sequence[str]) -> list[Outcome]:
    """Those that a quick run of all does not have time for."""
    why = "takes minutes even in a quick run; name it with --only"
    return [Outcome(name, "left out", 0.0, why) for name in registry.BENCHES if name not in names]


def dated(parent: Path, day: str) -> Path:
    """A folder of this day that is not there yet."""
    place, number = parent / day, 1
    while place.exists():
        number += 1
        place = parent / f"{day}-{number}"
    return place


def made(place: Path) -> Path:
    try:
        place.mkdir(parents=True, exist_ok=True)
        single.writable_target(place / folder.RUN)
    except OSError as error:
        raise UsageError(f"cannot make {place}: {error.strerror}; name another place with --results") from error
    return place


def read(place: Path) -> Results:
    try:
        return folder.read(place)
    except folder.ResultsError as error:
        raise UsageError(str(error)) from error


def draw(results: Results, place: Path, pictures: Path) -> bool:
    """The page beside the results, and the pictures; whether there is a page. What cannot be drawn is said."""
    from understudy.planning.report.pictures import PicturesUnavailable
    from understudy_bench.document import page_of, pictures_of

    for problem in results.problems:
        print(f"understudy bench: {problem}", file=sys.stderr)
    try:
        write(place / PAGE, page_of(results).encode())
    except ReportUnavailable as error:
        print(f"understudy bench: {error}", file=sys.stderr)
        return False
    try:
        found = pictures_of(results)
    except PicturesUnavailable as error:
        print(f"understudy bench: {error}", file=sys.stderr)
        return True
    made(pictures)
    for name, png in found.items():
        write(pictures / f"{name}.png", png)
    return True


def fill(readme: Path, results: Results, place: Path) -> None:
    from understudy_bench.readme import MarkersError, filled

    try:
        before = readme.read_text(encoding="utf-8")
        after = filled(before, results)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {readme}: {error}") from error
    except MarkersError as error:
        raise UsageError(f"{readme}: {error}") from error
    write(readme, after.encode())
    print(f"{readme}: {'figures of ' + str(place) if after != before else 'nothing has changed'}", file=sys.stderr)


def write(path: Path, content: bytes) -> None:
    try:
        single.write_atomically(path.resolve(), content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def show(info: RunInfo, stdout: Console) -> None:
    table = Table(title="all benchmarks", title_justify="left")
    for column in ("benchmark", "", "took", ""):
        table.add_column(column, overflow="fold")
    for outcome in info.outcomes:
        style = {"ok": "green", "checks failed": "bold red", "failed": "bold red"}.get(outcome.state, "dim")
        took = said(outcome.seconds) if outcome.seconds else ""
        table.add_row(outcome.bench, Text(outcome.state, style=style), took, Text(outcome.why))
    stdout.print(table)

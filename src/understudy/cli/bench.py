"""`understudy bench`: run a benchmark, show its table, keep its JSON."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from understudy.cli.errors import UsageError
from understudy_bench import harness, registry
from understudy_bench.progress import Progress
from understudy_bench.render import render

if TYPE_CHECKING:
    from understudy.cli.main import Subparsers

WIDTH_WITHOUT_TERMINAL = 160


ALL, REPORT = "all", "report"
"""What is asked for in the place of a benchmark's name."""

EXAMPLES = """\
examples:
  understudy bench --list                          which benchmarks there are
  understudy bench replace --quick                 one of them, an impression
  understudy bench replace --json replace.json     one of them, kept as JSON
  understudy bench all                             all of them, in two hours; a folder of results with a report
  understudy bench all --quick --only replace,setup
  understudy bench report bench/results/reference  the report again, from the JSON files of a folder
  understudy bench report DIR --png docs/images --readme README.md docs/scaling.md
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="compare with what people use today",
        description="Run a benchmark, or all of them. Progress goes to stderr, tables to stdout. Exit code 1 when a "
        "check fails or a benchmark does.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help=f"the benchmark to run; {ALL!r}: every one; {REPORT!r}: draw results"
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="'report': the folder with the results")
    parser.add_argument("--list", action="store_true", help="show the benchmarks and what each one measures")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds: an impression, not a measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE as JSON")
    parser.add_argument("--only", metavar="A,B", help="'all': these benchmarks only")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="'all': where results go (default: bench/results/ and the date)"
    )
    parser.add_argument(
        "--png", type=Path, metavar="DIR", help="'report': where pictures go (default: beside the results)"
    )
    parser.add_argument(
        "--readme",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="'report': write the figures between the markers of these pages anew",
    )


def run(args: argparse.Namespace) -> int:
    stdout = Console(width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL)
    _fit(args)
    if args.list:
        show_list(stdout)
        return 0
    if args.name in (ALL, REPORT):
        from understudy.cli import bench_all

        return bench_all.run(args, stdout) if args.name == ALL else bench_all.report(args)

    bench = find(args.name)
    target = None if args.json is None else writable_target(args.json)
    with Progress(bench.name, Console(stderr=True)) as progress:
        report = harness.run(bench, quick=args.quick, progress=progress)
    render(report, stdout)
    if target is not None:
        keep(report, target)
    return 0 if report.ok else 1


def _fit(args: argparse.Namespace) -> None:
    """Options that belong to another use are refused, not ignored."""
    for option, uses in (
        ("only", (ALL,)),
        ("results", (ALL,)),
        ("png", (REPORT,)),
        ("readme", (REPORT,)),
        ("folder", (REPORT,)),
    ):
        if getattr(args, option) is not None and args.name not in uses:
            what = f"--{option}" if option != "folder" else repr(str(args.folder))
            raise UsageError(f"{what} is for 'understudy bench {uses[0]}' only")
    if args.name in (ALL, REPORT) and args.json is not None:
        raise UsageError(f"--json is for one benchmark; 'bench {args.name}' takes a folder")
    if args.name == REPORT and args.quick:
        raise UsageError("--quick is for running; 'bench report' only draws what was measured")


def find(name: str | None) -> harness.Bench:
    if name is None:
        raise UsageError("name a benchmark to run; 'understudy bench --list' shows them")
    known(name)
    try:
        return registry.load(name)
    except registry.BenchUnavailable as error:
        raise UsageError(f"benchmark {name!r} cannot run: {error}") from error


def known(name: str) -> None:
    if name not in registry.BENCHES:
        close = difflib.get_close_matches(name, registry.BENCHES)
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        raise UsageError(f"there is no benchmark {name!r}{hint}; 'understudy bench --list' shows them all")


def show_list(stdout: Console) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name in registry.BENCHES:
        try:
            summary = Text(registry.load(name).summary)
        except registry.BenchUnavailable as error:
            summary = Text(f"not available: {error}", style="dim")
        table.add_row(Text(name, style="bold"), summary)
    stdout.print(table)


def writable_target(path: Path) -> Path:
    """The file that `path` leads to, found out to be writable before any work is done; leaves nothing behind."""
    target = path.resolve()
    if not target.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no directory {path.parent}; create it first")
    if target.exists() and not target.is_file():
        raise UsageError(f"cannot write {path}: it is not a regular file; name another one")
    try:
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose a directory you may write to") from error
    return target


def keep(report: harness.Report, target: Path) -> None:
    """The result as JSON."""
    try:
        write_atomically(target, harness.to_json(report))
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}; the result is only in the table") from error


def write_atomically(target: Path, content: bytes) -> None:
    """Afterwards `target` is either what it was before or all of `content`, never a part."""
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise

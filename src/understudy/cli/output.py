"""How a command gives its result: a table, JSON, a page; checks of the files beforehand, and a progress bar."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from understudy import __version__
from understudy.cli.command import UsageError

WIDTH_WITHOUT_TERMINAL = 160


def console(width: int = WIDTH_WITHOUT_TERMINAL) -> Console:
    """Standard output; `width` is that of a line that does not go to a terminal."""
    return Console(highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else width)


def table(*titles: str, right: bool = True) -> Table:
    """A plain table: the first column and words to the left, numbers to the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, title in enumerate(titles):
        words = place == 0 or title == "settings" or not right
        made.add_column(title, justify="left" if words else "right", style="bold" if place == 0 else "")
    return made


def deliver(
    args: argparse.Namespace, data: Any, show: Callable[[Console], None], page: Callable[[], str] | None = None
) -> int:
    """Print a result, as JSON or by `show`, and write the files of `--json` and `--report`."""
    if sys.stdout is None:
        raise UsageError("standard output is closed: leave it open, or redirect it to a file")
    try:
        if args.json == "-":
            print(json.dumps(data, indent=2, allow_nan=False))
        else:
            show(console())
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter writes again at its end
        raise UsageError(f"cannot write to standard output: {error.strerror}; redirect it elsewhere") from error
    if args.json not in (None, "-"):
        write(Path(args.json), json.dumps(data, indent=2, allow_nan=False) + "\n", "--json")
    if page is not None and args.report is not None:
        write(args.report, page(), "--report")
        print(f"report: {args.report}", file=sys.stderr)
    return 0


def made() -> str:
    """A line for reports: when and by which version they were made."""
    return f"Made {datetime.now():%d %B %Y, %H:%M} by understudy {__version__}."


# -- files -------------------------------------------------------------------------------------------------------------


def writable(args: argparse.Namespace) -> None:
    """Check, before any work, that the files of `--json` and `--report` can be written and a report can be drawn."""
    if getattr(args, "report", None) is not None:
        from understudy.planning.report.plots import ReportUnavailable, require

        try:
            require()
        except ReportUnavailable as error:
            raise UsageError(f"--report: {error}") from error
    log: Path | None = getattr(args, "failures_csv", None)
    taken = {} if log is None else {log.resolve(): "--failures-csv"}
    for name in ("json", "report"):
        path = getattr(args, name, None)
        if path not in (None, "-"):
            target = writable_target(Path(path))
            if target in taken:
                raise UsageError(f"--{name} {path}: this is the file of {taken[target]}; name another one")
            taken[target] = f"--{name}"


def writable_target(path: Path) -> Path:
    """The file that `path` resolves to; raise `UsageError` if it cannot be written. Leaves no file."""
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


def write(path: Path, text: str, option: str) -> None:
    """Write a file that an option names."""
    writable_target(path)
    write_atomically(path, text.encode(), before=f"{option}: ")


def write_atomically(path: Path, content: bytes, *, before: str = "", after: str = "") -> None:
    """Write a file; afterwards it has either its old content or all of the new one.

    `before` and `after` complete the message of the `UsageError` if that fails."""
    target = path.resolve()
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UsageError(f"{before}cannot write {path}: {error.strerror}{after}") from error
        raise


# -- progress ----------------------------------------------------------------------------------------------------------


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr, on a terminal only; it disappears at the end. Gives a function that takes the share
    that is done, from 0 to 1."""
    out = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda done: progress.update(task, completed=done)

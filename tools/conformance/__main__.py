"""`python -m tools.conformance`: run PyTorch's own tests of `torch.distributed` over Understudy's process group and
over gloo, and compare."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .comparison import Comparison, Expectations, chosen
from .suite import CONTESTANTS, Device, Outcome, Suite, SuiteMissing, TestResult

DIFFERS, UNUSABLE, INTERRUPTED = 1, 2, 130
_DEVICES: dict[Device, str] = {"cpu": "CPU", "gpu": "GPU-only, on the CPU"}
_OUTCOMES: tuple[Outcome, ...] = ("passed", "failed", "skipped")


def main(words: Sequence[str] | None = None) -> int:
    options = _options().parse_args(words)
    console = Console(stderr=True, highlight=False)
    try:
        suite, expected = Suite.load(), Expectations.read()
        names = options.tests or (expected.quick if options.part == "quick" else suite.tests)
        names = chosen(names, suite.tests)
    except (SuiteMissing, ValueError) as error:
        console.print(f"conformance: {error}", style="red")
        return UNUSABLE
    if options.list:
        print("\n".join(names))
        return 0
    began = time.monotonic()
    try:
        results = tuple(_run(suite, names, console))
    except KeyboardInterrupt:
        suite.end()
        console.print("conformance: interrupted; all processes of the test have ended")
        return INTERRUPTED
    comparison = Comparison(results, expected.reasons)
    if options.json:
        json.dump(comparison.as_json(suite.versions), sys.stdout, indent=2)
        print()
    else:
        _show(comparison, Console(highlight=False), options.trace)
        console.print(f"{len(names)} tests, {time.monotonic() - began:.0f} s")
    return 0 if comparison.holds else DIFFERS


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.conformance", description=__doc__)
    parser.add_argument("tests", nargs="*", help="only these tests of the suite")
    parser.add_argument("--part", choices=("all", "quick"), default="all", help="all tests, or those of `make test`")
    parser.add_argument("--json", action="store_true", help="print all outcomes as JSON")
    parser.add_argument("--trace", action="store_true", help="print what failed in the tests that pass with gloo only")
    parser.add_argument("--list", action="store_true", help="list the tests instead of running them")
    return parser


def _run(suite: Suite, names: Sequence[str], console: Console) -> Iterator[TestResult]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal, auto_refresh=False) as progress:
        task = progress.add_task("", total=len(names))
        for name in names:
            progress.update(task, description=name, refresh=True)
            for contestant in CONTESTANTS:
                yield suite.run(name, contestant)
            progress.advance(task)


def _show(comparison: Comparison, console: Console, trace: bool) -> None:
    table = Table("tests", "outcome", *CONTESTANTS)
    for device, title in _DEVICES.items():
        for outcome in _OUTCOMES:
            counts = [str(comparison.count(contestant, device, outcome)) for contestant in CONTESTANTS]
            table.add_row(title, outcome, *counts)
    console.print(table)
    for title, names in (
        ("pass with gloo only", comparison.only("gloo")),
        ("pass with understudy only", comparison.only("understudy")),
        ("have a reason to fail, and pass: remove the reason", comparison.outdated),
    ):
        console.print(f"{len(names)} {title}")
        for name in names:
            reason = comparison.reasons.get(name, "")
            console.print(f"  {name}" + (f": {reason}" if reason else ""), soft_wrap=True)
            if trace and name in comparison.unexplained:
                console.print(comparison.outcomes[name]["understudy"].detail, markup=False, soft_wrap=True)
    if comparison.unexplained:
        console.print(
            f"{len(comparison.unexplained)} without a reason: run `python -m tools.conformance --trace "
            f"{comparison.unexplained[0]}`, then fix it or give its reason in tools/conformance/expectations.toml"
        )


if __name__ == "__main__":
    sys.exit(main())

"""All benchmarks in a row: nothing that one does keeps the others from running."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.comm.stepping import asleep
from understudy_bench import registry
from understudy_bench.harness.suite import outcome_of, pace, remaining, run_all, said
from understudy_bench.report.folder import Outcome, RunInfo

USUAL = {"a": 100.0, "b": 200.0, "c": 300.0}


def test_before_anything_is_measured_the_usual_times_count() -> None:
    assert remaining(USUAL, {}, "abc") == 600.0
    assert remaining(USUAL, {}, "c") == 300.0


def test_what_the_first_ones_took_corrects_the_rest() -> None:
    assert remaining(USUAL, {"a": 150.0}, "bc") == 750.0
    assert remaining(USUAL, {"a": 150.0, "b": 150.0}, "c") == 300.0


def test_one_that_took_absurdly_long_does_not_make_the_estimate_absurd() -> None:
    assert pace(USUAL, {"a": 1e6}) == 4.0
    assert pace(USUAL, {"a": 0.0}) == 0.25


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (89, "89 s"), (90, "2 min"), (3540, "59 min"), (3600, "1 h 0 min"), (5000, "1 h 23 min")],
)
def test_times_are_said_as_one_says_them(seconds: float, words: str) -> None:
    assert said(seconds) == words


def test_every_benchmark_has_been_timed() -> None:
    assert set(registry.BENCHES) <= set(registry.TYPICAL), "add how long it takes to TYPICAL in bench/registry.py"
    assert registry.typical("unknown", quick=True) == registry.UNKNOWN[1]


def run(codes: Mapping[str, int | BaseException], place: Path) -> tuple[RunInfo, list[str]]:
    told: list[str] = []

    def start(name: str, file: Path) -> int:
        found = codes[name]
        if isinstance(found, BaseException):
            raise found
        if found in (0, 1):
            file.write_text("{}")
        return found

    return run_all(list(codes), place, quick=True, usual=USUAL, start=start, tell=told.append), told


def test_one_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    info, told = run({"a": 2, "b": 1, "c": 0}, tmp_path)
    assert [outcome.state for outcome in info.outcomes] == ["failed", "checks failed", "ok"]
    assert info.outcomes[0].why == "cannot run here"
    assert not info.interrupted
    assert told[0] == "[1/3] a: about 2 min; all that remain: about 10 min"
    assert told[2].startswith("[3/3] c: ")


def test_after_an_interruption_the_finished_ones_count_and_no_others_are_begun(tmp_path: Path) -> None:
    info, told = run({"a": 0, "b": KeyboardInterrupt(), "c": 0}, tmp_path)
    assert [outcome.state for outcome in info.outcomes] == ["ok", "interrupted", "not run"]
    assert info.interrupted
    assert len(told) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_an_old_result_does_not_pass_for_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    info, _ = run({"a": -9}, tmp_path)
    assert info.outcomes == (Outcome("a", "failed", info.outcomes[0].seconds, "was ended by signal 9"),)
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize(("code", "written"), [(0, False), (1, False), (130, False)])
def test_without_a_result_it_has_failed(code: int, written: bool) -> None:
    outcome = outcome_of("a", code, 1.0, written)
    assert outcome.state == "failed"
    assert str(code) in outcome.why


SLEEPER = """
import signal, sys, threading
from pathlib import Path
from understudy_bench.harness import suite

def unnoticed():
    sys.stdin.read()
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.SIG_IGN if sys.argv[2] == "ignored" else signal.default_int_handler)
if sys.argv[2] == "unnoticed":
    threading.Thread(target=unnoticed).start()
suite.sys.executable = sys.argv[1]
try:
    suite.in_a_process(True)("x", Path("x.json"))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
FAKE = """#!/bin/sh
trap 'echo told; exit 130' INT TERM
echo begun
{then}
while :; do sleep 0.1; done
"""
AT_ONCE = {"at once": "kill -INT $PPID", "ignored": "kill -INT $PPID; kill -TERM $PPID", "unnoticed": ":"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("when", AT_ONCE)
def test_an_interruption_reaches_the_benchmark_once_and_is_waited_for(tmp_path: Path, when: str) -> None:
    """The interruption comes as early as possible: before the parent knows that the benchmark has started; or just
    before the wait begins, so that it does not end the system call (here another thread takes the signal). A process
    that a script starts in the background ignores SIGINT; this test may be one, so its processes set the handler."""
    fake = tmp_path / "fake"
    fake.write_text(FAKE.format(then=AT_ONCE[when]))
    fake.chmod(0o755)
    command, pipe = [sys.executable, "-c", SLEEPER, str(fake), when], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, cwd=tmp_path) as running:
        try:
            assert running.stdout is not None
            begun = running.stdout.readline()
            if when == "unnoticed":
                asleep([running.pid])
            rest, _ = running.communicate(timeout=50)  # and there is no more to read for the other thread
        finally:
            running.kill()
    assert begun + rest == b"begun\ntold\ninterrupted\n"

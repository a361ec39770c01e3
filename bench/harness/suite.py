"""All benchmarks one after the other, each in a process of its own.

A benchmark that fails, or does not load, does not keep the others from running.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from understudy.host.family import die_with_parent
from understudy_bench.harness.processes import interruptible
from understudy_bench.report.folder import Outcome, RunInfo

# -- how long the rest takes -------------------------------------------------------------------------------------------

SLOWEST, FASTEST = 4.0, 0.25
"""Limits of `pace`: a larger deviation of one benchmark says nothing about the next ones."""


def pace(usual: Mapping[str, float], took: Mapping[str, float]) -> float:
    """The time that the finished benchmarks took, divided by their usual time; 1 if none has finished."""
    expected = sum(usual[name] for name in took)
    return min(SLOWEST, max(FASTEST, sum(took.values()) / expected)) if expected else 1.0


def remaining(usual: Mapping[str, float], took: Mapping[str, float], waiting: Collection[str]) -> float:
    """The expected seconds of the benchmarks that wait."""
    return pace(usual, took) * sum(usual[name] for name in waiting)


def said(seconds: float) -> str:
    """`40 s`, `12 min`, `1 h 5 min`."""
    if seconds < 90:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


# -- the run -----------------------------------------------------------------------------------------------------------

GRACE_S = 60.0
"""Seconds that an interrupted benchmark has to end its jobs."""
ENDING = (signal.SIGINT, signal.SIGTERM)

Start = Callable[[str, Path], int]
"""Runs a benchmark that writes its result to a file; returns its exit code."""


def outcome_of(name: str, code: int, seconds: float, written: bool) -> Outcome:
    """The outcome of a benchmark, from its exit code and whether it wrote a result."""
    seconds = round(seconds, 1)
    if written and code in (0, 1):
        return Outcome(name, "checks failed" if code else "ok", seconds)
    if code < 0:
        return Outcome(name, "failed", seconds, f"was ended by signal {-code}")
    how = "cannot run here" if code == 2 else f"ended with code {code} and left no result"
    return Outcome(name, "failed", seconds, how)


def run_all(
    names: Sequence[str],
    folder: Path,
    *,
    quick: bool,
    usual: Mapping[str, float],
    start: Start,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> RunInfo:
    """Run these benchmarks. After Ctrl-C no further benchmark begins; the results of finished ones stay."""
    began = time.strftime("%Y-%m-%d %H:%M")
    took: dict[str, float] = {}
    outcomes: list[Outcome] = []
    for number, name in enumerate(names):
        this, rest = (remaining(usual, took, waiting) for waiting in ((name,), names[number:]))
        tell(f"[{number + 1}/{len(names)}] {name}: about {said(this)}; all that remain: about {said(rest)}")
        file = folder / f"{name}.json"
        file.unlink(missing_ok=True)
        at = clock()
        try:
            code = start(name, file)
        except KeyboardInterrupt:
            outcomes.append(Outcome(name, "interrupted", round(clock() - at, 1)))
            break
        outcome = outcome_of(name, code, clock() - at, file.exists())
        outcomes.append(outcome)
        if outcome.state != "failed":
            took[name] = outcome.seconds
    outcomes += [Outcome(name, "not run", 0.0) for name in names[len(outcomes) :]]
    return RunInfo(began, quick, tuple(outcomes))


def in_a_process(quick: bool) -> Start:
    """Run `understudy bench NAME` in a session of its own: Ctrl-C does not reach it, but is passed on once."""

    def start(name: str, file: Path) -> int:
        command = [sys.executable, "-m", "understudy.cli.main", "bench", name, "--json", str(file)]
        parent = os.getpid()
        with interruptible():
            held = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until the process exists

            def begin() -> None:
                signal.pthread_sigmask(signal.SIG_SETMASK, held)
                die_with_parent(parent)

            try:
                running = subprocess.Popen(
                    [*command, *(["--quick"] if quick else [])], start_new_session=True, preexec_fn=begin
                )
            except BaseException:
                signal.pthread_sigmask(signal.SIG_SETMASK, held)
                raise
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, held)
                return _code(running)
            except KeyboardInterrupt:
                _end(running)
                raise

    return start


def _code(running: subprocess.Popen[bytes]) -> int:
    """Wait for the process's exit code.

    A signal that arrives just before a wait begins does not interrupt it; the wakeup descriptor does.
    """
    gone = os.pidfd_open(running.pid)
    told, tell = socket.socketpair()
    tell.setblocking(False)
    before = signal.set_wakeup_fd(tell.fileno())
    try:
        while (code := running.poll()) is None:
            if told.fileno() in select.select([gone, told.fileno()], [], [])[0]:
                told.recv(1)  # the signal's handler has been called by now
    finally:
        signal.set_wakeup_fd(before)
        os.close(gone)
        told.close()
        tell.close()
    return code


def _end(running: subprocess.Popen[bytes]) -> None:
    # a process that a script starts in the background ignores SIGINT, and so do its children
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    running.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
    try:
        running.wait(GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()

"""All benchmarks one after the other, each in a process of its own: one that fails, or does not even load, does not
keep the others from running."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from understudy.host.family import die_with_parent
from understudy_bench.estimate import left, said
from understudy_bench.folder import Outcome, RunInfo
from understudy_bench.processes import interruptible

GRACE_S = 60.0
"""For a benchmark that is interrupted to put its jobs away."""
ENDING = (signal.SIGINT, signal.SIGTERM)

Start = Callable[[str, Path], int]
"""Runs a benchmark whose result goes to a file; its exit code."""


def outcome_of(name: str, code: int, seconds: float, written: bool) -> Outcome:
    """What an exit code says, together with whether there is a result."""
    seconds = round(seconds, 1)
    if written and code in (0, 1):
        return Outcome(name, "checks failed" if code else "ok", seconds)
    if code < 0:
        return Outcome(name, "failed", seconds, f"was ended by signal {-code}")
    how = "cannot run here" if code == 2 else f"ended with code {code} and left no result"
    return Outcome(name, "failed", seconds, how)


def play(
    names: Sequence[str],
    folder: Path,
    *,
    quick: bool,
    usual: Mapping[str, float],
    start: Start,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> RunInfo:
    """Run these benchmarks; after Ctrl-C those that had finished count, and no others are begun."""
    began = time.strftime("%Y-%m-%d %H:%M")
    took: dict[str, float] = {}
    outcomes: list[Outcome] = []
    for number, name in enumerate(names):
        this, rest = (left(usual, took, waiting) for waiting in ((name,), names[number:]))
        tell(f"[{number + 1}/{len(names)}] {name}: about {said(this)}; all that is left: about {said(rest)}")
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
    """`understudy bench NAME` in a process that Ctrl-C does not reach by itself: it is told once, and waited for."""

    def start(name: str, file: Path) -> int:
        command = [sys.executable, "-m", "understudy.cli.main", "bench", name, "--json", str(file)]
        parent = os.getpid()
        with interruptible():
            held = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until there is somebody to tell

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
    """Its exit code. A signal that comes just before a wait begins does not end it, but is also written to `tell`."""
    gone = os.pidfd_open(running.pid)
    told, tell = socket.socketpair()
    tell.setblocking(False)
    before = signal.set_wakeup_fd(tell.fileno())
    try:
        while (code := running.poll()) is None:
            if told.fileno() in select.select([gone, told.fileno()], [], [])[0]:
                told.recv(1)  # its handler has been called by now
    finally:
        signal.set_wakeup_fd(before)
        os.close(gone)
        told.close()
        tell.close()
    return code


def _end(running: subprocess.Popen[bytes]) -> None:
    # whoever was started in the background of a script ignores SIGINT, and so do its children
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    running.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
    try:
        running.wait(GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()

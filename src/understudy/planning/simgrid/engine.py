"""Runs in SimGrid, each in a process of an interpreter that has it, with the signature of the other engines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from understudy.host.family import die_with_parent
from understudy.host.temporary import scratch
from understudy.planning.failures import Failures, Repair
from understudy.planning.outcome import SimulationOutcome, Waste
from understudy.planning.setting import Setting
from understudy.planning.simgrid.exchange import INPUT, RESULT, SimgridResult
from understudy.planning.simgrid.prepare import PreparedRun, prepare
from understudy.planning.simulation.jump import FOREVER, USUAL, Progress, must_end
from understudy.planning.strategy import Strategy

SYSTEM = "/usr/bin/python3"
"""Where Debian's package puts SimGrid: for the system's own interpreter."""
LIMIT = 600.0
"""Seconds for one run."""
LONGEST = 5e9
"""Seconds of simulated time: beyond, a lifeline would end of itself."""


class SimgridError(RuntimeError):
    """A run in SimGrid brought no result; the message says what came instead."""


class SimgridMissing(SimgridError):
    """No interpreter here has SimGrid."""


def simulate(
    setting: Setting,
    failures: Failures,
    strategy: Strategy,
    repair: Repair = USUAL,
    *,
    runs: int = 10,
    horizon: float = FOREVER,
    seed: int = 0,
    progress: Progress | None = None,
) -> SimulationOutcome:
    """`runs` runs until all steps are done, or until `horizon`, one after the other."""
    must_end(setting, horizon)
    python = interpreter()
    found = []
    for number, own in enumerate(np.random.SeedSequence(seed).spawn(runs)):
        found.append(_one_run(python, setting, failures, strategy, repair, horizon, own))
        if progress:
            progress((number + 1) / runs)
    return outcome(found, strategy.standbys / setting.cluster.machines)


def _one_run(
    python: str,
    setting: Setting,
    failures: Failures,
    strategy: Strategy,
    repair: Repair,
    horizon: float,
    seed: np.random.SeedSequence,
) -> SimgridResult:
    """How long a run takes is not known when its failures are drawn: where they run out, more of the same follow."""
    known = min(horizon, LONGEST, 2 * setting.work.steps * setting.work.step or horizon)
    while True:
        run = prepare(setting, failures, strategy, repair, horizon=horizon, known=known, seed=seed)
        result = run_script(python, run)
        if not result.beyond:
            return result
        if known >= LONGEST:
            raise SimgridError(f"after {known / 3.15576e7:.0f} simulated years the steps are not done")
        known = min(2 * known, horizon, LONGEST)


def run_script(python: str, run: PreparedRun, limit: float = LIMIT) -> SimgridResult:
    """One run. Nothing is left behind: neither the process, whatever interrupts this, nor the folder with its files."""
    with scratch("understudy-simgrid-") as folder:
        (folder / "understudy_simgrid").symlink_to(Path(__file__).parent, target_is_directory=True)
        (folder / INPUT).write_text(json.dumps(asdict(run.inputs)), encoding="utf-8")
        for file, text in run.files.items():
            (folder / file).write_text(text, encoding="utf-8")
        said = _run([python, "-B", "-m", "understudy_simgrid.script", str(folder)], folder, limit)
        return read(folder / RESULT, said)


def _run(command: Sequence[str], folder: Path, limit: float) -> str:
    """What the process said. It has a session of its own: after Ctrl-C it is ended here and says nothing."""
    born: list[subprocess.Popen[str]] = []
    pipe, parent = subprocess.PIPE, os.getpid()
    try:
        with _uninterrupted():  # else there might be a process that nobody knows of
            born.append(
                subprocess.Popen(
                    command,
                    cwd=folder,
                    stdout=pipe,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                    preexec_fn=lambda: die_with_parent(parent),
                )
            )
        said, _ = born[0].communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise SimgridError(f"a run in SimGrid took more than {limit:g} s; take fewer machines or steps") from None
    finally:
        for process in born:
            if process.poll() is None:
                process.kill()
                process.communicate()
    code = born[0].returncode
    if code:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise SimgridError(f"a run in SimGrid ended with {how}{_last_words(said)}")
    return said


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C comes only afterwards. It comes to the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def read(file: Path, said: str = "") -> SimgridResult:
    """The result, or what is the matter with it."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=SimgridResult)
    except FileNotFoundError:
        raise SimgridError(f"a run in SimGrid left no result{_last_words(said)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SimgridError(f"a run in SimGrid left a damaged result: {error}{_last_words(said)}") from None


def _last_words(said: str) -> str:
    """The first line that complains: SimGrid's own backtrace follows it."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and "Configuration change" not in line]
    loud = [line for line in lines if "CRITICAL" in line or "Error" in line]
    return f": {(loud or lines)[0]}" if lines else ""


def outcome(found: Sequence[SimgridResult], standby_share: float) -> SimulationOutcome:
    return SimulationOutcome(
        np.array([one.seconds for one in found]),
        np.array([one.useful for one in found]),
        np.array([[one.wasted.get(waste.name, 0.0) for waste in Waste] for one in found]),
        np.array([one.failures for one in found], dtype=np.int64),
        np.array([one.restarts for one in found], dtype=np.int64),
        standby_share,
    )


def interpreter(candidates: Sequence[str] = ()) -> str:
    """The first of this interpreter and the system's that can import SimGrid."""
    for python in candidates or (sys.executable, SYSTEM):
        if has_simgrid(python):
            return python
    raise SimgridMissing(
        "no Python here has SimGrid: `make simgrid` installs it (Debian: apt-get install python3-simgrid)"
    )


@cache
def has_simgrid(python: str) -> bool:
    """Whether this interpreter can import SimGrid; it is started to find out."""
    try:
        tried = subprocess.run([python, "-c", "import simgrid; simgrid.Engine"], capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0

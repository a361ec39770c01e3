"""Runs simulations in SimGrid, each in a process of an interpreter that has SimGrid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from understudy.host.family import die_with_parent
from understudy.host.temporary import scratch
from understudy.planning.failures import Failures, Repair
from understudy.planning.outcome import SimulationOutcome, Waste
from understudy.planning.setting import PlanningSetting
from understudy.planning.simgrid.prepare import PreparedRun, prepare
from understudy.planning.simgrid.script import INPUT, RESULT
from understudy.planning.simulation.jump import FOREVER, USUAL, Progress, must_end, seeds, silent
from understudy.planning.strategy import Strategy

SYSTEM = "/usr/bin/python3"
"""The system's interpreter, for which Debian packages SimGrid."""
LIMIT = 600.0
"""Seconds for one run."""
LONGEST = 5e9
"""Limit of simulated seconds: the message that serves as a machine's lifeline would end later."""


class SimgridError(RuntimeError):
    """A run in SimGrid has no result; the message says why."""


class SimgridMissing(SimgridError):
    """No interpreter on this computer has SimGrid."""


class SimgridResult(msgspec.Struct, frozen=True):
    """Result of a run. `wasted` has the names of `Waste`; `beyond`: the run lasted longer than the drawn failures."""

    seconds: float
    useful: float
    wasted: dict[str, float]
    failures: int
    restarts: int
    beyond: bool


def simulate(
    setting: PlanningSetting,
    failures: Failures,
    strategy: Strategy,
    repair: Repair = USUAL,
    *,
    runs: int = 10,
    horizon: float = FOREVER,
    seed: int = 0,
    progress: Progress = silent,
) -> SimulationOutcome:
    """Simulates `runs` runs one after the other until all steps are done, or until `horizon`."""
    must_end(setting, horizon)
    python = interpreter()
    found = []
    for own in seeds(seed, runs, progress):
        known = min(horizon, LONGEST, 2 * setting.work.steps * setting.work.step or horizon)
        while True:  # failures are drawn before a run; a run that lasts longer than they reach is repeated with more
            run = prepare(setting, failures, strategy, repair, horizon=horizon, known=known, seed=own)
            result = run_script(python, run)
            if not result.beyond:
                break
            if known >= LONGEST:
                raise SimgridError(f"after {known / 3.15576e7:.0f} simulated years the steps are not done")
            known = min(2 * known, horizon, LONGEST)
        found.append(result)
    return outcome(found, strategy.standbys / setting.cluster.machines)


def run_script(python: str, run: PreparedRun, limit: float = LIMIT) -> SimgridResult:
    """Runs the script once. The process and the folder are removed in every case."""
    with scratch("understudy-simgrid-") as folder:
        (folder / "understudy_simgrid").symlink_to(Path(__file__).parent, target_is_directory=True)
        (folder / INPUT).write_bytes(msgspec.json.encode(run))
        for file, text in run.files.items():
            (folder / file).write_text(text, encoding="utf-8")
        said = _run([python, "-B", "-m", "understudy_simgrid.script", str(folder)], folder, limit)
        try:
            return msgspec.json.decode((folder / RESULT).read_bytes(), type=SimgridResult)
        except FileNotFoundError:
            raise SimgridError(f"a run in SimGrid left no result{_last_words(said)}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SimgridError(f"a run in SimGrid left a damaged result: {error}{_last_words(said)}") from None


def _run(command: Sequence[str], folder: Path, limit: float) -> str:
    """Output of the command. The process has its own session, so that Ctrl-C ends it here and not by itself."""
    born: list[subprocess.Popen[str]] = []
    pipe, parent = subprocess.PIPE, os.getpid()
    try:
        with _uninterrupted():  # an interrupt between start and assignment would leave the process behind
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
        raise SimgridError(f"a run in SimGrid took more than {limit:g} s; use fewer machines or steps") from None
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
    """Delays Ctrl-C until the block ends. Signals arrive in the main thread only."""
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


def _last_words(said: str) -> str:
    """The first line with an error; SimGrid's backtrace follows that line."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and "Configuration change" not in line]
    loud = [line for line in lines if "CRITICAL" in line or "Error" in line]
    return f": {(loud or lines)[0]}" if lines else ""


def outcome(found: Sequence[SimgridResult], standby_share: float) -> SimulationOutcome:
    """The results of several runs in the form of the other simulators."""
    return SimulationOutcome(
        np.array([one.seconds for one in found]),
        np.array([one.useful for one in found]),
        np.array([[one.wasted.get(waste.name, 0.0) for waste in Waste] for one in found]),
        np.array([one.failures for one in found], dtype=np.int64),
        np.array([one.restarts for one in found], dtype=np.int64),
        standby_share,
    )


def interpreter(candidates: Sequence[str] = ()) -> str:
    """The first of this interpreter and the system's interpreter that can import SimGrid."""
    for python in candidates or (sys.executable, SYSTEM):
        if has_simgrid(python):
            return python
    raise SimgridMissing(
        "no Python on this computer has SimGrid: `make simgrid` installs it (Debian: apt-get install python3-simgrid)"
    )


@cache
def has_simgrid(python: str) -> bool:
    """Whether this interpreter can import SimGrid; starts the interpreter once."""
    try:
        tried = subprocess.run([python, "-c", "import simgrid; simgrid.Engine"], capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0

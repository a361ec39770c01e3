"""Runs single tests of torch's suite, each in as many forked processes as it has ranks."""

from __future__ import annotations

import ctypes
import functools
import importlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

Contestant = Literal["gloo", "understudy"]
CONTESTANTS: tuple[Contestant, ...] = get_args(Contestant)
Device = Literal["cpu", "gpu"]
Outcome = Literal["passed", "failed", "skipped"]

RANKS = 4
LIMIT_S = 90.0
"""The time that one test may take. The suite's own limit for an operation is 60 s."""
GRACE_S = 1.0
"""The time that the other ranks have to report after the first has failed."""
_PR_SET_PDEATHSIG = 1
_TAIL = 4000


class SuiteMissing(Exception):
    """Torch's suite cannot be imported; the message names the way out."""


@dataclass(frozen=True)
class TestResult:
    """The outcome of one test of one contestant, with a traceback or the last output if it failed."""

    name: str
    contestant: Contestant
    device: Device
    outcome: Outcome
    seconds: float
    detail: str = ""


@dataclass
class Suite:
    """Torch's suite, imported into this process. No operation of torch runs here, so that it can be forked."""

    tests: list[str]
    case: Any
    module: Any
    helpers: Any
    versions: dict[str, str]
    running: list[Any] = field(default_factory=list)

    @classmethod
    def load(cls) -> Suite:
        os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ["INIT_METHOD"] = "file:///set/by/each/run"
        try:
            import torch

            torch.set_num_threads(1)
            for ahead in ("accelerator", "contestant"):  # once, not in every process
                importlib.import_module(f"{__package__}.{ahead}")
            module = importlib.import_module("torch.testing._internal.distributed.distributed_test")
            helpers = importlib.import_module("torch.testing._internal.common_distributed")
        except ImportError as error:
            raise SuiteMissing(
                f"torch's suite needs {error.name}; install the extra: pip install -e '.[test]'"
            ) from None
        case = type("Case", (module.TestDistBackend, module.DistributedTest._DistTestBase), {})
        tests = sorted(name for name in dir(case) if name.startswith("test_"))
        return cls(tests, case, module, helpers, {"torch": torch.__version__, "understudy": version("understudy")})

    def needs_gpu(self, code: int) -> bool:
        """Whether a process has ended with this exit code because it has found too few GPUs."""
        return any(
            code == skip.exit_code
            for name, skip in self.helpers.TEST_SKIPS.items()
            if name.startswith(("no_cuda", "multi-gpu"))
        )

    def run(self, name: str, contestant: Contestant) -> TestResult:
        """Run a test on the CPU; if it asks for GPUs, again with the CPU in their place."""
        result, codes = self._run(name, contestant, "cpu")
        if codes and self.needs_gpu(codes[0]):
            result, _ = self._run(name, contestant, "gpu")
        return result

    def _run(self, name: str, contestant: Contestant, device: Device) -> tuple[TestResult, list[int]]:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
            place = Path(folder)
            for part in ("barrier", "test_dir", "init_dir"):
                (place / part).mkdir()
            try:
                codes, said = self._fork(name, contestant, device, place)
            finally:
                self.end()
            shown = said or _last_lines(place)
        skips = {skip.exit_code for skip in self.helpers.TEST_SKIPS.values()}
        outcome: Outcome = "failed"
        if all(code == 0 for code in codes):
            outcome = "passed"
        elif all(code in skips for code in codes):
            outcome = "skipped"
        detail = shown if outcome == "failed" else ""
        return TestResult(name, contestant, device, outcome, time.monotonic() - began, detail), codes

    def _fork(self, name: str, contestant: Contestant, device: Device, place: Path) -> tuple[list[int], str]:
        """The exit codes of all ranks, and what the first rank that failed said of it."""
        context = multiprocessing.get_context("fork")
        pipes: list[Any] = []
        for rank in range(RANKS):
            mine, theirs = context.Pipe()
            body = functools.partial(self._test, name, contestant, device, place, rank, theirs)
            process = context.Process(target=_rank, args=(body, place / f"output{rank}", os.getpid()))
            process.start()
            theirs.close()
            self.running.append(process)
            pipes.append(mine)
        deadline, said = time.monotonic() + LIMIT_S, ""
        waiting = {process.sentinel: process for process in self.running}
        while waiting and time.monotonic() < deadline:
            ready: list[Any] = multiprocessing.connection.wait([*waiting, *pipes], timeout=1.0)
            for one in ready:
                if one in waiting:
                    process = waiting.pop(one)
                    process.join()
                    if process.exitcode not in (0, *(skip.exit_code for skip in self.helpers.TEST_SKIPS.values())):
                        deadline = min(deadline, time.monotonic() + GRACE_S)
                    continue
                try:
                    said = said or str(one.recv())
                except (EOFError, OSError):
                    pipes.remove(one)
        if waiting and not said:
            said = f"{len(waiting)} of {RANKS} ranks had not ended in time"
        return [-1 if process.exitcode is None else process.exitcode for process in self.running], said

    def _test(self, name: str, contestant: Contestant, device: Device, place: Path, rank: int, pipe: Any) -> None:
        os.environ |= {"TEMP_DIR": str(place), "INIT_METHOD": f"file://{place}/init_dir/shared_init_file"}
        self.module.INIT_METHOD = os.environ["INIT_METHOD"]
        scope: Any = nullcontext()
        if device == "gpu":
            from . import accelerator

            accelerator.take_the_cpu(self.module, self.helpers, RANKS)
            scope = accelerator.OnCpu()
        if contestant == "understudy":
            from . import contestant as stand_in

            stand_in.take_the_place_of_gloo(self.module)
        with scope:
            self.case._run(rank, name, str(place / "rendezvous"), pipe)

    def end(self) -> None:
        """End all processes of the running test, with all that they have started."""
        for process in self.running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join()
            process.close()
        self.running.clear()


def _rank(body: Callable[[], None], output: Path, parent: int) -> None:
    """One rank: a process group of its own, so that Ctrl-C reaches the parent alone. Ends with the parent."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    code = 0
    try:
        body()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _last_lines(place: Path) -> str:
    texts = [file.read_text(errors="replace") for file in sorted(place.glob("output*"))]
    return next((text[-_TAIL:] for text in texts if "Traceback" in text), max(texts, key=len, default="")[-_TAIL:])

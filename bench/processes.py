"""Commands that a benchmark runs beside itself, with everything they start."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from understudy.host.family import die_with_parent
from understudy.host.temporary import scratch

_GRACE_S = 10.0
_LAST_LINES = 15


class CommandFailed(RuntimeError):
    """A command has ended otherwise than it should; the message ends with its last lines."""


class Command:
    """A running command, with its temporary files beside its log. When the context ends, neither it nor anything it has
    started runs any more."""

    def __init__(self, args: Sequence[str], log: Path, env: Mapping[str, str] = {}) -> None:
        self._args, self._log = args, log
        self._env = {**os.environ, "TMPDIR": str(log.parent), **env}
        self._paused: list[int] = []

    def __enter__(self) -> Self:
        parent = os.getpid()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._args,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent),
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ask twice (`understudy run` takes the second time for "at once"), then kill."""
        family = self.family
        self.resume()
        for _ in range(2):
            if self._process.poll() is None:
                self._process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(1.0)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        if self._process.poll() is None:
            for pid in family:
                _send(pid, signal.SIGKILL)
            self._process.wait()

    @property
    def family(self) -> list[int]:
        """Its process and all that come from it, parents first."""
        return [self._process.pid, *descendants(self._process.pid)]

    def wait(self, limit: float) -> None:
        """It has ended well."""
        try:
            code = self._process.wait(limit)
        except subprocess.TimeoutExpired:
            raise CommandFailed(self.said(f"has not ended within {limit:g} s")) from None
        if code != 0:
            raise CommandFailed(self.said(f"has ended with code {code}"))

    def check(self) -> None:
        """It has not ended yet."""
        if self._process.poll() is not None:
            raise CommandFailed(self.said(f"has ended too early, with code {self._process.returncode}"))

    def pause(self) -> None:
        """Nothing of it gets processor time until `resume`."""
        self._paused = self.family
        for pid in self._paused:
            _send(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in reversed(self._paused):
            _send(pid, signal.SIGCONT)
        self._paused = []

    def said(self, what: str) -> str:
        """What is wrong with it, and its last lines."""
        lines = self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        return "\n  ".join([f"{' '.join(self._args[1:4])} … {what}:", *lines])


def torchrun(
    workers: int, script: str, *args: str, options: Sequence[str] = ("--standalone",)
) -> tuple[list[str], dict[str, str]]:
    """The command for a plain job, or for one node of it, on this computer and its environment."""
    command = [sys.executable, "-m", "torch.distributed.run", *options, f"--nproc-per-node={workers}"]
    env = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        # a store shared by two lives of a job hangs now and then on what the first has left in it
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    return [*command, script, *args], env


def descendants(pid: int) -> list[int]:
    """All processes that come from this one, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]


async def rests(pids: Sequence[int], seconds: float = 1.5, share: float = 0.3) -> bool:
    """Whether these processes, for a while, hardly want the processor: whatever they had to get ready is ready."""
    before = sum(_wanted(pid) for pid in pids)
    await asyncio.sleep(seconds)
    return sum(_wanted(pid) for pid in pids) - before < share * seconds


def _wanted(pid: int) -> float:
    """Seconds for which a process's threads have run or waited for a processor so far; none, once it is gone."""
    nanoseconds = 0
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            ran, waited, _ = (thread / "schedstat").read_text().split()
            nanoseconds += int(ran) + int(waited)
    return nanoseconds * 1e-9


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder for what a benchmark writes, gone however it ends: SIGTERM ends it as Ctrl-C does."""
    with interruptible(), scratch("understudy-bench-") as folder:
        yield folder


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM ends the benchmark as Ctrl-C does, so that everything is put away."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if callable(signal.getsignal(signal.SIGINT)):
            signal.raise_signal(signal.SIGINT)  # asyncio has a handler of its own
        else:
            raise KeyboardInterrupt  # jobs in the background of a script ignore SIGINT

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)

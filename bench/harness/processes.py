"""Commands that a benchmark starts, and their processes."""

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
    """A command or a job did not do what the benchmark waited for; the message ends with its last output lines."""


class Command:
    """A running command.

    Its temporary files are beside its log. When the context ends, the command and all processes that it started have
    ended.
    """

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
        """Send SIGTERM twice (`understudy run` stops at once after the second), then SIGKILL."""
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
        """The command's process and all its descendants, parents first."""
        return [self._process.pid, *descendants(self._process.pid)]

    def wait(self, limit: float) -> None:
        """Wait for the end; raise `CommandFailed` if the exit code is not 0 or `limit` seconds have passed."""
        try:
            code = self._process.wait(limit)
        except subprocess.TimeoutExpired:
            raise CommandFailed(self.with_output(f"has not ended within {limit:g} s")) from None
        if code != 0:
            raise CommandFailed(self.with_output(f"has ended with code {code}"))

    def check(self) -> None:
        """Raise `CommandFailed` if the command has ended."""
        if self._process.poll() is not None:
            raise CommandFailed(self.with_output(f"has ended too early, with code {self._process.returncode}"))

    def pause(self) -> None:
        """Stop all its processes until `resume`."""
        self._paused = self.family
        for pid in self._paused:
            _send(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in reversed(self._paused):
            _send(pid, signal.SIGCONT)
        self._paused = []

    def with_output(self, what: str) -> str:
        """An error message: the command, `what` is wrong, and the last output lines."""
        lines = self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        return "\n  ".join([f"{' '.join(self._args[1:4])} … {what}:", *lines])


def torchrun(
    workers: int, script: str, *args: str, options: Sequence[str] = ("--standalone",)
) -> tuple[list[str], dict[str, str]]:
    """Command and environment for a plain torchrun job, or for one of its nodes, on this computer."""
    command = [sys.executable, "-m", "torch.distributed.run", *options, f"--nproc-per-node={workers}"]
    env = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        # a store shared by two lives of a job hangs now and then on what the first has left in it
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    return [*command, script, *args], env


def descendants(pid: int) -> list[int]:
    """All descendants of a process, parents first."""
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
    """Whether these processes are idle: for `seconds`, they run or wait to run for less than `share` of the time."""
    before = sum(_wanted(pid) for pid in pids)
    await asyncio.sleep(seconds)
    return sum(_wanted(pid) for pid in pids) - before < share * seconds


def _wanted(pid: int) -> float:
    """Seconds for which a process's threads have run or waited to run so far; 0 if the process has ended."""
    nanoseconds = 0
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            ran, waited, _ = (thread / "schedstat").read_text().split()
            nanoseconds += int(ran) + int(waited)
    return nanoseconds * 1e-9


@contextmanager
def workplace() -> Iterator[Path]:
    """A temporary folder for a benchmark's files; it is removed however the benchmark ends, by SIGTERM too."""
    with interruptible(), scratch("understudy-bench-") as folder:
        yield folder


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM end the benchmark as Ctrl-C does: with `KeyboardInterrupt`, so that contexts are closed."""

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

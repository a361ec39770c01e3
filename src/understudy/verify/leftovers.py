"""What a job leaves behind: processes, shared memory, temporary files."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from understudy.host.temporary import scratch

from . import processes
from .processes import Process

MARK = "UNDERSTUDY_CHAOS_MARK"
_GRACE_S = 2.0


class Enclosure:
    """A temporary folder and an environment mark for a job's processes, so that leftovers are known to be theirs."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.folder, self.mark = folder, mark
        self._shared = _shared_memory()
        self._before = set(_identified())
        """Such as a fork server of the checking process."""

    def leftovers(self, seen: Mapping[int, Process]) -> list[str]:
        """What is left, in words. `seen` are processes of the job; those that are about to end get a moment."""
        deadline = time.monotonic() + _GRACE_S
        while (alive := self._alive(seen)) and time.monotonic() < deadline:
            time.sleep(0.05)
        found = [f"process {pid} still runs: {command}" for pid, command in sorted(alive.items())]
        found += [f"temporary file {path}" for path in sorted(self.folder.rglob("*")) if not path.is_dir()]
        ours = {str(pid) for pid in seen}
        for name in sorted(_shared_memory() - self._shared):
            if "understudy" in name or ours & set(name.replace("-", "_").split("_")):
                found.append(f"shared memory /dev/shm/{name}")
        return found

    def _alive(self, seen: Mapping[int, Process]) -> dict[int, str]:
        marked = processes.marked(f"{MARK}={self.mark}") - {os.getpid()}
        ours = {(pid, process.started) for pid, process in seen.items()}
        return {
            process.pid: process.command.strip()
            for key, process in _identified().items()
            if key not in self._before and (key in ours or process.pid in marked)
        }


def _identified() -> dict[tuple[int, int], Process]:
    """All running processes, by pid and start."""
    return {(process.pid, process.started): process for process in processes.table().values()}


def _shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()


@contextmanager
def enclosure() -> Iterator[Enclosure]:
    """Give all processes that are started inside a temporary folder and a mark; they inherit the environment."""
    mark = secrets.token_hex(8)
    with scratch("understudy-chaos-") as folder:
        cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or f"{folder.parent}/torchinductor_{os.getuid()}"
        ours = {MARK: mark, "TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": cache}
        before = {name: os.environ.get(name) for name in ours}
        os.environ.update(ours)
        try:
            yield Enclosure(folder, mark)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

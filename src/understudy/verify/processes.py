"""The processes of a job on this computer, as the kernel knows them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

CONTROLLER = "understudy.controller.server.server"


class Process(msgspec.Struct, frozen=True):
    """A running process."""

    pid: int
    parent: int
    started: int
    """Distinguishes it from another process with the same pid."""
    command: str


Table = Mapping[int, Process]


def table(proc: Path = Path("/proc")) -> dict[int, Process]:
    """All running processes, by pid; zombies are left out."""
    found = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                pid = int(folder.name)
                if fields[0] not in "ZX":
                    found[pid] = Process(pid, int(fields[1]), int(fields[19]), command)
    return found


def offspring(root: int, known: Table) -> dict[int, Process]:
    found: dict[int, Process] = {}
    parents = {root}
    while parents:
        parents = {pid for pid, process in known.items() if process.parent in parents and pid not in found}
        found |= {pid: known[pid] for pid in parents}
    return found


def fork_server(worker: int, known: Table) -> int | None:
    process = known.get(worker)
    return None if process is None or process.parent not in known else process.parent


def agent(worker: int, known: Table) -> int | None:
    server = fork_server(worker, known)
    return None if server is None else fork_server(server, known)


def marked(mark: str, proc: Path = Path("/proc")) -> set[int]:
    """Processes with this text in their environment, as far as it can be read."""
    found = set()
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if mark.encode() in (folder / "environ").read_bytes():
                    found.add(int(folder.name))
    return found & table(proc).keys()

"""The jobs that run on this computer, for commands to find them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec


class Entry(msgspec.Struct, frozen=True):
    """A running job and how to reach its controller."""

    job: str
    url: str
    secret: str
    pid: int
    """Process id of `understudy run`."""
    run_dir: str


class NoJob(LookupError):
    """No job runs here, or several and none was chosen."""


def home() -> Path:
    """The folder of the registry, readable by this user only: it holds the secrets of the jobs."""
    base = os.environ.get("UNDERSTUDY_HOME") or os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "understudy" / "jobs"


def enter(entry: Entry) -> Path:
    folder = home()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{entry.job}-{entry.pid}.json"
    draft = path.with_suffix(".tmp")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600, exist_ok=False)
    draft.write_bytes(msgspec.json.encode(entry))
    draft.replace(path)
    return path


def running() -> list[Entry]:
    """Jobs that run; entries of jobs that have ended are removed."""
    found = []
    for path in sorted(home().glob("*.json")):
        with suppress(OSError, msgspec.MsgspecError):
            entry = msgspec.json.decode(path.read_bytes(), type=Entry)
            if _lives(entry.pid):
                found.append(entry)
            else:
                path.unlink(missing_ok=True)
    return found


def find(job: str | None = None) -> Entry:
    """The job with this name or pid, or the only one."""
    known = running()
    if not known:
        what = "no job" if job is None else f"no job {job!r}"
        raise NoJob(f"{what} runs here; start one with understudy run, or give --controller")
    jobs = [entry for entry in known if job in (None, entry.job, str(entry.pid))]
    if not jobs:
        raise NoJob(f"no job {job!r} runs here; running: {_list(known)}")
    if len(jobs) > 1:
        raise NoJob(f"several jobs run here: {_list(jobs)}; choose one with --job NAME or --job PID")
    return jobs[0]


def _list(entries: list[Entry]) -> str:
    return ", ".join(f"{entry.job} (pid {entry.pid})" for entry in entries)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True

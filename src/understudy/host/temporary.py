"""Temporary folders and files that are removed even if the process is killed."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_KEEPER = """
trap '' PIPE
mkdir -m 700 -- "$1" || exit 1
echo
read _
tries=100
until rm -rf -- "$1" 2>/dev/null || [ $((tries -= 1)) -le 0 ]; do
    chmod -R u+rwx -- "$1" 2>/dev/null
    sleep 0.1
done
"""
"""Makes the folder, and removes it when the input ends: also if the process at the other end is killed.

Processes that die at the same time may still write into the folder, and may have made parts of it read-only.
"""


def settle() -> None:
    """Determines the folder for temporary files of this process.

    Python's `tempfile` determines it at first use by writing and removing a file: a process that is killed meanwhile
    leaves that file behind. `settle` uses a file without a name. If that is not possible, `tempfile` does it its way.
    """
    tempfile.tempdir = tempfile.tempdir or _found()


def nameless(folder: str) -> IO[bytes]:
    """A file without a name, which needs no removal, in `folder` or in the folder for temporary files."""
    return tempfile.TemporaryFile(dir=folder or tempfile.tempdir or _found())


def _found() -> str | None:
    """The folder for temporary files, from the environment. None: a file without a name cannot be written there."""
    named = filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP")))
    place = Path(next(named, "/tmp")).absolute()
    try:
        file = os.open(place, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, b"room?")
        finally:
            os.close(file)
    except OSError:
        return None
    return str(place)


@contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A temporary folder that is removed when the context ends, or soon after this process is killed.

    A small separate process makes and removes the folder.
    """
    settle()
    place = Path(tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(6)}"
    with subprocess.Popen(
        ["/bin/sh", "-c", _KEEPER, "sh", place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={"PATH": os.environ.get("PATH") or os.defpath},
        start_new_session=True,  # Ctrl-C must not reach the keeper
    ) as keeper:
        assert keeper.stdin
        assert keeper.stdout
        assert keeper.stderr
        if not keeper.stdout.readline():
            raise OSError(f"cannot create a temporary folder: {keeper.stderr.read().decode(errors='replace').strip()}")
        try:
            yield place
        finally:
            try:
                shutil.rmtree(place, ignore_errors=True)  # the keeper may have been killed
            finally:
                with suppress(BrokenPipeError):
                    os.write(keeper.stdin.fileno(), b"\n")  # a forked child may hold this end open
                keeper.wait()  # after Ctrl-C, `Popen` itself waits only briefly

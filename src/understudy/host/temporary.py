"""Temporary folders that nobody leaves behind, not even a process that is killed."""

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
"""Ends when its input does, so also when whoever holds the other end is killed. What dies at the same time may still
write into the folder, and may have made parts of it read-only."""


def settle() -> None:
    """Where this process puts temporary files is known from now on.

    Python's `tempfile` finds it out when first asked, by writing a file and removing it: a process killed just then
    leaves that file. Here the file never has a name. Where this can't be done, `tempfile` goes on as it would."""
    tempfile.tempdir = tempfile.tempdir or _found()


def nameless(folder: str) -> IO[bytes]:
    """A file without a name, so that nobody has to remove it; without a folder it is where temporary files go. That
    may still be settled otherwise."""
    return tempfile.TemporaryFile(dir=folder or tempfile.tempdir or _found())


def _found() -> str | None:
    """Where temporary files go, by the environment; None if a file without a name can't be written there."""
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
    """A temporary folder. It is gone when the context ends, and soon after this process has been killed: a small
    process of its own makes it and removes it."""
    settle()
    place = Path(tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(6)}"
    with subprocess.Popen(
        ["/bin/sh", "-c", _KEEPER, "sh", place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={"PATH": os.environ.get("PATH") or os.defpath},
        start_new_session=True,  # Ctrl-C is not for it
    ) as keeper:
        assert keeper.stdin
        assert keeper.stdout
        assert keeper.stderr
        if not keeper.stdout.readline():
            raise OSError(f"cannot make a temporary folder: {keeper.stderr.read().decode(errors='replace').strip()}")
        try:
            yield place
        finally:
            try:
                shutil.rmtree(place, ignore_errors=True)  # were the keeper killed, nobody else would
            finally:
                with suppress(BrokenPipeError):
                    os.write(keeper.stdin.fileno(), b"\n")  # whoever was forked may hold that end, too
                keeper.wait()  # after Ctrl-C `Popen` itself would not for long

"""Removes a fork server's Unix socket when the fork server ends.

The fork server imports this module before anything else, and no other process does. The parent creates the socket and
removes it at its own end; a parent that is killed cannot.
"""

from __future__ import annotations

import atexit
import os
import socket
from contextlib import suppress
from pathlib import Path


def listening_socket() -> Path | None:
    """The file of the Unix socket at which this process listens, or None."""
    sockets = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if fd.is_socket()]
    for number in sockets:
        with socket.socket(fileno=os.dup(number)) as end:
            listens = end.family == socket.AF_UNIX and end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and (name := os.fsdecode(end.getsockname())).startswith("/"):
                return Path(name)
    return None


def remove(path: Path) -> None:
    """Remove the socket, and its folder if it is empty. The parent may be doing the same."""
    path.unlink(missing_ok=True)
    with suppress(OSError):
        path.parent.rmdir()


if (_path := listening_socket()) is not None:
    atexit.register(remove, _path)  # forked workers exit without calling it

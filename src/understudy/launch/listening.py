"""Imported by a fork server and nobody else: what it listens at goes with it. Its parent made that, and removes it when
it ends; one that is killed does not."""

from __future__ import annotations

import atexit
import os
import socket
from contextlib import suppress
from pathlib import Path


def listened_at() -> Path | None:
    """The file of the Unix socket at which this process listens."""
    sockets = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if fd.is_socket()]
    for number in sockets:
        with socket.socket(fileno=os.dup(number)) as end:
            listens = end.family == socket.AF_UNIX and end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and (name := os.fsdecode(end.getsockname())).startswith("/"):
                return Path(name)
    return None


def remove(place: Path) -> None:
    """The socket, and its folder unless something else is in it. The parent may be doing the same."""
    place.unlink(missing_ok=True)
    with suppress(OSError):
        place.parent.rmdir()


if (place := listened_at()) is not None:
    atexit.register(remove, place)  # forked workers leave without it

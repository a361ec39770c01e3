"""The programs of the workers in these tests: functions of a connection's descriptor and a spec, named as targets."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path


def leave(connection: int, spec: bytes) -> None:
    """Exit with the Python expression in the spec."""
    sys.exit(eval(spec))


def fail(connection: int, spec: bytes) -> None:
    print("before", end="")
    raise ValueError(spec.decode())


def interrupt(connection: int, spec: bytes) -> None:
    signal.raise_signal(int(spec))


def write(connection: int, spec: bytes) -> None:
    """Write the spec past Python's buffers."""
    while spec:
        spec = spec[os.write(1, spec) :]


def speak(connection: int, spec: bytes) -> None:
    """What is printed last has no newline and waits in a buffer; what C printed, too."""
    print("one")
    print("two", file=sys.stderr)
    print("three", end="")
    ctypes.CDLL(None).puts(b"four")


def echo(connection: int, spec: bytes) -> None:
    """Send the spec, then everything back until the other side has ended."""
    with socket.socket(fileno=connection) as sock:
        sock.sendall(spec)
        while data := sock.recv(1 << 16):
            sock.sendall(data)


def wait(connection: int, spec: bytes) -> None:
    """Live until the connection ends."""
    with socket.socket(fileno=connection) as sock:
        sock.sendall(b".")
        sock.recv(1)


def describe(connection: int, spec: bytes) -> None:
    """Send home what this process is."""
    about = {
        "connection": connection,
        "fds": {entry.name: target(entry) for entry in Path("/proc/self/fd").iterdir()},
        "env": dict(os.environ),
        "libc": subprocess.run(["/usr/bin/env", "-0"], capture_output=True, check=True).stdout.decode(),
        "cwd": str(Path.cwd()),
        "temporary": tempfile.tempdir,  # None until its first use
        "group": os.getpgid(0),
        "threads": [threading.active_count(), len(list(Path("/proc/self/task").iterdir()))],
        "signals": {n: str(h) for n in signal.valid_signals() if (h := signal.getsignal(n)) != signal.SIG_DFL},
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "loop": asyncio._get_running_loop() is not None,
        "json": spec.decode() in sys.modules,
    }
    with socket.socket(fileno=connection) as sock:
        sock.sendall(json.dumps(about).encode())


def target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except FileNotFoundError:
        return "the listing"


def at_exit(connection: int, spec: bytes) -> None:
    """Python's exit: threads are waited for, then handlers run, then buffers are flushed."""
    go = threading.Event()
    thread = threading.Thread(target=lambda: go.wait() and print("thread"))
    thread.start()
    atexit.register(print, "handler", end="")
    go.set()


def orphan(connection: int, spec: bytes) -> None:
    """Leave a process behind that holds stdout; in a session of its own if told so. Its pid is sent."""
    code = "import sys; sys.stdin.read()"
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=read, pass_fds=[write], start_new_session=spec == b"session"
    )
    with socket.socket(fileno=connection) as sock:
        sock.sendall(str(process.pid).encode())
    print("last words", flush=True)
    os._exit(5)


def threads_of_torch(connection: int, spec: bytes) -> None:
    import torch

    print(torch.get_num_threads(), int(torch.ones(8).sum()))

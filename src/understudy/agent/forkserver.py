"""A process that has imported what workers need and forks one of them in milliseconds, on its agent's request.

The server has no threads of its own, no event loop and no signal handlers; `fork_client.py` is the agent's side.

The modules are imported under the server's environment, which decides for good what libraries read when loaded:
`LD_*`, `PYTHON*` (so also `sys.path` and the hash seed), `OMP_*`, `OPENBLAS_*`, `MKL_*`. Code that reads a variable
later sees the worker's own. `OMP_NUM_THREADS` is the exception: if torch has been imported, a worker applies it by
`set_num_threads`.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import importlib
import os
import pkgutil
import select
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from understudy.host.family import die_with_parent
from understudy.host.temporary import settle
from understudy.protocol.framing import Framing

CONNECTION_FD = 3
"""Descriptor of a worker's socket in the worker, which has no others but the standard three."""


class Spawn(msgspec.Struct, frozen=True, tag="spawn"):
    """Start a worker. Comes with three descriptors: the worker's stdout, stderr and socket."""

    id: int
    target: str
    spec: bytes
    env: list[tuple[bytes, bytes]]
    cwd: bytes


class ForkReady(msgspec.Struct, frozen=True, tag="ready"):
    """All modules are imported."""


class ForkFailed(msgspec.Struct, frozen=True, tag="failed"):
    """A module cannot be imported; the server ends."""

    module: str
    error: str


class Started(msgspec.Struct, frozen=True, tag="started"):
    """A worker has started. Comes with one descriptor, the worker's pidfd, opened before the worker could be reaped."""

    id: int
    pid: int


class ForkRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The worker could not be forked."""

    id: int
    error: str


class ForkExited(msgspec.Struct, frozen=True, tag="exited"):
    """The worker is reaped; a negative code is the number of the signal that ended it."""

    id: int
    code: int


Message = Spawn | ForkReady | ForkFailed | Started | ForkRefused | ForkExited

_FDS: dict[type[Message], int] = {Spawn: 3, Started: 1}
MESSAGES: Framing[Message] = Framing(Message, "message of the fork server")
_libc = ctypes.CDLL(None, use_errno=True)


class ForkInbox:
    """Joins the bytes of a stream socket into messages. Descriptors come in order, not later than their message."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = bytearray()
        self._fds: deque[int] = deque()

    def receive(self) -> bool:
        """Take the bytes that are there; False at the end of the stream. Raises BlockingIOError if there are none."""
        try:
            # socket.recv_fds drops its flags
            data, attached, flags, _ = self._sock.recvmsg(1 << 16, socket.CMSG_SPACE(64), socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return False
        for _, _, packed in attached:
            self._fds.extend(array.array("i", packed))
        if flags & socket.MSG_CTRUNC:
            raise OSError("descriptors were lost on the way; raise the limit of open files (ulimit -n)")
        self._data += data
        return bool(data)

    def messages(self) -> Iterator[tuple[Message, list[int]]]:
        """The complete messages so far, each with its descriptors, which the caller owns from then on."""
        for message in MESSAGES.split(self._data):
            yield message, [self._fds.popleft() for _ in range(_FDS.get(type(message), 0))]

    def close(self) -> None:
        """Close the descriptors of messages that were not taken."""
        while self._fds:
            os.close(self._fds.popleft())


class Server:
    """Forks on request, reaps and reports until the agent closes the socket; then kills all workers that still run."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._inbox = ForkInbox(control)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._workers: dict[int, tuple[int, int]] = {}
        """pidfd → (id, pid)"""

    def serve(self) -> None:
        while True:
            self._reap()
            if self._control.fileno() in dict(self._poll.poll()):
                if not self._inbox.receive():
                    break
                for message, fds in self._inbox.messages():
                    assert isinstance(message, Spawn)
                    self._fork(message, fds)
                    self._reap()
        for pidfd in self._workers:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        self._poll.unregister(self._control)
        while self._workers:
            self._poll.poll()
            self._reap()

    def say(self, message: Message, fds: Sequence[int] = ()) -> None:
        data = memoryview(MESSAGES.encode(message))
        if fds:
            data = data[socket.send_fds(self._control, [data], fds) :]
        self._control.sendall(data)

    def _fork(self, order: Spawn, fds: list[int]) -> None:
        server = os.getpid()
        # until the worker has handlers of its own
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # OpenBLAS stops its threads before a fork
                pid = os.fork()
        except OSError as error:
            self.say(ForkRefused(order.id, str(error)))
        else:
            if pid == 0:
                self._control.detach()
                _live(order, fds, server)
            with suppress(OSError):  # the worker does the same, sooner or later
                os.setpgid(pid, pid)
            pidfd = os.pidfd_open(pid)
            self._workers[pidfd] = (order.id, pid)
            self._poll.register(pidfd, select.POLLIN)
            self.say(Started(order.id, pid), [pidfd])
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for fd in fds:
                os.close(fd)

    def _reap(self) -> None:
        """Report workers that have ended. The rest of a worker's process group is killed before its pid is free."""
        for pidfd, _ in self._poll.poll(0):
            if pidfd in self._workers:
                id, pid = self._workers.pop(pidfd)
                with suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                self._poll.unregister(pidfd)
                os.close(pidfd)
                self.say(ForkExited(id, os.waitstatus_to_exitcode(status)))


def _live(order: Spawn, fds: list[int], server: int) -> NoReturn:
    """Run a worker in the forked process. Ends as Python would, but without tearing the interpreter down."""
    code = 1
    try:
        code = _exit_code(lambda: _begin(order, fds, server))
        code = _exit_code(threading._shutdown) or code  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        _libc.fflush(None)
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            signal.raise_signal(-code)
        os._exit(code & 0xFF)


def _begin(order: Spawn, fds: list[int], server: int) -> object:
    """Turn this process into the requested worker and call its target."""
    die_with_parent(server)
    os.setpgid(0, 0)
    _keep_only(*fds)
    _reset_signals()
    _reset_exit()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    os.environb.clear()
    os.environb.update(order.env)
    os.chdir(order.cwd)
    tempfile.tempdir = None  # the server's answer holds for its own environment
    sys.argv = [order.target]
    torch, threads = sys.modules.get("torch"), os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None and threads.isdecimal() and int(threads) > 0:
        torch.set_num_threads(int(threads))
    return pkgutil.resolve_name(order.target)(CONNECTION_FD, order.spec)


def _keep_only(out: int, err: int, connection: int) -> None:
    """Keep descriptors 0 to CONNECTION_FD for the worker and close all others. 0 is /dev/null from the start."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.dup2(connection, CONNECTION_FD)
    os.set_inheritable(CONNECTION_FD, False)
    _close_all_but(*range(CONNECTION_FD + 1))


def _close_all_but(*kept: int) -> None:
    for entry in Path("/proc/self/fd").iterdir():
        if int(entry.name) not in kept:
            with suppress(OSError):  # the directory itself was open while it was read
                os.close(int(entry.name))


def _reset_signals() -> None:
    """Restore the signal handlers of a fresh Python process, whatever imported modules or the server's parent set."""
    fresh: dict[int, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGPIPE: signal.SIG_IGN,
        signal.SIGXFSZ: signal.SIG_IGN,
    }
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        handler = fresh.get(number, signal.SIG_DFL)
        if signal.getsignal(number) not in (None, handler):  # None: not Python's, such as faulthandler's
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _reset_exit() -> None:
    """Forget the exit functions of the server's modules, except those that every process needs of its own."""
    atexit._clear()
    for module, function in (("multiprocessing.util", "_exit_function"), ("logging", "shutdown")):
        if module in sys.modules:
            atexit.register(getattr(sys.modules[module], function))


def _exit_code(call: Callable[[], object]) -> int:
    """The exit code that Python would end with after this call. Prints a traceback if Python would print one."""
    try:
        call()
    except SystemExit as exit:
        if exit.code is None or isinstance(exit.code, int):
            return (exit.code or 0) & 0xFF
        print(exit.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def preload(modules: Sequence[str]) -> ForkFailed | None:
    """Import modules in order. Returns the first that fails or leaves a thread running, if any."""
    gc.disable()  # a tenth of the time: what is imported stays
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:
            return ForkFailed(name, " ".join(f"{type(error).__name__}: {error}".split()))
        if threading.active_count() > 1:
            return ForkFailed(name, "it leaves a thread running, which a fork would not have")
    gc.collect()
    gc.freeze()
    gc.enable()
    return None


def fork() -> tuple[socket.socket, int]:
    """Fork a server from the calling process, which has imported what workers need and has one thread. Returns the
    socket that leads to the server, and the server's pid."""
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            die_with_parent(parent)
            os.setpgid(0, 0)
            os.dup2(2, 1)
            _close_all_but(0, 1, 2, theirs.fileno())
            ours.detach()
            _reset_signals()
            Server(theirs).serve()
            code = 0
        finally:
            os._exit(code)
    theirs.close()
    with suppress(OSError):  # the server does the same, sooner or later
        os.setpgid(pid, pid)
    return ours, pid


def main(arguments: Sequence[str]) -> int:
    """Arguments: the socket's descriptor, the agent's pid, and the modules to import."""
    die_with_parent(int(arguments[1]))
    _reset_signals()
    settle()
    with socket.socket(fileno=int(arguments[0])) as control:
        control.set_inheritable(False)
        server = Server(control)
        failure = preload(arguments[2:])
        sys.stdout.flush()
        sys.stderr.flush()
        with suppress(BrokenPipeError):
            server.say(failure or ForkReady())
            if failure is None:
                server.serve()
    return int(failure is not None)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    atexit._run_exitfuncs()
    os._exit(code)  # tearing torch down would cost other processes more than a training step

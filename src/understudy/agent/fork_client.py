"""The agent's side of the fork server: starts workers, reads their output, and sees them end."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

from . import forkserver
from .forkserver import MESSAGES, ForkExited, ForkFailed, ForkInbox, ForkReady, ForkRefused, Message, Spawn, Started
from .output import Bars, OnOutput, OutputPipe

CLOSE_S = 5.0
"""Time limit of close(): for the server, and then for workers that the kernel does not let die."""


class ForkServerError(Exception):
    """No worker can be started."""


class ForkedWorker:
    """A worker process, as its agent sees it."""

    def __init__(self, pid: int, pidfd: int, birth: _Birth) -> None:
        self.pid = pid
        self.connection = birth.connection
        """The agent's end of the worker's socket, non-blocking. Messages stay readable until the caller closes it."""
        self.code: int | None = None
        """As `exited` has it, or None while the worker lives."""
        self._pidfd = pidfd
        self._pipes = (
            OutputPipe(birth.out, "stdout", birth.on_output, birth.bars),
            OutputPipe(birth.err, "stderr", birth.on_output, birth.bars),
        )
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[int] = self._loop.create_future()

    @property
    def exited(self) -> asyncio.Future[int]:
        """The exit code, or minus the number of the signal, once the last output was delivered. Each call returns a
        future of its own, which may be cancelled, as `wait_for` does."""
        return asyncio.shield(self._exited)

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal. Does nothing if the worker has died, even if another process has its pid now."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal_number)

    def _settle(self, code: int) -> None:
        if self.code is not None:
            return
        for pipe in self._pipes:
            pipe.drain()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self.code = code
        self._exited.set_result(code)


class _Birth(NamedTuple):
    """A worker that was requested and has not started, and the agent's ends of its output and socket."""

    out: int
    err: int
    connection: socket.socket
    on_output: OnOutput
    bars: Bars | None
    child: asyncio.Future[ForkedWorker]

    def fail(self, reason: str) -> None:
        os.close(self.out)
        os.close(self.err)
        self.connection.close()
        if not self.child.done():
            self.child.set_exception(ForkServerError(reason))


class ForkClient:
    """A fork server and its workers. All of them end with the agent, in whatever way the agent ends.

    More precisely, they end with the thread that called `open`, which runs the event loop."""

    def __init__(self, control: socket.socket, pid: int, reap: Callable[[], int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self.pid = pid
        """Of the server."""
        self._reap = reap
        """Waits for the end of the server and returns its exit code; called once."""
        self._pidfd = os.pidfd_open(pid)
        self._inbox = ForkInbox(control)
        self._outbox: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._births: dict[int, _Birth] = {}
        self._children: dict[int, ForkedWorker] = {}
        self._ids = itertools.count()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._gone = asyncio.Event()
        self._closed = False
        self._refusal = ""
        """Why there will be no more workers."""
        self._loop.add_reader(control, self._hear)
        self._loop.add_reader(self._pidfd, self._lose)

    @classmethod
    async def open(cls, preload: Sequence[str] = (), *, env: Mapping[str, str] | None = None) -> ForkClient:
        """Start a fork server that has imported these modules, in this order. `env` is the server's environment, if
        not the agent's: the modules read it, and PYTHONPATH, since the agent's working directory is not searched."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs, ExitStack() as undo:
            undo.callback(ours.close)
            fd = theirs.fileno()
            server = subprocess.Popen(
                [sys.executable, "-P", "-m", "understudy.agent.forkserver", str(fd), str(os.getpid()), *preload],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=[fd],
                process_group=0,
                env=env,
            )
            undo.callback(server.wait)
            undo.callback(server.kill)
            client = cls(ours, server.pid, server.wait)
            undo.pop_all()
        try:
            await client._ready
        except BaseException:
            client._end()
            raise
        return client

    @classmethod
    def fork(cls) -> ForkClient:
        """Fork a server from this process, which has imported what workers need and has one thread."""
        control, pid = forkserver.fork()
        control.setblocking(False)
        client = cls(control, pid, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        client._ready.set_result(None)
        return client

    async def spawn(
        self,
        target: str,
        spec: bytes = b"",
        *,
        env: Mapping[str, str],
        cwd: str,
        on_output: OnOutput,
        bars: Bars | None = None,
    ) -> ForkedWorker:
        """Start a worker that calls the function `module:function` with the descriptor of its socket and the spec.

        `on_output` gets the lines that the worker writes, and `bars` the states of progress bars; without `bars` these
        are part of the lines. `env` is the worker's whole environment. Errors in the worker, such as a target that does
        not exist, are in its stderr. If this call is cancelled, the worker is killed."""
        if self._refusal:
            raise ForkServerError(self._refusal)
        kept = [each for each in self._children.items() if each[1].code is None or each[1].connection.fileno() >= 0]
        self._children = dict(kept)
        variables = [(os.fsencode(name), os.fsencode(value)) for name, value in env.items()]
        id = next(self._ids)
        request = MESSAGES.encode(Spawn(id, target, spec, variables, os.fsencode(cwd)))
        with ExitStack() as undo:
            pipes = []
            for _ in range(2):
                ends = os.pipe()
                for fd in ends:
                    undo.callback(os.close, fd)
                os.set_blocking(ends[0], False)
                pipes.append(ends)
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            undo.pop_all()
        (out, their_out), (err, their_err) = pipes
        birth = self._births[id] = _Birth(out, err, ours, on_output, bars, self._loop.create_future())
        self._outbox.append((memoryview(request), (their_out, their_err, theirs.detach())))
        self._speak()
        try:
            return await birth.child
        except asyncio.CancelledError:
            if birth.child.done() and not birth.child.cancelled() and birth.child.exception() is None:
                self._abandon(birth.child.result())
            raise

    async def close(self) -> None:
        """End all workers and the server, close all descriptors, also the workers' sockets, and set every `exited`."""
        self._refusal = self._refusal or "the fork server is closed"
        if self._closed:
            return
        try:
            for child in self._children.values():
                child.kill()
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._gone.wait()
            if not self._gone.is_set():
                self._kill()
                await self._gone.wait()
            alive = [child._exited for child in self._children.values() if child.code is None]
            if alive:
                await asyncio.wait(alive, timeout=CLOSE_S)
        finally:
            self._end()

    def _end(self) -> None:
        """Do the same as close(), without waiting."""
        if self._closed:
            return
        self._closed = True
        if not self._gone.is_set():
            self._kill()
            self._lose()
        for child in self._children.values():
            child._settle(-signal.SIGKILL)
            child.connection.close()
        self._children.clear()
        self._control.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _abandon(self, child: ForkedWorker) -> None:
        child.kill()
        child.connection.close()

    def _speak(self) -> None:
        """Send what the socket takes; a message's descriptors travel with its first byte."""
        while self._outbox:
            data, fds = self._outbox[0]
            try:
                sent = socket.send_fds(self._control, [data], fds) if fds else self._control.send(data)
            except BlockingIOError:
                self._loop.add_writer(self._control, self._speak)
                return
            except OSError:
                self._kill()  # it is dead or out of step; what follows from it is the same
                break
            for fd in fds:
                os.close(fd)
            if sent < len(data):
                self._outbox[0] = (data[sent:], ())
            else:
                self._outbox.popleft()
        self._loop.remove_writer(self._control)

    def _hear(self) -> bool:
        """Take the server's messages; False if there are none, or will be no more."""
        try:
            more = self._inbox.receive()
        except BlockingIOError:
            return False
        except OSError:
            self._kill()
            more = False
        for message, fds in self._inbox.messages():
            self._take(message, fds)
        if not more:
            self._loop.remove_reader(self._control)
        return more

    def _take(self, message: Message, fds: list[int]) -> None:
        match message:
            case ForkReady():
                if not self._ready.done():
                    self._ready.set_result(None)
            case ForkFailed(module, error):
                if not self._ready.done():
                    self._ready.set_exception(ForkServerError(f"the fork server cannot import {module}: {error}"))
            case Started(id, pid):
                birth = self._births.pop(id)
                child = self._children[id] = ForkedWorker(pid, fds[0], birth)
                if birth.child.done():
                    self._abandon(child)
                else:
                    birth.child.set_result(child)
            case ForkRefused(id, error):
                self._births.pop(id).fail(f"the fork server cannot fork: {error}")
            case ForkExited(id, code):
                self._children[id]._settle(code)
            case Spawn():
                raise AssertionError("the fork server asks for nothing")

    def _lose(self) -> None:
        """The server is dead, which ends its workers. Its last messages are taken first."""
        code = self._reap()
        while self._hear():
            pass
        self._loop.remove_reader(self._pidfd)
        self._loop.remove_reader(self._control)
        self._loop.remove_writer(self._control)
        os.close(self._pidfd)
        self._inbox.close()
        for _, fds in self._outbox:
            for fd in fds:
                os.close(fd)
        self._outbox.clear()
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        self._refusal = self._refusal or f"the fork server {ending}, and its workers with it; open another one"
        if not self._ready.done():
            self._ready.set_exception(ForkServerError(f"the fork server {ending} before it was ready"))
        for birth in self._births.values():
            birth.fail(self._refusal)
        self._births.clear()
        for child in self._children.values():
            if child.code is None:  # the server's death kills the worker, and the pidfd says when
                self._loop.add_reader(child._pidfd, child._settle, -signal.SIGKILL)
        self._gone.set()

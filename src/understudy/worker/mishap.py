"""Faults that happen inside a worker on request, in jobs started with `--chaos`: `understudy chaos` asks for them.

Nothing is here for them until one is asked for; then it is put around what it disturbs, and taken away again.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.protocol.messages import Inject, ToWorker

if TYPE_CHECKING:  # so that whoever only wants the names need not import torch
    from .line import Line
    from .runtime import WorkerRuntime

log = logging.getLogger("understudy.worker")

WORKER_MISHAPS = {
    "raise-in-forward": "an exception in the next forward pass of a worker",
    "exit-1": "a worker's process ends with exit code 1 in its next forward pass, as by a library",
    "sys-exit": "the script calls sys.exit(1) in its next forward pass",
    "hang": "the training thread of a worker loops for ever in its next forward pass",
    "nan": "the next gradient that a worker computes is not a number, on its way back",
    "cut-links": "all connections of a worker to its peers break",
    "delay-links": "each operation of a worker with its peers begins 50 ms late, for a while",
    "throttle-links": "a worker sends to its peers no more than 1 MB/s, for a while",
    "corrupt-line": "a worker says something to its agent that is no message",
    "fill-checkpoint-disk": "no checkpoint can be written by a worker for a while: no space left on device",
    "leak-memory": "a worker takes another 64 MB, for a while",
    "burn-cpu": "another thread of a worker computes in Python, for a while",
    "slow": "everything a worker computes takes 1.4 times as long, for a while",
}

_DELAY_S = 0.05
_PACE = 1_000_000
_UNPACED = -1
SO_MAX_PACING_RATE = 47
"""Linux's number; Python has no name for it."""
_LEAK = 64 << 20
_DRAG = 1.4


class InjectedError(RuntimeError):
    """What `raise-in-forward` raises."""


class Mishaps:
    """Between a worker's line and its player: passes on what it hears, and does what chaos asks for."""

    def __init__(self, runtime: WorkerRuntime, line: Line) -> None:
        self._runtime, self._line, self._world = runtime, line, runtime.world
        self._factor = _DRAG
        """How many times as long everything takes that is to be slow."""

    def hear(self, message: ToWorker | Inject) -> None:
        if not isinstance(message, Inject):
            self._runtime.hear(message)
        elif not self._runtime.spec.chaos:
            log.warning("%s is asked for, but this job was not started with --chaos", message.kind)
        elif (work := _MISHAPS.get(message.kind)) is None:
            log.warning("there is no mishap %r", message.kind)
        else:
            log.warning("%s: %s, on request", self._runtime.spec.uid, message.kind)
            self._factor = message.factor or _DRAG
            self._world.start(partial(work, self, message.seconds), "understudy fault")

    # -- in the training thread ----------------------------------------------------------------------------------------

    def _in_forward(self, strike: Callable[[], None]) -> None:
        """Once, when the training thread enters a module."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        main = threading.main_thread()

        def hook(module: object, inputs: object) -> None:
            if threading.current_thread() is main:
                handle.remove()
                strike()

        handle = register_module_forward_pre_hook(hook)

    def _raise(self, seconds: float) -> None:
        def strike() -> None:
            raise InjectedError("chaos: an exception in forward")

        self._in_forward(strike)

    def _exit(self, seconds: float) -> None:
        self._in_forward(lambda: os._exit(1))

    def _sys_exit(self, seconds: float) -> None:
        self._in_forward(lambda: sys.exit(1))

    def _hang(self, seconds: float) -> None:
        def strike() -> None:
            while True:
                self._world.sleep(0.01)

        self._in_forward(strike)

    def _slow(self, seconds: float) -> None:
        """Each part of each step, by sleeping at its end; without seconds until another factor is given."""
        self._runtime.meter.drag = factor = self._factor
        if seconds:
            self._world.sleep(seconds)
            if self._runtime.meter.drag == factor:
                self._runtime.meter.drag = 1.0

    def _nan(self, seconds: float) -> None:
        import torch
        from torch.nn.modules.module import register_module_forward_hook

        def hook(module: object, inputs: object, output: Any) -> None:
            if isinstance(output, torch.Tensor) and output.requires_grad and output.is_floating_point():
                handle.remove()
                output.register_hook(lambda gradient: gradient * float("nan"))

        handle = register_module_forward_hook(hook)

    # -- between workers -----------------------------------------------------------------------------------------------

    def _cut_links(self, seconds: float) -> None:
        for sock in _connections():
            with sock, suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _throttle_links(self, seconds: float) -> None:
        self._pace(_PACE)
        self._world.sleep(seconds)
        self._pace(_UNPACED)

    def _pace(self, rate: int) -> None:
        for sock in _connections():
            with sock, suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)

    def _delay_links(self, seconds: float) -> None:
        """Around what runs operations now; a new generation puts its own in that place."""
        undo = []
        for endpoint in self._runtime.fabric.endpoints():
            performed, posted = endpoint.perform, endpoint.post

            def perform(op: Any, performed: Any = performed) -> None:
                self._world.sleep(_DELAY_S)
                performed(op)

            def post(*jobs: Any, posted: Any = posted) -> None:
                self._world.sleep(_DELAY_S)
                posted(*jobs)

            endpoint.perform, endpoint.post = perform, post
            undo.append(partial(_undo, endpoint, perform, performed, post, posted))
        self._world.sleep(seconds)
        for each in undo:
            each()

    # -- everything else ---------------------------------------------------------------------------------------------

    def _corrupt_line(self, seconds: float) -> None:
        with self._line._lock, suppress(OSError):
            self._line._sock.sendall((16).to_bytes(4, "little") + b"\xc1" * 16)

    def _fill_disk(self, seconds: float) -> None:
        from torch.distributed.checkpoint import state_dict_saver as saver

        def full(*args: object, **options: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        before = saver.save
        saver.save = full
        self._world.sleep(seconds)
        saver.save = before

    def _leak_memory(self, seconds: float) -> None:
        taken = bytearray(os.urandom(1 << 12) * (_LEAK >> 12))
        self._world.sleep(seconds)
        del taken

    def _burn_cpu(self, seconds: float) -> None:
        until = self._world.monotonic() + seconds
        while self._world.monotonic() < until:
            sum(range(1000))


def _undo(endpoint: Any, perform: object, performed: object, post: object, posted: object) -> None:
    if endpoint.perform is perform:
        endpoint.perform = performed
    if endpoint.post is post:
        endpoint.post = posted


def _connections() -> list[socket.socket]:
    """Duplicates of this process's connections to other workers. Pairs of sockets without a name are not among them:
    its line, and what wakes its event loops."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError, ValueError):
            if not entry.readlink().name.startswith("socket:"):
                continue
            sock = socket.socket(fileno=os.dup(int(entry.name)))
            try:
                if sock.getpeername() or sock.getsockname():
                    found.append(sock)
                    continue
            except OSError:  # not connected: it listens
                pass
            sock.close()
    return found


_MISHAPS: dict[str, Callable[[Mishaps, float], None]] = {
    "raise-in-forward": Mishaps._raise,
    "exit-1": Mishaps._exit,
    "sys-exit": Mishaps._sys_exit,
    "hang": Mishaps._hang,
    "nan": Mishaps._nan,
    "cut-links": Mishaps._cut_links,
    "delay-links": Mishaps._delay_links,
    "throttle-links": Mishaps._throttle_links,
    "corrupt-line": Mishaps._corrupt_line,
    "fill-checkpoint-disk": Mishaps._fill_disk,
    "leak-memory": Mishaps._leak_memory,
    "burn-cpu": Mishaps._burn_cpu,
    "slow": Mishaps._slow,
}

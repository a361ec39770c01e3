"""Faults inside the workers and agents of a running job. `understudy chaos` asks for them; a user's test may, too.

This module is an extension (see `understudy.host.extensions`): `understudy run --chaos` names it, and no other job
loads it. A fault is installed around the thing that it disturbs when a message asks for it, and removed again:

    POST /extensions  {"type": "extension", "kind": "slow", "machine": "m1", "uid": "w1", "options": {"factor": 1.3}}

Options: `seconds`, the duration of a fault that ends by itself; `factor`, for `slow`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.protocol.messages import ExtensionMessage

if TYPE_CHECKING:  # an agent, and a reader of the names, does not import torch
    from understudy.agent.agent import Agent
    from understudy.host.extensions import Handler
    from understudy.worker.agent_connection import AgentConnection
    from understudy.worker.runtime import WorkerRuntime

log = logging.getLogger("understudy.testing")

WORKER_FAULTS = {
    "raise-in-forward": "an exception in the next forward pass of a worker",
    "exit-1": "a worker's process ends with exit code 1 in its next forward pass, as by a library",
    "sys-exit": "the script calls sys.exit(1) in its next forward pass",
    "hang": "the training thread of a worker loops for ever in its next forward pass",
    "nan": "the next gradient that a worker computes is not a number, on its way back",
    "cut-links": "all connections of a worker to its peers break",
    "delay-links": "each operation of a worker with its peers begins 50 ms late, for a while",
    "throttle-links": "a worker sends to its peers no more than 1 MB/s, for a while",
    "corrupt-line": "a worker sends its agent bytes that are no message",
    "fill-checkpoint-disk": "no checkpoint can be written by a worker for a while: no space left on device",
    "leak-memory": "a worker takes another 64 MB, for a while",
    "burn-cpu": "another thread of a worker computes in Python, for a while",
    "slow": "everything a worker computes takes 1.4 times as long, for a while",
}
"""Faults in a worker, with a line that describes each."""

AGENT_FAULTS = {
    "corrupt-report": "an agent sends the controller bytes that are no message",
    "corrupt-order": "an agent receives bytes from the controller that are no message",
    "drop-control": "the connection between an agent and the controller breaks",
    "duplicate-control": "an agent sends everything to the controller twice, for a while",
    "delay-control": "everything an agent sends to the controller takes 0.3 s longer, for a while",
}
"""Faults between an agent and the controller, with a line that describes each."""

GARBAGE = b"\xc1" * 16
"""Bytes that are no message of any protocol of ours."""
LINK_DELAY_S = 0.05
CONTROL_DELAY_S = 0.3
SLOW_FACTOR = 1.4
SO_MAX_PACING_RATE = 47
"""Linux's number; Python has no name for it."""
_PACE = 1_000_000
_UNPACED = -1
_LEAK = 64 << 20
_LEAST_PAUSE_S = 1e-4


class InjectedError(RuntimeError):
    """Raised in the script by the fault `raise-in-forward`."""


def extend_worker(worker: WorkerRuntime, connection: AgentConnection, argument: str) -> Handler:
    """Called when a worker starts. Nothing is changed before a fault is asked for."""
    return WorkerFaults(worker, connection).hear


def extend_agent(agent: Agent, argument: str) -> Handler:
    """Called when an agent starts. Nothing is changed before a fault is asked for."""
    tasks: set[asyncio.Task[None]] = set()

    def hear(message: ExtensionMessage) -> None:
        connection = agent.connection
        if message.kind not in AGENT_FAULTS:
            log.warning("there is no fault %r in an agent", message.kind)
        elif connection is None:
            return
        elif message.kind == "corrupt-order":
            receive_garbage(connection)
        else:
            task = asyncio.ensure_future(agent_fault(message.kind, message.options.get("seconds", 0.0), connection))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    return hear


# -- in a worker -------------------------------------------------------------------------------------------------------


class WorkerFaults:
    """The fault points of one worker."""

    def __init__(self, worker: WorkerRuntime, connection: AgentConnection) -> None:
        self._worker, self._connection = worker, connection
        self._slowness: _Slowness | None = None
        self._points: dict[str, Callable[[dict[str, float]], None]] = {
            "raise-in-forward": lambda options: _in_forward(_raise),
            "exit-1": lambda options: _in_forward(lambda: os._exit(1)),
            "sys-exit": lambda options: _in_forward(lambda: sys.exit(1)),
            "hang": lambda options: _in_forward(_hang),
            "nan": lambda options: _spoil_a_gradient(),
            "cut-links": lambda options: _cut_links(),
            "delay-links": lambda options: self._delay_links(_seconds(options)),
            "throttle-links": lambda options: _throttle_links(_seconds(options)),
            "corrupt-line": lambda options: self._corrupt_line(),
            "fill-checkpoint-disk": lambda options: _fill_disk(_seconds(options)),
            "leak-memory": lambda options: _leak_memory(_seconds(options)),
            "burn-cpu": lambda options: _burn_cpu(_seconds(options)),
            "slow": lambda options: self._slow(options.get("factor") or SLOW_FACTOR, _seconds(options)),
        }
        assert self._points.keys() == WORKER_FAULTS.keys()

    def hear(self, message: ExtensionMessage) -> None:
        """Let a fault happen, on a thread of its own."""
        if (fault := self._points.get(message.kind)) is None:
            log.warning("there is no fault %r in a worker", message.kind)
            return
        log.warning("%s: %s, on request", self._worker.spec.uid, message.kind)
        name = "understudy fault"
        threading.Thread(target=fault, args=(message.options,), name=name, daemon=True).start()

    def _slow(self, factor: float, seconds: float) -> None:
        """Slow the worker down; without `seconds` until another factor is given."""
        if self._slowness is None:
            self._slowness = _Slowness(self._worker.meter)
        self._slowness.factor = factor
        if seconds:
            time.sleep(seconds)
            if self._slowness.factor == factor:
                self._slowness.factor = 1.0

    def _delay_links(self, seconds: float) -> None:
        """Disturb the current generation's operations; the next generation puts its own functions in their place."""
        disturbed = []
        for endpoint in self._worker.fabric.endpoints():
            for name in ("perform", "post"):
                before = getattr(endpoint, name)
                late = _late(before)
                setattr(endpoint, name, late)
                disturbed.append((endpoint, name, late, before))

        def undo() -> None:
            for endpoint, name, late, before in disturbed:
                if getattr(endpoint, name) is late:
                    setattr(endpoint, name, before)

        threading.Timer(seconds, undo).start()

    def _corrupt_line(self) -> None:
        with self._connection._lock, suppress(OSError):
            self._connection._sock.sendall(len(GARBAGE).to_bytes(4, "little") + GARBAGE)


class _Slowness:
    """Makes each part of a step `factor` times as long, by a pause at its end that the meter takes for computing."""

    def __init__(self, meter: Any) -> None:
        self.factor = 1.0
        self._meter = meter
        self._turn = meter._turn
        meter._turn = self.turn

    def turn(self, part: int | None) -> None:
        from understudy.comm import waits

        meter = self._meter
        own = meter._clock() - meter._since - (waits.waited()[0] - meter._blocked)
        if (pause := own * (self.factor - 1)) > _LEAST_PAUSE_S:
            time.sleep(pause)
        self._turn(part)


def _late(call: Callable[..., None]) -> Callable[..., None]:
    def late(*arguments: Any) -> None:
        time.sleep(LINK_DELAY_S)
        call(*arguments)

    return late


def _seconds(options: dict[str, float]) -> float:
    return options.get("seconds", 0.0)


def _in_forward(strike: Callable[[], None]) -> None:
    """Call `strike` once, when the training thread enters a module."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    main = threading.main_thread()

    def hook(module: object, inputs: object) -> None:
        if threading.current_thread() is main:
            handle.remove()
            strike()

    handle = register_module_forward_pre_hook(hook)


def _raise() -> None:
    raise InjectedError("chaos: an exception in forward")


def _hang() -> None:
    while True:
        time.sleep(0.01)


def _spoil_a_gradient() -> None:
    import torch
    from torch.nn.modules.module import register_module_forward_hook

    def hook(module: object, inputs: object, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.requires_grad and output.is_floating_point():
            handle.remove()
            output.register_hook(lambda gradient: gradient * float("nan"))

    handle = register_module_forward_hook(hook)


def _cut_links() -> None:
    for sock in _connections():
        with sock, suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _throttle_links(seconds: float) -> None:
    for rate, pause in ((_PACE, seconds), (_UNPACED, 0.0)):
        for sock in _connections():
            with sock, suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
        time.sleep(pause)


def _connections() -> list[socket.socket]:
    """Duplicates of this process's connections to other workers.

    Pairs of sockets without a name are left out: the line to the agent, and what wakes event loops.
    """
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


def _fill_disk(seconds: float) -> None:
    from torch.distributed.checkpoint import state_dict_saver as saver

    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = saver.save
    saver.save = full
    time.sleep(seconds)
    saver.save = before


def _leak_memory(seconds: float) -> None:
    taken = bytearray(os.urandom(1 << 12) * (_LEAK >> 12))
    time.sleep(seconds)
    del taken


def _burn_cpu(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


# -- between an agent and the controller -------------------------------------------------------------------------------


async def agent_fault(kind: str, seconds: float, connection: Any) -> None:
    """Disturb a connection to the controller. The agent opens another one, or this one recovers after `seconds`."""
    match kind:
        case "corrupt-report":
            await connection.send_bytes(GARBAGE)
        case "drop-control":
            with suppress(AttributeError):
                connection._response.connection.transport.abort()
        case "duplicate-control":
            await _disturb_sending(connection, seconds, times=2)
        case "delay-control":
            await _disturb_sending(connection, seconds, delay=CONTROL_DELAY_S)


def receive_garbage(connection: Any) -> None:
    """Let the next message that the agent receives be no message, as if the controller had sent it."""
    import aiohttp

    receive = connection.receive

    async def garbage() -> aiohttp.WSMessage:
        connection.receive = receive
        return aiohttp.WSMessage(aiohttp.WSMsgType.BINARY, GARBAGE, "")

    connection.receive = garbage


async def _disturb_sending(connection: Any, seconds: float, *, times: int = 1, delay: float = 0.0) -> None:
    send: Callable[[bytes], Coroutine[Any, Any, None]] = connection.send_bytes

    async def disturbed(data: bytes) -> None:
        if delay:
            await asyncio.sleep(delay)
        for _ in range(times):
            await send(data)

    connection.send_bytes = disturbed
    await asyncio.sleep(seconds)
    connection.send_bytes = send

"""Workers as local processes under the direction of one parent: for tests and benchmarks of collectives.

    def total(worker: LocalWorker, value: int) -> float:
        tensor = torch.full((4,), float(value))
        ...                                            # collectives on worker.fabric
        return tensor.sum().item()

    results = run_workers(total, [2, 1], 3)            # two workers on machine m0, one on m1; results by role

There is no controller and no agent: the parent hands out rosters itself. Workers end with their parent.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import secrets
import threading
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch

from understudy.comm.network import NetworkFabric
from understudy.host.logs import show_log
from understudy.protocol.roster import Roster, WorkerAddress
from understudy.worker.entry import transport_named

PRELOAD = ["understudy.testing._fork_server", "torch", "torch.distributed", "understudy.testing.local_workers"]
"""Modules that the fork server imports, from which workers are forked."""

Body = Callable[..., Any]
"""The function that a worker runs: `body(worker, *args)`."""


class LocalWorker:
    """The argument of a worker's function: its fabric and its connection to the parent."""

    def __init__(self, fabric: NetworkFabric, connection: Connection) -> None:
        self.fabric = fabric
        self._connection = connection

    def tell(self, message: Any) -> None:
        """Send a message to the parent; `WorkerHandle.hear` returns it."""
        self._connection.send(("message", message))

    def hear(self, timeout: float = 60.0) -> Any:
        """The parent's next message. Raises TimeoutError if none comes in time."""
        if not self._connection.poll(timeout):
            raise TimeoutError(f"{self.fabric.uid}: no message from the parent for {timeout} s")
        return self._connection.recv()

    def told(self) -> bool:
        """Whether a message of the parent waits."""
        return self._connection.poll(0)

    def enter(self, roster: Roster) -> None:
        """Prepare a roster and switch to it."""
        self.fabric.prepare(roster).result()
        self.fabric.switch(roster.generation)


def _run(
    connection: Connection, life: Connection, uid: str, machine: str, options: dict[str, Any], body: Body, args: Any
) -> None:
    def follow_parent() -> None:
        try:
            life.recv()
        except EOFError:
            os._exit(1)

    threading.Thread(target=follow_parent, daemon=True).start()
    torch.set_num_threads(1)
    show_log(options.pop("log_level"), f"{uid}: %(message)s")
    try:
        fabric = NetworkFabric(uid, machine, **options | {"transport": transport_named(options["transport"])})
        try:
            connection.send(("started", fabric.worker))
            result = body(LocalWorker(fabric, connection), *args)
        finally:
            fabric.close()
        connection.send(("done", result))
    except BaseException:
        connection.send(("failed", traceback.format_exc()))


class WorkerHandle:
    """The parent's side of one worker."""

    def __init__(self, process: Any, connection: Connection, life: Connection, uid: str) -> None:
        self.process = process
        self.uid = uid
        self._connection = connection
        self._life = life
        self.worker: WorkerAddress = self._next("started", 60.0)

    def _next(self, expected: str, timeout: float) -> Any:
        if not self._connection.poll(timeout):
            raise TimeoutError(f"{self.uid}: no message for {timeout} s")
        try:
            kind, content = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise RuntimeError(f"{self.uid} died") from None
        if kind == "failed":
            raise RuntimeError(f"{self.uid} failed:\n{content}")
        if kind != expected:
            raise RuntimeError(f"{self.uid} sent {kind} {content!r} instead of {expected}")
        return content

    def tell(self, message: Any) -> None:
        """Send a message to the worker; `LocalWorker.hear` returns it."""
        self._connection.send(message)

    def hear(self, timeout: float = 60.0) -> Any:
        """The worker's next message. Raises RuntimeError if the worker died or its function raised."""
        return self._next("message", timeout)

    def result(self, timeout: float = 60.0) -> Any:
        """The return value of the worker's function, once its process has ended."""
        result = self._next("done", timeout)
        self.process.join(timeout)
        return result

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self._connection.close()
        self._life.close()


class LocalWorkers:
    """Starts workers and ends them all on exit. Options are those of `NetworkFabric`."""

    def __init__(self, *, transport: str = "native", log_level: int = logging.ERROR, **options: Any) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._options = {"job": "local", "secret": secrets.token_bytes(32), "transport": transport} | options
        self._options["log_level"] = log_level
        self._count = 0
        self.handles: list[WorkerHandle] = []

    def start(self, machine: str, count: int, body: Body, *args: Any) -> list[WorkerHandle]:
        """Start `count` workers that take themselves to be on `machine`; each runs `body(worker, *args)`."""
        starting = []
        for _ in range(count):
            connection, theirs = self._context.Pipe()
            life, follow = self._context.Pipe()
            uid = f"w{self._count}"
            self._count += 1
            process = self._context.Process(
                target=_run, args=(theirs, follow, uid, machine, dict(self._options), body, args), daemon=True
            )
            process.start()
            theirs.close()
            follow.close()
            starting.append((process, connection, life, uid))
        started = [WorkerHandle(*parts) for parts in starting]
        self.handles += started
        return started

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for handle in self.handles:
            handle.close()
        self.handles.clear()


def first_roster(handles: Iterable[WorkerHandle], **options: Any) -> Roster:
    """The roster of generation 1: role 0 for the first worker, role 1 for the second, and so on."""
    workers = [handle.worker for handle in handles]
    return Roster.of(1, [(role, worker.uid) for role, worker in enumerate(workers)], workers, **options)


def run_workers(body: Body, machines: list[int], *args: Any, timeout: float = 60.0, **options: Any) -> list[Any]:
    """Run `body(worker, *args)` in one generation; `machines` has the number of workers of each machine.

    Returns the results in the order of roles.
    """
    with LocalWorkers(**options) as workers:
        handles = [
            handle
            for number, count in enumerate(machines)
            for handle in workers.start(f"m{number}", count, _enter, body, args)
        ]
        roster = first_roster(handles)
        for handle in handles:
            handle.tell(roster)
        return [handle.result(timeout) for handle in handles]


def _enter(worker: LocalWorker, body: Body, args: Any) -> Any:
    worker.enter(worker.hear())
    return body(worker, *args)

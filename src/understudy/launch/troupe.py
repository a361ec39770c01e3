"""A few workers as local processes under one parent's direction: for tests, benchmarks and demonstrations."""

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
from understudy.protocol.roster import Roster, WorkerAddress
from understudy.worker.entry import transport_named

PRELOAD = ["understudy.launch.listening", "torch", "torch.distributed", "understudy.launch.troupe"]
"""What the fork server imports, from which workers are forked."""


class LocalWorker:
    """What a worker's function gets: its fabric and a wire to the parent."""

    def __init__(self, fabric: NetworkFabric, wire: Connection) -> None:
        self.fabric = fabric
        self._wire = wire

    def tell(self, news: Any) -> None:
        self._wire.send(("news", news))

    def hear(self, timeout: float = 60.0) -> Any:
        """The parent's next word."""
        if not self._wire.poll(timeout):
            raise TimeoutError(f"{self.fabric.uid}: no word from the parent for {timeout} s")
        return self._wire.recv()

    def told(self) -> bool:
        return self._wire.poll(0)

    def enter(self, roster: Roster) -> None:
        """Prepare a roster and switch to it."""
        self.fabric.prepare(roster).result()
        self.fabric.switch(roster.generation)


Body = Callable[..., Any]


def _live(
    wire: Connection, life: Connection, uid: str, machine: str, options: dict[str, Any], body: Body, args: Any
) -> None:
    def follow_parent() -> None:
        try:
            life.recv()
        except EOFError:
            os._exit(1)

    threading.Thread(target=follow_parent, daemon=True).start()
    torch.set_num_threads(1)
    logging.basicConfig(level=options.pop("log_level"), format=f"{uid}: %(message)s")
    try:
        fabric = NetworkFabric(uid, machine, **options | {"transport": transport_named(options["transport"])})
        try:
            wire.send(("here", fabric.worker))
            result = body(LocalWorker(fabric, wire), *args)
        finally:
            fabric.close()
        wire.send(("done", result))
    except BaseException:
        wire.send(("failed", traceback.format_exc()))


class Hand:
    """The parent's side of one worker process."""

    def __init__(self, process: Any, wire: Connection, life: Connection, uid: str) -> None:
        self.process = process
        self.uid = uid
        self._wire = wire
        self._life = life
        self.worker: WorkerAddress = self._next("here", 60.0)

    def _next(self, expected: str, timeout: float) -> Any:
        if not self._wire.poll(timeout):
            raise TimeoutError(f"{self.uid} said nothing for {timeout} s")
        try:
            kind, what = self._wire.recv()
        except (EOFError, ConnectionResetError):
            raise RuntimeError(f"{self.uid} died") from None
        if kind == "failed":
            raise RuntimeError(f"{self.uid} failed:\n{what}")
        if kind != expected:
            raise RuntimeError(f"{self.uid} sent {kind} {what!r} where {expected} was due")
        return what

    def tell(self, word: Any) -> None:
        self._wire.send(word)

    def hear(self, timeout: float = 60.0) -> Any:
        return self._next("news", timeout)

    def result(self, timeout: float = 60.0) -> Any:
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
        self._wire.close()
        self._life.close()


class Troupe:
    """Starts workers, seats them, and leaves none behind."""

    def __init__(self, *, transport: str = "native", log_level: int = logging.ERROR, **options: Any) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._options = {"job": "troupe", "secret": secrets.token_bytes(32), "transport": transport} | options
        self._options["log_level"] = log_level
        self._count = 0
        self.hands: list[Hand] = []

    def hire(self, machine: str, count: int, body: Body, *args: Any) -> list[Hand]:
        """Start workers on a (pretended) machine."""
        starting = []
        for _ in range(count):
            wire, theirs = self._context.Pipe()
            life, follow = self._context.Pipe()
            uid = f"w{self._count}"
            self._count += 1
            process = self._context.Process(
                target=_live, args=(theirs, follow, uid, machine, dict(self._options), body, args), daemon=True
            )
            process.start()
            theirs.close()
            follow.close()
            starting.append((process, wire, life, uid))
        hired = [Hand(*parts) for parts in starting]
        self.hands += hired
        return hired

    def __enter__(self) -> Troupe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for hand in self.hands:
            hand.close()
        self.hands.clear()


def first_roster(hands: Iterable[Hand], **options: Any) -> Roster:
    """Generation 1: the workers in the order they were hired."""
    workers = [hand.worker for hand in hands]
    return Roster.of(1, [(role, worker.uid) for role, worker in enumerate(workers)], workers, **options)


def play(body: Body, machines: list[int], *args: Any, timeout: float = 60.0, **options: Any) -> list[Any]:
    """Run `body(player, *args)` in one generation, with this many workers per machine; results in role order."""
    with Troupe(**options) as troupe:
        hands = [hand for m, count in enumerate(machines) for hand in troupe.hire(f"m{m}", count, _enter, body, args)]
        roster = first_roster(hands)
        for hand in hands:
            hand.tell(roster)
        return [hand.result(timeout) for hand in hands]


def _enter(player: LocalWorker, body: Body, args: Any) -> Any:
    player.enter(player.hear())
    return body(player, *args)

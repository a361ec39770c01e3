"""Helpers for tests in this folder: several workers in one process, and their operations."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from understudy.comm.endpoint import Endpoint
from understudy.comm.faults import Fault
from understudy.comm.links.pairs import Receive, Send
from understudy.comm.links.rendezvous import IoLoop
from understudy.comm.network import NetworkFabric
from understudy.comm.ops import Op, reduction
from understudy.comm.sandbox import Echo
from understudy.protocol.roster import Roster

T = TypeVar("T")
SECRET = b"the secret of these tests"


# -- operations on an endpoint, without torch's process group around it ------------------------------------------------


def all_reduce(endpoint: Endpoint, value: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
    fold = reduction(op, value.dtype, endpoint.size)
    endpoint.run(Op("all_reduce", outputs=[value], reduction=fold))
    return value


def broadcast(endpoint: Endpoint, value: torch.Tensor, root: int) -> torch.Tensor:
    endpoint.run(Op("broadcast", outputs=[value], root=root))
    return value


def all_gather(endpoint: Endpoint, value: torch.Tensor) -> list[torch.Tensor]:
    outputs = [torch.empty_like(value) for _ in range(endpoint.size)]
    endpoint.run(Op("all_gather", inputs=[value], outputs=outputs))
    return outputs


def send(endpoint: Endpoint, value: torch.Tensor, peer: int, tag: int = 0) -> None:
    job = Send(peer, tag, value)
    endpoint.message(job)
    assert job.done.wait(20)


def receive(endpoint: Endpoint, value: torch.Tensor, peer: int | None, tag: int = 0) -> torch.Tensor:
    job = Receive(peer, tag, value)
    endpoint.message(job)
    assert job.done.wait(20)
    return value


# -- several workers in this process -----------------------------------------------------------------------------------


class Ensemble:
    """Workers of one process: each has a fabric and a port of its own, all share one event loop."""

    def __init__(self, **options: Any) -> None:
        self.io = IoLoop()
        self.fabrics: list[NetworkFabric] = []
        self._options: dict[str, Any] = {"job": "test", "secret": SECRET, "limit": 20.0, "setup_limit": 10.0} | options

    def hire(self, *machines: str, **options: Any) -> list[NetworkFabric]:
        """One more worker on each of these machines."""
        hired = [
            NetworkFabric(f"w{len(self.fabrics) + number}", machine, io=self.io, **self._options | options)
            for number, machine in enumerate(machines)
        ]
        self.fabrics += hired
        return hired

    def start(self, *machines: str) -> tuple[Roster, list[NetworkFabric], list[Endpoint]]:
        """Workers in generation 1, in the order of their roles, and their ends of the group of all."""
        fabrics = self.hire(*machines)
        roster = first_roster(fabrics)
        for role, fabric in enumerate(fabrics):
            fabric.assume(role)
            fabric.group(range(len(fabrics)))
        enter(roster, fabrics)
        return roster, fabrics, [endpoint_of(fabric) for fabric in fabrics]

    def __enter__(self) -> Ensemble:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fabric in self.fabrics:
            fabric.close()
        self.io.close()


def first_roster(fabrics: Iterable[NetworkFabric], **options: Any) -> Roster:
    workers = [fabric.worker for fabric in fabrics]
    return Roster.of(1, [(role, worker.uid) for role, worker in enumerate(workers)], workers, **options)


def endpoint_of(fabric: NetworkFabric, name: str | None = None) -> Endpoint:
    """Its end of the group with that name; of the first one by default."""
    return next(end for end in fabric._endpoints.values() if name in (None, end.name))


def prepare(roster: Roster, fabrics: Iterable[NetworkFabric]) -> None:
    for future in [fabric.prepare(roster) for fabric in fabrics]:
        future.result(20)


def enter(roster: Roster, fabrics: Sequence[NetworkFabric]) -> None:
    prepare(roster, fabrics)
    for fabric in fabrics:
        fabric.switch(roster.generation)


def at_once(*calls: Callable[[], T], limit: float = 20.0) -> list[T]:
    """Run each call in a thread of its own; their results, or the first error."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(number: int, call: Callable[[], T]) -> None:
        try:
            results[number] = call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n, call), daemon=True) for n, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
    assert len(results) == len(calls), "a call has not returned within its limit"
    return [results[number] for number in range(len(calls))]


def sums(endpoints: Iterable[Endpoint], elements: int = 5) -> list[float]:
    """What each of them gets from an all-reduce in which rank r gives 10 to the power of r."""

    def one(endpoint: Endpoint) -> float:
        value = all_reduce(endpoint, torch.full((elements,), 10.0**endpoint.rank, dtype=torch.float64))
        assert bool((value == value[0]).all())
        return float(value[0])

    return at_once(*[lambda endpoint=endpoint: one(endpoint) for endpoint in endpoints])


def fault_of(fabric: NetworkFabric) -> Fault:
    """Why its generation has failed, once it has."""
    eventually(lambda: fabric.fault is not None)
    assert fabric.fault is not None
    return fabric.fault


def eventually(holds: Callable[[], bool], limit: float = 15.0) -> None:
    """Wait until the condition holds, for background work that announces no end."""
    deadline = time.monotonic() + limit
    done = threading.Event()
    while not holds():
        assert time.monotonic() < deadline, "it has not come true within its limit"
        done.wait(0.005)


def kill(fabric: NetworkFabric) -> None:
    """As the end of its process would: every connection ends, without a farewell."""

    def cut() -> None:
        for gen in fabric._membership._generations():
            for control in gen.control.values():
                control.alive = False
                with suppress(OSError):  # its other end may have gone first
                    control.sock.shutdown(socket.SHUT_RDWR)

    fabric._io.soon(cut)
    fabric.close()


def expected(fabric: NetworkFabric, generation: int) -> int:
    """How many dials of a generation wait for this worker, and how many things it offers."""
    return sum(number == generation for number, _ in fabric._rendezvous._open)


def streams() -> int:
    """How many sockets and arenas this process has open."""
    gc.collect()
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += str(fd.readlink()).startswith(("socket:", "/memfd:"))
    return found


def joiner(ensemble: Ensemble, machine: str, role: int, roles: int) -> NetworkFabric:
    """A worker that has rehearsed the role in the group of all."""
    (fabric,) = ensemble.hire(machine)
    fabric.assume(role, Echo())
    fabric.group(range(roles))
    return fabric


def exchange(a: Endpoint, b: Endpoint) -> None:
    """A message each way."""

    def one(me: Endpoint, other: Endpoint) -> None:
        value = torch.full((1000,), float(me.rank))
        got = torch.full((1000,), -1.0)
        at_once(partial(send, me, value, other.rank), partial(receive, me, got, other.rank))
        assert got[0] == got[-1] == other.rank, got

    at_once(partial(one, a, b), partial(one, b, a))

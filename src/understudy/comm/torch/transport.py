"""torch's own backends beneath the same groups, rebuilt in the background for every generation.

The limits of these backends hold here too: a generation is a whole new group, not a difference; sockets do not ask for
the job's secret; and Gloo ends the process if a message is longer than the tensor that receives it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from understudy.comm.faults import Fault, LinkFailed, Poison
from understudy.comm.links.link import Link
from understudy.comm.links.pairs import Receive, Send
from understudy.comm.links.rendezvous import Rendezvous
from understudy.comm.ops import Op, describe
from understudy.comm.topology import GroupKey, layout
from understudy.device import torch_private
from understudy.device.cpu import HOST
from understudy.device.torch_private import PrefixStore, Store, TCPStore
from understudy.host.tasks import together
from understudy.protocol.roster import Roster

from .backend_group import BackendGroup, Waiters
from .ops import carry_out

T = TypeVar("T")

_SIGN = 1 << 63
_HELD_S = 5.0


class TorchGroup:
    """One group over groups of a torch backend, one per generation."""

    def __init__(self, backend: str, key: GroupKey, services: Rendezvous) -> None:
        self._backend, self._key, self._name, self._services = backend, key, str(key), services
        self._device = torch.cuda.current_device() if torch.cuda.is_available() else 0
        self._waiters = Waiters(f"understudy {self._name} {backend}")
        self._inner: BackendGroup | None = None
        self._closing: list[threading.Thread] = []

    async def prepare(self, roster: Roster, poison: Poison) -> BackendGroup:
        try:
            async with asyncio.timeout(self._services.setup_limit):
                return await self._prepare(roster, poison)
        except (OSError, RuntimeError) as error:
            reason = "time limit" if isinstance(error, TimeoutError) else error
            raise LinkFailed(f"{self._backend} group beneath {self._name}: {reason}") from None

    async def _prepare(self, roster: Roster, poison: Poison) -> BackendGroup:
        """The live worker of the lowest rank opens a store once all others are there, and all meet in the store.

        So the backend's constructor, which can not be interrupted, has no worker to wait for.
        """
        services, plan = self._services, layout(roster, self._key)
        live = tuple(rank for rank in range(len(plan.uids)) if rank not in plan.vacant)
        me = roster.worker(services.uid)
        assert me is not None
        host = plan.uid(live[0])
        if services.uid == host:
            await together(*(services.ask(roster, "store", self._name, plan.uid(rank)) for rank in live[1:]))
            store = await _aside(lambda: _open_store(me.host, services.setup_limit))
            services.offer(roster.generation, "store", self._name, f"{me.host} {store.port}")
        else:
            services.offer(roster.generation, "store", self._name, "here")
            where, port = (await services.ask(roster, "store", self._name, host)).split()
            limit = timedelta(seconds=services.setup_limit)
            store = await _aside(
                lambda: TCPStore(where, int(port), is_master=False, wait_for_workers=False, timeout=limit)
            )

        def build() -> BackendGroup:
            rank = plan.uids.index(services.uid)
            space = PrefixStore(f"{roster.generation}/{self._name}", store)
            group = self._create(space, live.index(rank), len(live), me.host)
            return BackendGroup(group, store, plan, live, poison=poison, services=services, waiters=self._waiters)

        return await _aside(build, self.cancel)

    def _create(self, store: Store, rank: int, size: int, host: str) -> Any:
        """The backend's own group, connected before the first operation as far as the backend allows."""
        setup, limit = (timedelta(seconds=s) for s in (self._services.setup_limit, self._services.limit))
        group: Any
        if self._backend == "gloo":
            group = torch_private.gloo(store, rank, size, host, setup)
            group.set_timeout(limit)
        elif self._backend == "nccl":
            group = torch_private.nccl(store, rank, size, limit)
            group.eager_connect_single_device(torch.device("cuda", self._device))
        else:
            group = torch_private.from_plugin(self._backend, store, rank, size, limit)
        return group

    def switch(self, prepared: BackendGroup | None) -> BackendGroup | None:
        old = self._inner
        if old is not None and old.poison.fault is not None and not old.has_let_go(_HELD_S):
            raise RuntimeError(
                f"{self._backend} beneath {self._name} still holds tensors of the interrupted generation after "
                f"{_HELD_S:g} s; replace this worker"
            )
        self._inner = prepared
        return old

    def discard(self, leftover: BackendGroup | None) -> None:
        if leftover is not None:
            self.cancel(leftover)

    def cancel(self, inner: BackendGroup) -> None:
        """Close a group on a thread of its own, because a backend's destructor waits for running operations."""
        thread = threading.Thread(target=inner.close, name=f"understudy closes {self._name}", daemon=True)
        self._closing = [*(t for t in self._closing if t.is_alive()), thread]
        thread.start()

    def run(self, op: Op) -> None:
        inner = self._inner
        assert inner is not None
        inner.poison.check()
        self._compare(inner, op.signature, op.limit)
        carry_out(inner.group, op, inner.live, lambda work: inner.settle(op.kind, work, op.limit))

    def _compare(self, inner: BackendGroup, mine: int, limit: float | None) -> None:
        """Raise if ranks disagree about an operation: Gloo may end the process then, and other backends hang.

        Operations that this generation has seen are not compared again: as long as ranks agree, all have seen them."""
        if mine in inner.seen:
            return
        own = torch.tensor([mine - 2 * _SIGN if mine & _SIGN else mine])
        all_of_them = Op("all_gather", [own], [torch.empty_like(own) for _ in inner.plan.uids])
        carry_out(inner.group, all_of_them, inner.live, lambda work: inner.settle("comparing operations", work, limit))
        for rank in inner.live:
            theirs = int(all_of_them.outputs[rank]) & 2 * _SIGN - 1
            if theirs != mine:
                who = inner.plan.roster.names(inner.plan.uid(rank))
                reason = f"{who} called {describe(theirs)} in {self._name} but this role called {describe(mine)}"
                raise inner.poison.fail(Fault("mismatch", reason, noticed_by=self._services.uid))
        inner.seen.add(mine)

    def post(self, *jobs: Send | Receive) -> None:
        inner = self._inner
        assert inner is not None
        for job in jobs:
            inner.message(job)

    def links(self) -> list[Link]:
        return []

    def close(self) -> None:
        inner, self._inner = self._inner, None
        self.discard(inner)
        for thread in self._closing:
            thread.join(timeout=2.0)
        self._waiters.close()


class TorchTransport:
    """The transport over one of torch's backends, by its name."""

    def __init__(self, backend: str) -> None:
        if backend not in ("gloo", "nccl") and backend.upper() not in torch_private.plugins:
            raise ValueError(f"torch has no backend {backend!r}; register it with torch.distributed.Backend first")
        if not dist.is_backend_available(backend):
            raise ValueError(f"this build of torch has no {backend}; use torch:gloo or the native transport")
        self.devices: tuple[str, ...] = ("cuda",) if backend == "nccl" else (HOST.name,)
        self._backend = backend

    def group(self, key: GroupKey, services: Rendezvous) -> TorchGroup:
        return TorchGroup(self._backend, key, services)


def _open_store(host: str, limit: float) -> TCPStore:
    """A store that listens on this worker's own address only; by default a store listens on all."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family)
    port = listener.getsockname()[1]
    timeout, fd = timedelta(seconds=limit), listener.detach()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=fd)


async def _aside(work: Callable[[], T], undo: Callable[[T], None] = lambda _: None) -> T:
    """The result of `work`, run on a thread of its own; undone if the caller is cancelled meanwhile. Objects that are
    freed with their last reference need no `undo`."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="understudy aside", daemon=True).start()
    answer = asyncio.wrap_future(result)
    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:
        answer.add_done_callback(lambda done: undo(done.result()) if done.exception() is None else None)
        raise

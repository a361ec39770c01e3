"""The fabric that moves bytes over sockets and shared memory."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from understudy.protocol.roster import Roster, RosterError, WorkerAddress

from .endpoint import Endpoint, Transport
from .faults import Fault, PrepareFailed
from .links.handshake import Listener
from .links.link import Link
from .links.rendezvous import IoLoop, Rendezvous
from .membership import Generation, Membership
from .native.transport import NativeTransport
from .recording import Recorder
from .sandbox import Echo, Sandbox
from .topology import GroupKey, Kind, LinkId, layout

log = logging.getLogger("understudy.comm")


class NetworkFabric:
    """A `Fabric` over a transport, with the groups that `torch.distributed` uses. `Fabric` documents its methods."""

    def __init__(
        self,
        uid: str,
        machine: str,
        *,
        job: str,
        secret: bytes,
        host: str = "127.0.0.1",
        port: int = 0,
        transport: Transport | None = None,
        limit: float = 300.0,
        setup_limit: float = 30.0,
        slot_bytes: int = 1 << 20,
        io: IoLoop | None = None,
    ) -> None:
        """`limit` bounds one operation, `setup_limit` the opening of links. Fabrics of one process may share `io`."""
        if not secret:
            raise ValueError("the job's secret is empty; give every worker of the job the same non-empty bytes")
        self.uid, self.machine = uid, machine
        self.transport: Transport = transport or NativeTransport()
        self.devices = self.transport.devices
        self._listener = Listener(uid, secret, job, host, port)
        self._io, self._own_io = (io, False) if io is not None else (IoLoop(), True)
        self._rendezvous = Rendezvous(
            uid, machine, job, secret, limit=limit, setup_limit=setup_limit, slot_bytes=slot_bytes, io=self._io
        )
        self.worker = WorkerAddress(uid, machine, host, self._listener.port, self._listener.local)
        self._endpoints: dict[str, Endpoint] = {}
        self._membership = members = Membership(self.worker, self._rendezvous, self._io, self._endpoints)
        self.prepare, self.abandon, self.switch = members.prepare, members.abandon, members.switch
        self.withdraw, self.interrupt = members.withdraw, members.interrupt
        self._ordinals: Counter[tuple[int, ...]] = Counter()
        self._sandbox: Sandbox | None = None
        self._recorder: Recorder | None = None
        self._vouching = False
        self._closed = False
        self._io.start(self._listener.start(self._membership.welcome)).result()

    @property
    def role(self) -> int | None:
        """The role of this worker; None before the first roster or rehearsal, and after the role was given away."""
        return self._membership.role

    # -- generations -----------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return self._membership.generation

    @property
    def roster(self) -> Roster | None:
        gen = self._membership.current
        return None if gen is None else gen.roster

    @property
    def prepared(self) -> int:
        return self._membership.ready

    @property
    def fault(self) -> Fault | None:
        gen = self._membership.current
        return None if gen is None else gen.poison.fault

    # -- groups ----------------------------------------------------------------------------------------------------

    def group(self, roles: Sequence[int], *, recorded: bool = True) -> Endpoint:
        """This worker's end of a new group over these roles. All of the roles make it, in the same order of groups.

        If the group cannot be opened the current generation is poisoned, and the group opens with the next one.
        `recorded` False keeps its results out of recordings."""
        roles, members = tuple(roles), self._membership
        if members.role is None:
            raise RuntimeError(f"{self.uid} has no role yet; switch to a roster or assume a role first")
        if members.role not in roles:
            raise ValueError(f"role {members.role} is not among the roles {roles} of the group")
        key = self._next_key(roles)
        endpoint = Endpoint(key, members.role, self.transport.group(key, self._rendezvous), members.open_late)
        endpoint.recorded, endpoint.vouches = recorded, self._vouching
        self._endpoints[endpoint.name] = endpoint
        if members.current is not None:
            gen = members.current
            endpoint.enter(None, layout(gen.roster, key).vacant, gen.poison)
            endpoint.recorder = self._recorder if self._crosses(endpoint, gen.roster) else None
            members.open_late(endpoint)
        elif self._sandbox is not None:
            endpoint.rehearse(self._sandbox_of(endpoint))
            if members.rehearsal is not None and len(roles) > 1:
                self._open_among_mates(endpoint, members.rehearsal)
        return endpoint

    def _next_key(self, roles: tuple[int, ...]) -> GroupKey:
        """The key of a new group; groups over the same roles are numbered."""
        self._ordinals[roles] += 1
        return GroupKey(roles, self._ordinals[roles] - 1)

    def endpoints(self) -> list[Endpoint]:
        return list(self._endpoints.values())

    def forget(self, endpoint: Endpoint) -> None:
        """Close a group that is not used any more. Its name is not used again."""
        if self._endpoints.pop(endpoint.name, None) is not None:
            endpoint.close()

    def longest_wait(self) -> tuple[Endpoint, int, str, float] | None:
        now = time.monotonic()
        waits = [
            (endpoint, *doing[:2], now - doing[2])
            for endpoint in self.endpoints()
            if (doing := endpoint.doing) is not None
        ]
        return max(waits, key=lambda wait: wait[3], default=None)

    def record(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        roster = self.roster
        for endpoint in self.endpoints():
            endpoint.recorder = recorder if roster is not None and self._crosses(endpoint, roster) else None

    def _crosses(self, endpoint: Endpoint, roster: Roster) -> bool:
        """Whether a group brings results from other machines to record."""
        workers = [roster.worker_of(role) for role in endpoint.key.roles]
        return endpoint.recorded and any(worker is not None and worker.machine != self.machine for worker in workers)

    def vouch(self, vouching: bool) -> None:
        self._vouching = vouching
        for endpoint in self.endpoints():
            endpoint.vouches = vouching

    # -- rehearsals ------------------------------------------------------------------------------------------------

    def assume(self, role: int, sandbox: Sandbox | None = None, mates: Roster | None = None) -> None:
        self._leave_former_role()
        self.end_rehearsal()
        for endpoint in self._endpoints.values():
            endpoint.release(f"{self.uid} has gone on to role {role}")
            endpoint.close()
        self._endpoints.clear()
        self._ordinals.clear()
        self._membership.role, self._sandbox = role, sandbox
        if mates is not None:
            try:
                self._membership.prepare(mates).result()
                self._membership.rehearsal = self._membership.prepared.pop(mates.generation)
            except (RosterError, PrepareFailed) as error:
                log.warning("%s rehearses without its mates: %s", self.uid, error)

    def become(self, role: int, groups: dict[str, tuple[int, ...]]) -> None:
        self._leave_former_role()
        endpoints, self._membership.role = self.endpoints(), role
        self._endpoints.clear()
        self._ordinals.clear()
        for endpoint in endpoints:
            key = self._next_key(groups[endpoint.name])
            endpoint.become(key, role, self.transport.group(key, self._rendezvous))
            self._endpoints[endpoint.name] = endpoint

    def _leave_former_role(self) -> None:
        if self._membership.current is not None:
            raise RuntimeError(f"{self.uid} has been in a generation; a worker changes its role only before the first")
        for generation in list(self._membership.prepared):
            self._membership.cancel(generation)

    def end_rehearsal(self) -> None:
        gen, self._membership.rehearsal = self._membership.rehearsal, None
        if gen is None:
            return
        gen.poison.tell = None  # mates are not told: what they need of this worker they have
        gen.poison.set(Fault("interrupt", f"{self.uid} has rehearsed"))
        for endpoint in self.endpoints():
            if endpoint.poison is gen.poison:
                leftover = endpoint.release(f"{self.uid} has rehearsed")
                self._io.soon(endpoint.transport.discard, leftover)
                endpoint.rehearse(self._sandbox_of(endpoint))
        gen.poison.wakers.clear()  # no thread waits any more, and the wakers would keep the arenas alive
        self._membership.drop(gen)

    @property
    def lost_mates(self) -> bool:
        gen = self._membership.rehearsal
        return gen is not None and gen.poison.fault is not None

    def _open_among_mates(self, endpoint: Endpoint, gen: Generation) -> None:
        """Open a group for real if all of its roles rehearse at the same time."""
        mates = {gen.roster.seats[role] for role in endpoint.key.roles}
        if None in mates or not mates.isdisjoint(gen.poison.gone):
            return
        prepared = self._membership.open_group(gen, endpoint)
        if prepared is not None and self._sandbox is not None:
            endpoint.enter(prepared, frozenset(), gen.poison)
            endpoint.fall_back_on(self._sandbox_of(endpoint))

    def _sandbox_of(self, endpoint: Endpoint) -> Sandbox:
        assert self._sandbox is not None
        return self._sandbox if endpoint.recorded else Echo()

    # -- state -----------------------------------------------------------------------------------------------------

    def expect_state(self, generation: int, take: Callable[[Link], None]) -> None:
        self._io.soon(self._rendezvous.offer, generation, "state", "", take)

    def dial_state(self, roster: Roster, taker: str, count: int) -> list[Link]:
        return self._dial("state", roster, taker, range(count)).result()

    def expect_copy(self, generation: int, take: Callable[[Link], None]) -> None:
        self._io.soon(self._rendezvous.offer, generation, "copy", "", take)

    def dial_copy(self, roster: Roster, keeper: str, count: int, *, attempt: int = 0) -> Future[list[Link]]:
        return self._dial("copy", roster, keeper, range(attempt * count, (attempt + 1) * count))

    def _dial(self, kind: Kind, roster: Roster, uid: str, rails: range) -> Future[list[Link]]:
        ids = [LinkId(kind, "", rail, self.uid, uid) for rail in rails]
        return self._io.start(self._rendezvous.links(roster, ids))

    def close(self) -> None:
        """Leave: end every operation, close all links and groups. Does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        self._io.start(self._shut(self._membership.close())).result()
        for endpoint in self._endpoints.values():
            endpoint.close()
        self._endpoints.clear()
        self._membership.current = self._membership.rehearsal = None
        if self._own_io:
            self._io.close()

    async def _shut(self, entered: list[Generation]) -> None:
        await self._listener.close()
        await self._membership.shut(entered)
        await self._rendezvous.close()

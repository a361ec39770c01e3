"""Everything between one worker and the others: the groups it is in, for real or in a rehearsal, and where its state
goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from understudy.protocol.roster import Roster, RosterError

from .endpoint import Endpoint
from .faults import Fault
from .generation import Generation, PrepareFailed, SwitchRefused, reason_of
from .links.link import Link
from .membership import Membership
from .recording import Recorder
from .sandbox import Echo, Sandbox
from .topology import GroupKey, LinkId, layout
from .transport import open_all

__all__ = ["Fabric", "PrepareFailed", "SwitchRefused"]

log = logging.getLogger("understudy.comm")


class Fabric(Membership):
    """Thread-safe. `prepare` works in the background while operations run; `switch` is called at a step boundary, when
    none does, and takes microseconds."""

    # -- groups ----------------------------------------------------------------------------------------------------

    def assume(self, role: int, sandbox: Sandbox | None = None, troupe: Roster | None = None) -> None:
        """Play this role from now on; before the first switch, in the sandbox. Groups of an earlier rehearsal are
        closed. Groups within the troupe, if there is one, are not answered by the sandbox but opened."""
        if self._current is not None:
            raise RuntimeError(f"{self.uid} has played in a generation; a worker changes role only as a newcomer")
        for generation in list(self._prepared):
            self.cancel(generation)
        self.part_company()
        for endpoint in self._endpoints.values():
            endpoint.release(f"{self.uid} has gone on to role {role}")
            endpoint.close()
        self._endpoints.clear()
        self._ordinals.clear()
        self.role, self._sandbox = role, sandbox
        if troupe is not None:
            try:
                self.prepare(troupe).result()
                self._troupe = self._prepared.pop(troupe.generation)
            except (RosterError, PrepareFailed) as error:
                log.warning("%s rehearses without its mates: %s", self.uid, error)

    def part_company(self) -> None:
        """The rehearsal is over: what was opened for it is closed, and what is still under way in it ends. Its mates
        may not have come so far; they are not told, since what they need of this worker they have."""
        troupe, self._troupe = self._troupe, None
        if troupe is None:
            return
        troupe.poison.tell = None
        troupe.poison.set(Fault("interrupt", f"{self.uid} has rehearsed"))
        for endpoint in self.endpoints():
            if endpoint.poison is troupe.poison:
                leftover = endpoint.release(f"{self.uid} has rehearsed")
                self._io.soon(endpoint.transport.discard, leftover)
                endpoint.rehearse(self._sandbox_of(endpoint))
        troupe.poison.wakers.clear()  # nobody waits any more, and they would keep the arenas for as long as it is known
        self._io.soon(lambda: self._meetings.keep(self._drop(troupe)))

    @property
    def deserted(self) -> bool:
        """Whether somebody with whom this worker rehearses is gone."""
        return self._troupe is not None and self._troupe.poison.fault is not None

    def endpoints(self) -> list[Endpoint]:
        return list(self._endpoints.values())

    def become(self, role: int, groups: dict[str, tuple[int, ...]]) -> None:
        """Before the first switch: play another role, in these groups instead of those of the same names."""
        if self._current is not None:
            raise RuntimeError(f"{self.uid} has played in a generation; a worker changes role only as a newcomer")
        for generation in list(self._prepared):
            self.cancel(generation)
        endpoints, self.role = self.endpoints(), role
        self._endpoints.clear()
        self._ordinals.clear()
        for endpoint in endpoints:
            key = GroupKey(groups[endpoint.name], self._count(groups[endpoint.name]))
            endpoint.become(key, role, self.transport.group(key, self._meetings))
            self._endpoints[endpoint.name] = endpoint

    def _count(self, roles: tuple[int, ...]) -> int:
        """How many groups over these roles there were before this one."""
        self._ordinals[roles] += 1
        return self._ordinals[roles] - 1

    def group(self, roles: Sequence[int], *, told: bool = True) -> Endpoint:
        """This worker's end of a new group over these roles. All of them must ask for it, in the same order. What comes
        over it is not recorded where it would help nobody else: `told` says so.

        Where it cannot be opened the generation in play has failed; the group comes with the next one then."""
        roles = tuple(roles)
        if self.role is None:
            raise RuntimeError(f"{self.uid} plays no role yet; switch to a roster or assume a role first")
        if self.role not in roles:
            raise ValueError(f"role {self.role} is not among the roles {roles} of the group")
        key = GroupKey(roles, self._count(roles))
        endpoint = Endpoint(key, self.role, self.transport.group(key, self._meetings), self._open_late)
        endpoint.told, endpoint.vouches = told, self._vouching
        self._endpoints[endpoint.name] = endpoint
        if self._current is not None:
            endpoint.play(None, frozenset(layout(self._current.roster, key).vacant), self._current.poison)
            endpoint.recorder = self._recorder if self._crosses(endpoint) else None
            self._open_late(endpoint)
        elif self._sandbox is not None:
            endpoint.rehearse(self._sandbox_of(endpoint))
            troupe = self._troupe
            if troupe is not None and len(roles) > 1:
                mates = {troupe.roster.seats[role] for role in roles}
                if None not in mates and mates.isdisjoint(troupe.poison.gone):
                    self._join(endpoint, troupe)
        return endpoint

    def _join(self, endpoint: Endpoint, troupe: Generation) -> None:
        prepared = self._io.start(self._open_group(troupe, endpoint)).result()
        if prepared is not None and self._sandbox is not None:
            endpoint.play(prepared, frozenset(), troupe.poison)
            endpoint.brace(self._sandbox_of(endpoint))

    def _sandbox_of(self, endpoint: Endpoint) -> Sandbox:
        assert self._sandbox is not None
        return self._sandbox if endpoint.told else Echo()

    def record(self, recorder: Recorder | None) -> None:
        """Keep what comes from other machines from now on, or no more."""
        self._recorder = recorder
        for endpoint in self.endpoints():
            endpoint.recorder = recorder if self._crosses(endpoint) else None

    def vouch(self, vouching: bool) -> None:
        """While a job is set up: answer for roles that are vacant from its beginning, where others ask everybody
        whether they have built the same. From the first step on that would be wrong."""
        self._vouching = vouching
        for endpoint in self.endpoints():
            endpoint.vouches = vouching

    def _crosses(self, endpoint: Endpoint) -> bool:
        """Whether a group has roles on other machines, from which to record."""
        if not endpoint.told:
            return False
        assert self._current is not None
        players = [self._current.roster.player(role) for role in endpoint.key.roles]
        return any(player is not None and player.machine != self.machine for player in players)

    def forget(self, endpoint: Endpoint) -> None:
        """Close a group that nobody uses any more; its name is not used again."""
        if self._endpoints.pop(endpoint.name, None) is not None:
            endpoint.close()

    def _open_late(self, endpoint: Endpoint) -> None:
        """Bring a group into the generation in play that was not there when it was prepared; or poison that."""
        gen = self._current
        assert gen is not None
        with endpoint.opening:
            if endpoint.name in gen.groups:
                return
            prepared = self._io.start(self._open_group(gen, endpoint)).result()
            if prepared is not None:
                gen.groups[endpoint.name] = (endpoint, prepared, endpoint.vacant)
                endpoint.take_seat(prepared, endpoint.vacant, gen.poison)

    async def _open_group(self, gen: Generation, endpoint: Endpoint) -> Any:
        task: asyncio.Task[Any] = asyncio.ensure_future(endpoint.transport.prepare(gen.roster, gen.poison))
        gen.openings.add(task)
        if gen.poison.fault is not None:
            task.cancel()
        try:
            async with asyncio.timeout(self.setup_limit):
                return await task
        except BaseException as error:
            if gen.poison.fault is None:
                why = f"group {endpoint.name} could not be opened: {reason_of(error)}"
                gen.poison.set(Fault("eof", why, noticed_by=self.uid))
            return None
        finally:
            gen.openings.discard(task)

    # -- state -----------------------------------------------------------------------------------------------------

    def expect_state(self, generation: int, take: Callable[[Link], None]) -> None:
        """From now on `take` is called, on the event loop, with every connection that brings state for a generation.
        Whoever dials earlier waits."""
        self._io.soon(self._meetings.offer, generation, "state", "", take)

    def dial_state(self, roster: Roster, taker: str, count: int) -> list[Link]:
        """Connections over which to give state to a worker of this roster, once it expects them."""
        ids = [LinkId("state", "", rail, self.uid, taker) for rail in range(count)]

        async def dial() -> list[Link]:
            return await open_all([self._meetings.link(roster, link) for link in ids])

        return self._io.start(dial()).result()

    def expect_copy(self, generation: int, take: Callable[[Link], None]) -> None:
        """From now on and for as long as this generation is in play, `take` is called, on the event loop, with every
        connection over which a worker of its roster brings copies of its state. Whoever dials earlier waits."""
        self._io.soon(self._meetings.offer, generation, "copy", "", take)

    def dial_copy(self, roster: Roster, keeper: str, count: int, *, attempt: int = 0) -> Future[list[Link]]:
        """Connections over which to send copies to a worker of this roster, once it expects them. They are numbered
        from attempt * count on: so the other side knows which of them belong together, however many were lost."""
        ids = [LinkId("copy", "", attempt * count + rail, self.uid, keeper) for rail in range(count)]

        async def dial() -> list[Link]:
            return await open_all([self._meetings.link(roster, link) for link in ids])

        return self._io.start(dial())

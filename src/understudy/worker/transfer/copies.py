"""Copies of state in the memory of workers, to go back to if no other role holds the same state: each worker keeps a
copy of its own role, and so does its backup, a worker on another machine.

All workers begin a copy at the same boundary, and the next one only after all of them have said in a vote that theirs
is complete. So there is always a step, the last one that was settled, of which every role has a whole copy.
"""

from __future__ import annotations

import logging
import socket
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from understudy.comm.fabric import Fabric
from understudy.comm.links.link import Link
from understudy.comm.topology import backup_of
from understudy.host.world import REAL, Thread, World
from understudy.protocol.roster import Roster
from understudy.state.copy import Copy, Draft
from understudy.state.errors import StateError
from understudy.state.inventory import take_inventory
from understudy.state.kinds import Tracked
from understudy.state.stream import WorldStop

from .copying import confirm_copy, send_copy, take_copy

log = logging.getLogger("understudy.worker")

_RETRY_S = 0.1
"""Delay before links that could not be opened are dialled again; it doubles with each failure."""
_LONGEST_RETRY_S = 5.0


class RoleCopies:
    """The copies of one role in this worker's memory, at most two, and memory for the next one. Not thread-safe."""

    def __init__(self) -> None:
        self.whole: dict[int, Copy] = {}
        """By step."""
        self._spare: Copy | None = None
        self._lent: set[Copy] = set()

    def put(self, copy: Copy) -> None:
        """Keep a whole copy, in place of an earlier one of the same step."""
        self._drop(copy.step)
        self.whole[copy.step] = copy

    def spare(self, settled: int) -> Copy | None:
        """A copy to overwrite; None if there is room for one more. Of two whole copies the one that
        is not known to be settled is given up."""
        if self._spare is None and len(self.whole) > 1:
            self._drop(max(step for step in self.whole if step != settled))
        spare, self._spare = self._spare, None
        return spare

    def drop(self, *, before: int = -1, after: int | None = None) -> None:
        """Give up the copies of steps before and after these."""
        for step in [step for step in self.whole if step < before or (after is not None and step > after)]:
            self._drop(step)

    def free_spare(self) -> None:
        """Free the memory for the next copy."""
        self._spare = None

    def lend(self, step: int) -> Copy:
        """A copy that is read from now on: its memory is never overwritten."""
        copy = self.whole[step]
        self._lent.add(copy)
        return copy

    def _drop(self, step: int) -> None:
        copy = self.whole.pop(step, None)
        if copy is not None and copy in self._lent:
            self._lent.discard(copy)
        elif copy is not None:
            self._spare = copy


@dataclass(eq=False)
class _Refresh:
    """A new copy of this worker's own role, on its way."""

    step: int
    draft: Draft | None
    began: float
    copy: Copy | None = None
    """Set once the copy is whole in this worker's memory."""
    over: bool = False
    """Whether nothing is left to do: the backup has the copy, or it was given up."""


class _CopyConnections:
    """The links of one generation: those to this worker's backup, and those from the workers that it is a backup of."""

    def __init__(self, roster: Roster, role: int | None, backup: str | None) -> None:
        self.roster, self.role, self.backup = roster, role, backup
        self.over = self.dialling = False
        self.links: list[Link] = []
        """To the backup."""
        self.attempt = self.failures = 0
        self.not_before = 0.0
        """The time of the next attempt to dial."""
        self.arriving: dict[tuple[str, int], list[Link]] = {}
        self.serving: dict[int, list[Link]] = {}
        """By role of another worker: its latest links, over which copies arrive here."""


class CopyKeeper:
    """The copies of one worker. `begin`, `hold`, `restore` and `entered` belong to the training thread; the other
    methods may be called from any thread. No method waits for another worker."""

    def __init__(self, fabric: Fabric, uid: str, tracked: Tracked, streams: int, *, world: World = REAL) -> None:
        self._fabric, self._uid, self._tracked, self._streams = fabric, uid, tracked, streams
        self._world, self._changed = world, world.condition()
        self._connections: _CopyConnections | None = None
        self._copies: defaultdict[int, RoleCopies] = defaultdict(RoleCopies)
        """By role."""
        self._confirmed: dict[int, str] = {}
        """By step: the backup that has this worker's copy."""
        self._refresh: _Refresh | None = None
        self._busy = False
        """Whether the copying thread uses the memory of the refresh."""
        self._open = False
        """Whether a refresh was begun that is not settled."""
        self._begun = self._settled = -1
        self._epoch = 0
        """How often all workers have gone back."""
        self._back = -1
        self._to_close: list[Link] = []
        self._closed = False
        self.seconds = 0.0
        """From the beginning of the last refresh until this worker and its backup had the copy."""
        self.bytes = 0
        """Bytes that were sent for it, or copied if no backup is needed."""
        self.waited = 0.0
        """Seconds of it for which the training thread waited, in `begin` and `hold`."""
        self._takers: list[Thread] = []
        self._thread = world.start(self._work, "understudy copies")

    # -- queries ------------------------------------------------------------------------------------------------------

    @property
    def complete(self) -> int:
        """The latest step of which this worker has a copy that its backup, if it needs one, has confirmed; -1: none."""
        with self._changed:
            connections, own = self._connections, self._own()
            if connections is None or own is None:
                return -1
            backup = connections.backup
            confirmed = [step for step in own.whole if backup is None or self._confirmed.get(step) == backup]
            return max(confirmed, default=-1)

    def kept(self) -> dict[int, set[int]]:
        """By role: the steps of the whole copies that are held here."""
        with self._changed:
            return {role: set(copies.whole) for role, copies in self._copies.items() if copies.whole}

    def copy(self, role: int, step: int) -> Copy:
        """A copy to give to a joiner. Its memory is not overwritten."""
        with self._changed:
            copies = self._copies.get(role)
            if copies is None or step not in copies.whole:
                raise StateError(f"role {role}: {self._uid} has no copy of step {step} (it has {self.kept()})")
            return copies.lend(step)

    def _own(self) -> RoleCopies | None:
        role = None if self._connections is None else self._connections.role
        return None if role is None else self._copies[role]

    # -- generations ---------------------------------------------------------------------------------------------------

    def entered(self, roster: Roster, twins: Collection[int]) -> None:
        """Use the links of another generation from now on. `twins` are the roles with the same state as this one."""
        role = roster.role_of(self._uid)
        connections = _CopyConnections(roster, role, None if role is None else backup_of(roster, role, twins))
        with self._changed:
            if self._closed:
                return
            self._disconnect()
            self._connections = connections
            self._confirmed = {step: who for step, who in self._confirmed.items() if who == connections.backup}
            self._changed.notify_all()
        self._fabric.expect_copy(roster.generation, partial(self._arrived, connections))

    def regard(self, twins: Collection[int]) -> None:
        """Copies go to a backup from now on if none of these roles, which have the same state, is elsewhere."""
        with self._changed:
            connections = self._connections
            if connections is not None and connections.role is not None:
                connections.backup = backup_of(connections.roster, connections.role, twins)
                self._changed.notify_all()

    def _disconnect(self) -> None:
        """End what goes over the links of the current generation. The threads that use them close them."""
        connections = self._connections
        if connections is None:
            return
        connections.over = True
        for links in connections.arriving.values():
            _close(links)
        connections.arriving.clear()
        for links in (connections.links, *connections.serving.values()):
            _cut(links)
        self._to_close += connections.links
        connections.links = []
        self._changed.notify_all()

    def close(self) -> None:
        """Free all threads, sockets and copies."""
        with self._changed:
            self._closed = True
            self._disconnect()
            if self._refresh is not None:
                self._refresh.over = True
            self._changed.notify_all()
            threads = [self._thread, *self._takers]
        for thread in threads:
            thread.join()
        with self._changed:
            self._copies.clear()
            self._refresh = None

    # -- the training thread -------------------------------------------------------------------------------------------

    def begin(self, step: int, *, force: bool = False) -> bool:
        """Begin to copy the state at a boundary, beside the step that follows. Returns False if the copy before is not
        settled yet; `force` gives that one up. All workers call this at the same boundaries with the same `force`."""
        began = self._world.monotonic()
        with self._changed:
            own = self._own()
            if self._closed or own is None or (self._open and not force):
                return False
            self._give_up()
            self._open, self._begun = True, step
            spare = own.spare(self._settled)
            # The backup makes room as well, and keeps only the settled copy for sure.
            self._confirmed = {at: who for at, who in self._confirmed.items() if at == self._settled}
        try:
            draft = Draft(step, take_inventory(self._tracked), spare)
        except StateError as error:
            log.warning("%s cannot copy its state at step %d: %s", self._uid, step, error)
            return False
        with self._changed:
            self._refresh = _Refresh(step, draft, began)
            self.waited = self._world.monotonic() - began
            self._changed.notify_all()
        return True

    def hold(self) -> float:
        """Wait until the tracked state is copied, before an optimizer changes it. Returns the seconds it took."""
        began = self._world.monotonic()
        with self._changed:
            refresh = self._refresh
            if refresh is None or refresh.copy is not None:
                return 0.0
            self._changed.wait_for(lambda: refresh.copy is not None or (refresh.over and not self._busy))
            waited = self._world.monotonic() - began
            self.waited += waited
        return waited

    def restore(self, step: int, roles: Sequence[int]) -> None:
        """Restore the state with which this step began, from a copy of the first of these roles that has one: this
        worker's role and its twins."""
        self.hold()
        with self._changed:
            found = [self._copies[role].whole[step] for role in roles if step in self.kept().get(role, ())]
        if not found:
            raise StateError(f"role {roles[0]}: {self._uid} has no copy of step {step} (it has {self.kept()})")
        found[0].restore(self._tracked)

    def _give_up(self) -> None:
        """End the refresh under way. Its copy in this worker's memory is whole, or will be overwritten."""
        refresh = self._refresh
        if refresh is None:
            return
        refresh.over = True
        self._changed.notify_all()
        self._changed.wait_for(lambda: not self._busy)
        self._refresh = None

    # -- what all workers agree on -------------------------------------------------------------------------------------

    def settle(self, step: int) -> None:
        """All workers have complete copies of this step: give up older ones."""
        with self._changed:
            if step >= self._begun:
                self._open = False
            self._settled = max(self._settled, step)
            connections = self._connections
            needed = set() if connections is None else {connections.role, *connections.serving}
            for role, copies in list(self._copies.items()):
                copies.drop(before=self._settled)
                if role not in needed:
                    copies.free_spare()
                    if not copies.whole:
                        del self._copies[role]
            self._confirmed = {at: who for at, who in self._confirmed.items() if at >= self._settled}

    def forget(self, *, after: int) -> None:
        """All workers go back to this step: give up copies of later steps."""
        with self._changed:
            if self._begun > after:
                self._give_up()
                self._begun = after
            self._open = False
            self._settled = self._back = after
            self._epoch += 1
            for copies in self._copies.values():
                copies.drop(after=after)
            self._confirmed = {at: who for at, who in self._confirmed.items() if at <= after}

    # -- the thread that copies and sends ------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                job()
            except Exception as error:  # such as that of a closed fabric
                log.debug("%s: %s", self._uid, error)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next thing to do; None at the end."""
        with self._changed:
            while True:
                _close(self._to_close)
                self._to_close.clear()
                if self._closed:
                    return None
                refresh, connections = self._refresh, self._connections
                wait = None
                if refresh is not None and not refresh.over and refresh.draft is not None:
                    draft, refresh.draft = refresh.draft, None
                    self._busy = True
                    return partial(self._fill, refresh, draft)
                if connections is not None and connections.backup is not None and not connections.over:
                    if connections.links and refresh is not None and not refresh.over and refresh.copy is not None:
                        self._busy = True
                        return partial(self._give, refresh, connections, connections.backup, connections.links)
                    if not connections.links and not connections.dialling:
                        wait = connections.not_before - self._world.monotonic()
                        if wait <= 0:
                            return partial(self._dial, connections, connections.backup)
                self._changed.wait(wait)

    def _fill(self, refresh: _Refresh, draft: Draft) -> None:
        try:
            copy = draft.finish()
        except Exception as error:
            log.warning("%s could not copy its state at step %d: %s", self._uid, refresh.step, error)
            refresh.over = True
            return
        with self._changed:
            own, connections = self._own(), self._connections
            if own is not None:
                own.put(copy)
            refresh.copy = copy
            if connections is None or connections.backup is None:
                self._done(refresh, copy.bytes)
            self._changed.notify_all()

    def _give(self, refresh: _Refresh, connections: _CopyConnections, backup: str, links: list[Link]) -> None:
        assert refresh.copy is not None
        stop = WorldStop(lambda: connections.over or refresh.over, self._world)
        try:
            size = send_copy(links, refresh.copy, self._settled, stop)
        except Exception as error:
            log.debug("%s: its copy of step %d did not reach %s: %s", self._uid, refresh.step, backup, error)
            with self._changed:
                self._to_close += connections.links
                connections.links = []
                self._retry_later(connections)
            return
        with self._changed:
            if not connections.over and not refresh.over:
                connections.failures = 0
                self._confirmed[refresh.step] = backup
                self._done(refresh, size)

    def _done(self, refresh: _Refresh, size: int) -> None:
        refresh.over = True
        self.seconds, self.bytes = self._world.monotonic() - refresh.began, size

    def _dial(self, connections: _CopyConnections, backup: str) -> None:
        with self._changed:
            if connections.over:
                return
            connections.dialling = True
            attempt, connections.attempt = connections.attempt, connections.attempt + 1
        dialling = self._fabric.dial_copy(connections.roster, backup, self._streams, attempt=attempt)
        dialling.add_done_callback(partial(self._dialled, connections))

    def _dialled(self, connections: _CopyConnections, done: Future[list[Link]]) -> None:
        error = "cancelled" if done.cancelled() else done.exception()
        with self._changed:
            connections.dialling = False
            if error is not None:
                log.debug("%s has no links to its backup yet: %s", self._uid, error)
                self._retry_later(connections)
            elif connections.over:
                _close(done.result())
            else:
                connections.links = done.result()
            self._changed.notify_all()

    def _retry_later(self, connections: _CopyConnections) -> None:
        connections.not_before = self._world.monotonic() + min(_RETRY_S * 2**connections.failures, _LONGEST_RETRY_S)
        connections.failures += 1

    # -- copies of other workers ---------------------------------------------------------------------------------------

    def _arrived(self, connections: _CopyConnections, link: Link) -> None:
        """On the event loop: a link from another worker. When all of its links are there, a thread serves them."""
        with self._changed:
            role = connections.roster.role_of(link.peer)
            if connections.over or role is None:
                link.close()
                return
            key = link.peer, link.id.rail // self._streams
            links = connections.arriving.setdefault(key, [])
            links.append(link)
            if len(links) < self._streams:
                return
            del connections.arriving[key]
            links.sort(key=lambda one: one.id.rail)
            former = connections.serving.get(role)
            if former is not None and former[0].id.rail > links[0].id.rail:
                _close(links)
                return
            connections.serving[role] = links
            if former is not None:
                _cut(former)
            taker = self._world.start(partial(self._serve, connections, role, links), "understudy copies of others")
            self._takers = [*(thread for thread in self._takers if thread.is_alive()), taker]

    def _serve(self, connections: _CopyConnections, role: int, links: list[Link]) -> None:
        stop, epoch = WorldStop(lambda: connections.over, self._world), 0

        def spare(keep: int) -> Copy | None:
            nonlocal epoch
            with self._changed:
                if connections.serving[role] is not links:
                    # Bytes of links that were given up: making room for them would cost a copy that came since.
                    raise StateError(f"role {role} has dialled again")
                epoch = self._epoch
                return self._copies[role].spare(max(keep, self._settled))

        try:
            while True:
                copy = take_copy(links, spare, stop)
                with self._changed:
                    outdated = connections.over or connections.serving[role] is not links
                    if outdated or (epoch != self._epoch and copy.step > self._back):
                        break
                    self._copies[role].put(copy)
                confirm_copy(links, stop)
        except Exception as error:
            log.debug("%s takes no more copies of role %d over these links: %s", self._uid, role, error)
        finally:
            with self._changed:
                _close(links)


def _close(links: list[Link]) -> None:
    for link in links:
        link.close()


def _cut(links: list[Link]) -> None:
    """Make every operation on these links return; they are still to be closed."""
    for link in links:
        with suppress(OSError):
            link.sock.shutdown(socket.SHUT_RDWR)

"""Copies of state to go back to, where no other role holds the same: every worker keeps its own role's in its memory,
and a buddy on another machine keeps it too.

A copy is begun at the same boundary everywhere, and another one only when all have said, in a vote, that theirs is
complete. So there is always a step, the last that was settled, of which everybody has a whole copy.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from understudy.comm.fabric import Fabric
from understudy.comm.links.link import Link
from understudy.comm.topology import buddy_of
from understudy.host.world import REAL, Thread, World
from understudy.protocol.roster import Roster
from understudy.state.copy import Copy, Draft
from understudy.state.errors import StateError
from understudy.state.inventory import take_inventory
from understudy.state.kinds import Tracked

from .shelf import Shelf
from .wire import SOCKETS, StateWire

log = logging.getLogger("understudy.worker")

_AGAIN_S = 0.1
"""After this long a link that could not be opened is dialled again, and then after twice as long each time."""
_AGAIN_AT_MOST_S = 5.0


class _Refresh:
    """One copy of this worker's own role, on its way."""

    def __init__(self, step: int, draft: Draft, began: float) -> None:
        self.step, self.began = step, began
        self.draft: Draft | None = draft
        self.copy: Copy | None = None
        """Once it is whole here."""
        self.over = False
        """Nothing is left to do: the buddy has it, or it was given up."""


class _Season:
    """What one generation needs: the links to the buddy and those of the wards."""

    def __init__(self, roster: Roster, role: int | None, buddy: str | None) -> None:
        self.roster, self.role, self.buddy = roster, role, buddy
        self.over = False
        self.links: list[Link] = []
        self.dialling = False
        self.attempt = self.failures = 0
        self.again = 0.0
        """Not to be dialled before."""
        self.arriving: dict[tuple[str, int], list[Link]] = {}
        self.serving: list[list[Link]] = []
        self.wards: set[int] = set()


class Keeper:
    """The copies of one worker. `begin`, `hold`, `restore` and `entered` belong to the training thread; everything else
    may be called from anywhere. Nothing here waits for another worker."""

    def __init__(
        self,
        fabric: Fabric,
        uid: str,
        tracked: Tracked,
        streams: int,
        *,
        world: World = REAL,
        wire: StateWire = SOCKETS,
    ) -> None:
        self._fabric, self._uid, self._tracked, self._streams = fabric, uid, tracked, streams
        self._world, self._wire = world, wire
        self._changed = world.condition()
        self._season: _Season | None = None
        self._shelves: dict[int, Shelf] = {}
        self._confirmed: dict[int, str] = {}
        """By step: the buddy that has this worker's copy."""
        self._refresh: _Refresh | None = None
        self._busy = False
        """Whether the thread reads or writes the memory of the refresh."""
        self._open = False
        """Whether a refresh was begun that is not settled."""
        self._begun = self._settled = -1
        self._epoch = 0
        """How often everybody has gone back."""
        self._back = -1
        self._rubbish: list[Link] = []
        self._closed = False
        self.seconds = 0.0
        """From the beginning of the last refresh until this worker and its buddy had it."""
        self.bytes = 0
        """What it took to send, or only to copy where no buddy is needed."""
        self.waited = 0.0
        """For how much of it the training thread had to wait, in `begin` and `hold`."""
        self._takers: list[Thread] = []
        self._thread = world.start(self._work, "understudy copies")

    # -- what is here --------------------------------------------------------------------------------------------------

    @property
    def complete(self) -> int:
        """The latest step of which this worker has its own copy and its buddy, if it needs one, has confirmed it."""
        with self._changed:
            season, own = self._season, self._own()
            if season is None or own is None:
                return -1
            return max(
                (step for step in own.whole if season.buddy is None or self._confirmed.get(step) == season.buddy),
                default=-1,
            )

    def kept(self) -> dict[int, set[int]]:
        """By role: the steps of the whole copies that are held here."""
        with self._changed:
            return {role: set(shelf.whole) for role, shelf in self._shelves.items() if shelf.whole}

    def copy(self, role: int, step: int) -> Copy:
        """A copy to give to a newcomer; it stays as it is for as long as anybody has it."""
        with self._changed:
            shelf = self._shelves.get(role)
            if shelf is None or step not in shelf.whole:
                raise StateError(f"role {role}: {self._uid} has no copy of step {step} (it has {self.kept()})")
            return shelf.lend(step)

    def _own(self) -> Shelf | None:
        role = None if self._season is None else self._season.role
        return None if role is None else self._shelf(role)

    def _shelf(self, role: int) -> Shelf:
        return self._shelves.setdefault(role, Shelf())

    # -- generations ---------------------------------------------------------------------------------------------------

    def entered(self, roster: Roster, twins: Collection[int]) -> None:
        """This worker plays in another generation from now on. `twins` are the roles with the same state as its own."""
        role = roster.role_of(self._uid)
        season = _Season(roster, role, None if role is None else buddy_of(roster, role, twins))
        with self._changed:
            if self._closed:
                return
            self._end_season()
            self._season = season
            self._confirmed = {step: who for step, who in self._confirmed.items() if who == season.buddy}
            self._changed.notify_all()
        self._fabric.expect_copy(roster.generation, partial(self._arrived, season))

    def _end_season(self) -> None:
        """Nothing more goes over its links. Whoever reads or writes them closes them."""
        season = self._season
        if season is None:
            return
        season.over = True
        for links in season.arriving.values():
            _close(links)
        season.arriving.clear()
        for links in (season.links, *season.serving):
            _cut(links)
        self._rubbish += season.links
        season.links = []
        self._changed.notify_all()

    def close(self) -> None:
        """Free all threads, sockets and copies."""
        with self._changed:
            self._closed = True
            self._end_season()
            if self._refresh is not None:
                self._refresh.over = True
            self._changed.notify_all()
            threads = [self._thread, *self._takers]
        for thread in threads:
            thread.join()
        with self._changed:
            self._shelves.clear()
            self._refresh = None

    # -- the training thread -------------------------------------------------------------------------------------------

    def begin(self, step: int, *, force: bool = False) -> bool:
        """At a boundary: copy the state with which this step begins, beside it. False where the copy before is not
        settled yet; `force` gives that up. All workers must call it at the same boundaries, and force the same ones."""
        began = self._world.monotonic()
        with self._changed:
            own = self._own()
            if self._closed or own is None or (self._open and not force):
                return False
            self._give_up()
            self._open, self._begun = True, step
            spare = own.spare(self._settled)
            # The buddy makes room as well, and only what is settled is sure to stay there.
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
        """Before anything that is tracked is changed by an optimizer: wait until it is copied. How long that took."""
        began = self._world.monotonic()
        with self._changed:
            refresh = self._refresh
            if refresh is None or refresh.copy is not None:
                return 0.0
            self._changed.wait_for(lambda: refresh.copy is not None or refresh.over)
            self._changed.wait_for(lambda: not self._busy or refresh.copy is not None)
            waited = self._world.monotonic() - began
            self.waited += waited
        return waited

    def restore(self, step: int, roles: Sequence[int]) -> None:
        """Make what is tracked as it was when this step began, from a copy of the first of these roles that has one:
        its own, or one with the same state."""
        self.hold()
        with self._changed:
            found = [self._shelves[role].whole[step] for role in roles if step in self.kept().get(role, ())]
        if not found:
            raise StateError(f"role {roles[0]}: {self._uid} has no copy of step {step} (it has {self.kept()})")
        found[0].restore(self._tracked)

    def _give_up(self) -> None:
        """Stop what is left of the refresh before; what was copied here for it is whole, or will be overwritten."""
        refresh = self._refresh
        if refresh is None:
            return
        refresh.over = True
        self._changed.notify_all()
        self._changed.wait_for(lambda: not self._busy)
        self._refresh = None

    # -- what everybody has agreed on ----------------------------------------------------------------------------------

    def settle(self, step: int) -> None:
        """All workers have complete copies of this step: older ones are needed no more."""
        with self._changed:
            if step >= self._begun:
                self._open = False
            self._settled = max(self._settled, step)
            season = self._season
            needed = set() if season is None else {season.role, *season.wards}
            for role, shelf in list(self._shelves.items()):
                shelf.drop(before=self._settled)
                if role not in needed:
                    shelf.shed()
                    if not shelf.whole:
                        del self._shelves[role]
            self._confirmed = {at: who for at, who in self._confirmed.items() if at >= self._settled}

    def forget(self, *, after: int) -> None:
        """Everybody has gone back to this step: what comes after it has not happened."""
        with self._changed:
            if self._begun > after:
                self._give_up()
                self._begun = after
            self._open = False
            self._settled = self._back = after
            self._epoch += 1
            for shelf in self._shelves.values():
                shelf.drop(after=after)
            self._confirmed = {at: who for at, who in self._confirmed.items() if at <= after}

    # -- the thread that copies and sends ------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                job()
            except Exception as error:  # such as that of a fabric that is closed already
                log.debug("%s: %s", self._uid, error)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _next(self) -> Callable[[], None] | None:
        """What to do now, once there is something; None at the end."""
        with self._changed:
            while True:
                rubbish, self._rubbish = self._rubbish, []
                for link in rubbish:
                    link.close()
                if self._closed:
                    return None
                refresh, season = self._refresh, self._season
                wait = None
                if refresh is not None and not refresh.over and refresh.draft is not None:
                    draft, refresh.draft = refresh.draft, None
                    self._busy = True
                    return partial(self._fill, refresh, draft)
                if season is not None and season.buddy is not None and not season.over:
                    if season.links and refresh is not None and not refresh.over and refresh.copy is not None:
                        self._busy = True
                        return partial(self._give, refresh, refresh.copy, season, season.buddy, season.links)
                    if not season.links and not season.dialling:
                        wait = season.again - self._world.monotonic()
                        if wait <= 0:
                            return partial(self._dial, season, season.buddy)
                self._changed.wait(wait)

    def _fill(self, refresh: _Refresh, draft: Draft) -> None:
        try:
            copy = draft.finish()
        except Exception as error:
            log.warning("%s could not copy its state at step %d: %s", self._uid, refresh.step, error)
            refresh.over = True
            return
        with self._changed:
            own, season = self._own(), self._season
            if own is not None:
                own.put(copy)
            refresh.copy = copy
            if season is None or season.buddy is None:
                self._done(refresh, copy.bytes)
            self._changed.notify_all()

    def _give(self, refresh: _Refresh, copy: Copy, season: _Season, buddy: str, links: list[Link]) -> None:
        try:
            size = self._wire.send_copy(links, copy, self._settled, lambda: season.over or refresh.over)
        except Exception as error:
            log.debug("%s: its copy of step %d did not reach %s: %s", self._uid, refresh.step, buddy, error)
            with self._changed:
                self._rubbish += season.links
                season.links = []
                self._later(season)
            return
        with self._changed:
            if not season.over and not refresh.over:
                season.failures = 0
                self._confirmed[refresh.step] = buddy
                self._done(refresh, size)

    def _done(self, refresh: _Refresh, size: int) -> None:
        refresh.over = True
        self.seconds, self.bytes = self._world.monotonic() - refresh.began, size

    def _dial(self, season: _Season, buddy: str) -> None:
        with self._changed:
            if season.over:
                return
            season.dialling = True
            attempt, season.attempt = season.attempt, season.attempt + 1
        dialling = self._fabric.dial_copy(season.roster, buddy, self._streams, attempt=attempt)
        dialling.add_done_callback(partial(self._dialled, season))

    def _dialled(self, season: _Season, done: Future[list[Link]]) -> None:
        error = "cancelled" if done.cancelled() else done.exception()
        with self._changed:
            season.dialling = False
            if error is not None:
                log.debug("%s has no links to its buddy yet: %s", self._uid, error)
                self._later(season)
            elif season.over:
                _close(done.result())
            else:
                season.links = done.result()
            self._changed.notify_all()

    def _later(self, season: _Season) -> None:
        season.again = self._world.monotonic() + min(_AGAIN_S * 2**season.failures, _AGAIN_AT_MOST_S)
        season.failures += 1

    # -- the wards' copies ---------------------------------------------------------------------------------------------

    def _arrived(self, season: _Season, link: Link) -> None:
        """On the event loop: a link of a ward; when all of them are there, they are served."""
        with self._changed:
            role = season.roster.role_of(link.peer)
            if season.over or role is None:
                link.close()
                return
            key = link.peer, link.id.rail // self._streams
            links = season.arriving.setdefault(key, [])
            links.append(link)
            if len(links) < self._streams:
                return
            del season.arriving[key]
            links.sort(key=lambda one: one.id.rail)
            season.serving.append(links)
            season.wards.add(role)
            self._takers = [thread for thread in self._takers if thread.is_alive()]
            self._takers.append(self._world.start(partial(self._serve, season, role, links), "understudy ward"))

    def _serve(self, season: _Season, role: int, links: list[Link]) -> None:
        taker = self._wire.copies_taker(links, lambda: season.over)
        epoch = 0

        def spare(keep: int) -> Copy | None:
            nonlocal epoch
            with self._changed:
                epoch = self._epoch
                return self._shelf(role).spare(max(keep, self._settled))

        try:
            while True:
                copy = taker.take(spare)
                with self._changed:
                    if season.over or (epoch != self._epoch and copy.step > self._back):
                        break
                    self._shelf(role).put(copy)
                taker.confirm()
        except Exception as error:
            log.debug("%s takes no more copies of role %d over these links: %s", self._uid, role, error)
        finally:
            with self._changed:
                season.serving.remove(links)
                _close(links)


def _close(links: list[Link]) -> None:
    for link in links:
        link.close()


def _cut(links: list[Link]) -> None:
    """End what goes over these links, whoever waits for it; they are still to be closed."""
    for link in links:
        with suppress(OSError):
            link.sock.shutdown(socket.SHUT_RDWR)

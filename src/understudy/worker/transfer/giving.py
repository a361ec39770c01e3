"""A leaver's side of a hand-over, most of it beside its last step."""

from __future__ import annotations

import logging
import threading
import time

from understudy.comm.fabric import Fabric
from understudy.comm.faults import LinkFailed
from understudy.comm.links.link import Link
from understudy.protocol.roster import Roster
from understudy.state.errors import StreamBroken
from understudy.state.inventory import Inventory
from understudy.state.kinds import Tracked

from .handover import Giver, Stop, Tempo

log = logging.getLogger("understudy.worker")

_AGAIN_S = 0.05


class Giving:
    """State on its way to one taker. Belongs to the training thread; `offer` leaves a thread behind that `offered`
    waits for. What goes wrong before the boundary costs nothing: everything is given there then."""

    def __init__(
        self,
        fabric: Fabric,
        roster: Roster,
        taker: str,
        streams: int,
        tracked: Tracked,
        stop: Stop,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self.generation, self._part = roster.generation, part
        self._fabric, self._roster, self._taker, self._streams = fabric, roster, taker, streams
        self._tracked, self._stop = tracked, stop
        self._links: list[Link] = []
        self._giver: Giver | None = None
        self._thread: threading.Thread | None = None
        self._failed = False

    def _open(self) -> Giver:
        if self._giver is None:
            self._links = self._fabric.dial_state(self._roster, self._taker, self._streams)
            self._giver = Giver(self._links, self._tracked, self._stop, self._part)
        return self._giver

    def offer(self, inventory: Inventory) -> None:
        def work() -> None:
            try:
                self._open().offer(inventory)
            except Exception as error:
                self._failed = True
                log.warning("state for %s is on its way no more: %s", self._taker, error)

        if not self._failed:
            self._thread = threading.Thread(target=work, name="understudy giving", daemon=True)
            self._thread.start()

    def offered(self) -> bool:
        """Wait for the offer of this step; whether the taker has it."""
        thread, self._thread = self._thread, None
        if thread is None:
            return False
        thread.join()
        return not self._failed

    def update(self, optimizer: object, *, replayable: bool) -> None:
        giver = self._giver
        if giver is None or self._failed:
            return
        if not replayable:
            giver.spoiled = True
            return
        try:
            giver.update(optimizer)
        except Exception as error:
            self._failed = True
            log.warning("state for %s is on its way no more: %s", self._taker, error)

    def finish(self, step: int, tempo: Tempo) -> int:
        """Returns when the taker holds everything. Links that break are opened again until the job goes another way."""
        while True:
            try:
                if self._failed:
                    self._hang_up()
                return self._open().finish(step, tempo)
            except (StreamBroken, LinkFailed, OSError):
                if self._stop():
                    raise
                self._failed = True
                time.sleep(_AGAIN_S)

    def _hang_up(self) -> None:
        for link in self._links:
            link.close()
        self._links, self._giver, self._failed = [], None, False

    def close(self) -> None:
        self._hang_up()
        if self._thread is not None:
            self._thread.join()

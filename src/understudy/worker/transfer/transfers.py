"""The state that a worker gives and takes when the roster changes."""

from __future__ import annotations

import logging

from understudy.comm.fabric import Fabric
from understudy.comm.faults import LinkFailed
from understudy.comm.links.link import Link
from understudy.host.world import Thread, World
from understudy.protocol.messages import Move, WorkerSpec
from understudy.protocol.roster import Roster
from understudy.state.errors import StreamBroken
from understudy.state.inventory import Inventory, take_inventory
from understudy.state.kinds import Tracked
from understudy.state.stream import WorldStop
from understudy.worker.driver import ProtocolDriver
from understudy.worker.meter import StepTimes
from understudy.worker.redundancy import Redundancy
from understudy.worker.states import Proposal

from .archive import Archive
from .handover import Arrival, Giver, Taker, Tempo

log = logging.getLogger("understudy.worker")

_RETRY_S = 0.05


class Transfer:
    """State on its way to one taker. Belongs to the training thread; `offer` starts a thread for which `offered` waits.
    An error before the boundary costs nothing: the whole state is given at the boundary instead."""

    def __init__(
        self,
        fabric: Fabric,
        roster: Roster,
        move: Move,
        tracked: Tracked,
        redundancy: Redundancy,
        stop: WorldStop,
        *,
        streams: int,
    ) -> None:
        self.generation, self._move = roster.generation, move
        self._fabric, self._roster, self._taker, self._streams = fabric, roster, move.taker.uid, streams
        self._tracked, self._redundancy, self._stop, self._world = tracked, redundancy, stop, stop.world
        self._links: list[Link] = []
        self._giver: Giver | None = None
        self._thread: Thread | None = None
        self._failed = False

    def _open(self) -> Giver:
        if self._giver is None:
            self._links = self._fabric.dial_state(self._roster, self._taker, self._streams)
            move = self._move
            self._giver = Giver(
                self._links,
                self._tracked,
                self._stop,
                (move.part, move.parts),
                role=move.role,
                redundancy=self._redundancy,
            )
        return self._giver

    def offer(self, inventory: Inventory) -> None:
        """Begin to give what the step under way does not change."""

        def work() -> None:
            try:
                self._open().offer(inventory)
            except Exception as error:
                self._fail(error)

        if not self._failed:
            self._thread = self._world.start(work, "understudy giving")

    def offered(self) -> bool:
        """Wait for the offer of this step. Returns whether the taker has it."""
        thread, self._thread = self._thread, None
        if thread is None:
            return False
        thread.join()
        return not self._failed

    def update(self, optimizer: object, *, replayable: bool) -> None:
        """Give the gradients with which an optimizer is about to step."""
        giver = self._giver
        if giver is None or self._failed:
            return
        if not replayable:
            giver.spoiled = True
            return
        try:
            giver.update(optimizer)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        log.warning("early transfer of state to %s failed: %s", self._taker, error)

    def finish(self, step: int, tempo: Tempo) -> int:
        """Give the remaining state. Returns when the taker holds everything. Links that break are opened again until
        `stop()`."""
        while True:
            try:
                if self._failed:
                    self._hang_up()
                return self._open().finish(step, tempo)
            except (StreamBroken, LinkFailed, OSError):
                if self._stop():
                    raise
                self._failed = True
                self._world.sleep(_RETRY_S)

    def _hang_up(self) -> None:
        for link in self._links:
            link.close()
        self._links, self._giver, self._failed = [], None, False

    def close(self) -> None:
        self._hang_up()
        if self._thread is not None:
            self._thread.join()


class StateTransfers:
    """All transfers of one worker. Belongs to its training thread."""

    def __init__(
        self,
        spec: WorkerSpec,
        driver: ProtocolDriver,
        fabric: Fabric,
        tracked: Tracked,
        step_times: StepTimes,
        redundancy: Redundancy,
        *,
        world: World,
    ) -> None:
        self._spec, self._driver, self._fabric, self._tracked = spec, driver, fabric, tracked
        self._protocol, self._step_times, self._world = driver.protocol, step_times, world
        self._redundancy = redundancy
        self._transfers: dict[str, Transfer] = {}
        """By taker."""
        self._arrival: Arrival | None = None

    @property
    def under_way(self) -> bool:
        return bool(self._transfers)

    def take_arrival(self) -> Arrival | None:
        """What has arrived since the last call."""
        arrival, self._arrival = self._arrival, None
        return arrival

    # -- giving --------------------------------------------------------------------------------------------------------

    def offer(self, archive: Archive | None) -> None:
        """If this worker is about to leave, give what the coming step does not change while the step computes."""
        proposal = self._protocol.proposal
        if proposal is None or proposal.direct or not proposal.armed or self._fabric.prepared < proposal.generation:
            return
        if not self._spec.settings.replacement.overlap or not self.may_leave(proposal, archive):
            return  # without an offer it does not vote for the change either
        if proposal.gives(self._spec.uid):
            inventory = take_inventory(self._tracked)
            for move in self._gifts(proposal):
                self._transfer_to(proposal, move).offer(inventory)

    def _gifts(self, proposal: Proposal) -> list[Move]:
        """The moves in which this worker gives."""
        return [move for move in proposal.moves if move.giver.uid == self._spec.uid]

    def offered(self, proposal: Proposal) -> bool:
        """Wait until the offers have ended. Returns whether all takers have what this step does not change."""
        transfers = [self._transfers.get(move.taker.uid) for move in self._gifts(proposal)]
        return all(each is not None and each.generation == proposal.generation and each.offered() for each in transfers)

    def may_leave(self, proposal: Proposal, archive: Archive | None) -> bool:
        """Whether this worker stays, or has written all that it has to write of a checkpoint."""
        stays = proposal.roster.role_of(self._spec.uid) is not None
        return stays or archive is None or archive.lets_go(self._protocol.step)

    def update(self, optimizer: object, *, replayable: bool) -> None:
        """An optimizer is about to step, and the step counts: let the takers of the agreed generation make the same
        step."""
        if self._protocol.agreed:
            for transfer in self._transfers.values():
                if transfer.generation == self._protocol.agreed:
                    transfer.update(optimizer, replayable=replayable)

    def give(self, proposal: Proposal, archive: Archive | None) -> None:
        """Give state to all takers, before this worker goes on in the generation that it has entered."""
        for move in self._gifts(proposal):
            try:
                if proposal.back == "copy":  # which this worker has kept for the taker's role
                    assert archive is not None
                    stop = self._stopper(proposal.generation)
                    archive.give(proposal.roster, move.taker.uid, move.copy_of, proposal.step, stop)
                else:
                    self._finish(proposal, move)
            except Exception as error:
                log.warning("%s could not give state to %s: %s", self._spec.uid, move.taker.uid, error)
            else:
                with self._driver.changed:
                    self._driver.do(self._protocol.gave(proposal.generation))

    def _finish(self, proposal: Proposal, move: Move) -> None:
        transfer = self._transfer_to(proposal, move)
        try:
            transfer.finish(self._protocol.step, self._step_times.tempo())
        finally:
            transfer.close()
            del self._transfers[move.taker.uid]

    def _transfer_to(self, proposal: Proposal, move: Move) -> Transfer:
        transfer = self._transfers.get(move.taker.uid)
        if transfer is None or transfer.generation != proposal.generation:
            if transfer is not None:
                transfer.close()
            stop, streams = self._stopper(proposal.generation), self._spec.settings.replacement.streams
            transfer = Transfer(
                self._fabric, proposal.roster, move, self._tracked, self._redundancy, stop, streams=streams
            )
            self._transfers[move.taker.uid] = transfer
        return transfer

    def _stopper(self, generation: int) -> WorldStop:
        """Whether giving state for a generation has become pointless."""
        protocol = self._protocol

        def stop() -> bool:
            proposed = 0 if protocol.proposal is None else protocol.proposal.generation
            return self._driver.dismissed or protocol.halted or generation not in (protocol.generation, proposed)

        return WorldStop(stop, self._world)

    # -- taking --------------------------------------------------------------------------------------------------------

    def complete_links(self) -> tuple[Proposal, list[list[Link]]] | None:
        """With the lock held: the proposal for which state comes, and the links from each giver; None until all have
        arrived."""
        proposal, arrived = self._protocol.proposal, self._driver.links
        wanted = 0 if proposal is None else proposal.generation
        for generation in [generation for generation in arrived if generation != wanted]:
            for link in arrived.pop(generation):
                link.close()
        links = arrived.get(wanted)
        if links is None or proposal is None:
            return None
        moves = sorted((m for m in proposal.moves if m.taker.uid == self._spec.uid), key=lambda move: move.part)
        if len(links) < self._spec.settings.replacement.streams * len(moves):
            return None
        links = sorted(arrived.pop(wanted), key=lambda link: link.id.rail)
        return proposal, [[link for link in links if link.peer == move.giver.uid] for move in moves]

    def take(self, proposal: Proposal, links: list[list[Link]]) -> None:
        """Take the state of the proposed generation into what is tracked. Raises StateError if the objects of this
        worker cannot hold it: the worker is of no use for the role then."""

        def stop() -> bool:
            return self._driver.dismissed or self._protocol.proposal is not proposal

        def took(arrival: Arrival) -> bool:
            with self._driver.changed:
                counts = self._protocol.took(proposal.generation, arrival.step)
            if counts:  # also if the giver is lost before it hears of it
                self._arrival = arrival
                self._step_times.take_over(arrival.tempo)
                self._redundancy.take(arrival.redundancy)
            return counts

        try:
            Taker(links[0], self._tracked, stop, links[1:], world=self._world).run(took)
        except StreamBroken as error:
            log.warning("%s could not take the state of its role: %s", self._spec.uid, error)
        finally:
            for link in (link for each in links for link in each):
                link.close()

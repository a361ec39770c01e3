"""State on its way from one worker's memory to another's, as a player sees it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from understudy.comm.fabric import Fabric
from understudy.comm.links.link import Link
from understudy.protocol.messages import Move, WorkerSpec
from understudy.state.errors import StateError, StreamBroken
from understudy.state.inventory import take_inventory
from understudy.worker import protocol as parts
from understudy.worker.protocol import WorkerProtocol
from understudy.worker.pulse import Pulse

from .archive import Archive
from .giving import Giving
from .handover import Arrival, Taker

log = logging.getLogger("understudy.worker")


class Passing:
    """What a player gives and takes. Belongs to its training thread."""

    def __init__(self, spec: WorkerSpec, fabric: Fabric) -> None:
        self.spec, self.fabric = spec, fabric
        self.part = WorkerProtocol(spec.uid)
        self.pulse = Pulse()
        self.part.usual = self.pulse.usual
        self.tracked: dict[str, object] = {}
        self._changed = threading.Condition()
        self._dismissed = False
        self._archive: Archive | None = None
        """What it keeps to go back to, from the first boundary on."""
        self._links: dict[int, list[Link]] = {}
        self._arrival: Arrival | None = None
        self._giving: dict[str, Giving] = {}
        """By taker: state that is on its way."""

    def _do(self, effects: list[parts.Effect]) -> None:
        raise NotImplementedError

    def _offer(self) -> None:
        """Give what the coming step does not touch while it computes, if this worker is about to leave."""
        proposal = self.part.proposal
        wanted = (
            proposal is not None and not proposal.direct and proposal.armed and self.spec.settings.replacement.overlap
        )
        if proposal is None or not wanted or self.fabric.prepared < proposal.generation:
            return
        if not self._may_leave(proposal):
            return  # without an offer it does not vote for the change either
        moves = [move for move in proposal.moves if move.giver.uid == self.spec.uid]
        inventory = take_inventory(self.tracked) if moves else None
        for move in moves:
            giving = self._giving_to(proposal, move)
            assert inventory is not None
            giving.offer(inventory)

    def _may_leave(self, proposal: parts.Proposal) -> bool:
        """Whether this worker stays, or has written all that it has to write of a checkpoint."""
        stays = proposal.roster.role_of(self.spec.uid) is not None
        return stays or self._archive is None or self._archive.lets_go(self.part.step)

    def _giving_to(self, proposal: parts.Proposal, move: Move) -> Giving:
        taker = move.taker.uid
        giving = self._giving.get(taker)
        if giving is None or giving.generation != proposal.generation:
            if giving is not None:
                giving.close()
            stop = self._stopper(
                lambda: self.part.halted or proposal.generation not in (self.part.generation, self._proposed)
            )
            part = (move.part, move.parts)
            giving = Giving(
                self.fabric, proposal.roster, taker, self.spec.settings.replacement.streams, self.tracked, stop, part
            )
            self._giving[taker] = giving
        return giving

    @property
    def _proposed(self) -> int:
        proposal = self.part.proposal
        return 0 if proposal is None else proposal.generation

    def _give(self, proposal: parts.Proposal, generation: int) -> None:
        """State to those who have none, before this worker goes on."""
        for move in proposal.moves:
            if move.giver.uid != self.spec.uid:
                continue
            tempo = self.pulse.tempo()
            if proposal.back == "copy":
                self._give_copy(proposal, move)
                continue
            giving = self._giving_to(proposal, move)
            try:
                giving.finish(self.part.step, tempo)
            except Exception as error:
                log.warning("%s could not give its state to %s: %s", self.spec.uid, move.taker.uid, error)
            else:
                with self._changed:
                    self._do(self.part.gave(generation))
            finally:
                giving.close()
                del self._giving[move.taker.uid]

    def _give_copy(self, proposal: parts.Proposal, move: Move) -> None:
        """The copy that this worker has kept for somebody."""
        assert self._archive is not None
        generation = proposal.generation
        stop = self._stopper(lambda: self.part.halted or generation not in (self.part.generation, self._proposed))
        try:
            self._archive.give(proposal.roster, move.taker.uid, move.copy_of, proposal.step, stop)
        except Exception as error:
            log.warning("%s could not give its copy to %s: %s", self.spec.uid, move.taker.uid, error)
        else:
            with self._changed:
                self._do(self.part.gave(generation))

    def _complete_links(self) -> list[list[Link]] | None:
        """All connections over which state comes for the generation that is proposed, by giver."""
        proposal = self.part.proposal
        wanted = 0 if proposal is None else proposal.generation
        for generation in [generation for generation in self._links if generation != wanted]:
            for link in self._links.pop(generation):
                link.close()
        links = self._links.get(wanted)
        if links is None or proposal is None:
            return None
        moves = sorted((m for m in proposal.moves if m.taker.uid == self.spec.uid), key=lambda move: move.part)
        if len(links) < self.spec.settings.replacement.streams * len(moves):
            return None
        links = sorted(self._links.pop(wanted), key=lambda link: link.id.rail)
        return [[link for link in links if link.peer == move.giver.uid] for move in moves]

    def _take(self, links: list[list[Link]]) -> None:
        proposal = self.part.proposal
        assert proposal is not None
        stop = self._stopper(lambda: self.part.proposal is not proposal)

        def took(step: int) -> bool:
            with self._changed:
                return self.part.took(proposal.generation, step)

        try:
            arrival = Taker(links[0], self.tracked, stop, links[1:]).run(took)
        except (StreamBroken, StateError) as error:
            log.warning("%s could not take its state: %s", self.spec.uid, error)
        else:
            self._arrival = arrival
            if arrival is not None:
                self.pulse.take_over(arrival.tempo)
        finally:
            for link in (link for each in links for link in each):
                link.close()

    def _stopper(self, over: Callable[[], bool]) -> Callable[[], bool]:
        return lambda: self._dismissed or over()

    def _offered(self, proposal: parts.Proposal) -> bool:
        """Whether all takers have what this step does not touch; it changes with the update, so it waits for that."""
        mine = [move.taker.uid for move in proposal.moves if move.giver.uid == self.spec.uid]
        return all(
            (giving := self._giving.get(taker)) is not None
            and giving.generation == proposal.generation
            and giving.offered()
            for taker in mine
        )

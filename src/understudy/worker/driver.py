"""The worker's protocol under one lock, with its effects carried out."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from understudy.comm.fabric import Fabric
from understudy.comm.links.link import Link
from understudy.host.world import World
from understudy.protocol.messages import FromWorker, Telemetry, ToWorker, WorkerSpec
from understudy.protocol.roster import Roster, RosterError

from .instructions import Close, Effect, End, EnterTrain, Open, PoisonFabric, SendReport
from .protocol import WorkerProtocol

Send = Callable[[FromWorker | Telemetry], None]


class Dismissed(BaseException):
    """The job does not need this worker any more."""


class ProtocolDriver:
    """Feeds a worker's protocol and carries out its effects. `hear` may be called from any thread. The training thread
    holds `changed`, which is both the lock and the condition that is notified of every effect, while it uses the
    protocol."""

    def __init__(self, spec: WorkerSpec, fabric: Fabric, send: Send, world: World) -> None:
        self.protocol = WorkerProtocol(spec.uid)
        self.changed = world.condition()
        self.dismissed = False
        """Whether the job does not need this worker any more."""
        self.entry: EnterTrain | None = None
        """The role for which the training function is to be entered next."""
        self.links: dict[int, list[Link]] = {}
        """By generation: connections that have arrived and bring state for it."""
        self._fabric, self._send, self._world = fabric, send, world
        self._opening_since = 0.0

    def hear(self, message: ToWorker) -> None:
        """Handle a message from the controller. Does not block."""
        with self.changed:
            self.do(self.protocol.hear(message))

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Wait, with the lock held, until `ready()`. Raises Dismissed if the worker is dismissed first."""
        self.changed.wait_for(lambda: ready() or self.dismissed)
        self.check_dismissed()

    def check_dismissed(self) -> None:
        if self.dismissed:
            raise Dismissed

    def do(self, effects: list[Effect]) -> None:
        """Carry out effects in order, with the lock held. Does not block."""
        for effect in effects:
            match effect:
                case SendReport(message):
                    self._send(message)
                case Open(roster):
                    self._open(roster)
                case Close(generation):
                    self._fabric.abandon(generation)
                case PoisonFabric(reason):
                    self._fabric.interrupt(reason)
                case EnterTrain():
                    self.entry = effect
                case End():
                    self.dismissed = True
        self.changed.notify_all()

    def _open(self, roster: Roster) -> None:
        generation, proposal = roster.generation, self.protocol.proposal
        self._opening_since = self._world.monotonic()
        if proposal is not None and proposal.takes(self.protocol.uid):
            self._fabric.expect_state(generation, partial(self._arrived, generation))
        try:
            future = self._fabric.prepare(roster)
        except (RosterError, RuntimeError) as error:
            self.do(self.protocol.not_opened(generation, str(error)))
        else:
            future.add_done_callback(partial(self._opened, generation))

    def _opened(self, generation: int, done: Future[None]) -> None:
        with self.changed:
            error = "it was cancelled" if done.cancelled() else done.exception()
            if error is None:
                self.do(self.protocol.opened(generation, self._world.monotonic() - self._opening_since))
            else:
                self.do(self.protocol.not_opened(generation, str(error)))

    def _arrived(self, generation: int, link: Link) -> None:
        with self.changed:
            self.links.setdefault(generation, []).append(link)
            self.changed.notify_all()

"""A machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import structs

from understudy.protocol.frames import (
    Dismiss,
    EndWorker,
    KeepCopy,
    KeptCopy,
    Leaving,
    Order,
    Relayed,
    Report,
    StartWorker,
    Tell,
)
from understudy.protocol.messages import Here, Recorded
from understudy.protocol.roster import WorkerAddress
from understudy.protocol.sessions import Inbox, Outbox

from .worker import SimWorker

if TYPE_CHECKING:
    from .world import World


class SimAgent:
    """One machine. Its connection to the controller may break and comes back; its workers die with it."""

    def __init__(self, world: World, name: str, standby: bool) -> None:
        self.world, self.name, self.standby = world, name, standby
        self.incarnation = f"{name}#{world.count}"
        self.alive = True
        self.dismissed = False
        self.workers: dict[str, SimWorker] = {}
        self.kept: set[str] = set()
        """Digests of recordings."""
        self.outbox: Outbox[Report] = Outbox()
        self.inbox = Inbox()
        self.connection = 0
        """Number of the connection in use; 0 while there is none."""
        self.connections = 0

    def connect(self) -> None:
        if not self.alive or self.connection:
            return
        if self.world.controller.director is None:
            self.world.after(0.1 + self.world.delay(), self.connect)
            return
        self.connections += 1
        self.connection = self.connections
        self.busy_until = self.world.now
        self.world.controller.welcome(self)

    def disconnect(self) -> None:
        self.connection = 0
        self.world.after(self.world.random.uniform(0.01, 0.5), self.connect)

    def send(self, action: Callable[[], None]) -> None:
        """Over the connection in use: in order, after a while, or never."""
        number = self.connection
        self.busy_until = max(self.busy_until, self.world.now + self.world.delay())
        self.world.at(self.busy_until, lambda: action() if number == self.connection else None)

    def report(self, report: Report) -> None:
        if self.alive:
            number = self.outbox.put(report)
            if self.connection:
                self._send_report(number, report)

    def _send_report(self, number: int, report: Report) -> None:
        self.send(lambda: self.world.controller.reported(self, number, report))
        if self.world.random.random() < 0.02:
            self.send(lambda: self.world.controller.reported(self, number, report))

    def resend(self, received: int) -> None:
        for number, report in self.outbox.after(received):
            self._send_report(number, report)

    def ordered(self, number: int, order: Order) -> None:
        if not self.alive or not self.inbox.take(number):
            return
        match order:
            case StartWorker(uid):
                worker = self.workers[uid] = self.world.workers[uid] = SimWorker(self.world, self, uid)
                here = Here(WorkerAddress(uid, self.name))
                worker.later(0.05 + self.world.delay(), lambda: self.report(Relayed(uid, here)))
            case Tell(uid, message):
                worker = self.workers[uid]
                if worker.alive:
                    self.world.say(f"{uid} hears {type(message).__name__} {_short(message)}")
                    worker.hear(message)
            case EndWorker(uid):
                self.workers[uid].die(-9)
            case KeepCopy(recorded):
                self.world.after(self.world.delay(), lambda: self.fetched(recorded))
            case Dismiss():
                self.dismissed = True
                self.die()

    def keep(self, recorded: Recorded) -> Recorded:
        """A recording is here from now on."""
        self.kept.add(recorded.digest)
        return structs.replace(recorded, url=f"{self.incarnation}/{recorded.digest}")

    def fetched(self, recorded: Recorded) -> None:
        """A copy has come, if whoever has it still lives."""
        if self.alive:
            there = self.world.serves(recorded)
            self.report(KeptCopy(self.keep(recorded) if there else structs.replace(recorded, url="")))

    def notice(self, seconds: float) -> None:
        """It has to go soon, and does."""
        self.report(Leaving(seconds, "it is preempted"))
        self.world.after(seconds, self.die)

    def die(self) -> None:
        self.alive = False
        self.connection = 0
        for worker in self.workers.values():
            worker.die(-9)


def _short(message: object) -> str:
    text = str(message)
    return text if len(text) < 60 else f"{text[:60]}…"

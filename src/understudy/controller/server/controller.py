"""The controller without its sockets: the director, its ledger, and the orders that are on their way to agents.

Nothing here waits. The server calls it for every frame and request that comes, and `look` several times a second; the
simulation does the same with another world.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from understudy.controller.core.actions import UnexpectedEvent
from understudy.controller.core.director import Director
from understudy.controller.core.effects import Announcement
from understudy.controller.core.events import Asked, Event, Lost, Registered, Rejected, Reported, Request
from understudy.controller.core.state import OVER, JobState
from understudy.host.world import REAL, World
from understudy.protocol.frames import Ack, Beat, Frame, Numbered, Refused, Register, Report, Welcome
from understudy.protocol.provisioning import Provisioning
from understudy.protocol.roster_delta import RosterEncoder

from .observing import Observing
from .spec import ControlSpec, objection
from .steward import Steward
from .views import state_of

log = logging.getLogger("understudy.controller")

WATCH_S = 0.1
"""Between two calls of `look`."""
_RETURN_S = 8.0
"""Seconds within which agents that were cut off from the controller have reached it again."""
RENAME = "choose another --name"


class EventLog(Protocol):
    """Events in order; see `ledger.Ledger`."""

    def append(self, at: float, event: Event) -> None: ...

    def read(self) -> Iterator[tuple[float, Event]]: ...


class Connection(Protocol):
    """A connection to an agent. `send` returns at once; frames arrive in order, or the connection breaks."""

    @property
    def closed(self) -> bool: ...

    def send(self, frame: Frame) -> None: ...

    def close(self) -> None: ...


class Controller:
    """Every event is in the ledger before anything follows from it."""

    def __init__(
        self,
        spec: ControlSpec,
        ledger: EventLog,
        *,
        world: World = REAL,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex[:12],
    ) -> None:
        self.spec, self.ledger = spec, ledger
        self._world, self._new_id = world, new_id
        self.director = Director(spec.plan)
        self.announcements: list[Announcement] = []
        self.provisioning: list[Provisioning] = []
        """Requests for machines and releases, in their order."""
        self.beats: dict[str, Beat] = {}
        self.observing = Observing(spec.settings.stragglers, spec.mesh)
        self.connections: dict[str, Connection] = {}
        self.on_news: Callable[[], None] = lambda: None
        """Called after every event."""
        self.silence = 0.0
        """Seconds without a sign of life from any machine, if that is too long."""
        self._seen: dict[str, float] = {}
        self._sent: dict[str, int] = {}
        self._expired: set[Event] = set()
        self._rosters = RosterEncoder()
        for at, event in ledger.read():
            self._decide(event, at)
        self.steward = Steward(spec.steward, self.job, self.announcements, lambda: self.observing.suspects, new_id)
        self._looked = world.monotonic()
        self._seen = dict.fromkeys(self.job.machines, self._looked)

    @property
    def job(self) -> JobState:
        return self.director.job

    def _decide(self, event: Event, now: float) -> None:
        """Feed the director and keep the effects; an event that the protocol rules out is announced and ignored."""
        try:
            effects = self.director.feed(event, now)
        except UnexpectedEvent as error:
            log.error("ignored: %s", error)
            effects = [Announcement("unexpected", f"{error.what}; the event is ignored", now)]
        self.announcements += [effect for effect in effects if isinstance(effect, Announcement)]
        self.provisioning += [effect for effect in effects if isinstance(effect, Provisioning)]

    # -- events --------------------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Write an event down, decide, and send the orders that follow."""
        now = self._world.time()
        self.ledger.append(now, event)
        self._decide(event, now)
        self.on_news()
        while self.job.addressed:
            name, _ = self.job.addressed.popitem()
            self._flush(name)

    def ask(self, request: Request) -> str:
        """Take a request in; returns its id. The answer may take a while."""
        id = self._new_id()
        self.feed(Asked(id, request))
        return id

    def answer(self, id: str) -> dict[str, object]:
        """The state of a request, and its answer if there is one."""
        reply = self.job.answers.get(id)
        if reply is None:
            return {"done": False, "state": state_of(self.job, id)}
        return {"done": True, "ok": reply.ok, "text": reply.text, "at": reply.at, **reply.data}

    def _flush(self, name: str) -> None:
        machine, connection = self.job.machines.get(name), self.connections.get(name)
        if machine is None or connection is None:
            return
        for number, order in machine.outbox.after(0):
            if number > self._sent.get(name, 0):
                self._sent[name] = number
                connection.send(Numbered(number, *self._rosters.encode(name, order)))

    # -- time ----------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Find machines that are silent for too long, limits that have passed, and what the steward asks for."""
        now, limits = self._world.monotonic(), self.spec.settings.recovery
        self._looked, absent = now, now - self._looked - WATCH_S
        if absent > limits.heartbeat / 2:  # this process was held up and has read nothing meanwhile
            self._seen = {name: seen + absent for name, seen in self._seen.items()}
            return
        if self._cut_off(now):
            return
        why = f"nothing heard from its agent for {limits.heartbeat:g} s"
        for name in lost_machines(self._heard(now), now, heartbeat=limits.heartbeat, patience=limits.patience):
            self.feed(Lost(name, self.job.machines[name].incarnation, why))
        for limit, event in self.director.due():
            if self._world.time() > limit and event not in self._expired:
                self._expired.add(event)
                self.feed(event)
        for noted in self.observing.look(self.job, now):
            self.feed(noted)
        for request in self.steward.look(self._world.time()):
            self.feed(request)

    def _heard(self, now: float) -> dict[str, float]:
        return {name: self._seen.get(name, now) for name, machine in self.job.machines.items() if machine.alive}

    def _cut_off(self, now: float) -> bool:
        """Whether no machine at all is heard. Afterwards not all are heard at once: connections that were cut take
        about as long to come back as they were away, or to be opened anew."""
        heard, limit = self._heard(now), self.spec.settings.recovery.heartbeat
        silence = silence_of(heard, now)
        if limit < silence < self.spec.settings.recovery.patience:
            if not self.silence and self.job.status not in OVER:
                log.warning("nothing heard from any machine for %g s: it is the controller that is cut off", limit)
            self.silence = silence
            return True
        if self.silence and silence <= limit:  # a machine is heard again
            self._seen = dict.fromkeys(self._seen, now + min(self.silence, _RETURN_S))
        self.silence = 0.0
        return False

    # -- agents --------------------------------------------------------------------------------------------------------

    def admit(self, connection: Connection, register: Register) -> bool:
        """Take an agent's connection in, or refuse it."""
        name = register.machine
        known = self.job.machines.get(name)
        why = objection(name, register.facts, self.spec.facts)
        if not why and known is not None and known.alive and known.incarnation != register.incarnation:
            there = self.connections.get(name)
            why = "" if there is None or there.closed else f"there is a machine {name} in this job already; {RENAME}"
        if why:
            self.feed(Rejected(name, register.incarnation, why))
            connection.send(Refused(why, unfit=True))
            return False
        self._seen[name] = self._world.monotonic()
        if known is None or known.incarnation != register.incarnation:
            self.feed(Registered(name, register.incarnation, register.standby, register.labels))
        machine = self.job.machines[name]
        machine.outbox.acknowledged(register.received)
        self._sent[name] = register.received
        if not machine.alive and not list(machine.outbox.after(register.received)):
            connection.send(Refused(machine.why))
            return False
        self.connections[name] = connection
        self._rosters.connected(name, register.roster)
        connection.send(Welcome(machine.inbox.last))
        self._flush(name)
        return True

    def hear(self, connection: Connection, register: Register, frame: Frame) -> None:
        """A frame has come over the connection of an agent that was admitted."""
        name, incarnation = register.machine, register.incarnation
        self._seen[name] = self._world.monotonic()
        machine = self.job.machines[name]
        if machine.incarnation != incarnation:
            connection.send(Refused("another agent has this machine's name"))
            connection.close()
        elif isinstance(frame, Numbered) and isinstance(frame.content, Report):
            if frame.number == machine.inbox.last + 1 and machine.alive:
                self.feed(Reported(name, incarnation, frame.number, frame.content))
            connection.send(Ack(machine.inbox.last))
        elif isinstance(frame, Ack):
            machine.outbox.acknowledged(frame.number)
        elif isinstance(frame, Beat):
            self.beats[name] = frame
            self.observing.hear(frame.samples)

    def disconnected(self, name: str, connection: Connection) -> None:
        """A connection is gone; its agent may come back with another one."""
        if self.connections.get(name) is connection:
            del self.connections[name]


def silence_of(heard: Mapping[str, float], now: float) -> float:
    """Seconds since a sign of life of any machine. 0 for a single machine, whose silence says nothing of the others."""
    return now - max(heard.values()) if len(heard) > 1 else 0.0


def lost_machines(heard: Mapping[str, float], now: float, *, heartbeat: float, patience: float) -> list[str]:
    """Machines that are silent for too long while others are not.

    If all are silent, the controller is cut off: it could send no order, and training does not need it. Only after
    `patience` are all machines lost.
    """
    if heartbeat / 2 < silence_of(heard, now) < patience:
        return []
    return [name for name, at in heard.items() if now - at > heartbeat]

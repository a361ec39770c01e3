"""The controller around the real director."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from understudy.controller.core.director import Director
from understudy.controller.core.effects import Announcement, Effect, Reply
from understudy.controller.core.events import Asked, Event, Lost, Registered, Reported
from understudy.controller.core.state import OVER, JobState
from understudy.controller.server.steward import Steward
from understudy.protocol.frames import Relayed, Report
from understudy.protocol.messages import Saved
from understudy.protocol.provisioning import StartMachines

if TYPE_CHECKING:
    from .agent import SimAgent
    from .world import World

HEARTBEAT = 2.0


@dataclass
class SimController:
    """The director, its ledger, and the connections it has."""

    world: World
    ledger: list[tuple[float, Event]] = field(default_factory=list)
    director: Director | None = None
    sent: dict[str, int] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    expired: set[Event] = field(default_factory=set)
    provided: int = 0
    """Machines that were asked for and have been started."""
    mourned: set[str] = field(default_factory=set)
    """Of these, those that have died before they had come, as whoever has started them says."""

    announcements: list[Announcement] = field(default_factory=list)
    steward: Steward | None = None
    ids: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.director = Director(self.world.plan)
        self.appoint(self.director.job)
        self.world.after(0.5, self.watch)

    def appoint(self, job: JobState) -> None:
        """A steward that has read what was told so far."""
        self.steward = Steward(
            self.world.rules, job, self.announcements, self.world.suspects, lambda: f"steward-{next(self.ids)}"
        )

    @property
    def alive(self) -> bool:
        return self.director is not None

    def crash(self) -> None:
        self.director = None
        for agent in self.world.agents.values():
            if agent.connection:
                agent.disconnect()
        self.world.after(self.world.random.uniform(0.05, 1.0), self.come_back)

    def come_back(self) -> None:
        if self.director is not None:
            return
        director = Director(self.world.plan)
        wanted = 0
        self.announcements = []
        for at, event in self.ledger:
            outputs = director.feed(event, at)
            self.announcements += [output for output in outputs if isinstance(output, Announcement)]
            wanted += sum(map(_wanted, outputs))
        self.director = director
        self.appoint(director.job)
        self.provide(wanted)
        self.sent.clear()
        self.seen = dict.fromkeys(director.job.machines, self.world.now)
        for asked in self.asked:
            if self.alive and not any(isinstance(event, Asked) and event.id == asked.id for _, event in self.ledger):
                self.feed(asked)

    def submit(self, asked: Asked) -> None:
        """An operator's request; they ask again where no answer comes."""
        self.asked.append(asked)
        if self.director is not None:
            self.feed(asked)

    def feed(self, event: Event) -> None:
        assert self.director is not None
        self.ledger.append((self.world.now, event))
        if self.world.random.random() < 0.001:
            self.world.say("controller crashes between its ledger and its orders")
            self.crash()
            return
        if self.director.job.status not in OVER and isinstance(event, Reported) and isinstance(event.report, Relayed):
            message = event.report.message
            if isinstance(message, Saved):
                self.world.told.add((message.role, message.step))
        known = {uid for uid, actor in self.director.job.workers.items() if actor.alive and uid in self.world.workers}
        for output in self.director.feed(event, self.world.now):
            self.provide(self.provided + _wanted(output))
            if isinstance(output, Reply):
                self.world.say(f"reply to {output.id}: {output.text}")
                if output.ok and output.id.startswith("c"):
                    self.world.scaled_at = self.world.now
            elif isinstance(output, Announcement):
                self.announcements.append(output)
                if output.kind in ("phase", "seated") and self.world.random.random() < self.world.malice:
                    self.world.after(
                        self.world.random.choice([0.02, 0.2, 0.6]) * self.world.random.random(), self.world.strike
                    )
                if output.kind == "change":
                    self.world.begun(self.director)
                if output.kind in OVER:
                    self.world.ended_at = self.world.now
                if output.kind == "failed":
                    self.world.despaired(known, output.text)
                if output.kind in ("change", "decided"):
                    self.world.plans()
                if output.kind == "waiting":
                    self.world.waits(output.text)
                self.world.say(f"event: {output.kind}: {output.text}")
        self.director.job.validate()
        self.flush()

    def provide(self, wanted: int) -> None:
        """The source of machines reads all requests, also those from before a crash."""
        while self.provided < wanted:
            self.provided += 1
            if self.world.generous:
                self.world.agent(f"x{self.provided}", standby=True)

    def flush(self) -> None:
        director = self.director
        assert director is not None
        for name, machine in director.job.machines.items():
            agent = self.world.agents.get(name)
            if agent is None or not agent.connection or agent.incarnation != machine.incarnation:
                continue
            last = self.sent.get(machine.incarnation, agent.inbox.last)
            for number, order in machine.outbox.after(agent.inbox.last):
                if number > last:
                    agent.send(partial(agent.ordered, number, order))
                    if self.world.random.random() < 0.02:
                        agent.send(partial(agent.ordered, number, order))
                    self.sent[machine.incarnation] = number

    def welcome(self, agent: SimAgent) -> None:
        assert self.director is not None
        self.seen[agent.name] = self.world.now
        self.sent.pop(agent.incarnation, None)
        machine = self.director.job.machines.get(agent.name)
        if machine is None or machine.incarnation != agent.incarnation:
            self.feed(Registered(agent.name, agent.incarnation, agent.standby))
        if self.alive:
            agent.resend(self.director.job.machines[agent.name].inbox.last)
            self.flush()

    def reported(self, agent: SimAgent, number: int, report: Report) -> None:
        if self.director is None:
            return
        machine = self.director.job.machines.get(agent.name)
        if machine is None or machine.incarnation != agent.incarnation or not machine.alive:
            return
        if number == machine.inbox.last + 1:
            self.feed(Reported(agent.name, agent.incarnation, number, report))

    def watch(self) -> None:
        """Heartbeats: whoever has no connection for too long is gone."""
        self.world.after(0.5, self.watch)
        if self.director is None:
            return
        for moment, expired in self.director.due():
            if self.world.now > moment and expired not in self.expired:
                self.expired.add(expired)
                self.feed(expired)
                if not self.alive:
                    return
        for agent in list(self.world.agents.values()):
            provided = agent.name.startswith("x")
            if provided and not (
                agent.alive or agent.name in self.director.job.machines or agent.incarnation in self.mourned
            ):
                self.mourned.add(agent.incarnation)
                self.feed(Lost(agent.name, "", "its agent has ended"))
                if not self.alive:
                    return
        for name, machine in list(self.director.job.machines.items()):
            agent = self.world.agents[name]
            if agent.connection:
                self.seen[name] = self.world.now
            elif machine.alive and self.world.now - self.seen.get(name, 0.0) > HEARTBEAT:
                self.feed(Lost(name, machine.incarnation, "no heartbeat"))
                if not self.alive:
                    return
        assert self.steward is not None
        for event in self.steward.look(self.world.now):
            self.feed(event)
            if not self.alive:
                return


def _wanted(output: Effect) -> int:
    """How many machines it asks for."""
    return output.count if isinstance(output, StartMachines) else 0

"""The controller's process in a simulated job: the real `Controller`, which crashes and comes back from its ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from understudy.controller.core.events import Asked, Event, Lost, Noted, Scale
from understudy.controller.core.machines import MachineState
from understudy.controller.core.state import JobState, Violation
from understudy.controller.server.controller import Controller
from understudy.protocol.provisioning import StartMachines
from understudy.protocol.samples import Sample

from .scheduler import SimProcess
from .verdicts import Rule, RuleBroken

if TYPE_CHECKING:
    from .job import SimJob

LOOK_S = 0.25
"""Between two looks of the controller at the clock."""
_CRASH = 0.001
"""Probability that the controller dies between its ledger and its orders."""
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)
T = TypeVar("T")


class ControllerCrash(BaseException):
    """The controller's process dies here."""


class SimLedger:
    """A ledger in memory. Sometimes the process dies when an event is in it, and nothing has followed."""

    def __init__(self, job: SimJob) -> None:
        self._job = job
        self._events: list[tuple[float, bytes]] = []

    def append(self, at: float, event: Event) -> None:
        self._events.append((at, _encoder.encode(event)))
        self._job.recorded(event)
        if self._job.random.random() < _CRASH:
            self._job.say("the controller dies between its ledger and its orders")
            raise ControllerCrash

    def read(self) -> Iterator[tuple[float, Event]]:
        return ((at, _decoder.decode(event)) for at, event in self._events)


@dataclass(frozen=True)
class Slow:
    """A finding of a slow machine, as the steward reads it."""

    ratio: float = 1.5
    reason: str = "it limps"


class ChanceObserving:
    """Stands in for the detector of slow machines: now and then a machine is slow, or is not any more."""

    def __init__(self, job: SimJob) -> None:
        self._job = job
        self._slow: dict[str, Slow] = {}

    @property
    def findings(self) -> list[Slow]:
        return list(self._slow.values())

    @property
    def suspects(self) -> dict[str, Slow]:
        chance = self._job.fate
        if chance.random() < 0.3:
            self._slow.clear()
        if chance.random() < 0.3:
            self._slow[chance.choice(sorted(self._job.agents))] = Slow()
        return self._slow

    def hear(self, samples: Iterable[Sample]) -> None:
        pass

    def look(self, job: JobState, now: float) -> list[Noted]:
        return []


class ControllerHost:
    """Keeps a controller running."""

    def __init__(self, job: SimJob) -> None:
        self._job = job
        self.world = SimProcess(job.scheduler, "controller")
        self.ledger = SimLedger(job)
        self.asked: list[Asked] = []
        """Requests of operators; they ask again if their request is not in the ledger."""
        self.controller: Controller | None = None
        self._lives = 0
        self._steward_ids = 0
        self._provided: list[str] = []
        """Machines that were asked for, and have been started if machines come."""
        self._mourned: set[str] = set()
        """Incarnations of these that died before they registered, as their launcher says."""

    def start(self) -> None:
        """A controller reads its ledger and goes on."""
        if self.controller is not None:
            return
        self._lives += 1
        spec = self._job.setting.control_spec()
        controller = Controller(spec, self.ledger, world=self.world, new_id=self._new_id)
        controller.observing = ChanceObserving(self._job)  # type: ignore[assignment]
        controller.on_news = self._news
        self.controller = controller
        self._read, self._answered = len(controller.announcements), len(controller.job.answers)
        self._provide()
        self._look_later(self._lives)
        known = {event.id for _, event in self.ledger.read() if isinstance(event, Asked)}
        for asked in self.asked:
            if asked.id not in known:
                self.feed(asked)

    def _new_id(self) -> str:
        self._steward_ids += 1
        return f"steward-{self._steward_ids}"

    def crash(self) -> None:
        """The process dies; another one is started after a while."""
        if self.controller is None:
            return
        self.controller = None
        for agent in self._job.agents.values():
            agent.disconnect()
        self._job.scheduler.after(self._job.random.uniform(0.05, 1.0), self.start)

    def call(self, action: Callable[[Controller], T]) -> T | None:
        """Let the controller do something, if it lives; it may die meanwhile."""
        if self.controller is None:
            return None
        try:
            return action(self.controller)
        except ControllerCrash:
            self.crash()
            return None

    def feed(self, event: Event) -> None:
        self.call(lambda controller: controller.feed(event))

    def submit(self, asked: Asked) -> None:
        """A request of an operator."""
        self.asked.append(asked)
        self.feed(asked)

    def _look_later(self, life: int) -> None:
        def look() -> None:
            if life == self._lives and self.controller is not None:
                self._look_later(life)
                self._mourn()
                self.call(Controller.look)

        self._job.scheduler.after(LOOK_S, look)

    def _mourn(self) -> None:
        """The launcher tells of machines that died before they registered."""
        for agent in list(self._job.agents.values()):
            if self.state is None or agent.alive or agent.name not in self._provided:
                continue
            if agent.name not in self.state.machines and agent.incarnation not in self._mourned:
                self._mourned.add(agent.incarnation)
                self.feed(Lost(agent.name, "", "its agent has ended"))

    def _news(self) -> None:
        controller = self.controller
        assert controller is not None
        try:
            controller.job.validate()
        except Violation as error:
            self._job.scheduler.fail(RuleBroken(Rule.STATE_VALID, str(error)))
        announced = controller.announcements[self._read :]
        self._read = len(controller.announcements)
        for announcement in announced:
            self._job.told(announcement)
        scalings = {asked.id for asked in self.asked if isinstance(asked.request, Scale)}
        for id, reply in list(controller.job.answers.items())[self._answered :]:
            self._answered += 1
            if reply.ok and id in scalings:
                self._job.judge.scaled_at = self._job.scheduler.now
        workers, known = self._job.workers, controller.job.workers
        self._job.judge.known = {uid for uid in workers if uid in known and known[uid].alive}
        self._provide()

    def _provide(self) -> None:
        """The launcher starts the machines that are asked for; it reads all events, also those from before a crash."""
        assert self.controller is not None
        wanted = sum(each.count for each in self.controller.provisioning if isinstance(each, StartMachines))
        while len(self._provided) < wanted:
            self._provided.append(f"x{len(self._provided) + 1}")
            if self._job.setting.generous:
                self._job.add_agent(self._provided[-1], standby=True)

    # -- what the simulation reads of the controller -------------------------------------------------------------------

    @property
    def state(self) -> JobState | None:
        """The controller's state of the job; None while there is no controller."""
        return None if self.controller is None else self.controller.job

    @property
    def over(self) -> bool:
        return self.state is not None and self.state.over

    @property
    def training_machines(self) -> list[str]:
        """Machines that have roles."""
        if self.state is None:
            return []
        return [machine.name for machine in self.state.machines.values() if machine.state is MachineState.ACTIVE]

    @property
    def involved(self) -> list[str]:
        """Machines that take part in the change under way."""
        change = None if self.state is None else self.state.change or self.state.settling
        return [] if change is None else [*change.places.values(), *change.leaving]

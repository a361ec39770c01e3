"""A simulated machine: its agent, its workers, and its connection to the controller."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from understudy.protocol import frames
from understudy.protocol.frames import Beat, Frame, Numbered, Order, Report
from understudy.protocol.messages import Copied, FromWorker, Progress, Recorded, Rehearse, Telemetry
from understudy.protocol.roster_delta import RosterDecoder
from understudy.protocol.sessions import Inbox, Outbox

from .verdicts import Rule, RuleBroken
from .worker import SimWorker

if TYPE_CHECKING:
    from .job import SimJob

BEAT_S = 0.5
_AGAIN = 0.02
"""Probability that a numbered frame comes twice, as it does when a connection breaks after it."""


class SimConnection:
    """A connection between an agent and the controller; a `Connection` of the controller. Frames arrive in order, each
    after a while, until it breaks."""

    def __init__(self, agent: SimAgent) -> None:
        self._agent, self._job = agent, agent.job
        self._controller = agent.job.controller.controller
        self.closed = False
        self._free = [0.0, 0.0]
        self.register = frames.Register("", "", standby=False, received=0)

    def send(self, frame: Frame) -> None:
        """From the controller."""
        self._deliver(0, partial(self._agent.receive, frame))
        if isinstance(frame, Numbered) and not frame.roster and self._job.random.random() < _AGAIN:
            self._deliver(0, partial(self._agent.receive, frame))

    def report(self, frame: Frame) -> None:
        """From the agent."""
        self._deliver(1, partial(self._to_controller, frame))
        if isinstance(frame, Numbered) and self._job.random.random() < _AGAIN:
            self._deliver(1, partial(self._to_controller, frame))

    def close(self) -> None:
        """From the controller: once all frames are there."""
        self._deliver(0, self._agent.disconnect)

    def _deliver(self, way: int, action: Callable[[], None]) -> None:
        self._free[way] = max(self._free[way], self._job.scheduler.now + self._job.network.delay())
        self._job.scheduler.at(self._free[way], lambda: None if self.closed else action())

    def _to_controller(self, frame: Frame) -> None:
        host = self._job.controller
        if isinstance(frame, frames.Register):
            self.register = frame
            if not host.call(lambda controller: controller.admit(self, frame)):
                self.close()
        else:
            host.call(lambda controller: controller.hear(self, self.register, frame))

    def cut(self) -> None:
        """Nothing arrives any more; the controller notices after a while."""
        if not self.closed:
            self.closed = True
            self._job.network.later(self._noticed)

    def _noticed(self) -> None:
        if self._job.controller.controller is self._controller and self._controller is not None:
            self._controller.disconnected(self._agent.name, self)


class SimAgent:
    """One machine. Its connection to the controller may break and comes back; its workers die with it."""

    def __init__(self, job: SimJob, name: str, *, standby: bool) -> None:
        self.job, self.name, self.standby = job, name, standby
        self.incarnation = f"{name}#{job.next_number()}"
        self.alive = True
        self.known = False
        """Whether the controller has taken this machine in."""
        self.workers: dict[str, SimWorker] = {}
        self.kept: set[str] = set()
        """Digests of recordings."""
        self._outbox: Outbox[Report] = Outbox()
        self._inbox = Inbox()
        self._rosters = RosterDecoder()
        self._beat = Beat()
        self.connection: SimConnection | None = None
        job.scheduler.after(BEAT_S, self._beats)

    # -- the controller ------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        if not self.alive or self.connection is not None:
            return
        if self.job.controller.controller is None:
            self.job.scheduler.after(0.1 + self.job.network.delay(), self.connect)
            return
        self.connection = SimConnection(self)
        seated = self._rosters.generation
        self.connection.report(
            frames.Register(self.name, self.incarnation, standby=self.standby, received=self._inbox.last, roster=seated)
        )

    def disconnect(self) -> None:
        """The connection breaks; another one is opened after a while."""
        connection, self.connection, self._welcome = self.connection, None, False
        if connection is not None:
            connection.cut()
            self.job.scheduler.after(self.job.random.uniform(0.01, 0.5), self.connect)

    _welcome = False

    def receive(self, frame: Frame) -> None:
        assert self.connection is not None
        match frame:
            case frames.Welcome(received):
                self._welcome = self.known = True
                for number, report in self._outbox.after(received):
                    self.connection.report(Numbered(number, report))
            case Numbered(number, order, roster) if isinstance(order, Order):
                complete = self._rosters.restore(order, roster)
                if self._inbox.take(number):
                    self._carry_out(complete)
                if self.connection is not None:
                    self.connection.report(frames.Ack(self._inbox.last))
            case frames.Ack(number):
                self._outbox.acknowledged(number)
            case frames.Refused():
                self.die()

    def report(self, report: Report) -> None:
        if self.alive:
            number = self._outbox.put(report)
            if self.connection is not None and self._welcome:
                self.connection.report(Numbered(number, report))

    def _beats(self) -> None:
        if not self.alive:
            return
        self.job.scheduler.after(BEAT_S, self._beats)
        if self.connection is not None and self._welcome:
            self.connection.report(self._beat)
        now = self.job.scheduler.now
        for worker in self.workers.values():
            if not worker.frozen or not worker.alive:
                worker.stopped_at = None
            elif worker.stopped_at is None:
                worker.stopped_at = now
            elif now - worker.stopped_at > worker.spec.settings.recovery.answer_limit and not worker.reported:
                worker.reported = True
                self.report(frames.Stopped(worker.uid, now - worker.stopped_at))

    # -- orders --------------------------------------------------------------------------------------------------------

    def _carry_out(self, order: Order) -> None:
        match order:
            case frames.StartWorker(uid, slot):
                spec = structs.replace(self.job.worker_spec, uid=uid, slot=slot, machine=self.name)
                if uid in self.job.workers:
                    raise RuleBroken(Rule.ONE_PROCESS, f"{uid} is started again on {self.name}")
                self.workers[uid] = self.job.workers[uid] = SimWorker(self, spec)
            case frames.Tell(uid, message):
                if isinstance(message, Rehearse) and message.recorded is not None:
                    self.job.serves(message.recorded)
                worker = self.workers.get(uid)
                if worker is not None and worker.alive:
                    worker.hear(message)
            case frames.EndWorker(uid):
                if (worker := self.workers.get(uid)) is not None:
                    worker.process.kill()
            case frames.KeepCopy(recorded):
                self.job.network.later(self._fetched, recorded)
            case frames.Dismiss():
                self.die()

    def heed(self, worker: SimWorker, message: FromWorker | Telemetry) -> None:
        """A worker has said something."""
        match message:
            case Copied():
                self._beat = structs.replace(self._beat, copied=message)
            case Progress(_, step, seconds, values):
                self._beat = Beat(step, values, seconds, message.primary, self._beat.copied)
            case Recorded() if message.digest:
                self.report(frames.Relayed(worker.uid, self._keep(message)))
            case _:
                self.report(frames.Relayed(worker.uid, message))

    def exited(self, worker: SimWorker) -> None:
        self.workers.pop(worker.uid, None)
        self.report(frames.Exited(worker.uid, worker.code))

    def _keep(self, recorded: Recorded) -> Recorded:
        self.kept.add(recorded.digest)
        return structs.replace(recorded, url=f"{self.incarnation}/{recorded.digest}", fd=-1)

    def _fetched(self, recorded: Recorded) -> None:
        """A copy of a recording has come, if the machine that has it still lives."""
        if self.alive:
            there = self.job.serves(recorded)
            self.report(frames.KeptCopy(self._keep(recorded) if there else structs.replace(recorded, url="")))

    # -- its end -------------------------------------------------------------------------------------------------------

    def notice(self, seconds: float) -> None:
        """The machine has to go soon, and does."""
        self.report(frames.Leaving(seconds, "it is preempted"))
        self.job.scheduler.after(seconds, self.die)

    def die(self) -> None:
        if self.alive:
            self.alive = False
            if self.connection is not None:
                self.connection.cut()
                self.connection = None
            for worker in list(self.workers.values()):
                worker.process.kill()

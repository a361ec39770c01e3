"""A simulated worker process: the real runtime and the real job API around a script that trains a `SimModel`."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

from understudy.protocol.messages import FromWorker, Telemetry, ToWorker, WorkerSpec
from understudy.worker.entry import live, perform
from understudy.worker.job import Job
from understudy.worker.runtime import WorkerRuntime
from understudy.worker.states import ProtocolError

from .fabric import SimFabric, SimTrainingProcess
from .model import SimCheckpoints, SimModel, SimPosition, SimWeights
from .scheduler import SimProcess, Task
from .verdicts import Rule, RuleBroken

if TYPE_CHECKING:
    from .agent import SimAgent

START_S = 0.05
"""Seconds that a process takes at least to start."""


class BadLuck(Exception):
    """The error of a simulated script."""


class SimWorker:
    """One worker process. Everything in it but the fabric, the disk and the line to the agent is production code."""

    def __init__(self, agent: SimAgent, spec: WorkerSpec) -> None:
        job = self._job = agent.job
        self.agent, self.spec, self.uid = agent, spec, spec.uid
        self.process = SimProcess(job.scheduler, spec.uid)
        self.process.at_death.append(self._died)
        self.model: SimModel | None = None
        self.runtime: WorkerRuntime | None = None
        self.code = -9
        """Exit code."""
        self.hangs = self.raises = False
        """What the script is to do in its next step."""
        self.failed = False
        """Whether the script has ended with an error."""
        self.fault: bool | None = None
        """A fault to report in the next step: whether it is fatal."""
        self.thawed_at = -1.0
        self.stopped_at: float | None = None
        self.reported = False
        self._heard: deque[ToWorker] = deque()
        self._listener: Task | None = None
        self._line_free = 0.0
        self.process.start(self._main, "main")

    @property
    def alive(self) -> bool:
        return not self.process.dead

    @property
    def frozen(self) -> bool:
        return self.process.frozen

    @property
    def steps(self) -> int:
        """Steps that are applied to its state."""
        return 0 if self.model is None else self.model.steps

    @property
    def role(self) -> int | None:
        return None if self.runtime is None else self.runtime.protocol.role

    def copies(self) -> set[tuple[int, int]]:
        """(role, step) of the whole copies in its memory; read without its lock, which a frozen thread may hold."""
        archive = None if self.runtime is None else self.runtime._archive
        keeper = None if archive is None else archive._keeper
        kept = {} if keeper is None else keeper._copies
        return {(role, step) for role, copies in kept.items() for step in copies.whole}

    # -- the line to the agent -----------------------------------------------------------------------------------------

    def hear(self, message: ToWorker) -> None:
        self._heard.append(message)
        if self._listener is not None and self._listener.look is not None:
            self._job.scheduler.ready(self._listener)

    def _listen(self) -> None:
        assert self.runtime is not None
        scheduler = self._job.scheduler
        while True:
            scheduler.wait_while(lambda: None if self._heard else inf)
            message = self._heard.popleft()
            self._job.say(f"{self.uid} hears {message}")
            self.runtime.hear(message)
            self._validate()

    def _validate(self) -> None:
        assert self.runtime is not None
        try:
            self.runtime.protocol.validate()
        except ProtocolError as error:
            self._fail(Rule.STATE_VALID, str(error))

    def _send(self, message: FromWorker | Telemetry) -> None:
        self.process.check()
        scheduler = self._job.scheduler
        self._line_free = max(self._line_free, scheduler.now + self._job.random.random() * 0.002)
        scheduler.at(self._line_free, lambda: self.agent.heed(self, message))

    # -- the process ---------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        process, job = self.process, self._job
        process.sleep(START_S + job.network.delay())
        fabric = SimFabric(job.network, process, self.uid, self.spec.machine)
        keeps = bool(self.spec.settings.checkpoint.folder)
        checkpoints = SimCheckpoints(process, job.disk, job.network.delay) if keeps else None
        self.runtime = runtime = WorkerRuntime(
            self.spec, fabric, self._send, SimTrainingProcess(fabric), world=process, checkpoints=checkpoints
        )
        self._listener = process.start(self._listen, "line")
        error = live(runtime, lambda: perform(runtime, self._train))
        if error is not None and not isinstance(error, BadLuck):
            job.scheduler.fail(error)
        runtime.close()
        fabric.close()
        self.code = 0 if error is None else 1
        process.kill()

    def _died(self) -> None:
        scheduler = self._job.scheduler
        if self.runtime is not None:
            self.runtime.recordings.close()
        self._line_free = max(self._line_free, scheduler.now) + self._job.network.delay()
        scheduler.at(self._line_free, lambda: self.agent.exited(self))

    # -- the script ----------------------------------------------------------------------------------------------------

    def _train(self, job: Job) -> None:
        plan, runtime = self._job.setting, self.runtime
        assert runtime is not None
        if not plan.blind:
            job.role  # noqa: B018  # a script that asks for its role can take no other one at once
        self.model = model = SimModel(plan.same(runtime.role)[0])
        job.track(model=model)
        position = SimPosition(runtime.role)
        if plan.own:
            job.track(weights=SimWeights(model.kind), position=position)
        if len(plan.same(runtime.role)) > 1 and (plan.mask or not plan.own):
            job.same_over("dp")
        for step in job.steps(plan.steps):
            with step:
                self._check(step.index, model, job)
                self._check_position(step.index, position, job)
                model.see_batch()
                position.advance()
                self._compute(job)
                job._before_update(model, (), {})  # type: ignore[arg-type]  # as the hook of an optimizer does
                self._check(step.index, model, job, computed=True)
                model.apply(step.index)
                if plan.own == "late":
                    position.advance()

    def _check(self, step: int, model: SimModel, job: Job, *, computed: bool = False) -> None:
        assert self.runtime is not None
        if job.rehearsing:
            return
        kind = self._job.setting.same(self.runtime.role)[0]
        if model.steps != step:
            self._fail(Rule.STEP_ORDER, f"is in step {step} with {model.steps} steps applied")
        elif not model.is_sound(kind, computed=computed):
            self._fail(Rule.SAME_STATE, f"is in step {step} of role {self.runtime.role} with {model.state_dict()}")

    def _check_position(self, step: int, position: SimPosition, job: Job) -> None:
        """A role that was vacant has not moved on; what changed after a vote may be lost, and that is said."""
        plan = self._job.setting
        if job.rehearsing or not plan.own or plan.mask:
            return
        assert self.runtime is not None
        least, most = (2 * step - step, 2 * step) if plan.own == "late" else (step, step)
        if position.role != self.runtime.role or not least <= position.moves <= most:
            self._fail(Rule.SAME_STATE, f"is in step {step} of role {self.runtime.role} with {position.state_dict()}")

    def _fail(self, rule: Rule, what: str) -> None:
        self._job.scheduler.fail(RuleBroken(rule, f"{self.uid} {what}"))
        self.process.check()

    def _compute(self, job: Job) -> None:
        if job.rehearsing:
            self.process.sleep(self._job.random.uniform(0.1, 2.0) / self.spec.settings.standbys.rehearsals)
            return
        self.process.sleep(self._job.random.uniform(0.05, 0.5))
        if self.fault is not None:
            fatal, self.fault = self.fault, None
            if fatal:  # what it holds is broken: no worker may go on with it
                self._job.judge.distrusted.add(self.uid)
                assert self.model is not None
                self.model.history = "broken"
            job.report_fault("it smells", fatal=fatal)
        if self.raises:
            self.raises, self.failed = False, True
            raise BadLuck("bad luck")
        while self.hangs:
            self.process.sleep(1e6)

"""A worker's runtime: what its training thread does between the protocol, the fabric and the script."""

from __future__ import annotations

import gc
import logging
from typing import Protocol

from understudy.comm.endpoint import Endpoint
from understudy.comm.fabric import Fabric
from understudy.comm.faults import SwitchRefused
from understudy.host.world import REAL, World
from understudy.protocol import messages
from understudy.protocol.mesh import primary_of
from understudy.protocol.messages import ScriptFailure, ToWorker, WorkerSpec
from understudy.protocol.vote import VoteOutcome, numbers_of, outcome_of
from understudy.state.checkpoint import CheckpointStore
from understudy.state.inventory import digest, take_inventory
from understudy.state.twins import expected_twins, twins

from .driver import Dismissed, ProtocolDriver, Send
from .flags import EarlyReadings
from .identity import Identity
from .instructions import Begin, EnterTrain, GoBack, SwitchTo, Wait, Withdraw, WriteCheckpoint
from .meter import Meter, StepTimes, traffic_of
from .process import TrainingProcess
from .recordings import StepRecordings
from .redundancy import Redundancy
from .states import Proposal
from .transfer.archive import Archive
from .transfer.transfers import StateTransfers
from .watch import Watch

log = logging.getLogger("understudy.worker")

_HELD_S = 0.01
"""Time after which a worker that an observer holds asks again."""


class Repeat(BaseException):
    """The step under way is repeated. Not an Exception, so that no script catches it by accident."""


class Unsound(Repeat):
    """Raised when the gradients of at least one role are not finite; the step is repeated."""


class EnterAgain(BaseException):
    """The training function is to be entered again, for another role."""


class Concluded(BaseException):
    """The job cannot continue; the final checkpoint is written."""


class JobError(RuntimeError):
    """The roles cannot continue together; the message says why and what to do."""

    def __init__(self, message: str, cause: ScriptFailure = "raises") -> None:
        super().__init__(message)
        self.cause = cause


class StepObserver(Protocol):
    """Called in the training thread at fixed points of every step; an extension may set one."""

    def may_begin(self, step: int) -> bool:
        """Whether training may begin this step. If not, the worker is held at the boundary and asks again; meanwhile
        it takes part in every change of the roster."""

    def at_boundary(self, step: int) -> None:
        """Between two steps; `step` is about to begin."""

    def before_vote(self, step: int) -> None: ...


class WorkerRuntime:
    """Belongs to one training thread; `hear` may be called from any other. `send` sends a message to the agent. The
    other parameters are replaced in the simulation."""

    def __init__(
        self,
        spec: WorkerSpec,
        fabric: Fabric,
        send: Send,
        process: TrainingProcess,
        *,
        world: World = REAL,
        checkpoints: CheckpointStore | None = None,
    ) -> None:
        self.spec, self.fabric, self.process, self.world = spec, fabric, process, world
        self._send, self._checkpoints = send, checkpoints
        self.role = -1
        """The role for which the training function has been entered."""
        self.rehearsing = False
        self.observer: StepObserver | None = None
        self.tracked: dict[str, object] = {}
        self.same: tuple[int, ...] = ()
        """Roles that hold the same state, according to the script."""
        self._driver = ProtocolDriver(spec, fabric, send, world)
        self.protocol, self._changed = self._driver.protocol, self._driver.changed
        self.step_times = StepTimes()
        self.protocol.usual = self.step_times.usual
        self.redundancy = Redundancy(
            fabric, process, self.tracked, role=lambda: self.role, expected=self._expected_twins
        )
        self.transfers = StateTransfers(
            spec, self._driver, fabric, self.tracked, self.step_times, self.redundancy, world=world
        )
        self._archive: Archive | None = None
        """What this worker keeps to go back to, from the first boundary on."""
        self.identity = Identity(spec.mesh)
        self.readings = EarlyReadings()
        self.recordings = StepRecordings(spec, fabric, send)
        self._votes: Endpoint | None = None
        self._settling = 0
        """The generation of which the first step is under way; 0: none."""
        self._recovered = False
        """Whether the current generation follows a failure, and no step of it has begun."""
        self._watch = Watch(spec, fabric, self.protocol, send, world)
        self.meter = Meter(process.waits_known, world=world)
        self._send(messages.Here(fabric.worker, process.pid))

    def hear(self, message: ToWorker) -> None:
        """Handle a message from the controller. Does not block."""
        self._driver.hear(message)

    # -- entering the training function --------------------------------------------------------------------------------

    def enter(self) -> int:
        """Wait for a role and return it. In a rehearsal the sandbox answers the process group; otherwise the first
        generation is entered."""
        driver = self._driver
        with self._changed:
            driver.wait_for(lambda: driver.entry is not None)
            entry, driver.entry = driver.entry, None
        assert entry is not None
        self.role, self.rehearsing = entry.role, entry.rehearsal
        if entry.rehearsal:
            self.fabric.assume(entry.role, self.recordings.sandbox(entry.recorded), entry.mates)
        else:
            while not self.protocol.generation:
                self._come_to_boundary()
            self.fabric.vouch(True)
        self._votes = self._watch.votes = self.process.install(self.spec.roles)
        if entry.rehearsal:
            self.identity.begin()
            self.readings.begin()
        else:
            self.recordings.entered(entry.role)
        self._announce()
        return entry.role

    def _announce(self) -> None:
        self.process.announce(self.role, self.role // self.spec.nproc)
        for endpoint in self.fabric.endpoints():
            endpoint.asked = self.identity.told_rank if self.rehearsing else None

    def again(self) -> bool:
        """Whether the training function is to be entered again after an exception: it was a rehearsal, and another
        role is wanted or a worker of the same rehearsal is gone."""
        driver = self._driver
        with self._changed:
            if not self.rehearsing or driver.dismissed or (driver.entry is None and not self.fabric.lost_mates):
                return False
            driver.entry = driver.entry or EnterTrain(self.role, rehearsal=True)
        return not self.identity.fixed

    def leave(self) -> None:
        """Forget the entry of the training function that has ended, before the next one."""
        assert not self.protocol.generation
        self.process.uninstall()
        self._close_archive()
        self.tracked.clear()
        self.redundancy.forget()
        self.same, self._votes = (), None
        gc.collect()

    def change_role(self) -> None:
        """Take another role, if one is wanted: at once, if that makes no difference to the script. Otherwise raises
        EnterAgain, or Dismissed if this process can have no other role."""
        driver = self._driver
        with self._changed:
            entry = driver.entry
            if entry is None:
                return
            other = entry.role
            groups = self.identity.groups(self.fabric, self.role, other) if other in self._interchangeable() else None
            if other != self.role and groups is None:
                raise Dismissed if self.identity.fixed else EnterAgain
            driver.entry = None
        if groups is not None:
            self.fabric.become(other, groups)
            self.process.role_changed()
            self.role = other
            assert self._archive is not None
            self._archive.become(other, self.twins())
            self._announce()

    def twins(self) -> tuple[int, ...]:
        """Roles that hold the same state as this one, this one included."""
        return tuple(sorted({*twins(self.tracked, self.role), *self.same}))

    def _expected_twins(self) -> tuple[int, ...]:
        """Roles that should hold the same state: by how the modules were made, or by what the script says."""
        return tuple(sorted({*expected_twins(self.tracked, self.role), *self.same}))

    def _interchangeable(self) -> tuple[int, ...]:
        """Roles that this worker could take without entering the training function again."""
        return self.identity.others(self.fabric, self.role, self.twins())

    # -- at the boundary -----------------------------------------------------------------------------------------------

    def first_boundary(self) -> None:
        """Everything is tracked: from here on there is state that can move."""
        self.readings.watching = False
        if not self.tracked:
            raise JobError(
                "the first step begins, but nothing was tracked; call job.track(model=..., optim=...) before "
                "job.steps(...), or a joiner would start from nothing",
                "never-tracks",
            )
        inventory = take_inventory(self.tracked)
        size = sum(slot.bytes for slot in inventory.slots)
        inventory.rest()
        same = self.twins()
        self._archive = archive = Archive(
            self.spec,
            self.fabric,
            self.role,
            self.tracked,
            same,
            self._send,
            inventory_for=self.redundancy.inventory_for,
            world=self.world,
            checkpoints=self._checkpoints,
        )
        self.protocol.kept = archive.kept
        if self.rehearsing:
            return
        assert self._votes is not None
        self.fabric.vouch(False)
        self.recordings.first_boundary(same, self._votes)
        begun = self.protocol.step
        if not begun and (latest := archive.latest()) is not None:
            least = self.process.least([latest])[0]
            begun = least if self.fabric.fault is None else latest  # an interrupted all-reduce has no result
            if begun:
                archive.load(begun)
        if self.fabric.roster is not None:
            archive.entered(self.fabric.roster)
        with self._changed:
            self._driver.do(self.protocol.tracked(same, size, begun))

    def _compare(self, step: int) -> None:
        """Compare this role's state with that of the others, if that is due. Raises JobError if roles differ that the
        script has called the same."""
        if self._recovered:
            self._recovered = False
            if (report := self.redundancy.agree(step)) is not None:
                self._send(report)
        found = self.redundancy.boundary(step)
        if found and not set(self.same) <= set(found):
            roles = ", ".join(map(str, self.same))
            raise JobError(f"job.same_over: before step {step}, roles {roles} do not hold the same state")

    def _go_back(self, to: GoBack) -> None:
        assert self._archive is not None
        self._archive.go_back(to)
        self.redundancy.forget()
        self.step_times.forget()
        with self._changed:
            self._driver.do(self.protocol.went_back(to.generation, to.step))

    def rehearsed(self, seconds: float) -> None:
        """Report that the shadow steps are done, unless another role is wanted meanwhile."""
        also, diverged, fixed = self._interchangeable(), self.recordings.diverged, self.identity.fixed
        self.fabric.end_rehearsal()
        self.recordings.rehearsed()
        with self._changed:
            if self._driver.entry is None:
                early = tuple(self.readings.found)
                self._driver.do(self.protocol.rehearsed(seconds, also, diverged, fixed=fixed, early=early))

    def boundary(self) -> int:
        """Do everything that has to happen between two steps. Returns the step to compute next."""
        while True:
            step = self._come_to_boundary()
            if step is not None and not self._held(step):
                if self.rehearsing:
                    self.rehearsing = self.identity.watching = False
                    self._announce()
                assert self._archive is not None
                self.recordings.boundary(step)
                self._watch.step_begins()
                self._compare(step)
                self._archive.boundary(step)
                self.transfers.offer(self._archive)
                return step

    def _held(self, step: int) -> bool:
        """Whether an observer holds training before this step; waits for a moment if so."""
        if self.observer is None or self.observer.may_begin(step):
            return False
        with self._changed:
            self._changed.wait(_HELD_S)
        return True

    def _come_to_boundary(self) -> int | None:
        """Do the next thing that the protocol wants at a boundary. Returns the step to compute, if that is next."""
        driver = self._driver
        with self._changed:
            while True:
                driver.check_dismissed()
                other_role = driver.entry is not None and self._archive is not None
                if other_role:
                    break
                incoming = self.transfers.complete_links()
                following = self.protocol.boundary()
                if incoming is not None or not isinstance(following, Wait):
                    break
                self._changed.wait()
            if not other_role and isinstance(following, SwitchTo):
                entered = self._switch(following.generation)
            elif not other_role and isinstance(following, Withdraw):
                self.fabric.withdraw()
                driver.do(self.protocol.withdrew())
        if other_role:
            self.change_role()
            self.rehearsed(0.0)
            return None
        match following:
            case Begin(step):
                return step
            case WriteCheckpoint():
                assert self._archive is not None
                self._archive.conclude(following)
                raise Concluded
            case SwitchTo():
                if entered is not None:
                    self.transfers.give(entered, self._archive)
            case GoBack():
                self._go_back(following)
            case _:
                if incoming is not None:
                    self.transfers.take(*incoming)
        return None

    def _switch(self, generation: int) -> Proposal | None:
        """Enter a generation, with the lock held. Returns the proposal that it was; None if the current generation was
        interrupted after the vote, which the controller is told then."""
        proposal = self.protocol.proposal
        assert proposal is not None
        try:
            self.fabric.switch(generation)
        except SwitchRefused as error:
            fault = self.fabric.fault
            how, who = ("error", "") if fault is None else (fault.how, fault.who)
            self._driver.do(self.protocol.interrupted(how, str(error), who))
            return None
        self._settling, self._recovered = generation, proposal.direct
        if self._archive is not None:
            self._archive.entered(proposal.roster, proposal)
        arrival = self.transfers.take_arrival()
        taken = () if arrival is None else (arrival.seconds, arrival.bytes, arrival.again)
        self._driver.do(self.protocol.entered(generation, *taken))
        return proposal

    # -- in a step -----------------------------------------------------------------------------------------------------

    def step_begins(self, index: int) -> None:
        """The training thread enters a step."""
        self.meter.begin(self.protocol.generation, index)
        if self._archive is not None and self._archive.busy:
            self.meter.note("state is being kept")

    def vote(self, *, over: bool = False, sound: bool = True) -> VoteOutcome:
        """Agree with all roles that this step counts. Raises Repeat if it does not."""
        self._watch.step_ends()
        proposal = self.protocol.proposal
        healthy = proposal is not None and self.fabric.prepared >= proposal.generation
        if proposal is not None and proposal.gives(self.spec.uid):
            healthy = healthy and (
                self.transfers.offered(proposal)
                if self.spec.settings.replacement.overlap
                else self.transfers.may_leave(proposal, self._archive)
            )
        with self._changed:
            copied = -1 if self._archive is None else self._archive.copied
            ballot = self.protocol.ballot(healthy=healthy, over=over, sound=sound, copied=copied)
        if ballot is None:
            return self.verdict()
        self.redundancy.vote(self.protocol.step)
        least = self.process.least(numbers_of(ballot))
        fault = self.fabric.fault
        if fault is not None:
            with self._changed:
                self._driver.do(self.protocol.interrupted(fault.how, fault.reason, fault.who))
            return self.verdict()
        outcome = outcome_of(least, self.protocol.generation)
        if outcome.error:
            raise JobError(outcome.error, "steps")
        with self._changed:
            effects = self.protocol.counted(outcome)
            if effects is not None:
                self._driver.do(effects)
        if effects is None:
            return self.verdict()
        if self._archive is not None and outcome.copied >= 0:
            self._archive.settle(outcome.copied)
        if not outcome.sound:
            log.warning("step %d has gradients that are not finite; it is repeated", self.protocol.step)
            raise Unsound
        return outcome

    def updating(self, optimizer: object, *, replayable: bool) -> None:
        """An optimizer is about to step, and the step counts."""
        if self._archive is not None:
            self._archive.hold()
        self.transfers.update(optimizer, replayable=replayable)

    def verdict(self) -> VoteOutcome:
        """Wait until the controller has decided on an interrupted step. Raises Repeat if the step is repeated."""
        self.meter.note("interrupted")
        self.recordings.interrupted()  # before the decision: the joiner may need it
        with self._changed:
            self._driver.wait_for(lambda: self.protocol.verdict() is not None)
            if not self.protocol.verdict():
                raise Repeat
            return VoteOutcome(None, over=self.protocol.over)

    def failed_in_step(self) -> bool:
        """Whether an exception in a step was caused by an interruption, which is reported then."""
        fault = self.fabric.fault
        with self._changed:
            if self.protocol.passed or (fault is None and not self.protocol.halted and not self.protocol.repeating):
                return False
            if fault is not None:
                self._driver.do(self.protocol.interrupted(fault.how, fault.reason, fault.who))
        return True

    def report_fault(self, reason: str, *, fatal: bool) -> None:
        """Report a fault of this worker's machine. If it is fatal, wait until the controller ends this worker."""
        self._send(messages.Faulty(reason, fatal))
        if fatal:
            self.fabric.interrupt(f"{self.spec.uid}: {reason}", self.spec.uid)
            with self._changed:
                self._driver.wait_for(lambda: False)

    def applied(self, values: dict[str, float]) -> None:
        """The update of the step under way is in the state; `values` are logged with it."""
        with self._changed:
            self.protocol.applied()
            step = self.protocol.step
        if (report := self.redundancy.applied(step - 1)) is not None:
            self._send(report)
            if self._archive is not None:
                self._archive.regard(self.redundancy.identical())
        seconds, lost = self.step_times.ends(self.world.time(), settles=bool(self._settling))
        if self._settling:
            self._send(messages.Settled(self._settling, step, lost))
        self._settling = 0
        if self.protocol.proposal is not None or self.transfers.under_way:
            self.meter.note("a change is under way")
        sample = self.meter.end(self.spec.uid, self.role, step, traffic_of(self.fabric))
        self._send(messages.Progress(self.role, step, seconds, values, primary=self.is_primary, sample=sample))

    @property
    def is_primary(self) -> bool:
        """Whether this worker trains, in the primary role. No role is primary in a rehearsal."""
        roster = self.fabric.roster
        if self.rehearsing or roster is None:
            return False
        return self.role == primary_of(self.spec.mesh, roster.seats)

    @property
    def submitted(self) -> int:
        """Operations and messages of all groups so far."""
        return sum(endpoint.submitted for endpoint in self.fabric.endpoints())

    # -- the end -------------------------------------------------------------------------------------------------------

    def _close_archive(self) -> None:
        self.protocol.kept = tuple
        if self._archive is not None:
            self._archive.close()
            self._archive = None

    def close(self) -> None:
        self._watch.close()
        self._close_archive()
        self.recordings.close()

    def done(self, *, stopped: bool) -> None:
        """Report that the training function has ended."""
        state = digest(take_inventory(self.tracked)) if self.tracked else ""
        self._send(messages.Done(self.protocol.step, state, stopped))

    def failed(self, error: str, trace: str, cause: ScriptFailure) -> None:
        """Report the error that ended the training function."""
        self._send(messages.Failed(self.protocol.step, error, trace, cause))

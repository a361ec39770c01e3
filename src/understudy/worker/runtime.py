"""A worker's runtime: carries out what its part says, between the fabric, the agent and the training thread."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist

from understudy.comm.fabric import Fabric
from understudy.comm.group import RoleGroup
from understudy.comm.links.link import Link
from understudy.comm.torch_backend import install, renamed, uninstall
from understudy.device.cpu import HOST
from understudy.protocol.messages import (
    Done,
    Failed,
    FailureCause,
    Faulty,
    FromWorker,
    Here,
    Progress,
    Settled,
    Telemetry,
    ToWorker,
    WorkerSpec,
)
from understudy.protocol.roster import RosterError
from understudy.protocol.vote import NOBODY, VoteOutcome, numbers_of, outcome_of
from understudy.state.inventory import digest, take_inventory
from understudy.state.twins import twins

from . import protocol as parts
from .identity import Identity
from .meter import Meter, traffic_of
from .tape import Tape
from .transfer.archive import Archive
from .transfer.passing import Passing
from .watch import Watch

log = logging.getLogger("understudy.worker")


class Repeat(BaseException):
    """The step under way is to be begun again. Not an Exception: no script may catch it by accident."""


class Unsound(Repeat):
    """It is, because somebody's gradients were not finite: nothing of them is to be used again."""


class Dismissed(BaseException):
    """This worker is not needed any more."""


class Recast(BaseException):
    """This worker is to enter the training function again, for another role."""


class Concluded(BaseException):
    """The job cannot go on; what there was to keep is kept."""


class JobError(RuntimeError):
    """The roles cannot go on together; the message says why and what to do."""

    def __init__(self, message: str, cause: FailureCause = "raises") -> None:
        super().__init__(message)
        self.cause = cause


class StepObserver(Protocol):
    """Called in the training thread at fixed points of every step; an extension may set one."""

    def before_boundary(self) -> None: ...

    def at_boundary(self, step: int) -> None:
        """Between two steps; `step` is about to begin."""

    def before_vote(self, step: int) -> None: ...


class WorkerRuntime(Passing):
    """Belongs to one training thread. `hear` may be called from any other."""

    def __init__(self, spec: WorkerSpec, fabric: Fabric, say: Callable[[FromWorker | Telemetry], None]) -> None:
        super().__init__(spec, fabric)
        self.role = -1
        """The one that the training function has been entered for."""
        self.identity = Identity(spec.mesh)
        self.tape = Tape(spec, fabric, say)
        self.same: tuple[int, ...] = ()
        """Roles that the script says hold the same."""
        self.rehearsing = False
        self.observer: StepObserver | None = None
        self._say = say
        self._entry: parts.EnterTrain | None = None
        self._votes: RoleGroup | None = None
        self._settling = 0
        """The generation whose first step is under way."""
        self._opened_at = 0.0
        self._watch = Watch(spec, fabric, self.part, say)
        self.meter = Meter(fabric.devices == (HOST.name,))
        self._say(Here(fabric.worker, os.getpid()))

    # -- what the part wants ---------------------------------------------------------------------------------------

    def hear(self, message: ToWorker) -> None:
        with self._changed:
            self._do(self.part.hear(message))

    def _do(self, effects: list[parts.Effect]) -> None:
        """Nothing in here waits for anybody; called with the lock held."""
        for effect in effects:
            match effect:
                case parts.Say(message):
                    self._say(message)
                case parts.Open(roster):
                    generation = roster.generation
                    self._opened_at = time.perf_counter()
                    proposal = self.part.proposal
                    if proposal is not None and proposal.takes(self.spec.uid):
                        self.fabric.expect_state(generation, partial(self._bring, generation))
                    try:
                        future = self.fabric.prepare(roster)
                    except (RosterError, RuntimeError) as error:
                        self._do(self.part.not_opened(generation, str(error)))
                    else:
                        future.add_done_callback(partial(self._opened, generation))
                case parts.Close(generation):
                    self.fabric.abandon(generation)
                case parts.PoisonFabric(reason):
                    self.fabric.interrupt(reason)
                case parts.EnterTrain():
                    self._entry = effect
                case parts.Wake():
                    pass
                case parts.End():
                    self._dismissed = True
        self._changed.notify_all()

    def _opened(self, generation: int, done: Future[None]) -> None:
        with self._changed:
            error = done.exception() if not done.cancelled() else RuntimeError("it was cancelled")
            if error is None:
                self._do(self.part.opened(generation, time.perf_counter() - self._opened_at))
            else:
                self._do(self.part.not_opened(generation, str(error)))

    def _bring(self, generation: int, link: Link) -> None:
        with self._changed:
            self._links.setdefault(generation, []).append(link)
            self._changed.notify_all()

    # -- the training thread: entering -------------------------------------------------------------------------------

    def enter(self) -> int:
        """Wait for a role. For a rehearsal the process group answers from the sandbox; otherwise it plays."""
        with self._changed:
            self._changed.wait_for(lambda: self._entry is not None or self._dismissed)
            if self._dismissed:
                raise Dismissed
            entry, self._entry = self._entry, None
        assert entry is not None
        self.role, self.rehearsing = entry.role, entry.rehearsal
        if entry.rehearsal:
            self.fabric.assume(entry.role, self.tape.sandbox(entry.recorded), entry.troupe)
        else:
            while not self.part.generation:
                self._come_to_boundary()
            self.fabric.vouch(True)
        self._votes = RoleGroup(self.fabric.group(range(self.spec.roles)))
        self._watch.votes = self._votes.endpoint
        install(self.fabric, self.spec.roles)
        if entry.rehearsal:
            self.identity.begin()
        else:
            self.tape.entered(entry.role)
        self._announce()
        return entry.role

    def _announce(self) -> None:
        """Let ordinary scripts and libraries find themselves."""
        os.environ["RANK"] = os.environ["GROUP_RANK"] = str(self.role)
        for endpoint in self.fabric.endpoints():
            endpoint.asked = self.identity.told_rank if self.rehearsing else None

    def again(self) -> bool:
        """Whether an exception has come out of a rehearsal because those who rehearse along are gone, or another role
        is wanted: then the training function is entered again."""
        with self._changed:
            if not self.rehearsing or self._dismissed or (self._entry is None and not self.fabric.lost_mates):
                return False
            if self._entry is None:
                self._entry = parts.EnterTrain(self.role, rehearsal=True)
        return not self.identity.fixed

    def leave(self) -> None:
        """The training function has been left, to be entered again: nothing of what it has made is used any more."""
        assert not self.part.generation
        uninstall()
        self.close_archive()
        self.tracked, self.same, self._votes = {}, (), None
        gc.collect()

    def recast(self) -> None:
        """Take another role, if one is wanted: at once where that makes no difference to the script, or it is entered
        again."""
        with self._changed:
            entry = self._entry
            if entry is None:
                return
            other = entry.role
            groups = self.identity.groups(self.fabric, self.role, other) if other in self._also() else None
            if other != self.role and groups is None:
                raise Dismissed if self.identity.fixed else Recast  # another process can
            self._entry = None
        if groups is not None:
            self.fabric.become(other, groups)
            renamed()
            self.role = other
            assert self._archive is not None
            self._archive.become(other, self._same())
            self._announce()

    def _same(self) -> tuple[int, ...]:
        """Roles that hold the same state as this one, itself among them."""
        return tuple(sorted({*twins(self.tracked), *self.same}))

    def _also(self) -> tuple[int, ...]:
        return self.identity.others(self.fabric, self.role, self._same())

    # -- the training thread: at the boundary --------------------------------------------------------------------------

    def first_boundary(self) -> None:
        """All that will be tracked is tracked: from here on there is state that can move."""
        if not self.tracked:
            raise JobError(
                "the first step begins, but nothing was tracked; call job.track(model=..., optim=...) before "
                "job.steps(...), or a newcomer would start from nothing",
                "never-tracks",
            )
        inventory = take_inventory(self.tracked)
        size = sum(slot.bytes for slot in inventory.slots)
        inventory.rest()
        same = self._same()
        self._archive = archive = Archive(self.spec, self.fabric, self.role, self.tracked, same, self._say)
        self.part.kept = archive.kept
        if self.rehearsing:
            return
        assert self._votes is not None
        self.fabric.vouch(False)
        self.tape.first_boundary(same, self._votes.endpoint)
        begun = self.part.step
        if self.spec.settings.checkpoint.folder and not begun:
            begun = self._least([archive.latest()])[0]
            if begun:
                archive.load(begun)
        if self.fabric.roster is not None:
            archive.entered(self.fabric.roster)
        with self._changed:
            self.part.step = begun
            self._do(self.part.tracked(same, size))

    def _least(self, numbers: list[int]) -> list[int]:
        """The least of what all roles say, number by number; undefined where the fabric is poisoned."""
        assert self._votes is not None
        tensor = torch.tensor(numbers)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MIN)
        options.asyncOp = False
        self._votes.allreduce([tensor], options).wait()
        return [int(number) for number in tensor.tolist()]

    def _compare(self) -> None:
        """Do those who are said to hold the same do so? All roles ask it at the same boundary."""
        mine, first = int(digest(take_inventory(self.tracked))[:15], 16), min(self.same)
        numbers = [NOBODY << 20] * (2 * self.spec.roles)
        numbers[first], numbers[self.spec.roles + first] = mine, -mine
        least = self._least(numbers)
        if self.fabric.fault is None and least[first] != -least[self.spec.roles + first]:
            roles = ", ".join(map(str, self.same))
            raise JobError(f"job.same_over: after the first step, roles {roles} do not hold the same state")

    def _go_back(self, to: parts.GoBack) -> None:
        """Make the state as it was."""
        assert self._archive is not None
        self._archive.go_back(to)
        self.pulse.forget()
        with self._changed:
            self._do(self.part.went_back(to.generation, to.step))

    def rehearsed(self, seconds: float) -> None:
        """The shadow steps are made, unless another role is wanted meanwhile."""
        also = self._also()
        self.fabric.end_rehearsal()
        self.tape.rehearsed()
        with self._changed:
            if self._entry is None:
                self._do(self.part.rehearsed(seconds, also, self.tape.diverged, fixed=self.identity.fixed))

    def boundary(self) -> int:
        """Returns the step to compute next. Whatever has to happen between two steps has happened."""
        while True:
            step = self._come_to_boundary()
            if step is not None:
                if self.rehearsing:
                    self.rehearsing = self.identity.watching = False
                    self._announce()
                assert self._archive is not None
                self.tape.boundary(step)
                self._watch.step_begins()
                if step == 1 and self.same:
                    self._compare()
                self._archive.boundary(step)
                self._offer()
                return step

    def _come_to_boundary(self) -> int | None:
        with self._changed:
            while True:
                if self._dismissed:
                    raise Dismissed
                if self._entry is not None and self._archive is not None:
                    break
                links = self._complete_links()
                following = self.part.boundary()
                if links is not None or not isinstance(following, parts.Wait | parts.HandedOver):
                    break
                self._changed.wait()
            recast = self._entry is not None and self._archive is not None
            if not recast and isinstance(following, parts.SwitchTo):
                given = self._switch(following.generation)
            elif not recast and isinstance(following, parts.Retreat):
                self.fabric.withdraw()
                self._do(self.part.withdrew())
        if recast:
            self.recast()
            self.rehearsed(0.0)
            return None
        if isinstance(following, parts.Begin):
            return following.step
        if isinstance(following, parts.WriteCheckpoint):
            assert self._archive is not None
            self._archive.conclude(following)
            raise Concluded
        if isinstance(following, parts.SwitchTo):
            self._give(*given)
        elif isinstance(following, parts.GoBack):
            self._go_back(following)
        elif links is not None:
            self._take(links)
        return None

    def _switch(self, generation: int) -> tuple[parts.Proposal, int]:
        proposal = self.part.proposal
        assert proposal is not None
        self.fabric.switch(generation)
        self._settling = generation
        if self._archive is not None:
            self._archive.entered(proposal.roster, proposal)
        came, self._arrival = self._arrival, None
        if came is None:
            self._do(self.part.entered(generation))
        else:
            self._do(self.part.entered(generation, came.seconds, came.bytes, again=came.again))
        return proposal, generation

    # -- the training thread: in a step --------------------------------------------------------------------------------

    def step_begins(self, index: int) -> None:
        """The training thread enters a step."""
        self.meter.begin(self.part.generation, index)
        if self._archive is not None and self._archive.busy:
            self.meter.note("state is being kept")

    def vote(self, *, over: bool = False, sound: bool = True) -> VoteOutcome:
        """Agree with all roles that this step counts. Raises Repeat where it does not."""
        self._watch.step_ends()
        proposal = self.part.proposal
        healthy = proposal is not None and self.fabric.prepared >= proposal.generation
        if proposal is not None and proposal.gives(self.spec.uid):
            healthy = healthy and (
                self._offered(proposal) if self.spec.settings.replacement.overlap else self._may_leave(proposal)
            )
        with self._changed:
            copied = -1 if self._archive is None else self._archive.copied
            ballot = self.part.ballot(healthy=healthy, over=over, sound=sound, copied=copied)
        if ballot is None:
            return self._verdict()
        least = self._least(numbers_of(ballot))
        fault = self.fabric.fault
        if fault is not None:
            with self._changed:
                self._do(self.part.interrupted(fault.how, fault.reason, fault.who))
            return self._verdict()
        outcome = outcome_of(least, self.part.generation)
        if outcome.error:
            raise JobError(outcome.error, "steps")
        with self._changed:
            effects = self.part.counted(outcome)
            if effects is not None:
                self._do(effects)
        if effects is None:
            return self._verdict()
        if self._archive is not None and outcome.copied >= 0:
            self._archive.settle(outcome.copied)
        if not outcome.sound:
            log.warning("step %d has gradients that are not finite; it is begun again", self.part.step)
            raise Unsound
        return outcome

    def updating(self, optimizer: object, *, replayable: bool) -> None:
        """An optimizer is about to step, and the step counts."""
        if self._archive is not None:
            self._archive.hold()
        if self.part.agreed:
            for giving in self._giving.values():
                if giving.generation == self.part.agreed:
                    giving.update(optimizer, replayable=replayable)

    def _verdict(self) -> VoteOutcome:
        """Wait for the decision of those who know how far everybody has come."""
        self.meter.note("interrupted")
        with self._changed:
            self._changed.wait_for(lambda: self.part.verdict() is not None or self._dismissed)
            if self._dismissed:
                raise Dismissed
            if not self.part.verdict():
                raise Repeat
            return VoteOutcome(None, over=self.part.over)

    def failed_in_step(self) -> bool:
        """An exception came out of a step: whether that is because the step was interrupted."""
        fault = self.fabric.fault
        with self._changed:
            if self.part.passed or (fault is None and not self.part.halted and not self.part.again):
                return False
            if fault is not None:
                self._do(self.part.interrupted(fault.how, fault.reason, fault.who))
        return True

    def report_fault(self, reason: str, *, fatal: bool) -> None:
        """Something is wrong here. Where it is fatal, nothing more is done before the controller ends this worker."""
        self._say(Faulty(reason, fatal))
        if fatal:
            self.fabric.interrupt(f"{self.spec.uid}: {reason}", self.spec.uid)
            with self._changed:
                self._changed.wait_for(lambda: self._dismissed)
            raise Dismissed

    def applied(self, values: dict[str, float]) -> None:
        with self._changed:
            self.part.applied()
            step = self.part.step
        seconds, lost = self.pulse.ends(time.time(), settles=bool(self._settling))
        if self._settling:
            self._say(Settled(self._settling, step, lost))
        self._settling = 0
        if self.part.proposal is not None or self._giving:
            self.meter.note("a change is under way")
        sample = self.meter.end(self.spec.uid, self.role, step, traffic_of(self.fabric))
        self._say(Progress(self.role, step, seconds, values, primary=self.is_last, sample=sample))

    @property
    def is_last(self) -> bool:
        """Whether its role is the last that is not vacant."""
        roster = self.fabric.roster
        return self.role == (self.spec.roles - 1 if roster is None else roster.last)

    # -- the end -------------------------------------------------------------------------------------------------------

    def close_archive(self) -> None:
        archive, self._archive = self._archive, None
        self.part.kept = tuple
        if archive is not None:
            archive.close()

    def close(self) -> None:
        self._watch.close()
        self.close_archive()
        self.tape.close()

    def done(self, *, stopped: bool) -> None:
        self._say(Done(self.part.step, digest(take_inventory(self.tracked)) if self.tracked else "", stopped))

    def failed(self, error: str, trace: str, cause: FailureCause) -> None:
        self._say(Failed(self.part.step, error, trace, cause))

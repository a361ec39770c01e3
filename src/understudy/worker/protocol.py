"""One worker's side of the protocol, without threads, sockets or tensors.

Two callers share it under one lock: whoever brings the controller's words, and the training thread at the vote and at
the boundary. Both get back what to do, in order.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from understudy.protocol.messages import (
    Arm,
    Back,
    Cancel,
    Cancelled,
    Conclude,
    Finish,
    FromWorker,
    Gave,
    Halt,
    Halted,
    Leave,
    Move,
    Park,
    Parked,
    Prepare,
    Prepared,
    Recorded,
    Rehearse,
    Rehearsed,
    Resume,
    Stop,
    Switched,
    ToWorker,
    Tracked,
    Unprepared,
)
from understudy.protocol.roster import Roster
from understudy.protocol.vote import Ballot, VoteOutcome


class SendReport(msgspec.Struct, frozen=True):
    """Send a message to the controller."""

    message: FromWorker


class Open(msgspec.Struct, frozen=True):
    """Prepare this roster in the background; then call `opened` or `not_opened`."""

    roster: Roster


class Close(msgspec.Struct, frozen=True):
    """Give this generation up."""

    generation: int


class PoisonFabric(msgspec.Struct, frozen=True):
    """Let everything that blocks in the generation in play return."""

    reason: str


class EnterTrain(msgspec.Struct, frozen=True):
    """Enter the training function in this role: for a rehearsal, or for good."""

    role: int
    rehearsal: bool
    recorded: Recorded | None = None
    troupe: Roster | None = None


class Wake(msgspec.Struct, frozen=True):
    """The training thread may find something new at its boundary or its vote."""


class End(msgspec.Struct, frozen=True):
    """Nothing is left to do for this process."""


Effect = SendReport | Open | Close | PoisonFabric | EnterTrain | Wake | End


class Begin(msgspec.Struct, frozen=True):
    """Compute this step."""

    step: int


class SwitchTo(msgspec.Struct, frozen=True):
    """Enter this generation, then call `entered`."""

    generation: int


class Wait(msgspec.Struct, frozen=True):
    """Until woken."""


class HandedOver(msgspec.Struct, frozen=True):
    """This role is somebody else's now; what is left is to give its state."""


class GoBack(msgspec.Struct, frozen=True):
    """Make the state as it was at this step, from where it was kept; then call `went_back`."""

    generation: int
    step: int
    source: Back


class WriteCheckpoint(msgspec.Struct, frozen=True):
    """Write these roles' state to a checkpoint and end."""

    step: int
    roles: tuple[int, ...]


class Withdraw(msgspec.Struct, frozen=True):
    """Leave the generation in play, then call `withdrew`."""


Next = Begin | SwitchTo | Wait | HandedOver | GoBack | WriteCheckpoint | Withdraw


class ProtocolError(RuntimeError):
    """Something that the protocol rules out: a defect, never an accident."""


class Proposal(msgspec.Struct):
    """A generation that this worker has been told to prepare."""

    roster: Roster
    moves: tuple[Move, ...]
    direct: bool
    """Entered as soon as it is open, without a vote: nobody trains."""
    step: int = 0
    """The first step in it, where it is direct."""
    back: Back = ""
    """Where everybody's state comes from, if not from where it is."""
    copied: int = -1
    """The latest step of which copies are there for all roles."""
    restored: bool = False
    """Whether this worker has gone back."""
    ready: bool = False
    armed: bool = False

    @property
    def generation(self) -> int:
        return self.roster.generation

    def gives(self, uid: str) -> bool:
        return any(move.giver.uid == uid for move in self.moves)

    def goes_back(self, uid: str) -> bool:
        """Whether this worker has to put back a state that it has itself, or finds on disk."""
        plays = self.roster.role_of(uid) is not None
        return bool(self.back) and plays and not self.restored and not self.takes(uid)

    def takes(self, uid: str) -> bool:
        return any(move.taker.uid == uid for move in self.moves)


class WorkerProtocol:
    """What a worker knows and has promised."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.role: int | None = None
        self.generation = 0
        """In play; 0 before the first."""
        self.seated = False
        """Whether it plays a role in that generation."""
        self.step = 0
        """Steps applied to the state it holds, which is the number of the step it is in."""
        self.holds = False
        self.voted = False
        self.passed = False
        self.proposal: Proposal | None = None
        self.promised = 0
        """The generation it has named in a vote whose outcome it does not know yet."""
        self.withdrawn = False
        """The promised generation is to be given up if the vote does not agree on it."""
        self.agreed = 0
        """The generation to switch to at the coming boundary."""
        self.halt = 0
        """The number of the last halt that it was asked about."""
        self.halted = False
        """Nothing passes any more until the controller has decided."""
        self.again = False
        """The step under way is to be begun again."""
        self.stop = False
        self.closing = False
        """The vote under way is the last one, after all steps."""
        self.over = False
        """The last vote has passed: the training function may return."""
        self.able = False
        """Whether the training function has come to a boundary, so that state can be put into what it tracks."""
        self.last: WriteCheckpoint | None = None
        """What is left to do in a job that cannot go on."""
        self.forgiven = -1
        """The step whose gradients were found unsound: it is taken as it comes the second time."""
        self.kept: Callable[[], tuple[tuple[int, int], ...]] = tuple
        """(role, step) of whole copies that are in this worker's memory."""
        self.usual: Callable[[], float] = float
        """Seconds of an undisturbed step."""
        self.parking = False
        """The others go on without this replica: it has yet to leave the generation."""

    # -- what it is told ---------------------------------------------------------------------------------------------

    def hear(self, message: ToWorker) -> list[Effect]:
        match message:
            case Rehearse(role, recorded, troupe):
                self.role, self.able, self.holds = role, False, False
                return [*self._drop(), EnterTrain(role, rehearsal=True, recorded=recorded, troupe=troupe)]
            case Prepare(roster, moves):
                return self._propose(Proposal(roster, moves, direct=False))
            case Resume(roster, step, moves, back, copied):
                return self._resume(Proposal(roster, moves, direct=True, step=step, back=back, copied=copied))
            case Conclude(step, roles):
                effects = self._drop()
                self._go_on_from(step)
                self.last = WriteCheckpoint(step, roles)
                return [*effects, Wake()]
            case Arm(generation):
                if self.proposal is not None and self.proposal.generation == generation:
                    self.proposal.armed = True
                return []
            case Cancel(generation):
                return self._cancel(generation)
            case Halt(number, reason):
                self.halt = number
                self.halted = self.seated or self.holds  # others have nothing to hold still
                return [PoisonFabric(reason), *self._drop(), SendReport(self._report(number)), Wake()]
            case Stop():
                self.stop = True
                return [Wake()]
            case Finish():
                self.over = True
                return [Wake()]
            case Park():
                effects = self._drop()
                self.holds = self.seated = self.halted = False  # what it has is behind by the next step
                self.parking = True
                if not self.passed:
                    self.voted, self.again = False, True
                return [*effects, Wake()]
            case Leave():
                return [End()]

    def _propose(self, proposal: Proposal) -> list[Effect]:
        if proposal.generation <= self.generation:
            raise ProtocolError(f"{self.uid} in generation {self.generation} is told to prepare {proposal.generation}")
        if self.halted:  # it will be told what to do instead
            return [SendReport(Unprepared(proposal.generation, f"{self.uid} has halted"))]
        effects = self._drop()
        self.proposal = proposal
        return [*effects, Open(proposal.roster)]

    def _resume(self, proposal: Proposal) -> list[Effect]:
        effects = self._drop()
        self.proposal, self.parking = proposal, False
        if proposal.takes(self.uid):
            self.holds = False  # what it has is not what is wanted
        if proposal.back:
            if not self.passed and self.seated:
                self.voted, self.again = False, True
        elif self.holds:
            self._go_on_from(proposal.step)
        effects.append(Open(proposal.roster))
        role = proposal.roster.role_of(self.uid)
        if self.role is None and role is not None:
            self.role = role
            effects.append(EnterTrain(role, rehearsal=False))
        return [*effects, Wake()]

    def _go_on_from(self, step: int) -> None:
        """Finish the step before, or give up what has begun of this one."""
        reached = self.step + 1 if self.passed else self.step
        if step == reached + 1:
            if not self.voted:
                raise ProtocolError(f"{self.uid} is told to apply step {reached}, for which it has not voted")
            self.passed = True
        elif step != reached:
            raise ProtocolError(f"{self.uid} at step {reached} is told to go on from step {step}")
        elif not self.passed and self.seated:
            self.voted, self.again = False, True

    def _cancel(self, generation: int) -> list[Effect]:
        if self.promised == generation:
            self.withdrawn = True
            return []
        if generation in (self.agreed, self.generation) or self.halted:
            return []  # it is entered, or something else has come between: what it says of that is the answer
        effects = self._drop() if self.proposal is not None and self.proposal.generation == generation else []
        return [*effects, SendReport(Cancelled(generation))]

    def _drop(self) -> list[Effect]:
        """Forget the proposal, if there is one."""
        proposal, self.proposal = self.proposal, None
        self.promised, self.withdrawn, self.agreed = 0, False, 0
        return [] if proposal is None else [Close(proposal.generation)]

    def _report(self, number: int, how: str = "", reason: str = "", who: str = "") -> Halted:
        reached = self.step + 1 if self.passed else self.step
        voted = self.voted and not self.passed
        return Halted(
            number,
            self.generation,
            reached,
            voted,
            self.holds,
            self.over,
            how,
            reason,
            who,
            self.able,
            self.kept(),
            self.usual(),
        )

    # -- what becomes of a preparation -------------------------------------------------------------------------------

    def opened(self, generation: int, seconds: float = 0.0) -> list[Effect]:
        if self.proposal is None or self.proposal.generation != generation:
            return []
        self.proposal.ready = True
        return [SendReport(Prepared(generation, seconds)), Wake()]

    def not_opened(self, generation: int, why: str) -> list[Effect]:
        if self.proposal is None or self.proposal.generation != generation:
            return []
        self._drop()
        return [SendReport(Unprepared(generation, why))]

    def rehearsed(
        self, seconds: float = 0.0, also: tuple[int, ...] = (), diverged: str = "", *, fixed: bool = False
    ) -> list[Effect]:
        """The training function has come to the boundary where it waits for its entry."""
        assert self.role is not None
        self.able = True
        return [SendReport(Rehearsed(self.role, seconds, also, diverged, fixed))]

    def tracked(self, twins: tuple[int, ...], size: int = 0) -> list[Effect]:
        """The first boundary: from here on there is state that others can have."""
        assert self.role is not None
        self.holds = self.able = True
        return [SendReport(Tracked(self.role, twins, size))]

    def took(self, generation: int, step: int) -> bool:
        """A role's whole state has come, verified, for this generation. False where it comes too late."""
        proposal = self.proposal
        if proposal is None or proposal.generation != generation or not proposal.takes(self.uid):
            return False
        self.holds, self.step, self.voted, self.passed, self.again = True, step, False, False, False
        if not proposal.direct:
            self.agreed = generation  # the giver was in the vote and has left
        return True

    def gave(self, generation: int) -> list[Effect]:
        return [SendReport(Gave(generation))]

    def went_back(self, generation: int, step: int) -> list[Effect]:
        """The state is as it was at this step; where it is to take another one meanwhile, it waits for that."""
        self.step, self.voted, self.passed, self.again = step, False, False, False
        self.holds = self.proposal is None or not self.proposal.takes(self.uid)
        if self.proposal is not None and self.proposal.generation == generation:
            self.proposal.restored = True
        if self.proposal is None and self.halt:
            return [SendReport(self._report(self.halt))]  # it had said that it holds nothing
        return []

    # -- the training thread: at the boundary ------------------------------------------------------------------------

    def withdrew(self) -> list[Effect]:
        """The generation is left; until another one is entered, this is a newcomer that has rehearsed its role."""
        assert self.role is not None
        self.generation, self.parking, self.again = 0, False, False
        return [SendReport(Parked(self.role))]

    def boundary(self) -> Next:
        """What to do now that no step is under way."""
        if self.last is not None:
            return self.last
        if self.parking:
            return Withdraw()
        proposal = self.proposal
        if proposal is not None and proposal.goes_back(self.uid):
            self.holds = False  # until all of it is there
            return GoBack(proposal.generation, proposal.step, proposal.back)
        if proposal is not None and proposal.ready and (not self.halted or proposal.direct):
            if self.agreed == proposal.generation:
                return SwitchTo(proposal.generation)
            if proposal.direct and (self.holds or not proposal.takes(self.uid)):
                return SwitchTo(proposal.generation)
        if self.halted or (proposal is not None and proposal.direct) or self.generation == 0:
            return Wait()
        return Begin(self.step) if self.seated else HandedOver()

    def entered(self, generation: int, seconds: float = 0.0, size: int = 0, *, again: bool = False) -> list[Effect]:
        """The switch is done; a taker says how long its state took from the first byte on, and how much it was."""
        proposal, self.proposal = self.proposal, None
        if proposal is None or proposal.generation != generation:
            raise ProtocolError(f"{self.uid} has entered generation {generation}, which nobody proposed")
        self.generation, self.seated = generation, proposal.roster.role_of(self.uid) is not None
        self.promised, self.withdrawn, self.agreed = 0, False, 0
        self.halted = self.again = False
        return [SendReport(Switched(generation, self.step, seconds, size, again))]

    # -- the training thread: at the vote ----------------------------------------------------------------------------

    def ballot(
        self, *, healthy: bool = True, over: bool = False, sound: bool = True, copied: int = -1
    ) -> Ballot | None:
        """What to say in this step's vote; None where it is no use any more (see `verdict`). `healthy` says whether
        the prepared generation could still be entered, `sound` whether the gradients are numbers."""
        if self.halted or self.again:
            return None
        assert self.role is not None
        self.voted, self.closing = not over, over
        proposal, named = self.proposal, self.generation
        if proposal is not None and proposal.ready and healthy and (proposal.armed or not proposal.gives(self.uid)):
            named = self.promised = proposal.generation
        sound = sound or self.forgiven == self.step
        return Ballot(self.role, self.step, named, self.stop, over, sound, copied)

    def counted(self, outcome: VoteOutcome) -> list[Effect] | None:
        """The vote is complete and everybody has complete gradients: from here on the step is applied, whatever
        happens. None where a halt came first: then it may or may not be."""
        if self.halted or self.again:
            return None
        if outcome.sound:
            self.passed, self.over = not self.closing, self.closing
        else:
            self.voted, self.forgiven = False, self.step
        promised, withdrawn = self.promised, self.withdrawn
        self.promised, self.withdrawn = 0, False
        if outcome.generation is not None:
            self.agreed = outcome.generation
        elif withdrawn:
            return [*self._drop(), SendReport(Cancelled(promised))]
        return []

    def interrupted(self, how: str, reason: str, who: str = "") -> list[Effect]:
        """The vote has failed, or could not be held."""
        if self.halted or self.again:
            return []
        self.halted = True
        return [*self._drop(), SendReport(self._report(0, how, reason, who))]

    def verdict(self) -> bool | None:
        """After a vote that failed: apply the step (True), begin it again (False), or not known yet (None)."""
        if self.again:
            return False
        return True if self.passed or self.over else None

    def applied(self) -> None:
        """The step's update is in the state."""
        if not self.passed:
            raise ProtocolError(f"{self.uid} has applied step {self.step} without a vote")
        self.step += 1
        self.voted = self.passed = False

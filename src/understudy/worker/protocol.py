"""One worker's side of the protocol, as a state machine without threads, sockets or tensors.

Two callers share it under one lock: the connection that brings the controller's messages, and the training thread at
the vote and at the boundary. Three small machines make up the whole: the worker's place in the job (`WorkerState`), the
step under way (`StepState`) and the generation that is prepared (`ProposalState`). Each has a table at the end of this
file that says which events are possible in which state, and what they do. An event that has no entry there raises
`IllegalTransition`, with the events before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, TypeVar, cast

from understudy.protocol import messages
from understudy.protocol.vote import Ballot, VoteOutcome

from .instructions import (
    Begin,
    Close,
    Effect,
    End,
    EnterTrain,
    GoBack,
    Next,
    Open,
    PoisonFabric,
    SendReport,
    SwitchTo,
    Wait,
    Withdraw,
    WriteCheckpoint,
)
from .invariants import invariants
from .states import Event, IllegalTransition, Moment, Proposal, ProposalState, ProtocolError, StepState, WorkerState

_REMEMBERED = 40
"""Events that an error tells."""
_T = TypeVar("_T")
_Table = dict[tuple[StrEnum, Any], Callable[..., _T]]


class WorkerProtocol:
    """What a worker knows and has promised."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.state = WorkerState.NEW
        self.step_state = StepState.COMPUTING
        self.role: int | None = None
        self.generation = 0
        """The current one; 0 before the first."""
        self.step = 0
        """Steps applied to the state, which is the number of the step under way."""
        self.holds = False
        """Whether the worker holds the whole state of its role."""
        self.halted = False
        """Whether nothing passes until the controller has decided on a failure."""
        self.halt = 0
        """The number of the last halt that was answered."""
        self.stop = False
        """Whether an operator wants the job to end after this step."""
        self.proposal: Proposal | None = None
        self.conclusion: WriteCheckpoint | None = None
        self.forgiven = -1
        """The step that had gradients that were not finite: its second attempt counts in any case."""
        self.kept: Callable[[], tuple[tuple[int, int], ...]] = tuple
        """(role, step) of whole copies in this worker's memory."""
        self.usual: Callable[[], float] = float
        """Seconds of an undisturbed step."""
        self.story: deque[tuple[Moment, str]] = deque(maxlen=_REMEMBERED)
        """The last events, each with the moment before it."""

    # -- queries -----------------------------------------------------------------------------------------------------

    @property
    def seated(self) -> bool:
        """Whether the worker has a role in the current generation."""
        return self.generation > 0 and self.state in (WorkerState.ENTERING, WorkerState.TRAINING)

    @property
    def able(self) -> bool:
        """Whether the training function has come to a boundary, so that state can be put into what it tracks."""
        return self.state not in (WorkerState.NEW, WorkerState.REHEARSING, WorkerState.ENTERING)

    @property
    def passed(self) -> bool:
        return self.step_state is StepState.PASSED

    @property
    def repeating(self) -> bool:
        return self.step_state is StepState.REPEATING

    @property
    def closing(self) -> bool:
        return self.step_state is StepState.CLOSING

    @property
    def over(self) -> bool:
        return self.step_state is StepState.OVER

    @property
    def agreed(self) -> int:
        """The generation that is entered at the coming boundary; 0: none."""
        agreed = self.proposal is not None and self.proposal.state is ProposalState.AGREED
        return self.proposal.generation if self.proposal is not None and agreed else 0

    @property
    def reached(self) -> int:
        """Steps that are or will be applied to the state."""
        return self.step + 1 if self.passed else self.step

    def verdict(self) -> bool | None:
        """After an interrupted vote: apply the step (True), repeat it (False), or not decided yet (None)."""
        if self.step_state is StepState.REPEATING:
            return False
        return True if self.step_state in (StepState.PASSED, StepState.OVER) else None

    def validate(self) -> None:
        """Raise ProtocolError unless all invariants hold."""
        for rule, holds in invariants(self).items():
            if not holds:
                raise self._error(f"{self}: it does not hold that {rule}")

    def moment(self) -> Moment:
        """Where the worker stands now."""
        proposal = self.proposal
        return Moment(
            uid=self.uid,
            state=self.state,
            generation=self.generation,
            step=self.step,
            step_state=self.step_state,
            halted=self.halted,
            proposed=0 if proposal is None else proposal.generation,
            proposal_state=ProposalState.ABSENT if proposal is None else proposal.state,
        )

    def __str__(self) -> str:
        return str(self.moment())

    # -- events --------------------------------------------------------------------------------------------------------

    def hear(self, message: messages.ToWorker) -> list[Effect]:
        """A message of the controller."""
        if isinstance(message, messages.Arm | messages.Cancel):
            return self._about(message.generation, type(message))
        return self._dispatch(MESSAGES, self.state, type(message), message)

    def _dispatch(self, table: _Table[_T], state: StrEnum, event: Any, *details: Any) -> _T:
        """Find the entry for an event in this state and carry it out."""
        name = event.__name__ if isinstance(event, type) else str(event)
        handler = table.get((state, event))
        if handler is None:
            raise IllegalTransition(f"{self}: {name} is not possible while {state}", self.story)
        before = self.moment()
        result = handler(self, *details)
        self.story.append((before, name))
        return result

    def _about(self, generation: int, event: Any, *details: Any) -> list[Effect]:
        """An event about one generation."""
        proposal = self.proposal
        if proposal is not None and proposal.generation == generation:
            state = proposal.state
        else:
            state = ProposalState.ENTERED if generation == self.generation else ProposalState.ABSENT
        return self._dispatch(PROPOSALS, state, event, generation, *details)

    def _in_step(self, event: Event, *details: Any) -> Any:
        return self._dispatch(STEPS, StepState.HALTED if self.halted else self.step_state, event, *details)

    def _error(self, what: str) -> ProtocolError:
        return ProtocolError(what, self.story)

    # -- messages of the controller ------------------------------------------------------------------------------------

    def _rehearse(self, message: messages.Rehearse) -> list[Effect]:
        effects = self._drop()
        self.state, self.role, self.holds = WorkerState.REHEARSING, message.role, False
        self.halted = False
        entry = EnterTrain(message.role, rehearsal=True, recorded=message.recorded, mates=message.mates)
        return [*effects, entry]

    def _prepare(self, message: messages.Prepare) -> list[Effect]:
        generation = message.roster.generation
        if generation <= self.generation:
            raise self._error(f"{self.uid} in generation {self.generation} is told to prepare {generation}")
        if self.halted:  # the controller's decision on the failure follows
            return [SendReport(messages.Unprepared(generation, f"{self.uid} has halted"))]
        if self.proposal is not None and (self.proposal.in_vote or self.agreed):
            raise self._error(f"{self.uid} is told to prepare {generation} before its vote on another generation ends")
        effects = self._drop()
        self.proposal = Proposal(message.roster, message.moves, direct=False)
        return [*effects, Open(message.roster)]

    def _refuse_to_prepare(self, message: messages.Prepare) -> list[Effect]:
        """The training function was never entered, so that there is nothing to put state into."""
        return [SendReport(messages.Unprepared(message.roster.generation, f"{self.uid} has rehearsed no role"))]

    def _resume(self, message: messages.Resume) -> list[Effect]:
        effects = self._drop()
        if self.state is WorkerState.PARKING:
            self.state = WorkerState.RELEASED if self.generation else WorkerState.STANDBY
        proposal = self.proposal = Proposal(
            message.roster, message.moves, direct=True, step=message.step, back=message.back, copied=message.copied
        )
        if proposal.takes(self.uid):
            self.holds = False  # its own state is not the one that is wanted
            self._repeat()
        elif proposal.back:
            self._repeat()
        elif self.holds:
            self._go_on_from(proposal.step)
        effects.append(Open(proposal.roster))
        if self.state is WorkerState.NEW:
            role = proposal.roster.role_of(self.uid)
            if role is None:
                raise self._error(f"{self.uid} is told to resume without a role")
            self.state, self.role = WorkerState.ENTERING, role
            effects.append(EnterTrain(role, rehearsal=False))
        return effects

    def _conclude(self, message: messages.Conclude) -> list[Effect]:
        effects = self._drop()
        self._go_on_from(message.step)
        self.state, self.conclusion = WorkerState.CONCLUDING, WriteCheckpoint(message.step, message.roles)
        return effects

    def _halt(self, message: messages.Halt) -> list[Effect]:
        self.halt = message.number
        self.halted = self.seated or self.holds  # other workers have nothing to hold still
        return [PoisonFabric(message.reason), *self._drop(), SendReport(self._report(message.number))]

    def _stop(self, message: messages.Stop) -> list[Effect]:
        self.stop = True
        return []

    def _finish(self, message: messages.Finish) -> list[Effect]:
        self.step_state = StepState.OVER
        return []

    def _park(self, message: messages.Park) -> list[Effect]:
        effects = self._drop()
        if not self.passed:
            self.step_state = StepState.REPEATING
        self.state = WorkerState.PARKING
        self.holds = self.halted = False  # its state is stale after the next step of the others
        return effects

    def _leave(self, message: messages.Leave) -> list[Effect]:
        return [End()]

    def _go_on_from(self, step: int) -> None:
        """Apply the step before this one, or repeat the one under way."""
        if step == self.reached + 1:
            if self.step_state is not StepState.VOTED:
                raise self._error(f"{self.uid} is told to apply step {self.reached}, for which it has not voted")
            self.step_state = StepState.PASSED
        elif step != self.reached:
            raise self._error(f"{self.uid} at step {self.reached} is told to go on from step {step}")
        else:
            self._repeat()

    def _repeat(self) -> None:
        if self.seated and not self.passed:
            self.step_state = StepState.REPEATING

    def _drop(self) -> list[Effect]:
        """Give the proposal up, if there is one."""
        proposal, self.proposal = self.proposal, None
        return [] if proposal is None else [Close(proposal.generation)]

    def _report(self, number: int, how: str = "", reason: str = "", who: str = "") -> messages.Halted:
        return messages.Halted(
            number=number,
            generation=self.generation,
            step=self.reached,
            voted=self.step_state is StepState.VOTED,
            holds=self.holds,
            over=self.over,
            how=how,
            reason=reason,
            who=who,
            able=self.able,
            kept=self.kept(),
            usual=self.usual(),
        )

    # -- a proposed generation -----------------------------------------------------------------------------------------

    def opened(self, generation: int, seconds: float = 0.0) -> list[Effect]:
        """The links of a generation are open."""
        return self._about(generation, Event.OPENED, seconds)

    def _opened(self, generation: int, seconds: float) -> list[Effect]:
        assert self.proposal is not None
        self.proposal.state = ProposalState.READY
        return [SendReport(messages.Prepared(generation, seconds))]

    def not_opened(self, generation: int, why: str) -> list[Effect]:
        """The links of a generation could not be opened."""
        return self._about(generation, Event.NOT_OPENED, why)

    def _not_opened(self, generation: int, why: str) -> list[Effect]:
        self.proposal = None  # the fabric has given it up already
        return [SendReport(messages.Unprepared(generation, why))]

    def _arm(self, generation: int) -> list[Effect]:
        assert self.proposal is not None
        self.proposal.state = ProposalState.ARMED
        return []

    def _cancel(self, generation: int) -> list[Effect]:
        if self.halted:
            return []  # the report to the halt is the answer
        effects = self._drop() if self.proposal is not None and self.proposal.generation == generation else []
        return [*effects, SendReport(messages.Cancelled(generation))]

    def _cancel_in_vote(self, generation: int) -> list[Effect]:
        assert self.proposal is not None
        self.proposal.state = ProposalState.WITHDRAWN
        return []

    def _nothing(self, *details: object) -> list[Effect]:
        """An event that comes too late, or for a second time."""
        return []

    def took(self, generation: int, step: int) -> bool:
        """The whole state of the role has arrived for a generation, verified. Returns whether it still counts."""
        counts = self.proposal is not None and self.proposal.generation == generation
        self._about(generation, Event.TOOK, step)
        return counts

    def _took(self, generation: int, step: int) -> list[Effect]:
        proposal = self.proposal
        assert proposal is not None
        if not proposal.takes(self.uid) or not (proposal.direct or proposal.ready):
            raise self._error(f"{self}: it has taken state for generation {generation} that was not due")
        self.holds, self.step, self.step_state = True, step, StepState.COMPUTING
        if not proposal.direct:
            proposal.state = ProposalState.AGREED  # the giver was in the vote and has left
        return []

    def entered(self, generation: int, seconds: float = 0.0, size: int = 0, again: bool = False) -> list[Effect]:
        """The switch is done. A taker says how long its state took from the first byte on, its size, and whether it
        had to be sent again."""
        return self._about(generation, Event.ENTERED, seconds, size, again)

    def _entered(self, generation: int, seconds: float, size: int, again: bool) -> list[Effect]:
        proposal, self.proposal = self.proposal, None
        assert proposal is not None
        self.generation, self.halted = generation, False
        if proposal.roster.role_of(self.uid) is None:
            self.state = WorkerState.RELEASED
            if proposal.back:
                self.holds = False  # its state is of a step that the others have left
        elif self.state is not WorkerState.ENTERING:
            self.state = WorkerState.TRAINING
        self._computes_again()
        return [SendReport(messages.Switched(generation, self.step, seconds, size, again))]

    def _computes_again(self) -> None:
        if self.step_state is not StepState.OVER:
            self.step_state = StepState.COMPUTING

    # -- the training function -----------------------------------------------------------------------------------------

    def rehearsed(
        self,
        seconds: float = 0.0,
        also: tuple[int, ...] = (),
        diverged: str = "",
        *,
        fixed: bool = False,
        early: tuple[messages.EarlyReading, ...] = (),
    ) -> list[Effect]:
        """The rehearsal is over: the training function waits at a boundary."""
        return self._dispatch(PLACES, self.state, Event.REHEARSED, seconds, also, diverged, fixed, early)

    def _rehearsed(
        self,
        seconds: float,
        also: tuple[int, ...],
        diverged: str,
        fixed: bool,
        early: tuple[messages.EarlyReading, ...],
    ) -> list[Effect]:
        assert self.role is not None
        self.state = WorkerState.STANDBY
        return [SendReport(messages.Rehearsed(self.role, seconds, also, diverged, fixed, early))]

    def tracked(self, twins: tuple[int, ...], size: int = 0, step: int | None = None) -> list[Effect]:
        """The first boundary: everything is tracked, with this many steps applied."""
        return self._dispatch(PLACES, self.state, Event.TRACKED, twins, size, step)

    def _tracked(self, twins: tuple[int, ...], size: int, step: int | None) -> list[Effect]:
        assert self.role is not None
        if self.state is WorkerState.ENTERING:
            self.state = WorkerState.TRAINING
        self.holds, self.step = True, self.step if step is None else step
        tracked: list[Effect] = [SendReport(messages.Tracked(self.role, twins, size))]
        return [*tracked, *self._report_again()] if self.halted else tracked

    def gave(self, generation: int) -> list[Effect]:
        """The taker has verified the state that this worker gave."""
        return self._dispatch(PLACES, self.state, Event.GAVE, generation)

    def _gave(self, generation: int) -> list[Effect]:
        return [SendReport(messages.Gave(generation))]

    def went_back(self, generation: int, step: int) -> list[Effect]:
        """The state of an earlier step is restored."""
        return self._dispatch(PLACES, self.state, Event.WENT_BACK, generation, step)

    def _went_back(self, generation: int, step: int) -> list[Effect]:
        proposal = self.proposal
        self.step, self.step_state = step, StepState.COMPUTING
        self.holds = proposal is None or not proposal.takes(self.uid)
        if proposal is not None and proposal.generation == generation:
            proposal.restored = True
        return self._report_again() if proposal is None and self.halt else []

    def _report_again(self) -> list[Effect]:
        """The worker holds state now. Its answer to the halt was that it holds none."""
        return [SendReport(self._report(self.halt))]

    def _went_back_too_late(self, generation: int, step: int) -> list[Effect]:
        """The worker is parked meanwhile: the restored state is of no use."""
        self.step = step
        return []

    def withdrew(self) -> list[Effect]:
        """The current generation is left; until it enters another one, this worker is a standby for its role."""
        return self._dispatch(PLACES, self.state, Event.WITHDREW)

    def _withdrew(self) -> list[Effect]:
        assert self.role is not None
        self.state, self.generation = WorkerState.STANDBY, 0
        self._computes_again()
        return [SendReport(messages.Parked(self.role))]

    def boundary(self) -> Next:
        """What to do while no step is under way."""
        if self.conclusion is not None:
            return self.conclusion
        if self.state is WorkerState.PARKING:
            return Withdraw()
        proposal = self.proposal
        if proposal is not None and proposal.goes_back(self.uid):
            self.holds = False  # until the whole state is restored
            return GoBack(proposal.generation, proposal.step, proposal.back)
        if proposal is not None and proposal.ready and (not self.halted or proposal.direct):
            if proposal.state is ProposalState.AGREED:
                return SwitchTo(proposal.generation)
            if proposal.direct and (self.holds or not proposal.takes(self.uid)):
                return SwitchTo(proposal.generation)
        if self.halted or (proposal is not None and proposal.direct) or self.generation == 0:
            return Wait()
        return Begin(self.step) if self.seated else Wait()  # after a hand-over this worker only gives its state

    # -- the step ------------------------------------------------------------------------------------------------------

    def ballot(
        self, *, healthy: bool = True, over: bool = False, sound: bool = True, copied: int = -1
    ) -> Ballot | None:
        """What to say in this step's vote; None if there is no vote any more (see `verdict`). `healthy`: whether the
        prepared generation can still be entered; `sound`: whether the gradients are finite."""
        return cast(Ballot | None, self._in_step(Event.AT_VOTE, healthy, over, sound, copied))

    def _vote(self, healthy: bool, over: bool, sound: bool, copied: int) -> Ballot:
        assert self.role is not None
        self.step_state = StepState.CLOSING if over else StepState.VOTED
        proposal, named = self.proposal, self.generation
        if proposal is not None and healthy and proposal.may_be_named(self.uid):
            proposal.state, named = ProposalState.PROMISED, proposal.generation
        sound = sound or self.forgiven == self.step
        return Ballot(self.role, self.step, named, stop=self.stop, over=over, sound=sound, copied=copied)

    def _no_vote(self, *details: object) -> None:
        """The step is decided without a vote."""
        return

    def counted(self, outcome: VoteOutcome) -> list[Effect] | None:
        """The vote is complete: all roles have complete gradients, and the step is applied in any case. None if a halt
        came first: then the controller decides."""
        return cast(list[Effect] | None, self._in_step(Event.COUNTED, outcome))

    def _counted(self, outcome: VoteOutcome) -> list[Effect]:
        if not outcome.sound:
            self.step_state, self.forgiven = StepState.COMPUTING, self.step
        else:
            self.step_state = StepState.OVER if self.closing else StepState.PASSED
        proposal = self.proposal
        if proposal is None or not proposal.in_vote:
            if outcome.generation is not None:
                raise self._error(f"{self.uid}: the vote agrees on {outcome.generation}, which it has not named")
            return []
        if outcome.generation is not None:
            proposal.state = ProposalState.AGREED
        elif proposal.state is ProposalState.WITHDRAWN:
            return [*self._drop(), SendReport(messages.Cancelled(proposal.generation))]
        else:
            proposal.state = ProposalState.ARMED if proposal.gives(self.uid) else ProposalState.READY
        return []

    def interrupted(self, how: str, reason: str, who: str = "") -> list[Effect]:
        """The vote has failed, or could not be held."""
        return cast(list[Effect], self._in_step(Event.INTERRUPTED, how, reason, who))

    def _interrupted(self, how: str, reason: str, who: str) -> list[Effect]:
        self.halted = True
        return [*self._drop(), SendReport(self._report(0, how, reason, who))]

    def applied(self) -> None:
        """The step's update is in the state."""
        self._dispatch(STEPS, self.step_state, Event.APPLIED)

    def _applied(self) -> None:
        self.step += 1
        self.step_state = StepState.COMPUTING


# -- the tables: (state, event) -> what it does ------------------------------------------------------------------------


def _table(*rows: tuple[Any, Iterable[StrEnum], Callable[..., _T]]) -> _Table[_T]:
    return {(state, event): handler for event, states, handler in rows for state in states}


_P = WorkerProtocol
_NEW, _REHEARSING, _STANDBY, _ENTERING, _TRAINING, _RELEASED, _PARKING, _CONCLUDING = WorkerState
_LIVE = (_STANDBY, _ENTERING, _TRAINING, _RELEASED, _PARKING)

MESSAGES = _table(
    (messages.Rehearse, (_NEW, _REHEARSING, _STANDBY), _P._rehearse),
    (messages.Prepare, (_REHEARSING, _STANDBY, _ENTERING, _TRAINING), _P._prepare),
    (messages.Prepare, (_NEW,), _P._refuse_to_prepare),
    (messages.Resume, (_NEW, _REHEARSING, *_LIVE), _P._resume),
    (messages.Park, (_STANDBY, _TRAINING, _RELEASED), _P._park),
    (messages.Conclude, (_STANDBY, _TRAINING, _RELEASED), _P._conclude),
    (messages.Halt, WorkerState, _P._halt),
    (messages.Stop, WorkerState, _P._stop),
    (messages.Finish, WorkerState, _P._finish),
    (messages.Leave, WorkerState, _P._leave),
)
"""What the controller says, by the worker's place."""

PLACES = _table(
    (Event.REHEARSED, (_REHEARSING,), _P._rehearsed),
    (Event.TRACKED, (_ENTERING, _RELEASED), _P._tracked),
    (Event.GAVE, WorkerState, _P._gave),
    (Event.WENT_BACK, (_STANDBY, _TRAINING, _RELEASED), _P._went_back),
    (Event.WENT_BACK, (_PARKING,), _P._went_back_too_late),
    (Event.WITHDREW, (_PARKING,), _P._withdrew),
)
"""What the training thread reports between steps, by the worker's place."""

_ABSENT, _OPENING, _READY, _ARMED, _PROMISED, _WITHDRAWN, _AGREED, _CURRENT = ProposalState

PROPOSALS = _table(
    (Event.OPENED, (_OPENING,), _P._opened),
    (Event.OPENED, (_ABSENT,), _P._nothing),
    (Event.NOT_OPENED, (_OPENING,), _P._not_opened),
    (Event.NOT_OPENED, (_ABSENT,), _P._nothing),
    (messages.Arm, (_READY, _ARMED), _P._arm),
    (messages.Arm, (_ABSENT, _PROMISED, _WITHDRAWN, _AGREED, _CURRENT), _P._nothing),
    (messages.Cancel, (_OPENING, _READY, _ARMED, _ABSENT), _P._cancel),
    (messages.Cancel, (_PROMISED, _WITHDRAWN), _P._cancel_in_vote),
    (messages.Cancel, (_AGREED, _CURRENT), _P._nothing),
    (Event.TOOK, (_OPENING, _READY, _ARMED), _P._took),
    (Event.TOOK, (_ABSENT, _CURRENT), _P._nothing),
    (Event.ENTERED, (_READY, _AGREED), _P._entered),
)
"""What happens to a generation, by how far it has come here. For an absent or the current one it comes too late."""

_COMPUTING, _VOTED, _CLOSING, _PASSED, _REPEATING, _OVER, _HALTED = StepState

STEPS: _Table[Any] = _table(
    (Event.AT_VOTE, (_COMPUTING,), _P._vote),
    (Event.AT_VOTE, (_REPEATING, _OVER, _HALTED), _P._no_vote),
    (Event.COUNTED, (_VOTED, _CLOSING), _P._counted),
    (Event.COUNTED, (_REPEATING, _HALTED), _P._no_vote),
    (Event.INTERRUPTED, (_COMPUTING, _VOTED, _CLOSING), _P._interrupted),
    (Event.INTERRUPTED, (_REPEATING, _HALTED), _P._nothing),
    (Event.APPLIED, (_PASSED,), _P._applied),
)
"""What the training thread reports of the step under way. While the worker is halted the controller decides on it."""

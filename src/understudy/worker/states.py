"""The states and events of a worker's protocol, and the generation that it prepares."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from understudy.protocol.messages import Back, Move
from understudy.protocol.roster import Roster


class WorkerState(StrEnum):
    """A worker's place in the job."""

    NEW = "new"
    """Has no role yet."""
    REHEARSING = "rehearsing"
    """Runs shadow steps for a role in the sandbox."""
    STANDBY = "standby"
    """Waits at a boundary, rehearsed or parked, in no generation."""
    ENTERING = "entering"
    """Enters the training function for good; nothing is tracked yet."""
    TRAINING = "training"
    """Has a role in the current generation."""
    RELEASED = "released"
    """Has no role in the current generation: gives its state, or waits to be resumed."""
    PARKING = "parking"
    """Its replica is masked: it has yet to leave the current generation."""
    CONCLUDING = "concluding"
    """The job cannot continue: it writes the final checkpoint and ends."""


class StepState(StrEnum):
    """The step under way."""

    COMPUTING = "computing"
    """The step has not come to its vote."""
    VOTED = "voted"
    """This worker's gradients are complete, and the vote is under way or was interrupted."""
    CLOSING = "closing"
    """As VOTED, for the vote after the last step."""
    PASSED = "passed"
    """The step counts, and its update is to be applied."""
    REPEATING = "repeating"
    """The step is to be begun again."""
    OVER = "over"
    """All steps are done: the training function may return."""
    HALTED = "halted"
    """In the table: any of the above while the worker is halted. No step is in this state itself."""


class Event(StrEnum):
    """What the training thread and the fabric report."""

    REHEARSED = "rehearsed"
    TRACKED = "tracked"
    OPENED = "opened"
    NOT_OPENED = "not opened"
    TOOK = "took state"
    GAVE = "gave state"
    WENT_BACK = "went back"
    WITHDREW = "withdrew"
    ENTERED = "entered"
    AT_VOTE = "came to the vote"
    COUNTED = "vote counted"
    INTERRUPTED = "interrupted"
    APPLIED = "applied"


class Moment(NamedTuple):
    """Where a worker stood when an event came. Made for every event, and formatted only in errors."""

    uid: str
    state: WorkerState
    generation: int
    step: int
    step_state: StepState
    halted: bool
    proposed: int
    """The generation that is proposed; 0: none."""
    proposal_state: ProposalState

    def __str__(self) -> str:
        halted = ", halted" if self.halted else ""
        proposed = f", generation {self.proposed} {self.proposal_state}" if self.proposed else ""
        where = f"{self.state} in generation {self.generation}, step {self.step} {self.step_state}"
        return f"{self.uid} ({where}{halted}{proposed})"


class ProtocolError(RuntimeError):
    """An event that the protocol rules out: a defect, never an accident. `story` has the events before it."""

    def __init__(self, what: str, story: Iterable[tuple[Moment, str]]) -> None:
        self.story = tuple(f"{moment}: {event}" for moment, event in story)
        super().__init__("\n  ".join([f"{what}; the events before it:", *self.story]))


class IllegalTransition(ProtocolError):
    """An event that has no entry in the table for the current state."""


class ProposalState(StrEnum):
    """How far a generation has come on this worker. The first and the last are those of generations that are not
    proposed."""

    ABSENT = "absent"
    """Unknown here, or given up."""
    OPENING = "opening"
    """Its links are being opened."""
    READY = "ready"
    """Its links are open."""
    ARMED = "armed"
    """Its links are open on all workers, so that a giver may stream its state and vote for it."""
    PROMISED = "promised"
    """This worker has named it in a vote that is not complete."""
    WITHDRAWN = "withdrawn"
    """Cancelled after it was promised: given up unless the vote agrees on it."""
    AGREED = "agreed"
    """The generation is entered at the coming boundary."""
    ENTERED = "entered"
    """The current generation."""


class Proposal(msgspec.Struct):
    """A generation that this worker was told to prepare."""

    roster: Roster
    moves: tuple[Move, ...]
    direct: bool
    """Whether it is entered as soon as it is open, without a vote: no worker trains meanwhile."""
    step: int = 0
    """The first step in a direct proposal."""
    back: Back = ""
    """The source from which all roles restore an earlier step; empty: they keep their state."""
    copied: int = -1
    """The latest step of which there are copies for all roles."""
    restored: bool = False
    """Whether this worker has restored that earlier step."""
    state: ProposalState = ProposalState.OPENING

    @property
    def generation(self) -> int:
        return self.roster.generation

    @property
    def ready(self) -> bool:
        return self.state is not ProposalState.OPENING

    @property
    def armed(self) -> bool:
        return self.state not in (ProposalState.OPENING, ProposalState.READY)

    @property
    def in_vote(self) -> bool:
        """Whether the vote under way may agree on it."""
        return self.state in (ProposalState.PROMISED, ProposalState.WITHDRAWN)

    def gives(self, uid: str) -> bool:
        return any(move.giver.uid == uid for move in self.moves)

    def takes(self, uid: str) -> bool:
        return any(move.taker.uid == uid for move in self.moves)

    def goes_back(self, uid: str) -> bool:
        """Whether this worker has yet to restore a state, from its own copy or from disk."""
        has_role = self.roster.role_of(uid) is not None
        return bool(self.back) and has_role and not self.restored and not self.takes(uid)

    def may_be_named(self, uid: str) -> bool:
        """Whether this worker may name it in its vote: a giver waits until it is armed."""
        return self.state is ProposalState.ARMED or (self.state is ProposalState.READY and not self.gives(uid))

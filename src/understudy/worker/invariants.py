"""What must hold of a worker's protocol after every event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .states import ProposalState, StepState, WorkerState

if TYPE_CHECKING:
    from .protocol import WorkerProtocol


def invariants(protocol: WorkerProtocol) -> dict[str, bool]:
    """Each rule in words, and whether it holds."""
    state, step, proposal = protocol.state, protocol.step_state, protocol.proposal
    in_vote = step in (StepState.VOTED, StepState.CLOSING)
    outside = state in (WorkerState.NEW, WorkerState.REHEARSING, WorkerState.STANDBY)
    inside = state in (WorkerState.TRAINING, WorkerState.RELEASED)
    holders = (WorkerState.STANDBY, WorkerState.TRAINING, WorkerState.RELEASED, WorkerState.CONCLUDING)
    return {
        "a worker has a role once it is not new": (protocol.role is None) == (state is WorkerState.NEW),
        "a standby is in no generation": not outside or protocol.generation == 0,
        "a worker that trains or is released is in a generation": not inside or protocol.generation > 0,
        "state is held only by a worker that has come to a boundary": not protocol.holds or state in holders,
        "a worker trains without its state only while it is halted": (
            state is not WorkerState.TRAINING or protocol.holds or protocol.halted
        ),
        "only a worker that trains votes": not in_vote or (state is WorkerState.TRAINING and protocol.holds),
        "only a worker that was in the vote applies its step": (
            step is not StepState.PASSED or state in (WorkerState.TRAINING, WorkerState.PARKING, WorkerState.CONCLUDING)
        ),
        "a step is repeated by order of the controller": (
            step is not StepState.REPEATING or protocol.halted or state is not WorkerState.TRAINING
        ),
        "a proposal is newer than the current generation": (
            proposal is None or proposal.generation > protocol.generation
        ),
        "while halted only a direct proposal is prepared": proposal is None or not protocol.halted or proposal.direct,
        "a direct proposal is not voted on": (
            proposal is None or not proposal.direct or proposal.state in (ProposalState.OPENING, ProposalState.READY)
        ),
        "a promise lasts as long as the vote": (
            proposal is None or not proposal.in_vote or (in_vote and not protocol.halted)
        ),
        "a concluding worker prepares nothing": (protocol.conclusion is not None) == (state is WorkerState.CONCLUDING)
        and (protocol.conclusion is None or proposal is None),
    }

"""What must hold in a simulated job, as types: a seed that breaks it ends with a `RuleBroken` of one of these kinds."""

from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    """The rules that a simulated job is held to."""

    ONE_ROSTER = "a generation number stands for one roster"
    ONE_WORKER = "at most one worker has a role in a generation"
    WHOLE_REPLICA = "a role trains only together with all roles of its replica, and without others only while masking"
    STEP_ORDER = "every role applies every step exactly once, in order"
    SAME_STATE = "the state of every role is that of an undisturbed run, bit by bit"
    VOTE_TOGETHER = "a vote passes only if all roles vote for the same step, from the same state"
    FROM_CHECKPOINT = "a checkpoint that is loaded was written, whole, at that step"
    RECORDING_EXISTS = "a recording that a worker is sent to was kept there"
    ONE_PROCESS = "a worker is started once"
    COPIES_KEPT = "a copy that a worker calls complete is in its own memory and in that of its backup"
    NO_HANG = "the job ends"
    NO_DEADLOCK = "some thread can run, or some timer is set"
    NO_CRASH = "no thread of a process ends with an exception that the runtime does not know"
    ALL_STEPS = "a worker that ends in a finished job has applied all steps"
    SAME_END = "all workers that end in a finished job report the digest of an undisturbed run"
    ANSWERED = "every request is answered"
    CANCELLED = "a cancellation that the job has time for is confirmed"
    REPLICAS_WANTED = "without faults the job ends with the number of replicas that is wanted"
    NOT_TOO_FEW = "no more replicas go than are too many"
    NOT_TOO_MANY = "no more replicas come than are missing"
    JOINER_STAYS = "a joiner is not a machine that has to go"
    AT_ONCE = "not more machines are drained at one boundary than the job allows"
    STATE_KEPT = "a state that a live worker holds is not given up"
    REPLICA_USED = "with masking, training does not wait while a replica is whole"
    MACHINE_USED = "the job does not fail for want of a machine that would have come"
    CHECKPOINT_USED = "the job does not fail for want of a checkpoint that is there"
    CAUSE_KNOWN = "a job fails only for a cause that there was"
    STEWARD_LIMIT = "the steward asks for no more replacements in an hour than it may"
    EXPECTED = "the controller is told only what its protocol expects"
    STATE_VALID = "the states of the controller and of the workers keep their invariants"


class RuleBroken(Exception):
    """A rule does not hold in this seed."""

    def __init__(self, rule: Rule, detail: str) -> None:
        super().__init__(f"{rule.name}: {rule.value}; but {detail}")
        self.rule, self.detail = rule, detail

"""What must hold in a simulated job, checked while it runs and when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.comm.topology import backup_of
from understudy.controller.core.change import Kind, Phase
from understudy.controller.core.effects import Announcement
from understudy.controller.core.events import Asked, Replace, Scale
from understudy.controller.core.replicas import count, known, target
from understudy.controller.core.state import FailureCause, JobState, JobStatus
from understudy.protocol.roster import Roster
from understudy.protocol.settings import HOUR
from understudy.protocol.vote import NO_ROLE, WIDTH

from .verdicts import Rule, RuleBroken
from .worker import SimWorker

if TYPE_CHECKING:
    from .job import SimJob

PATIENCE_S = 4.0
"""Simulated seconds in which a lost machine is noticed and all others answer."""
ENOUGH_S = 6.0
"""Simulated seconds in which replicas come or go if nothing else happens."""


class Judge:
    """Raises or reports a `RuleBroken` as soon as a rule does not hold."""

    def __init__(self, job: SimJob) -> None:
        self._job = job
        self._rosters: dict[tuple[int, int], str] = {}
        """(generation, role) → the worker that has entered it."""
        self.saved: set[tuple[int, int]] = set()
        """(role, step) of parts of checkpoints that the controller has heard of."""
        self.known: set[str] = set()
        """Workers that were alive, to the controller's knowledge, before the event at hand."""
        self.distrusted: set[str] = set()
        """Workers that have said that their state is not to be trusted."""
        self._quarantined: set[str] = set()
        self.ended_at = 0.0
        self.scaled_at = 0.0
        """When an operator was last told that there will be as many replicas as asked for."""

    def _fail(self, rule: Rule, detail: str) -> None:
        self._job.scheduler.fail(RuleBroken(rule, detail))

    # -- workers and votes ---------------------------------------------------------------------------------------------

    def entered(self, uid: str, roster: Roster) -> None:
        """A worker has entered a generation."""
        role = roster.role_of(uid)
        if role is None:
            return
        setting = self._job.setting
        same = setting.same(role)
        replica = {setting.same(other)[same.index(role)] for other in range(setting.roles)}
        missing = [other for other in sorted(replica) if roster.seats[other] is None]
        if missing or (None in roster.seats and not setting.mask):
            self._fail(Rule.WHOLE_REPLICA, f"role {role} is in generation {roster.generation} without {missing}")
        other = self._rosters.setdefault((roster.generation, role), uid)
        if other != uid:
            self._fail(Rule.ONE_WORKER, f"{other} and {uid} both have role {role} in {roster.generation}")

    def voted(self, roster: Roster, ballots: dict[str, list[int]]) -> None:
        """All roles of a generation are in an all-reduce."""
        if any(len(numbers) != WIDTH for numbers in ballots.values()):
            return
        for uid, numbers in ballots.items():
            self._copied(roster, uid, numbers[8])
        sound = all(numbers[7] for numbers in ballots.values())
        steps = {numbers[2] for numbers in ballots.values() if numbers[5] == NO_ROLE}
        if len(steps) != 1 or not sound:
            return
        self._job.strike_voters(ballots)
        (step,) = steps
        states = {uid: model.steps for uid in ballots if (model := self._job.workers[uid].model) is not None}
        if set(states.values()) != {step}:
            self._fail(Rule.VOTE_TOGETHER, f"step {step} passes in generation {roster.generation} from {states}")

    def _copied(self, roster: Roster, uid: str, step: int) -> None:
        """A worker has said that the copies of its role at this step are complete."""
        role, workers = roster.role_of(uid), self._job.workers
        if role is None or step < 0:
            return
        for keeper in filter(None, (uid, backup_of(roster, role, self._job.setting.same(role)))):
            if workers[keeper].alive and (role, step) not in workers[keeper].copies():
                self._fail(Rule.COPIES_KEPT, f"{keeper} has no copy of role {role} at step {step}")

    # -- decisions -----------------------------------------------------------------------------------------------------

    def told(self, announcement: Announcement) -> None:
        """The controller has announced something."""
        state = self._job.controller.state
        if state is None:
            return
        if announcement.kind == "unexpected":
            self._fail(Rule.EXPECTED, announcement.text)
        if announcement.kind == "quarantined":
            self._quarantined.add(str(announcement.data["machine"]))
        if announcement.kind == "change":
            self._begun(state)
        if announcement.kind in ("change", "decided"):
            self._replicas(state)
        if announcement.kind == "waiting" and state.begun:
            self._waits(state, announcement.text)
        if announcement.kind == "failed" and state.begun:
            self._despaired(state)

    def _begun(self, state: JobState) -> None:
        """A change begins: no machine joins that has to go, and no more leave than may."""
        change = state.change
        if change is None or change.item is None or change.kind is not Kind.REPLACE:
            return
        going = [name for name in change.places.values() if state.machines[name].notice is not None]
        if going:
            self._fail(Rule.JOINER_STAYS, f"{going} join although they have to go")
        limit = self._job.setting.at_once
        if change.item.request.in_turns and limit and len(change.leaving) > limit:
            self._fail(Rule.AT_ONCE, f"{change.leaving} leave at once, more than {limit}")

    def _replicas(self, state: JobState) -> None:
        """Replicas come or go: never more, nor fewer, than are wanted."""
        change = state.change
        if change is None or not known(state):
            return
        _, after = count(state, change.vacant)
        _, before = count(state, state.vacant())
        wanted = target(state)
        if change.kind is Kind.SHRINK and after < wanted:
            self._fail(Rule.NOT_TOO_FEW, f"{after} replicas are left of {before}, and {wanted} are wanted")
        if self._job.setting.nproc > 1 or state.leave_first or before > wanted or change.back:
            return  # machines that stand in for others come before those go
        if change.kind in (Kind.REFILL, Kind.RECOVER) and after > wanted:
            self._fail(Rule.NOT_TOO_MANY, f"{after} replicas are to train, and {wanted} are wanted")

    def _holding(self, among: set[str] | None = None) -> list[SimWorker]:
        """Live workers that hold a state of the latest step that may be trusted. A machine in quarantine is not used,
        whatever it holds."""
        holding = [
            worker
            for worker in self._job.workers.values()
            if worker.alive
            and not worker.failed
            and worker.spec.machine not in self._quarantined
            and worker.runtime is not None
            and worker.runtime.protocol.holds
            and worker.uid not in self.distrusted
            and (among is None or worker.uid in among)
        ]
        latest = max((worker.steps for worker in holding), default=0)
        return [worker for worker in holding if worker.steps == latest and not worker.frozen and not worker.hangs]

    def _waits(self, state: JobState, why: str) -> None:
        """The controller waits for a machine: with masking not while a replica is whole."""
        setting = self._job.setting
        if not setting.mask:
            return
        held = {worker.role for worker in self._holding()}
        cells = state.plan.cells
        whole = {cell for cell in cells if all(role in held for role, of in enumerate(cells) if of == cell)}
        for number in range(len(setting.same(0))):
            if all(cells[setting.same(role)[number]] in whole for role in range(setting.roles)):
                self._fail(Rule.REPLICA_USED, f"replica {number} is whole, and yet: {why}")

    def _despaired(self, state: JobState) -> None:
        """The job has failed. If the state of a role is said to be lost, no live worker may hold it."""
        now, setting = self._job.scheduler.now, self._job.setting
        if state.failure is not FailureCause.STATE_LOST or state.lost_role is None:
            return
        for worker in self._holding(self.known):
            late = now < worker.thawed_at + 1.0  # its answer is on its way
            if worker.role in setting.same(state.lost_role) and not late:
                self._fail(Rule.STATE_KEPT, f"{worker.uid} holds the state of role {state.lost_role}: {state.reason}")

    # -- the end -------------------------------------------------------------------------------------------------------

    def may_wait(self) -> bool:
        """Whether the job may be unfinished: a machine died before it came, which its launcher would see."""
        state = self._job.controller.state
        return (
            state is not None
            and state.status is JobStatus.FORMING
            and any(name not in state.machines for name in self._job.agents)
        )

    def at_the_end(self) -> None:
        job, setting, state = self._job, self._job.setting, self._job.controller.state
        if state is None or self.may_wait():
            return
        if state.status is JobStatus.FAILED:
            self._failed(state)
        else:
            seats = state.roster.seats if state.roster is not None else ()
            for worker in [job.workers[uid] for uid in seats if uid is not None]:
                if worker.code == 0 and worker.steps != setting.steps and state.status is JobStatus.FINISHED:
                    raise RuleBroken(Rule.ALL_STEPS, f"{worker.uid} ended after {worker.steps} of {setting.steps}")
                kind = setting.same(worker.role or 0)[0]
                if worker.code == 0 and worker.model is not None and not worker.model.is_sound(kind):
                    raise RuleBroken(Rule.SAME_END, f"{worker.uid} ended with another state")
        change = state.change
        if change is not None and change.phase is Phase.CANCEL:
            began = change.clock[Phase.CANCEL] - job.scheduler.began
            if self.ended_at - began > PATIENCE_S:
                raise RuleBroken(Rule.CANCELLED, f"{change.waiting} never confirmed {change.generation}")
        self._requests(state)

    def _requests(self, state: JobState) -> None:
        job, setting = self._job, self._job.setting
        events = [event for _, event in job.controller.ledger.read()]
        asked = [event for event in events if isinstance(event, Asked)]
        operators = {each.id for each in job.controller.asked}
        replaced = sum(isinstance(each.request, Replace) and each.id not in operators for each in asked)
        for id in sorted(operators | {each.id for each in asked}):
            if id not in state.answers:
                raise RuleBroken(Rule.ANSWERED, f"request {id} was not answered")
        moved = not all(isinstance(each.request, Scale) for each in job.controller.asked)
        quiet = not (job.faults or replaced or moved) and setting.generous
        calm = self.ended_at - self.scaled_at > ENOUGH_S
        if state.status is JobStatus.FINISHED and quiet and calm and setting.mask:
            _, live = count(state, state.vacant())
            if live != target(state):
                raise RuleBroken(Rule.REPLICAS_WANTED, f"{live} replicas at the end, and not {target(state)}")
        if job.scheduler.now < HOUR and replaced > setting.steward.replacements:
            raise RuleBroken(Rule.STEWARD_LIMIT, f"{replaced} replacements in less than an hour")

    def _failed(self, state: JobState) -> None:
        """A job fails only for a cause that there was."""
        job, setting = self._job, self._job.setting
        match state.failure:
            case FailureCause.NO_MACHINE:
                if setting.scarcity != "stop" and setting.generous:
                    raise RuleBroken(Rule.MACHINE_USED, state.reason)
                saved = state.latest_checkpoint()
                if saved is not None and saved not in job.disk.complete():
                    raise RuleBroken(Rule.FROM_CHECKPOINT, f"there is none of step {saved}: {state.reason}")
            case FailureCause.STATE_LOST:
                steps = {step for _, step in self.saved}
                if any(all((role, step) in self.saved for role in range(setting.roles)) for step in steps):
                    raise RuleBroken(Rule.CHECKPOINT_USED, state.reason)
            case FailureCause.SCRIPT if "raise" in job.faults:
                pass
            case FailureCause.DIED_AGAIN | FailureCause.UNFINISHED | FailureCause.START:
                pass
            case _:
                raise RuleBroken(Rule.CAUSE_KNOWN, f"{state.failure}: {state.reason}")

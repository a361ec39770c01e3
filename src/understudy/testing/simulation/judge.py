"""What must hold in a simulated job, checked while it runs and when it is over."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from understudy.controller.core.director import Director
from understudy.controller.core.events import Asked, Replace, Tale
from understudy.protocol.roster import Roster
from understudy.protocol.vote import NOBODY, WIDTH
from understudy.steward.decide import HOUR

from .verdicts import Rule, Violation
from .worker import SimWorker

if TYPE_CHECKING:
    from .job import SimJob

PATIENCE_S = 4.0
"""Simulated seconds in which a lost machine is noticed and all others answer."""
ENOUGH_S = 6.0
"""Simulated seconds in which replicas come or go if nothing else happens."""


class Judge:
    """Raises or reports a `Violation` as soon as a rule does not hold."""

    def __init__(self, job: SimJob) -> None:
        self._job = job
        self._seats: dict[tuple[int, int], str] = {}
        """(generation, role) → the worker that has entered it."""
        self.saved: set[tuple[int, int]] = set()
        """(role, step) of parts of checkpoints that the controller has heard of."""
        self.known: set[str] = set()
        """Workers that were alive, to the controller's knowledge, before the event at hand."""
        self.distrusted: set[str] = set()
        """Workers that have said that their state is not to be trusted."""
        self.ended_at = 0.0
        self.scaled_at = 0.0
        """When an operator was last told that there will be as many replicas as asked for."""

    def _fail(self, rule: Rule, detail: str) -> None:
        self._job.scheduler.fail(Violation(rule, detail))

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
        other = self._seats.setdefault((roster.generation, role), uid)
        if other != uid:
            self._fail(Rule.ONE_WORKER, f"{other} and {uid} both have role {role} in {roster.generation}")

    def voted(self, roster: Roster, ballots: dict[str, list[int]]) -> None:
        """All roles of a generation are in an all-reduce."""
        if any(len(numbers) != WIDTH for numbers in ballots.values()):
            return
        sound = all(numbers[7] for numbers in ballots.values())
        steps = {numbers[2] for numbers in ballots.values() if numbers[5] == NOBODY}
        if len(steps) != 1 or not sound:
            return
        (step,) = steps
        states = {uid: model.steps for uid in ballots if (model := self._job.workers[uid].model) is not None}
        if set(states.values()) != {step}:
            self._fail(Rule.VOTE_TOGETHER, f"step {step} passes in generation {roster.generation} from {states}")

    # -- decisions -----------------------------------------------------------------------------------------------------

    def told(self, tale: Tale) -> None:
        """The controller has told something."""
        director = self._job.controller.director
        if director is None:
            return
        if tale.kind == "change":
            self._begun(director)
        if tale.kind in ("change", "decided"):
            self._replicas(director)
        if tale.kind == "waiting" and director.begun:
            self._waits(director, tale.text)
        if tale.kind == "failed" and director.begun:
            self._despaired(tale.text)

    def _begun(self, director: Director) -> None:
        """A change begins: no machine joins that has to go, and no more leave than may."""
        change = director.change
        if change is None or change.wish is None or change.kind != "replace":
            return
        going = [name for name in change.places.values() if director.machines[name].notice is not None]
        if going:
            self._fail(Rule.JOINER_STAYS, f"{going} join although they have to go")
        limit = self._job.setting.at_once
        if change.wish.request.in_turns and limit and len(change.leaving) > limit:
            self._fail(Rule.AT_ONCE, f"{change.leaving} leave at once, more than {limit}")

    def _replicas(self, director: Director) -> None:
        """Replicas come or go: never more, nor fewer, than are wanted."""
        change = director.change
        if change is None or not director.known:
            return
        _, after = director.replicas(change.vacant)
        _, before = director.replicas(director.vacant())
        target = director.target()
        if change.kind == "shrink" and after < target:
            self._fail(Rule.NOT_TOO_FEW, f"{after} replicas are left of {before}, and {target} are wanted")
        if self._job.setting.nproc > 1 or director._sooner or before > target or change.back:
            return  # machines that stand in for others come before those go
        if change.kind in ("refill", "recover") and after > target:
            self._fail(Rule.NOT_TOO_MANY, f"{after} replicas are to train, and {target} are wanted")

    def _holding(self, among: set[str] | None = None) -> list[SimWorker]:
        """Live workers that hold a state of the latest step that may be trusted."""
        holding = [
            worker
            for worker in self._job.workers.values()
            if worker.alive
            and worker.runtime is not None
            and worker.runtime.protocol.holds
            and worker.uid not in self.distrusted
            and (among is None or worker.uid in among)
        ]
        latest = max((worker.steps for worker in holding), default=0)
        return [worker for worker in holding if worker.steps == latest and not worker.frozen and not worker.hangs]

    def _waits(self, director: Director, why: str) -> None:
        """The controller waits for a machine: with masking not while a replica is whole."""
        setting = self._job.setting
        if not setting.mask:
            return
        held = {worker.role for worker in self._holding()}
        cells = director.plan.cells
        whole = {cell for cell in cells if all(role in held for role, of in enumerate(cells) if of == cell)}
        for number in range(len(setting.same(0))):
            if all(cells[setting.same(role)[number]] in whole for role in range(setting.roles)):
                self._fail(Rule.REPLICA_USED, f"replica {number} is whole, and yet: {why}")

    def _despaired(self, why: str) -> None:
        """The controller says that the state of a role is lost."""
        found = re.search(r"role (\d+): no live replica", why)
        now = self._job.scheduler.now
        for worker in self._holding(self.known):
            late = now < worker.thawed_at + 1.0  # its answer is on its way
            if found is not None and worker.role == int(found[1]) and not late:
                self._fail(Rule.STATE_KEPT, f"{worker.uid} holds what is said to be lost: {why}")

    # -- the end -------------------------------------------------------------------------------------------------------

    def may_wait(self) -> bool:
        """Whether the job may be unfinished: a machine died before it came, which its launcher would see."""
        director = self._job.controller.director
        return (
            director is not None
            and director.status == "forming"
            and any(name not in director.machines for name in self._job.agents)
        )

    def at_the_end(self) -> None:
        job, setting = self._job, self._job.setting
        director = job.controller.director
        if director is None or self.may_wait():
            return
        if director.status == "failed":
            self._failed(director.reason)
        else:
            seats = director.roster.seats if director.roster is not None else ()
            for worker in [job.workers[uid] for uid in seats if uid is not None]:
                if worker.code == 0 and worker.steps != setting.steps and director.status == "finished":
                    raise Violation(Rule.ALL_STEPS, f"{worker.uid} ended after {worker.steps} of {setting.steps}")
                kind = setting.same(worker.role or 0)[0]
                if worker.code == 0 and worker.model is not None and not worker.model.is_sound(kind):
                    raise Violation(Rule.SAME_END, f"{worker.uid} ended with another state")
        change = director.change
        if change is not None and change.phase == "cancel":
            began = change.clock["cancel"] - job.scheduler.began
            if self.ended_at - began > PATIENCE_S:
                raise Violation(Rule.CANCELLED, f"{change.waiting} never confirmed {change.generation}")
        self._requests(director)

    def _requests(self, director: Director) -> None:
        job, setting = self._job, self._job.setting
        events = [event for _, event in job.controller.ledger.read()]
        stewards = [event for event in events if isinstance(event, Asked) and event.id.startswith("steward-")]
        replaced = sum(isinstance(event.request, Replace) for event in stewards)
        asked = [*job.requests, *(event.id for event in stewards)]
        for id in asked:
            if id not in director.answers:
                raise Violation(Rule.ANSWERED, f"request {id} was not answered")
        quiet = not (job.faults or replaced) and setting.generous and not any(id.startswith("r") for id in asked)
        if director.status == "finished" and quiet and self.ended_at - self.scaled_at > ENOUGH_S and setting.mask:
            _, live = director.replicas(director.vacant())
            if live != director.target():
                raise Violation(Rule.REPLICAS_WANTED, f"{live} replicas at the end, and not {director.target()}")
        if job.scheduler.now < HOUR and replaced > setting.steward.replacements:
            raise Violation(Rule.STEWARD_LIMIT, f"{replaced} replacements in less than an hour")

    def _failed(self, reason: str) -> None:
        setting, disk = self._job.setting, self._job.disk
        if "no standby is left" in reason or "there is no standby" in reason:
            if not (setting.scarcity == "stop" or not setting.generous):
                raise Violation(Rule.MACHINE_USED, reason)
            found = re.search(r"step (\d+) is in the checkpoint", reason)
            if found and int(found[1]) not in disk.complete():
                raise Violation(Rule.FROM_CHECKPOINT, f"it is not there: {reason}")
        elif "there is no checkpoint" in reason:
            steps = {step for _, step in self.saved}
            if any(all((role, step) in self.saved for role in range(setting.roles)) for step in steps):
                raise Violation(Rule.CHECKPOINT_USED, reason)
        elif not re.search(r"died 8 times|failed in step|who has made all|while the job was starting", reason):
            raise Violation(Rule.CAUSE_KNOWN, reason)

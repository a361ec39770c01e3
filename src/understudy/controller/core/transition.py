"""What the changes of a roster have in common, whoever wants them: phases, completion, and what they have cost."""

from __future__ import annotations

from collections import Counter, deque

import msgspec

from understudy.protocol.messages import FailureCause, Recorded, Rehearse, Stop
from understudy.protocol.roster import Roster, WorkerAddress

from .cast import Machine, Worker, ready
from .change import Change, Phase, QueuedReplacement, TurnOutcome, summary
from .company import ATTEMPTS, OVER, Company, JobPlan
from .recordings import Place, Recordings

RECENT = 5
"""Replacements that tell how long the next one takes."""


class Transition(Company):
    def __init__(self, plan: JobPlan) -> None:
        super().__init__(plan)
        self.reason = ""
        """Why the job has failed."""
        self.twins: dict[int, tuple[int, ...]] = {}
        """Roles that hold identical copies of a role's state."""
        self._told_twins = 0
        """How often that was news."""
        self._replicas: tuple[tuple[int, int], list[tuple[int, ...]]] = ((0, 0), [])
        """The roles of each replica, and what was known when they were found out."""
        self.sizes: dict[int, int] = {}
        """Role → bytes of its state."""
        self.parked: dict[int, str] = {}
        """Vacant cell → the machine that is to take it again."""
        self.rate = 1e9
        """Bytes of state that come over in a second, as far as it is known."""
        self.recordings = Recordings()
        """For newcomers to rehearse with."""
        self.settling: Change | None = None
        """The last change, until its first step is done everywhere; so long, those who gave their roles away stay, and
        go on should a newcomer die."""
        self.halts = 0
        self.why = ""
        """Of the last halt."""
        self._involved: set[str] = set()
        self._interrupted: Change | None = None
        """What was under way when it came to that."""
        self.stopping = False
        self.waiting = ""
        """What training waits for, where it does."""
        self.halted_at = self.waiting_since = self.closing_at = 0.0
        self.begun = False
        """Whether a step has been made since the job began."""
        self.starts = 0
        """How often it has begun anew, before that."""
        self._stumbled: dict[int, str] = {}
        """Role → what its script said when it failed, since the last decision."""
        self._stumbles: set[tuple[int, int]] = set()
        """(role, step) in which a script has failed before."""
        self._deaths: Counter[tuple[int, int]] = Counter()
        """(cell, step) → how often it has been lost there."""
        self.vacancies = 0
        """Machines that are missing before the first generation is formed."""
        self._last_step = self._refused = 0
        self._last_words = ""
        """Why the job ends, once all that can be kept is kept."""
        self._weighed = (0, "")
        """The halt for which it was last said whether to mask, and what."""
        self._refills = 0
        """How often a refill was begun since the last that came about."""
        self._shrinks = 0
        """The same of changes that let replicas go."""
        self.wished: int | None = None
        """How many replicas an operator wants; None: as many as at the beginning."""
        self._sooner: frozenset[int] = frozenset()
        """Replicas that are to go first, where there are to be fewer."""
        self._keep = False
        """Whether machines that go become standbys."""
        self._keepers: set[str] = set()
        """Who writes that."""
        self._outcomes: dict[str, list[TurnOutcome]] = {}
        """Request → what has become of its turns so far."""
        self._took: deque[float] = deque(maxlen=RECENT)
        """Seconds of the last replacements, from the rehearsal to the first step."""

    def _know_twins(self, role: int, twins: tuple[int, ...]) -> None:
        if self.twins.get(role) == twins:
            return
        self.twins[role] = twins
        self._told_twins += 1
        for other in twins:  # who dies before it has said so has the same
            self.twins.setdefault(other, twins)

    def _in(self, generation: int) -> Change | None:
        """The change under way, if it is to this generation."""
        return self.change if self.change is not None and self.change.generation == generation else None

    def _phase(self, change: Change, phase: Phase) -> None:
        change.phase = phase
        self._mark(change, phase)

    def _mark(self, change: Change, what: str) -> None:
        change.clock[what] = self._now
        self._tale("phase", what, change=change.request, generation=change.generation)

    def _rehearse(self, joiners: dict[int, str]) -> None:
        """Those who have not rehearsed their roles do so, those who have to do more than to be told, together."""
        asked = {
            role: self.actors[uid]
            for role, uid in joiners.items()
            if role not in (self.actors[uid].rehearsed, self.actors[uid].rehearsing)
        }
        mates = {role: actor.address for role, actor in asked.items() if not ready(actor, role)}
        troupe = self._troupe({role: address for role, address in mates.items() if address is not None})
        for role, actor in asked.items():
            actor.role, actor.rehearsing, actor.rehearsed, actor.also = role, role, None, ()
            self._tell(actor.uid, Rehearse(role, self._recording(role, actor), troupe if role in mates else None))

    def _troupe(self, mates: dict[int, WorkerAddress]) -> Roster | None:
        """A roster of those who rehearse together, where there are several."""
        if len(mates) < 2:
            return None
        self.generations += 1
        seats = [(role, worker.uid) for role, worker in mates.items()]
        return Roster.of(self.generations, seats, list(mates.values()), roles=self.plan.roles, cells=self.plan.cells)

    def _recording(self, role: int, actor: Worker) -> Recorded | None:
        """What this role, or one that holds the same, has recorded, from a machine that is still there."""
        near = self.machines[actor.machine].place
        found = (self.recordings.found(other, self._is_there, near) for other in (role, *self.twins.get(role, ())))
        return next(filter(None, found), None)

    def _is_there(self, place: Place) -> bool:
        machine = self.machines[place[0]]
        return machine.alive and machine.place == place

    def _rehearsed(self, change: Change) -> bool:
        return all(self.actors[uid].rehearsed == role for role, uid in change.joiners.items())

    def _again(self, change: Change, why: str) -> None:
        """The replacement did not come about: it waits for its next turn, if it has one."""
        wish = change.wish
        if wish is None:
            return
        needed = 1 if wish.request.in_turns else len(change.leaving)
        if wish.forced or (wish.attempts < ATTEMPTS and self._expected() >= needed):
            request = wish.request  # where it was said who goes where, nobody else will do
            request = request if request.keep else msgspec.structs.replace(request, standbys=())
            self.queue.appendleft(QueuedReplacement(wish.id, request, wish.attempts, wish.forced, wish.warned))
        else:
            self._close_wish(wish, False, f"{why}; training goes on as before")

    def _close_wish(self, wish: QueuedReplacement | None, ok: bool, text: str, **data: object) -> None:
        """A turn of a request is over; the last one answers it."""
        if wish is None or not wish.id:
            return
        wish.closed = True
        outcomes = self._outcomes.setdefault(wish.id, [])
        outcomes.append(TurnOutcome(wish.request.machines, ok, text, data))
        under_way = [change.wish for change in (self.change, self._interrupted, self.settling) if change is not None]
        if any(other.id == wish.id and not other.closed for other in (*self.queue, *filter(None, under_way))):
            return
        whole = summary(self._outcomes.pop(wish.id))
        self._reply(wish.id, whole.ok, whole.text, **whole.data)

    def _complete(self, change: Change) -> None:
        self._unsettled()
        self.change, self.settling = None, change
        self.status, self.waiting = "training", ""
        self._mark(change, "first step")
        if change.kind == "replace":
            self._took.append(self._now - change.clock["rehearse"])
        self._refills = 0 if change.kind == "refill" else self._refills
        self._shrinks = 0 if change.kind == "shrink" else self._shrinks
        for cell, name in change.places.items():
            self.parked.pop(cell, None)
            self.machines[name].state = "cast"
            self._end_workers(actor for wing in self.machines[name].wings for actor in wing)
            self.machines[name].wings.clear()
            self._tale("seated", f"{name} plays {self._span(cell)}", machine=name, generation=change.generation)
        playing = {worker.machine for worker in change.roster.workers} if change.roster is not None else set()
        staying = {*playing, *self.parked.values()}
        for machine in list(self.machines.values()):
            if machine.state not in ("leaving", "cast") or machine.name in staying:
                continue
            if machine.name in change.leaving:
                machine.state = "leaving"
            elif change.planned:
                self._release(machine, change)
            else:
                machine.state = (
                    "leaving"  # its workers would start, and rehearse, while the others make their next step
                )
                self.spent.append(machine.name)
        for machine in self.machines.values():
            if machine.state != "standby":
                continue
            for wing in [wing for wing in machine.wings if any(actor.spent for actor in wing)]:
                self._end_workers(wing)
                machine.wings.remove(wing)
            if any(actor.spent for actor in machine.actors):
                self._renew(machine)  # nobody may take what it holds for a role's state
        self._replace_ill({name for name in change.places.values() if self.machines[name].ill})
        self._heed_notices()
        self._conclude()
        if self.stopping:
            for uid in self._living(self._seated(None)):
                self._tell(uid, Stop())

    def _replace_ill(self, names: set[str]) -> None:
        raise NotImplementedError

    def _heed_notices(self) -> None:
        raise NotImplementedError

    def _unsettled(self) -> None:
        """The last change is over, whatever was measured of it."""
        self._recycle()
        change, self.settling = self.settling, None
        if change is None:
            return
        playing = set() if self.roster is None else {worker.machine for worker in self.roster.workers}
        for name in change.leaving:
            machine = self.machines[name]
            if machine.state == "leaving" and name not in playing:
                kept = change.keep or (change.wish is not None and change.wish.request.keep)
                self._stand_by(machine) if kept else self._release(machine, change)
        self._recycle()
        if change.lost is None:
            self._close_wish(change.wish, True, "done; what training lost by it could not be measured")

    def _release(self, machine: Machine, change: Change | None = None) -> None:
        request = "" if change is None else change.request
        self._tale("released", f"{machine.name} is released", machine=machine.name, change=request)
        replaced = change is not None and (change.wish is not None or change.kind == "refill")
        self._dismiss(machine, "it was replaced" if replaced else "fewer replicas are wanted")

    def _stand_by(self, machine: Machine) -> None:
        """It plays no more, and may be of use again."""
        self.spent.append(machine.name)
        self._recycle()

    def _settled(self, actor: Worker, generation: int, lost: float | None) -> None:
        """The first step of a generation is done somewhere; training has lost what the slowest has."""
        self.begun = True
        for change in (self.change, self.settling):
            if change is not None and change.generation == generation:
                change.losses[actor.uid] = lost
        self._conclude()

    def _conclude(self) -> None:
        """End the last change once everybody has made its first step."""
        change = self.settling
        if change is None or change.roster is None or len(change.losses) < len(change.roster.workers):
            return
        losses = [lost for lost in change.losses.values() if lost is not None]
        if change.lost is None and len(losses) == len(change.losses):
            change.lost = max(losses)
            said = f"training lost {change.lost:.3f} s"
            facts: dict[str, object] = {
                "lost": change.lost,
                "phases": change.phases(self._now),
                "links": change.links(),
                "bytes": sum(size for size, _, _ in change.moved.values()),
                "again": any(again for _, _, again in change.moved.values()),
            }
            self._tale("settled", said, change=change.request, **facts)
            speeds = [size / seconds for size, seconds, _ in change.moved.values() if size > 1 << 20 and seconds]
            self.rate = min(speeds, default=self.rate)
            self._close_wish(change.wish, True, said, **facts)
        if self.status == "training":
            self._unsettled()

    def _fail(self, reason: str, cause: FailureCause | None = None) -> None:
        if self.status in OVER:
            return
        self.status, self.reason = "failed", reason
        self._tale("failed", reason, **({} if cause is None else {"cause": cause}))
        self._close("the job has failed")

    def _close(self, why: str) -> None:
        self._unsettled()
        under_way = [change.wish for change in (self.change, self._interrupted) if change is not None]
        for id in dict.fromkeys(wish.id for wish in (*under_way, *self.queue) if wish is not None):
            self._reply(id, False, why)
        self.queue.clear()
        self._outcomes.clear()
        for machine in self.machines.values():
            if machine.alive:
                self._dismiss(machine, why)

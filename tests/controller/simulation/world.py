"""Clock, operators, mishaps, and what must always hold."""

from __future__ import annotations

import heapq
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from understudy.controller.core.director import Director
from understudy.controller.core.events import AddStandby, Asked, Replace, Request, Scale, TakeBack
from understudy.controller.core.replicas import count, known, target
from understudy.controller.core.state import OVER, JobPlan
from understudy.protocol.frames import Relayed
from understudy.protocol.messages import Failed, Faulty, Recorded
from understudy.protocol.roster import Roster
from understudy.protocol.settings import HOUR, StewardSettings

from .agent import SimAgent
from .controller import SimController
from .fabric import SimFabric
from .violation import Violation
from .worker import SimWorker

PATIENCE = 4.0
"""Simulated seconds in which a lost machine is noticed and everybody else answers."""
ENOUGH = 6.0
"""Simulated seconds in which replicas come or go where nothing else happens."""
LIMIT = 2000.0
"""Simulated seconds after which a job that is not over hangs."""


@dataclass(frozen=True)
class Slow:
    ratio: float = 1.5
    reason: str = "it limps"


class World:
    """Clock, network, parties, and what must always hold."""

    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.verbose = verbose
        self.now = 0.0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.steps = self.random.choice([3, 6, 12, 30])
        self.copies = self.random.choice(["all", "all", "all", "halves", "none"])
        """Whether all roles hold the same state, each the same as another one, or each its own."""
        self.plan = JobPlan(
            self.random.randint(2, 4),
            self.random.choice([1, 1, 2]),
            answer_limit=2.0,
            limit=8.0,
            rehearsal_limit=8.0,
            patience=20.0,
            warm=self.random.choice([0, 1, 1, 2]),
            scarcity=self.random.choice(["wait", "wait", "wait", "stop"]),
            mask=self.random.choice(["", "anywhere", "anywhere"]),
            at_once=self.random.choice([0, 0, 1, 2]),
        )
        if self.plan.mask and self.random.random() < 0.4:
            self.plan = replace(self.plan, first=self.few())
        self.hurried = self.random.random() < 0.5
        """Whether a hand-over takes less than what masking costs."""
        self.checkpoint_every = self.random.choice([0, 0, 1, 2, 5])
        self.copy_every = self.random.choice([0, 0, 1, 3])
        self.disk: set[tuple[int, int]] = set()
        """(role, step) of parts of checkpoints."""
        self.generous = self.random.random() < 0.9
        """Whether machines come when they are asked for."""
        self.blind = self.random.random() < 0.5
        """Whether the script does not know which replica it is."""
        self.standbys = self.random.randint(0, 5)
        self.malice = self.random.choice([0.0, 0.2, 0.5])
        """How likely a phase of a change is to be disturbed."""
        self.fate = random.Random(f"steward {seed}")
        """Of what the steward is given, apart from all else."""
        self.rules = self.stewarding()
        self.slow: dict[str, Slow] = {}
        self.fabrics: dict[int, SimFabric] = {}
        self.workers: dict[str, SimWorker] = {}
        self.agents: dict[str, SimAgent] = {}
        self.incarnations: dict[str, SimAgent] = {}
        self.controller = SimController(self)
        self.played: dict[tuple[int, int], str] = {}
        self.rosters: dict[int, Roster] = {}
        self.asked: list[str] = []
        self.faults: list[str] = []
        self.started_at: float | None = None
        self.distrusted: set[str] = set()
        """Workers that have said that what they hold is not to be trusted."""
        self.told: set[tuple[int, int]] = set()
        """What of that the controller has heard of."""
        self.ended_at = 0.0
        self.scaled_at = 0.0
        """When an operator has last been told that there will be as many replicas as they want."""

    def stewarding(self) -> StewardSettings:
        """Every other job has a steward that may do something."""
        if self.fate.random() < 0.5:
            return StewardSettings("off")
        return StewardSettings(
            mode=self.fate.choice(["tell", "act", "act"]),
            pool=self.fate.choice([None, 0, 1, 2]),
            cool_down=self.fate.choice([0.0, 3.0]),
            budget=self.fate.choice([0, 3]),
            looks=self.fate.choice([1, 3]),
            rest=self.fate.choice([0.0, 10.0]),
            replacements=self.fate.choice([1, 3]),
            returning=self.fate.choice([0.0, 5.0]),
            arrival=self.fate.choice([10.0, 100.0]),
        )

    def suspects(self) -> dict[str, Slow]:
        """Now and then somebody becomes slow, or is not any more."""
        if self.fate.random() < 0.3:
            self.slow.clear()
        if self.fate.random() < 0.3:
            self.slow[self.fate.choice(sorted(self.agents))] = Slow()
        return self.slow

    def same(self, role: int) -> tuple[int, ...]:
        """The roles that hold the same state as this one, itself among them."""
        roles, half = self.plan.roles, self.plan.roles // 2
        if self.copies == "all":
            return tuple(range(roles))
        if self.copies == "halves" and roles % 2 == 0:
            return tuple(sorted((role, (role + half) % roles)))
        return (role,)

    def serves(self, recorded: Recorded) -> bool:
        """Whether a recording can be had where the controller says that it is; it has been there, in any case."""
        incarnation = recorded.url.removesuffix(f"/{recorded.digest}")
        agent = self.incarnations[incarnation]
        if recorded.digest not in agent.kept:
            raise Violation(f"{recorded} was never there")
        return agent.alive

    def few(self) -> tuple[int, ...]:
        """Cells of some whole replicas; none where these share all machines."""
        if self.copies == "all":
            return tuple(range(self.random.randint(1, self.plan.machines)))
        whole = self.copies == "halves" and self.plan.machines % 2 == 0
        return tuple(range(self.plan.machines // 2)) if whole else ()

    def say(self, text: str) -> None:
        if self.verbose:
            print(f"{self.now:9.4f}  {text}")

    def at(self, moment: float, action: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (moment, self.count, action))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay, action)

    def delay(self) -> float:
        """How long a message or a small piece of work takes: mostly little, now and then much."""
        draw = self.random.random()
        return draw * 0.01 if draw < 0.9 else draw * 0.3

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for number in range(len(self.plan.opening)):
            self.agent(f"m{number}", standby=False)
        for number in range(self.standbys):
            self.agent(f"s{number}", standby=True)
        horizon = self.steps * 1.2
        for number in range(self.random.randint(0, 5)):
            self.after(self.random.uniform(0.2, horizon), partial(self.ask, f"r{number}"))
        for number in range(self.random.choice([0, 1, 2, 4]) if self.plan.mask else 0):
            self.after(self.random.uniform(0.5, horizon + 1.0), partial(self.scale, f"c{number}"))
        for _ in range(self.random.choice([0, 0, 1, 1, 2, 3])):
            self.after(self.random.uniform(0.0, horizon), self.mishap)
        while self.queue and self.now < LIMIT:
            self.now, _, action = heapq.heappop(self.queue)
            action()
            if self.is_over():
                break
        self.judge()

    def is_over(self) -> bool:
        director = self.controller.director
        return director is not None and director.job.status in OVER and not any(a.alive for a in self.agents.values())

    def judge(self) -> None:
        director = self.controller.director
        assert director is not None
        if director.job.status == "forming" and any(name not in director.job.machines for name in self.agents):
            return  # somebody died before it came; whoever launches machines sees that
        if director.job.status not in OVER:
            raise Violation(f"the job hangs: {director.job.status}, change {director.job.change}")
        if director.job.status == "failed":
            self.judge_failure(director)
        else:
            seats = director.job.roster.seats if director.job.roster is not None else ()
            for uid in filter(None, seats):
                worker = self.workers[uid]
                if worker.alive and worker.state != self.steps:
                    raise Violation(f"{uid} ended with {worker.state} of {self.steps} steps applied")
        change = director.job.change
        if change is not None and change.phase == "cancel" and self.ended_at - change.clock["cancel"] > PATIENCE:
            raise Violation(f"{change.waiting} never said that {change.generation} was given up")
        stewards = [
            event for _, event in self.controller.ledger if isinstance(event, Asked) and event.id.startswith("steward-")
        ]
        replaced = sum(isinstance(event.request, Replace) for event in stewards)
        quiet = not (self.faults or replaced) and self.generous and not any(id.startswith("r") for id in self.asked)
        if director.job.status == "finished" and quiet and self.ended_at - self.scaled_at > ENOUGH and self.plan.mask:
            _, live = count(director.job, director.job.vacant())
            if live != target(director.job):
                raise Violation(f"{live} replicas at the end, and not {target(director.job)}")
        for id in [*self.asked, *(event.id for event in stewards)]:
            if id not in director.job.answers:
                raise Violation(f"request {id} was never answered")
        if self.now < HOUR and replaced > self.rules.replacements:
            raise Violation(f"the steward has asked for {replaced} replacements in less than an hour")

    def judge_failure(self, director: Director) -> None:
        reason = director.job.reason
        if "no standby is left" in reason or "there is no standby" in reason:
            if not (self.plan.scarcity == "stop" or not self.generous):
                raise Violation(f"a machine would have come, and yet: {reason}")
            found = re.search(r"step (\d+) is in the checkpoint", reason)
            if found and not all((role, int(found[1])) in self.disk for role in range(self.plan.roles)):
                raise Violation(f"it is not: {reason}")
        elif "there is no checkpoint" in reason:
            steps = {step for _, step in self.disk}
            if any(all((role, step) in self.told for role in range(self.plan.roles)) for step in steps):
                raise Violation(f"there is one, and yet: {reason}")
        elif not re.search(r"died 8 times|failed in step|who has made all|while the job was starting", reason):
            raise Violation(f"why? {reason}")

    def agent(self, name: str, *, standby: bool) -> None:
        self.agents[name] = agent = SimAgent(self, name, standby)
        self.incarnations[agent.incarnation] = agent
        self.after(self.delay(), agent.connect)

    # -- what operators and the world do -------------------------------------------------------------------------------

    def ask(self, id: str) -> None:
        director = self.controller.director
        playing = [] if director is None else [m.name for m in director.job.machines.values() if m.state == "active"]
        others = [*self.agents, "m99"]
        names = playing if len(playing) > 1 and self.random.random() < 0.8 else others
        machines = tuple(self.random.sample(names, self.random.choice([1, 1, 1, 2])))
        self.submit(id, AddStandby() if self.random.random() < 0.1 else self.request(machines))

    def scale(self, id: str) -> None:
        """Ask for more or fewer replicas, mostly as many as are possible."""
        director = self.controller.director
        if director is None or (not director.job.begun and self.random.random() < 0.98):
            self.after(0.3, partial(self.scale, id))
            return
        most = count(director.job)[0]
        playing = [machine.name for machine in director.job.machines.values() if machine.state == "active"]
        without = (self.random.choice(playing),) if playing and self.random.random() < 0.2 else ()
        wanted = self.random.choice([*range(0, most + 1, self.plan.nproc), most // 2, self.random.randint(0, 9)])
        self.submit(id, Scale(wanted, without, keep=self.random.random() < 0.3))

    def submit(self, id: str, request: Request) -> None:
        self.asked.append(id)
        self.say(f"operator asks {request}")
        self.controller.submit(Asked(id, request))

    def request(self, machines: tuple[str, ...]) -> Replace | TakeBack:
        """A replacement, a drain with or without a deadline, a move, or a drain taken back."""
        kind = self.random.choice(["replace", "replace", "drain", "drain", "move", "back"])
        if kind == "back":
            return TakeBack(machines[0])
        by = self.now + self.random.uniform(0.1, 20.0) if self.random.random() < 0.4 else None
        anew = self.random.random() < 0.2
        return Replace(machines, by=by, in_turns=kind == "drain", keep=kind == "move", all_links=anew)

    def begun(self, director: Director) -> None:
        """A change begins: nobody comes who is about to go, and not more go than may."""
        change = director.job.change
        if change is None or change.item is None or change.kind != "replace":
            return
        going = [name for name in change.places.values() if director.job.machines[name].notice is not None]
        if going:
            raise Violation(f"{going} come although they must go")
        limit = self.plan.at_once
        if change.item.request.in_turns and limit and len(change.leaving) > limit:
            raise Violation(f"{change.leaving} go at once, more than {limit}")

    def strike(self) -> None:
        """Hit somebody who takes part in the change under way."""
        director = self.controller.director
        change = None if director is None else director.job.change or director.job.settling
        if change is None:
            return
        involved = [*change.places.values(), *change.leaving]
        self.mishap([agent for agent in self.agents.values() if agent.alive and agent.name in involved])

    def mishap(self, among: list[SimAgent] | None = None) -> None:
        kinds = ["worker", "machine", "controller", "connection", "controller", "false alarm", "freeze", "thaw", "hang"]
        kind = self.random.choice([*kinds, "raise", "faulty", "fatal", "notice", "notice"])
        live = [agent for agent in self.agents.values() if agent.alive] if among is None else among
        if not live:
            return
        agent = self.random.choice(live)
        self.say(f"mishap: {kind} {agent.name}")
        self.faults.append(kind)
        if kind == "controller":
            self.controller.crash()
        elif kind == "connection":
            agent.disconnect()
        elif kind == "notice":
            agent.notice(self.random.choice([0.5, 2.0, 8.0]))
        elif kind == "machine":
            agent.die()
            if self.random.random() < 0.5:
                self.after(self.random.uniform(0.5, 5.0), lambda: self.comes_back(agent))
        else:
            alive = [worker for worker in agent.workers.values() if worker.alive]
            if alive:
                worker = self.random.choice(alive)
                if kind == "worker":
                    worker.die(-9)
                elif kind in ("freeze", "thaw"):
                    worker.freeze()
                    if kind == "thaw":
                        self.after(self.random.uniform(0.2, 8.0), worker.thaw)
                elif kind == "hang":
                    worker.hangs = True
                elif kind == "raise" and worker.mode == "compute":
                    agent.report(Relayed(worker.part.uid, Failed(worker.part.step, "ValueError: bad luck")))
                    worker.die(1)
                elif kind in ("faulty", "fatal"):
                    self.distrusted |= {worker.part.uid} if kind == "fatal" else set()
                    agent.report(Relayed(worker.part.uid, Faulty("it smells", kind == "fatal")))
                elif worker.fabric is not None:
                    worker.fabric.poison("time-out", worker.part.uid)

    def comes_back(self, old: SimAgent) -> None:
        """A machine whose agent has died is started again."""
        if self.agents[old.name] is old and not old.alive:
            director = self.controller.director
            known = director is not None and old.name in director.job.machines
            self.agent(old.name, standby=known or old.standby)

    # -- what must always hold -----------------------------------------------------------------------------------------

    def entered(self, worker: SimWorker, roster: Roster) -> None:
        known = self.rosters.setdefault(roster.generation, roster)
        if known != roster:
            raise Violation(f"generation {roster.generation} was used for two rosters")
        role = roster.role_of(worker.part.uid)
        if role is not None:
            self.complete(roster, role)
            other = self.played.setdefault((roster.generation, role), worker.part.uid)
            if other != worker.part.uid:
                raise Violation(f"{other} and {worker.part.uid} both play role {role} in {roster.generation}")

    def complete(self, roster: Roster, role: int) -> None:
        """Whoever plays has everybody with whom it makes a replica; and there are vacant ones only with masking."""
        same = self.same(role)
        unit = {self.same(other)[same.index(role)] for other in range(self.plan.roles)}
        gone = [other for other in sorted(unit) if roster.seats[other] is None]
        if gone or (None in roster.seats and not self.plan.mask):
            raise Violation(f"role {role} plays in generation {roster.generation} without {gone or 'all'}")

    def plans(self) -> None:
        """The director lets replicas come or go: never more, nor fewer, than are wanted."""
        director = self.controller.director
        change = None if director is None else director.job.change
        if director is None or change is None or not known(director.job):
            return
        _, after = count(director.job, change.vacant)
        _, before = count(director.job, director.job.vacant())
        if change.kind == "shrink" and after < target(director.job):
            raise Violation(f"{after} replicas are to be left of {before}, and {target(director.job)} are wanted")
        if self.plan.nproc > 1 or director.job.leave_first or before > target(director.job) or change.back:
            return  # those who stand in for others come before those go
        if change.kind in ("refill", "recover") and after > target(director.job):
            raise Violation(f"{after} replicas are to be where {target(director.job)} are wanted")

    def waits(self, reason: str) -> None:
        """The director waits for a machine, or gives up because there is none."""
        director = self.controller.director
        if director is None or not director.job.begun or not self.plan.mask:
            return
        holding = [w for w in self.workers.values() if w.alive and w.part.holds and w.part.uid not in self.distrusted]
        latest = max((worker.state for worker in holding), default=0)
        held = {w.role for w in holding if w.state == latest and not w.frozen and not w.hangs}
        cells = self.plan.cells
        whole = {cell for cell in cells if all(role in held for role, of in enumerate(cells) if of == cell)}
        for number in range(len(self.same(0))):
            if all(cells[self.same(role)[number]] in whole for role in range(self.plan.roles)):
                raise Violation(f"replica {number} is whole, and yet: {reason}")

    def despaired(self, known: set[str], reason: str) -> None:
        """The director says that a role's state is lost."""
        director = self.controller.director
        if director is None or not director.job.begun:
            return  # whoever has come to its first step since then has nothing that would be worth keeping
        found = re.search(r"role (\d+): no live replica", reason)
        holding = [
            worker for uid in known - self.distrusted if (worker := self.workers[uid]).alive and worker.part.holds
        ]
        latest = max((worker.state for worker in holding), default=0)
        for worker in holding:
            frozen = worker.frozen or worker.hangs or self.now < worker.thawed_at + 1.0  # its answer is on its way
            if found is not None and worker.role == int(found[1]) and worker.state == latest and not frozen:
                raise Violation(f"{worker.part.uid} holds what is said to be lost: {reason}")

    def passed(self, fabric: SimFabric, step: int) -> None:
        states = {self.workers[uid].state for uid in fabric.roster.seats if uid is not None}
        if states != {step}:
            raise Violation(f"step {step} passes in generation {fabric.roster.generation} from states {states}")

"""The whole control protocol under one seeded clock and network: the real director, the real worker parts, the real
sessions; delays, broken connections, duplicates, crashes of anybody at any moment.

    python -m tests.control.simulation SEED     runs one seed and prints its story
"""

from __future__ import annotations

import heapq
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from understudy.agent.messages import Dismiss, EndWorker, Exited, Order, Report, StartWorker, Stopped, Tell, Word
from understudy.agent.session import Inbox, Outbox
from understudy.comm.roster import Roster, Worker
from understudy.control.company import OVER, Plan
from understudy.control.director import Director
from understudy.control.events import AddStandby, Asked, Event, Lost, Output, Registered, Replace, Reply, Reported, Tale
from understudy.worker import part as parts
from understudy.worker.messages import Done, Failed, Faulty, Heard, Here, Saved, Settled, Stalled
from understudy.worker.part import Part
from understudy.worker.vote import numbers_of, outcome_of

HEARTBEAT = 2.0
COLLECTIVE = 4.0
"""Simulated seconds after which a vote that is not complete times out."""
STALL = 2.0
STEP_LIMIT = 12.0
FROZEN = 6.0
"""Simulated seconds after which an agent reports a worker that a signal has stopped."""
PATIENCE = 4.0
"""Simulated seconds in which a lost machine is noticed and everybody else answers."""
LIMIT = 2000.0
"""Simulated seconds after which a job that is not over hangs."""


class Violation(AssertionError):
    """An invariant of the design does not hold."""


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
        self.plan = Plan(
            self.random.randint(2, 4),
            self.random.choice([1, 1, 2]),
            answer_limit=2.0,
            limit=8.0,
            rehearsal_limit=8.0,
            patience=20.0,
            warm=self.random.choice([0, 1, 1, 2]),
            scarcity=self.random.choice(["wait", "wait", "wait", "stop"]),
        )
        self.checkpoint_every = self.random.choice([0, 0, 1, 2, 5])
        self.copy_every = self.random.choice([0, 0, 1, 3])
        self.disk: set[tuple[int, int]] = set()
        """(role, step) of parts of checkpoints."""
        self.generous = self.random.random() < 0.9
        """Whether machines come when they are asked for."""
        self.standbys = self.random.randint(0, 5)
        self.malice = self.random.choice([0.0, 0.2, 0.5])
        """How likely a phase of a change is to be disturbed."""
        self.copies = self.random.random() < 0.7
        """Whether all roles hold the same state, or each its own."""
        self.fabrics: dict[int, SimFabric] = {}
        self.workers: dict[str, SimWorker] = {}
        self.agents: dict[str, SimAgent] = {}
        self.controller = SimController(self)
        self.played: dict[tuple[int, int], str] = {}
        self.rosters: dict[int, Roster] = {}
        self.asked: list[str] = []
        self.faults: list[str] = []
        self.started_at: float | None = None
        self.told: set[tuple[int, int]] = set()
        """What of that the controller has heard of."""
        self.ended_at = 0.0

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
        for number in range(self.plan.machines):
            self.agent(f"m{number}", standby=False)
        for number in range(self.standbys):
            self.agent(f"s{number}", standby=True)
        horizon = self.steps * 1.2
        for number in range(self.random.randint(0, 5)):
            self.after(self.random.uniform(0.2, horizon), partial(self.ask, f"r{number}"))
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
        return director is not None and director.status in OVER and not any(a.alive for a in self.agents.values())

    def judge(self) -> None:
        director = self.controller.director
        assert director is not None
        if director.status == "forming" and any(name not in director.machines for name in self.agents):
            return  # somebody died before it came; whoever launches machines sees that
        if director.status not in OVER:
            raise Violation(f"the job hangs: {director.status}, change {director.change}")
        if director.status == "failed":
            self.judge_failure(director)
        else:
            seats = director.roster.seats if director.roster is not None else ()
            for uid in seats:
                worker = self.workers[str(uid)]
                if worker.alive and worker.state != self.steps:
                    raise Violation(f"{uid} ended with {worker.state} of {self.steps} steps applied")
        change = director.change
        if change is not None and change.phase == "cancel" and self.ended_at - change.clock["cancel"] > PATIENCE:
            raise Violation(f"{change.waiting} never said that {change.generation} was given up")
        for id in self.asked:
            if id not in director.answers:
                raise Violation(f"request {id} was never answered")

    def judge_failure(self, director: Director) -> None:
        reason = director.reason
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
        self.after(self.delay(), agent.connect)

    # -- what operators and the world do -------------------------------------------------------------------------------

    def ask(self, id: str) -> None:
        director = self.controller.director
        playing = [] if director is None else [m.name for m in director.machines.values() if m.state == "cast"]
        others = [*self.agents, "m99"]
        names = playing if len(playing) > 1 and self.random.random() < 0.8 else others
        machines = tuple(self.random.sample(names, self.random.choice([1, 1, 1, 2])))
        request = AddStandby() if self.random.random() < 0.1 else Replace(machines)
        self.asked.append(id)
        self.say(f"operator asks {request}")
        self.controller.submit(Asked(id, request))

    def strike(self) -> None:
        """Hit somebody who takes part in the change under way."""
        director = self.controller.director
        change = None if director is None else director.change or director.settling
        if change is None:
            return
        involved = [*change.places.values(), *change.leaving]
        self.mishap([agent for agent in self.agents.values() if agent.alive and agent.name in involved])

    def mishap(self, among: list[SimAgent] | None = None) -> None:
        kinds = ["worker", "machine", "controller", "connection", "controller", "false alarm", "freeze", "thaw", "hang"]
        kind = self.random.choice([*kinds, "raise", "faulty", "fatal"])
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
                    agent.report(Word(worker.part.uid, Failed(worker.part.step, "ValueError: bad luck")))
                    worker.die(1)
                elif kind in ("faulty", "fatal"):
                    agent.report(Word(worker.part.uid, Faulty("it smells", kind == "fatal")))
                elif worker.fabric is not None:
                    worker.fabric.poison("time-out", worker.part.uid)

    def comes_back(self, old: SimAgent) -> None:
        """A machine whose agent has died is started again."""
        if self.agents[old.name] is old and not old.alive:
            director = self.controller.director
            known = director is not None and old.name in director.machines
            self.agent(old.name, standby=known or old.standby)

    # -- what must always hold -----------------------------------------------------------------------------------------

    def entered(self, worker: SimWorker, roster: Roster) -> None:
        known = self.rosters.setdefault(roster.generation, roster)
        if known != roster:
            raise Violation(f"generation {roster.generation} was used for two rosters")
        role = roster.role_of(worker.part.uid)
        if role is not None:
            other = self.played.setdefault((roster.generation, role), worker.part.uid)
            if other != worker.part.uid:
                raise Violation(f"{other} and {worker.part.uid} both play role {role} in {roster.generation}")

    def despaired(self, known: set[str], reason: str) -> None:
        """The director says that a role's state is lost."""
        director = self.controller.director
        if director is None or not director.begun:
            return  # whoever has come to its first step since then has nothing that would be worth keeping
        found = re.search(r"role (\d+): no live replica", reason)
        holding = [worker for uid in known if (worker := self.workers[uid]).alive and worker.part.holds]
        latest = max((worker.state for worker in holding), default=0)
        for worker in holding:
            frozen = worker.frozen or worker.hangs
            if found is not None and worker.role == int(found[1]) and worker.state == latest and not frozen:
                raise Violation(f"{worker.part.uid} holds what is said to be lost: {reason}")

    def passed(self, fabric: SimFabric, step: int) -> None:
        states = {self.workers[uid].state for uid in fabric.roster.seats if uid is not None}
        if states != {step}:
            raise Violation(f"step {step} passes in generation {fabric.roster.generation} from states {states}")


# -- communication -----------------------------------------------------------------------------------------------------


class SimFabric:
    """One generation's links: they open when both ends want them, and a vote passes when everybody is in it."""

    def __init__(self, world: World, roster: Roster) -> None:
        self.world, self.roster = world, roster
        self.back = ""
        self.opening: set[str] = set()
        self.closed: set[str] = set()
        self.done: set[str] = set()
        self.poisoned: dict[str, str] = {}
        self.rounds = 0
        self.ballots: dict[str, list[int]] = {}

    def members(self) -> list[str]:
        return [uid for uid in self.roster.seats if uid is not None]

    def neighbours(self, uid: str) -> set[str]:
        """With whom a worker has something to open."""
        number, members = self.roster.generation, set(self.members())
        if uid not in members:
            return set()
        if self.roster.fresh or number == 1:
            return members
        new = {m for m, since in zip(self.roster.seats, self.roster.since, strict=True) if m and since == number}
        return members if uid in new else new

    def open(self, uid: str) -> None:
        self.opening.add(uid)
        for member in sorted({*self.members(), uid}):
            self.consider(member)
        self.world.after(5.0, lambda: self.fail(uid, "time limit"))

    def consider(self, uid: str) -> None:
        if uid not in self.opening or uid in self.done:
            return
        around = self.neighbours(uid)
        if any(not self.world.workers[other].alive or other in self.closed for other in around):
            self.world.after(self.world.delay(), lambda: self.fail(uid, "a neighbour is gone"))
        elif around <= self.opening:
            self.done.add(uid)
            self.world.after(self.world.delay(), lambda: self.world.workers[uid].opened(self))

    def fail(self, uid: str, why: str) -> None:
        if uid not in self.done and uid not in self.closed:
            self.closed.add(uid)
            self.world.workers[uid].not_opened(self, why)
            self.poison(why, uid)
            for member in self.members():
                self.consider(member)

    def close(self, uid: str) -> None:
        if uid not in self.closed:
            self.closed.add(uid)
            for member in self.members():
                self.consider(member)

    def poison(self, why: str, noticed_by: str) -> None:
        for uid in sorted({*self.members(), noticed_by}):
            self.world.after(0.0 if uid == noticed_by else self.world.delay(), partial(self._reach, uid, why))

    def _reach(self, uid: str, why: str) -> None:
        if uid not in self.poisoned:
            self.poisoned[uid] = why
            if self.world.workers[uid].alive:
                self.world.workers[uid].felt(self)

    def vote(self, uid: str, numbers: list[int]) -> None:
        self.ballots[uid] = numbers
        if len(self.ballots) == 1:
            self.world.after(COLLECTIVE, partial(self._late, self.rounds))
        if set(self.ballots) >= set(self.members()):
            least = [min(column) for column in zip(*self.ballots.values(), strict=True)]
            if not any(numbers[5] < 1 << 40 for numbers in self.ballots.values()):
                self.world.passed(self, least[2])
            self.ballots = {}
            self.rounds += 1
            for member in self.members():
                self.world.after(self.world.delay(), partial(self._tell, member, least))

    def _late(self, number: int) -> None:
        if number == self.rounds and self.ballots:
            self.poison("timeout", next(iter(self.ballots)))

    def _tell(self, uid: str, least: list[int]) -> None:
        worker = self.world.workers[uid]
        if worker.alive and worker.mode == "voting" and worker.fabric is self and uid not in self.poisoned:
            worker.mode = "counting"  # the result is good, but the thread has not looked at it yet
            worker.later(self.world.delay(), partial(worker.counted, least))


# -- parties -----------------------------------------------------------------------------------------------------------


class SimWorker:
    """The training thread and the line to the agent, around a real Part. `state` counts the steps applied to it."""

    def __init__(self, world: World, agent: SimAgent, uid: str) -> None:
        self.world, self.agent = world, agent
        self.part = Part(uid)
        self.alive = True
        self.mode = "idle"
        self.state = 0
        self.fabric: SimFabric | None = None
        self.prepared: dict[int, SimFabric] = {}
        self.said_settled = 0
        self.frozen = False
        """Stopped by a signal: nothing of it runs."""
        self.freezes = 0
        self.waiting: list[Callable[[], None]] = []
        """What will be done when it runs again."""
        self.hangs = False
        """Its training thread never comes to the end of the step; the rest of it lives."""
        self.saved = 0
        self.copies: dict[tuple[int, int], int] = {}
        """(role, step) → the state it has a copy of."""
        self.part.kept = lambda: tuple(sorted(self.copies))

    @property
    def role(self) -> int | None:
        return self.part.role

    def freeze(self) -> None:
        if self.alive and not self.frozen:
            self.frozen = True
            self.freezes += 1
            self.world.after(FROZEN, partial(self.seen_frozen, self.freezes))

    def seen_frozen(self, number: int) -> None:
        if self.alive and self.frozen and number == self.freezes:
            self.agent.report(Stopped(self.part.uid, FROZEN))

    def thaw(self) -> None:
        if self.alive and self.frozen:
            self.frozen = False
            waiting, self.waiting = self.waiting, []
            for action in waiting:
                self.later(0.0, action)

    def hear(self, message: Heard) -> None:
        if self.frozen:
            self.waiting.append(partial(self.hear, message))
        else:
            self.do(self.part.hear(message))

    def die(self, code: int) -> None:
        if not self.alive:
            return
        self.alive = False
        uid = self.part.uid
        for fabric in list(self.world.fabrics.values()):
            if uid in fabric.members():
                self.world.after(self.world.delay(), partial(self._missed, fabric))
        self.world.after(self.world.delay(), lambda: self.agent.report(Exited(uid, code)))

    def _missed(self, fabric: SimFabric) -> None:
        fabric.poison(f"{self.part.uid} is gone", self.part.uid)
        for member in fabric.members():
            fabric.consider(member)

    def do(self, effects: list[parts.Effect] | None) -> None:
        for effect in effects or ():
            match effect:
                case parts.Say(message):
                    self.agent.report(Word(self.part.uid, message))
                case parts.Open(roster):
                    fabric = self.world.fabrics.setdefault(roster.generation, SimFabric(self.world, roster))
                    if fabric.roster != roster:
                        raise Violation(f"generation {roster.generation} was used for two rosters")
                    self.prepared[roster.generation] = fabric
                    if self.part.proposal is not None:
                        fabric.back = self.part.proposal.back
                    fabric.open(self.part.uid)
                case parts.Close(generation):
                    fabric = self.prepared.pop(generation)
                    fabric.close(self.part.uid)
                case parts.Poison(reason):
                    if self.fabric is not None:
                        self.fabric.poison(reason, self.part.uid)
                case parts.EnterTrain(_, rehearsal):
                    if self.mode != "idle":
                        raise Violation(f"{self.part.uid} is told to enter a role while it is {self.mode}")
                    if rehearsal:
                        self.mode = "rehearsing"
                        self.later(self.world.random.uniform(0.1, 2.0), self.rehearsed)
                    else:
                        self.mode = "boundary"
                case parts.Wake():
                    self.later(0.0, self.woken)
                case parts.End():
                    self.die(0)

    def later(self, delay: float, action: Callable[[], None]) -> None:
        def act() -> None:
            if self.alive and self.frozen:
                self.waiting.append(action)
            elif self.alive:
                action()

        self.world.after(delay, act)

    def rehearsed(self) -> None:
        self.mode = "boundary"
        self.do(self.part.rehearsed())
        self.woken()

    def opened(self, fabric: SimFabric) -> None:
        if self.frozen:
            self.waiting.append(partial(self.opened, fabric))
        elif self.alive and self.prepared.get(fabric.roster.generation) is fabric:
            if self.part.uid in fabric.poisoned:
                self.not_opened(fabric, fabric.poisoned[self.part.uid])
            else:
                self.do(self.part.opened(fabric.roster.generation))

    def not_opened(self, fabric: SimFabric, why: str) -> None:
        if self.frozen:
            self.waiting.append(partial(self.not_opened, fabric, why))
        elif self.alive and self.prepared.get(fabric.roster.generation) is fabric:
            del self.prepared[fabric.roster.generation]
            self.do(self.part.not_opened(fabric.roster.generation, why))

    def felt(self, fabric: SimFabric) -> None:
        """The poison of a generation has come here."""
        if self.frozen:
            self.waiting.append(partial(self.felt, fabric))
        elif self.fabric is fabric and self.mode == "voting":
            why = fabric.poisoned[self.part.uid]
            self.do(self.part.interrupted("timeout" if why == "timeout" else "eof", why))
            self.mode = "verdict"
            self.woken()

    def woken(self) -> None:
        if self.mode == "boundary":
            self.boundary()
        elif self.mode == "verdict":
            verdict = self.part.verdict()
            if verdict is True:
                self.conclude()
            elif verdict is False:
                self.mode = "boundary"
                self.boundary()

    def boundary(self) -> None:
        while True:
            match self.part.boundary():
                case parts.GoBack(generation, step, source):
                    self.mode = "loading"
                    self.later(self.world.delay(), partial(self.went_back, generation, step, source))
                    return
                case parts.Keep(step, roles):
                    self.mode = "closed"
                    if self.state != step:
                        raise Violation(f"{self.part.uid} is to keep step {step} and holds {self.state}")
                    self.later(self.world.delay(), partial(self.keep, roles))
                    return
                case parts.SwitchTo(generation):
                    fabric = self.prepared.pop(generation)
                    old, self.fabric = self.part.proposal, fabric
                    assert old is not None
                    self.world.entered(self, fabric.roster)
                    self.do(self.part.entered(generation))
                    for move in old.moves:
                        if move.giver.uid == self.part.uid:
                            self.later(self.world.delay(), partial(self.give, generation, move.taker.uid))
                case parts.Begin(step):
                    if self.state != step:
                        raise Violation(f"{self.part.uid} begins step {step} with {self.state} steps applied")
                    if not self.part.holds:
                        self.mode = "setup"
                        self.later(self.world.delay(), self.set_up)
                        return
                    self.save()
                    self.copy()
                    self.mode = "compute"
                    if self.hangs:  # the rest of the process sees it
                        bad = Word(self.part.uid, Faulty("it takes long", fatal=True))
                        self.later(STEP_LIMIT, partial(self.agent.report, bad))
                    else:
                        self.later(self.world.random.uniform(0.05, 0.5), self.computed)
                    return
                case _:
                    return

    def set_up(self) -> None:
        assert self.role is not None
        self.do(self.part.tracked(tuple(range(self.world.plan.roles)) if self.world.copies else (self.role,)))
        self.mode = "boundary"
        self.boundary()

    def save(self) -> None:
        """A checkpoint, where its turn has come."""
        every, step = self.world.checkpoint_every, self.state
        if every and step and step % every == 0 and step > self.saved:
            self.saved = step
            self.later(self.world.delay(), partial(self.written, self.role, step))

    def written(self, role: int, step: int) -> None:
        self.world.disk.add((role, step))
        self.agent.report(Word(self.part.uid, Saved(role, step)))

    def keep(self, roles: tuple[int, ...]) -> None:
        for role in roles:
            self.written(role, self.state)
        self.agent.report(Word(self.part.uid, Done(self.part.step, stopped=True)))
        self.later(0.0, lambda: self.die(0))

    def copy(self) -> None:
        """Into its own memory at once, into another machine's after a while."""
        every, step, role = self.world.copy_every, self.state, self.role
        if not every or (step % every and self.part.generation == self.said_settled):
            return
        assert role is not None
        assert self.fabric is not None
        self.copies = {key: state for key, state in self.copies.items() if key[0] != role or key[1] > step - 2 * every}
        self.copies[role, step] = step
        others = [w.uid for w in self.fabric.roster.workers if w.machine != self.agent.name]
        if others:
            buddy = self.world.workers[others[role % len(others)]]
            self.later(
                self.world.delay(), lambda: buddy.later(0.0, partial(buddy.copies.__setitem__, (role, step), step))
            )

    def went_back(self, generation: int, step: int, source: str) -> None:
        assert self.role is not None
        if source == "checkpoint" and (self.role, step) not in self.world.disk:
            raise Violation(f"there is no checkpoint of step {step} for role {self.role}")
        twins = range(self.world.plan.roles) if self.world.copies else (self.role,)
        if source == "copy" and not any((twin, step) in self.copies for twin in twins):
            raise Violation(f"{self.part.uid} has no copy of step {step} of role {self.role}")
        self.world.say(f"{self.part.uid} goes back from {self.state} to {step}")
        self.state, self.saved = step, step
        self.copies = {key: state for key, state in self.copies.items() if key[1] <= step}
        self.part.went_back(generation, step)
        self.mode = "boundary"
        self.boundary()

    def stall(self, fabric: SimFabric, number: int) -> None:
        if self.mode == "voting" and self.fabric is fabric and fabric.rounds == number:
            self.agent.report(Word(self.part.uid, Stalled(fabric.roster.generation, (0, 1), 1, "waits")))

    def computed(self) -> None:
        over = self.part.step == self.world.steps
        proposal = self.part.proposal
        healthy = proposal is not None and self.part.uid not in self.world.fabrics[proposal.generation].poisoned
        ballot = self.part.ballot(healthy=healthy, over=over)
        assert self.fabric is not None
        if ballot is None:
            self.mode = "verdict"
            self.woken()
            return
        self.mode = "voting"
        if self.part.uid in self.fabric.poisoned:
            self.felt(self.fabric)
        else:
            self.later(STALL, partial(self.stall, self.fabric, self.fabric.rounds))
            self.fabric.vote(self.part.uid, numbers_of(ballot))

    def counted(self, least: list[int]) -> None:
        outcome = outcome_of(least, self.part.generation)
        if outcome.error:
            raise Violation(outcome.error)
        effects = self.part.counted(outcome)
        self.do(effects)
        self.mode = "verdict"
        self.woken()

    def conclude(self) -> None:
        """Apply the step, or return from the training function."""
        if self.part.over:
            self.mode = "closed"
            self.later(self.world.delay(), self.finish)
            return
        self.mode = "applying"
        self.later(self.world.delay(), self.apply)

    def finish(self) -> None:
        self.agent.report(Word(self.part.uid, Done(self.part.step)))
        self.later(0.0, lambda: self.die(0))

    def apply(self) -> None:
        if self.state != self.part.step:
            raise Violation(f"{self.part.uid} applies step {self.part.step} to a state of {self.state} steps")
        self.state += 1
        self.part.applied()
        if self.said_settled != self.part.generation:
            self.said_settled = self.part.generation
            self.agent.report(Word(self.part.uid, Settled(self.part.generation, self.part.step, 0.1)))
        self.mode = "boundary"
        self.boundary()

    def give(self, generation: int, to: str) -> None:
        """The state as it is now, and the step that comes next."""
        if self.part.generation != generation:
            return
        state, step = self.state, self.part.step
        role = self.world.workers[to].role
        if self.world.fabrics[generation].back == "copy":
            assert role is not None
            keys = [(twin, step) for twin in (role, *range(self.world.plan.roles))]
            if not any(key in self.copies for key in keys):
                raise Violation(f"{self.part.uid} has no copy of step {step} of role {role}")
            state = step
        if self.mode == "applying" or self.part.passed:
            raise Violation(f"{self.part.uid} gives its state while it changes")
        self.later(self.world.random.uniform(0.0, 0.3), lambda: self._given(generation, to, state, step))

    def _given(self, generation: int, to: str, state: int, step: int) -> None:
        taker = self.world.workers[to]
        if taker.alive and taker.part.took(generation, step):
            taker.state = state
            self.world.say(f"{to} takes {self.part.uid}'s state at step {step} for generation {generation}")
            taker.later(0.0, taker.woken)
            self.later(self.world.delay(), lambda: self.do(self.part.gave(generation)))
        elif taker.alive and taker.part.generation < generation and not self.part.halted:
            self.later(0.05, lambda: self._given(generation, to, state, step))  # it has not heard of it yet


class SimAgent:
    """One machine. Its connection to the controller may break and comes back; its workers die with it."""

    def __init__(self, world: World, name: str, standby: bool) -> None:
        self.world, self.name, self.standby = world, name, standby
        self.incarnation = f"{name}#{world.count}"
        self.alive = True
        self.dismissed = False
        self.workers: dict[str, SimWorker] = {}
        self.outbox: Outbox[Report] = Outbox()
        self.inbox = Inbox()
        self.connection = 0
        """Number of the connection in use; 0 while there is none."""
        self.connections = 0

    def connect(self) -> None:
        if not self.alive or self.connection:
            return
        if self.world.controller.director is None:
            self.world.after(0.1 + self.world.delay(), self.connect)
            return
        self.connections += 1
        self.connection = self.connections
        self.busy_until = self.world.now
        self.world.controller.welcome(self)

    def disconnect(self) -> None:
        self.connection = 0
        self.world.after(self.world.random.uniform(0.01, 0.5), self.connect)

    def send(self, action: Callable[[], None]) -> None:
        """Over the connection in use: in order, after a while, or never."""
        number = self.connection
        self.busy_until = max(self.busy_until, self.world.now + self.world.delay())
        self.world.at(self.busy_until, lambda: action() if number == self.connection else None)

    def report(self, report: Report) -> None:
        if self.alive:
            number = self.outbox.put(report)
            if self.connection:
                self._send_report(number, report)

    def _send_report(self, number: int, report: Report) -> None:
        self.send(lambda: self.world.controller.reported(self, number, report))
        if self.world.random.random() < 0.02:
            self.send(lambda: self.world.controller.reported(self, number, report))

    def resend(self, received: int) -> None:
        for number, report in self.outbox.after(received):
            self._send_report(number, report)

    def ordered(self, number: int, order: Order) -> None:
        if not self.alive or not self.inbox.take(number):
            return
        match order:
            case StartWorker(uid):
                worker = self.workers[uid] = self.world.workers[uid] = SimWorker(self.world, self, uid)
                here = Here(Worker(uid, self.name))
                worker.later(0.05 + self.world.delay(), lambda: self.report(Word(uid, here)))
            case Tell(uid, message):
                worker = self.workers[uid]
                if worker.alive:
                    self.world.say(f"{uid} hears {type(message).__name__} {_short(message)}")
                    worker.hear(message)
            case EndWorker(uid):
                self.workers[uid].die(-9)
            case Dismiss():
                self.dismissed = True
                self.die()

    def die(self) -> None:
        self.alive = False
        self.connection = 0
        for worker in self.workers.values():
            worker.die(-9)


def _wanted(output: Output) -> int:
    """How many machines it asks for."""
    return int(str(output.data["count"])) if isinstance(output, Tale) and output.kind == "wanted" else 0


def _short(message: object) -> str:
    text = str(message)
    return text if len(text) < 60 else f"{text[:60]}…"


@dataclass
class SimController:
    """The director, its ledger, and the connections it has."""

    world: World
    ledger: list[tuple[float, Event]] = field(default_factory=list)
    director: Director | None = None
    sent: dict[str, int] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    expired: set[Event] = field(default_factory=set)
    provided: int = 0
    """Machines that were asked for and have been started."""

    def __post_init__(self) -> None:
        self.director = Director(self.world.plan)
        self.world.after(0.5, self.watch)

    @property
    def alive(self) -> bool:
        return self.director is not None

    def crash(self) -> None:
        self.director = None
        for agent in self.world.agents.values():
            if agent.connection:
                agent.disconnect()
        self.world.after(self.world.random.uniform(0.05, 1.0), self.come_back)

    def come_back(self) -> None:
        if self.director is not None:
            return
        director = Director(self.world.plan)
        wanted = 0
        for at, event in self.ledger:
            wanted += sum(map(_wanted, director.feed(event, at)))
        self.director = director
        self.provide(wanted)
        self.sent.clear()
        self.seen = dict.fromkeys(director.machines, self.world.now)
        for asked in self.asked:
            if self.alive and not any(isinstance(event, Asked) and event.id == asked.id for _, event in self.ledger):
                self.feed(asked)

    def submit(self, asked: Asked) -> None:
        """An operator's request; they ask again where no answer comes."""
        self.asked.append(asked)
        if self.director is not None:
            self.feed(asked)

    def feed(self, event: Event) -> None:
        assert self.director is not None
        self.ledger.append((self.world.now, event))
        if self.world.random.random() < 0.001:
            self.world.say("controller crashes between its ledger and its orders")
            self.crash()
            return
        if self.director.status not in OVER and isinstance(event, Reported) and isinstance(event.report, Word):
            message = event.report.message
            if isinstance(message, Saved):
                self.world.told.add((message.role, message.step))
        known = {uid for uid, actor in self.director.actors.items() if actor.alive and uid in self.world.workers}
        for output in self.director.feed(event, self.world.now):
            if isinstance(output, Reply):
                self.world.say(f"reply to {output.id}: {output.text}")
            elif isinstance(output, Tale):
                if output.kind in ("phase", "seated") and self.world.random.random() < self.world.malice:
                    self.world.after(
                        self.world.random.choice([0.02, 0.2, 0.6]) * self.world.random.random(), self.world.strike
                    )
                if output.kind in OVER:
                    self.world.ended_at = self.world.now
                if output.kind == "failed":
                    self.world.despaired(known, output.text)
                self.provide(self.provided + _wanted(output))
                self.world.say(f"tale: {output.kind}: {output.text}")
        self.flush()

    def provide(self, wanted: int) -> None:
        """Whoever starts machines reads all events, also those from before a crash."""
        while self.provided < wanted:
            self.provided += 1
            if self.world.generous:
                self.world.agent(f"x{self.provided}", standby=True)

    def flush(self) -> None:
        director = self.director
        assert director is not None
        for name, machine in director.machines.items():
            agent = self.world.agents.get(name)
            if agent is None or not agent.connection or agent.incarnation != machine.incarnation:
                continue
            last = self.sent.get(machine.incarnation, agent.inbox.last)
            for number, order in machine.outbox.after(agent.inbox.last):
                if number > last:
                    agent.send(partial(agent.ordered, number, order))
                    if self.world.random.random() < 0.02:
                        agent.send(partial(agent.ordered, number, order))
                    self.sent[machine.incarnation] = number

    def welcome(self, agent: SimAgent) -> None:
        assert self.director is not None
        self.seen[agent.name] = self.world.now
        self.sent.pop(agent.incarnation, None)
        machine = self.director.machines.get(agent.name)
        if machine is None or machine.incarnation != agent.incarnation:
            self.feed(Registered(agent.name, agent.incarnation, agent.standby))
        if self.alive:
            agent.resend(self.director.machines[agent.name].inbox.last)
            self.flush()

    def reported(self, agent: SimAgent, number: int, report: Report) -> None:
        if self.director is None:
            return
        machine = self.director.machines.get(agent.name)
        if machine is None or machine.incarnation != agent.incarnation or not machine.alive:
            return
        if number == machine.inbox.last + 1:
            self.feed(Reported(agent.name, agent.incarnation, number, report))

    def watch(self) -> None:
        """Heartbeats: whoever has no connection for too long is gone."""
        self.world.after(0.5, self.watch)
        if self.director is None:
            return
        for moment, expired in self.director.due():
            if self.world.now > moment and expired not in self.expired:
                self.expired.add(expired)
                self.feed(expired)
                if not self.alive:
                    return
        for name, machine in list(self.director.machines.items()):
            agent = self.world.agents[name]
            if agent.connection:
                self.seen[name] = self.world.now
            elif machine.alive and self.world.now - self.seen.get(name, 0.0) > HEARTBEAT:
                self.feed(Lost(name, machine.incarnation, "no heartbeat"))
                if not self.alive:
                    return


def run(seed: int, *, verbose: bool = False) -> World:
    world = World(seed, verbose=verbose)
    world.run()
    return world


if __name__ == "__main__":
    run(int(sys.argv[1]), verbose=True)

"""One simulated job: its machines, its operators, what goes wrong, and what must hold."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial

from understudy.controller.core.effects import Announcement
from understudy.controller.core.events import AddStandby, Asked, Event, Replace, Reported, Request, Scale, TakeBack
from understudy.controller.core.replicas import count
from understudy.protocol.frames import Relayed
from understudy.protocol.messages import Recorded, Saved

from .agent import SimAgent
from .host import ControllerHost
from .judge import Judge
from .model import SimDisk
from .network import Network
from .scheduler import Deadlock, Scheduler
from .setting import COLLECTIVE_S, Setting, setting_of
from .verdicts import Rule, RuleBroken
from .worker import SimWorker

LIMIT_S = 2000.0
"""Simulated seconds after which a job that is not over hangs."""
_LOOK_S = 0.5
_KINDS = (
    *("worker", "machine", "controller", "connection", "controller", "false alarm", "freeze", "thaw"),
    *("hang", "raise", "faulty", "fatal", "notice", "notice"),
)


class SimJob:
    """A whole job under one seeded scheduler."""

    def __init__(self, setting: Setting, *, verbose: bool = False) -> None:
        seed = setting.seed
        self.setting, self.verbose = setting, verbose
        self.random = random.Random(f"job {seed}")
        self.fate = random.Random(f"steward {seed}")
        self.scheduler = Scheduler(seed, stalls=setting.stalls)
        self.judge = Judge(self)
        self.network = Network(self.scheduler, random.Random(f"network {seed}"), self.judge, COLLECTIVE_S)
        self.disk = SimDisk(setting.roles, self.scheduler.fail)
        self.worker_spec = setting.worker_spec()
        self.agents: dict[str, SimAgent] = {}
        self.incarnations: dict[str, SimAgent] = {}
        self.workers: dict[str, SimWorker] = {}
        self.controller = ControllerHost(self)
        self.faults: list[str] = []
        self._number = 0

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def say(self, text: str) -> None:
        if self.verbose:
            print(f"{self.scheduler.now:9.4f}  {text}")

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Simulate the job to its end. Raises `RuleBroken` if a rule does not hold."""
        setting, scheduler, chance = self.setting, self.scheduler, self.random
        self.controller.start()
        state = self.controller.state
        assert state is not None
        for number in range(len(state.plan.opening)):
            self.add_agent(f"m{number}", standby=False)
        for number in range(setting.standbys):
            self.add_agent(f"s{number}", standby=True)
        horizon = setting.steps * 1.2
        for number in range(chance.randint(0, 5)):
            scheduler.after(chance.uniform(0.2, horizon), partial(self._ask, f"r{number}"))
        for number in range(chance.choice([0, 1, 2, 4]) if setting.mask else 0):
            scheduler.after(chance.uniform(0.5, horizon + 1.0), partial(self._scale, f"c{number}"))
        for _ in range(chance.choice([0, 0, 1, 1, 2, 3])):
            scheduler.after(chance.uniform(0.0, horizon), self.fault)
        scheduler.at(LIMIT_S, self._hangs)
        self._look()
        try:
            scheduler.run()
            self.judge.at_the_end()
        except RuleBroken:
            raise
        except Deadlock as error:
            raise RuleBroken(Rule.NO_DEADLOCK, str(error)) from None
        except Exception as error:
            raise RuleBroken(Rule.NO_CRASH, f"{type(error).__name__}: {error}") from error
        finally:
            for worker in self.workers.values():
                worker.process.kill()  # frees its sockets and files

    def _hangs(self) -> None:
        if not self.judge.may_wait():
            state = self.controller.state
            where = "no controller" if state is None else f"{state.status}, {state.change}"
            raise RuleBroken(Rule.NO_HANG, f"{where}\n{self.scheduler.stacks()}")
        self.scheduler.stop()

    def _look(self) -> None:
        """End the run when the job is over and all machines are gone."""
        if self.controller.over:
            self.judge.ended_at = self.judge.ended_at or self.scheduler.now
            if not any(agent.alive for agent in self.agents.values()):
                self.scheduler.stop()
        self.scheduler.after(_LOOK_S, self._look)

    def add_agent(self, name: str, *, standby: bool) -> None:
        self.agents[name] = agent = SimAgent(self, name, standby=standby)
        self.incarnations[agent.incarnation] = agent
        self.network.later(agent.connect)

    def serves(self, recorded: Recorded) -> bool:
        """Whether a recording can be had at its address; it was there in any case."""
        agent = self.incarnations[recorded.url.removesuffix(f"/{recorded.digest}")]
        if recorded.digest not in agent.kept:
            raise RuleBroken(Rule.RECORDING_EXISTS, f"{recorded}")
        return agent.alive

    def recorded(self, event: Event) -> None:
        """An event is in the ledger."""
        if isinstance(event, Reported) and isinstance(event.report, Relayed):
            message = event.report.message
            if isinstance(message, Saved) and not self.controller.over:
                self.judge.saved.add((message.role, message.step))

    def told(self, announcement: Announcement) -> None:
        """The controller has announced something."""
        self.say(f"{announcement.kind}: {announcement.text}")
        if announcement.kind in ("phase", "seated") and self.random.random() < self.setting.malice:
            self.scheduler.after(self.random.choice([0.02, 0.2, 0.6]) * self.random.random(), self.strike)
        if self.controller.over:
            self.judge.ended_at = self.judge.ended_at or self.scheduler.now
        self.judge.told(announcement)

    # -- what operators do ---------------------------------------------------------------------------------------------

    def _ask(self, id: str) -> None:
        chance, training = self.random, self.controller.training_machines
        names = training if len(training) > 1 and chance.random() < 0.8 else [*self.agents, "m99"]
        machines = tuple(chance.sample(names, chance.choice([1, 1, 1, 2])))
        self._submit(id, AddStandby() if chance.random() < 0.1 else self._request(machines))

    def _scale(self, id: str) -> None:
        """Ask for more or fewer replicas, mostly as many as are possible."""
        state, chance = self.controller.state, self.random
        if state is None or (not state.begun and chance.random() < 0.98):
            self.scheduler.after(0.3, partial(self._scale, id))
            return
        most = count(state)[0]
        training = self.controller.training_machines
        without = (chance.choice(training),) if training and chance.random() < 0.2 else ()
        wanted = chance.choice([*range(0, most + 1, self.setting.nproc), most // 2, chance.randint(0, 9)])
        self._submit(id, Scale(wanted, without, keep=chance.random() < 0.3))

    def _submit(self, id: str, request: Request) -> None:
        self.say(f"operator asks {request}")
        self.controller.submit(Asked(id, request))

    def _request(self, machines: tuple[str, ...]) -> Replace | TakeBack:
        """A replacement, a drain with or without a deadline, a move, or a drain taken back."""
        chance = self.random
        kind = chance.choice(["replace", "replace", "drain", "drain", "move", "back"])
        if kind == "back":
            return TakeBack(machines[0])
        now = self.controller.world.time()
        by = now + chance.uniform(0.1, 20.0) if chance.random() < 0.4 else None
        anew = chance.random() < 0.2
        return Replace(machines, by=by, in_turns=kind == "drain", keep=kind == "move", all_links=anew)

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def strike(self) -> None:
        """Hit a machine that takes part in the change under way."""
        involved = self.controller.involved
        if involved:
            self.fault([agent for agent in self.agents.values() if agent.alive and agent.name in involved])

    def strike_voters(self, uids: Iterable[str]) -> None:
        """A vote is complete, and not all workers know it: perhaps one of them is hit now."""
        if self.random.random() < self.setting.vote_malice:
            agents = {self.workers[uid].agent.name: self.workers[uid].agent for uid in uids}
            moment = self.random.random() * self.random.choice([0.01, 0.1])
            self.scheduler.after(moment, partial(self.fault, list(agents.values())))

    def fault(self, among: list[SimAgent] | None = None) -> None:
        chance = self.random
        kind = chance.choice(_KINDS)
        live = [agent for agent in self.agents.values() if agent.alive] if among is None else among
        if not live:
            return
        agent = chance.choice([each for each in live if each.alive] or live)
        self.say(f"fault: {kind} {agent.name}")
        self.faults.append(kind)
        if kind == "controller":
            self.controller.crash()
        elif kind == "connection":
            agent.disconnect()
        elif kind == "notice":
            agent.notice(chance.choice([0.5, 2.0, 8.0]))
        elif kind == "machine":
            agent.die()
            if chance.random() < 0.5:
                self.scheduler.after(chance.uniform(0.5, 5.0), partial(self._comes_back, agent))
        else:
            workers = [worker for worker in agent.workers.values() if worker.alive]
            if workers:
                self._hit(kind, chance.choice(workers))

    def _hit(self, kind: str, worker: SimWorker) -> None:
        if kind == "worker":
            worker.process.kill()
        elif kind in ("freeze", "thaw"):
            worker.process.freeze()
            if kind == "thaw":
                self.scheduler.after(self.random.uniform(0.2, 8.0), partial(self._thaw, worker))
        elif kind == "hang":
            worker.hangs = True
        elif kind == "raise":
            worker.raises = True
        elif kind in ("faulty", "fatal"):
            worker.fault = kind == "fatal"
        else:
            self.network.false_alarm(worker.uid)

    def _thaw(self, worker: SimWorker) -> None:
        worker.thawed_at = self.scheduler.now
        worker.process.thaw()

    def _comes_back(self, old: SimAgent) -> None:
        """A machine whose agent has died is started again."""
        if self.agents[old.name] is old and not old.alive:
            state = self.controller.state
            known = state is not None and old.name in state.machines
            self.add_agent(old.name, standby=known or old.standby)


def simulate_seed(seed: int, *, verbose: bool = False) -> SimJob:
    """Simulate the job of a seed. Raises `RuleBroken`, with the seed, if a rule does not hold."""
    job = SimJob(setting_of(seed), verbose=verbose)
    try:
        job.run()
    except BaseException as error:
        error.add_note(f"run it again with: python -m understudy.testing.simulation {seed}")
        raise
    return job

"""A worker process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from understudy.protocol.frames import Exited, Relayed, Stopped
from understudy.protocol.messages import Done, Faulty, Recorded, Rehearse, Saved, Settled, Stalled, ToWorker
from understudy.protocol.vote import numbers_of, outcome_of
from understudy.worker import instructions as parts
from understudy.worker.protocol import WorkerProtocol

from .fabric import SimFabric
from .violation import Violation

if TYPE_CHECKING:
    from .agent import SimAgent
    from .world import World

STALL = 2.0
RECORDED = 2
"""Steps."""
STEP_LIMIT = 12.0
FROZEN = 6.0
"""Simulated seconds after which an agent reports a worker that a signal has stopped."""


class SimWorker:
    """The training thread and the line to the agent, around a real Part. `state` counts the steps applied to it."""

    def __init__(self, world: World, agent: SimAgent, uid: str) -> None:
        self.world, self.agent = world, agent
        self.part = WorkerProtocol(uid)
        self.part.usual = lambda: 1.0 if self.world.hurried else 0.0
        self.alive = True
        self.mode = "idle"
        self.entries = 0
        """How often it has been told to rehearse."""
        self.also: tuple[int, ...] = ()
        """Roles that it could take at once."""
        self.state = 0
        self.fabric: SimFabric | None = None
        self.prepared: dict[int, SimFabric] = {}
        self.said_settled = 0
        self.frozen = False
        """Stopped by a signal: nothing of it runs."""
        self.freezes = 0
        self.thawed_at = -1.0
        self.given: dict[int, set[str]] = {}
        """Generation → who has given a part of its state."""
        self.waiting: list[Callable[[], None]] = []
        """What will be done when it runs again."""
        self.hangs = False
        """Its training thread never comes to the end of the step; the rest of it lives."""
        self.saved = self.writing = 0
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
            self.frozen, self.thawed_at = False, self.world.now
            waiting, self.waiting = self.waiting, []
            for action in waiting:
                self.later(0.0, action)

    def hear(self, message: ToWorker) -> None:
        if self.frozen:
            self.waiting.append(partial(self.hear, message))
        else:
            if isinstance(message, Rehearse) and message.recorded is not None:
                self.world.serves(message.recorded)
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
        self.part.validate()
        for effect in effects or ():
            match effect:
                case parts.SendReport(message):
                    self.agent.report(Relayed(self.part.uid, message))
                case parts.Open(roster):
                    fabric = self.world.fabrics.setdefault(roster.generation, SimFabric(self.world, roster))
                    if fabric.roster != roster:
                        raise Violation(f"generation {roster.generation} was used for two rosters")
                    if roster.role_of(self.part.uid) not in (None, self.part.role):
                        raise Violation(f"{self.part.uid} has not been told that it is to play another role")
                    self.prepared[roster.generation] = fabric
                    if self.part.proposal is not None:
                        fabric.back, fabric.step = self.part.proposal.back, self.part.proposal.step
                    fabric.open(self.part.uid)
                case parts.Close(generation):
                    fabric = self.prepared.pop(generation)
                    fabric.close(self.part.uid)
                case parts.PoisonFabric(reason):
                    if self.fabric is not None:
                        self.fabric.poison(reason, self.part.uid)
                case parts.EnterTrain(role, rehearsal):
                    self.entries += 1
                    if self.mode != "idle" and (self.fabric is not None or not rehearsal):
                        raise Violation(f"{self.part.uid} is told to enter a role while it is {self.mode}")
                    if rehearsal:
                        at_once = self.mode == "boundary" and role in self.also
                        self.mode = "rehearsing"
                        delay = 0.0 if at_once else self.world.random.uniform(0.1, 2.0)
                        self.later(delay, partial(self.rehearsed, self.entries))
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

    def rehearsed(self, entry: int) -> None:
        if entry != self.entries:
            return  # another role is wanted
        self.mode = "boundary"
        assert self.role is not None
        self.also = self.world.same(self.role) if self.world.blind else ()
        self.do(self.part.rehearsed(1.0, self.also))
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
                case parts.WriteCheckpoint(step, roles):
                    self.mode = "closed"
                    if self.state != step:
                        raise Violation(f"{self.part.uid} is to keep step {step} and holds {self.state}")
                    self.later(self.world.delay(), partial(self.keep, roles))
                    return
                case parts.Withdraw():
                    self.fabric = None
                    self.do(self.part.withdrew())
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
                        bad = Relayed(self.part.uid, Faulty("it takes long", fatal=True))
                        self.later(STEP_LIMIT, partial(self.agent.report, bad))
                    else:
                        self.later(self.world.random.uniform(0.05, 0.5), self.computed)
                    return
                case _:
                    return

    def set_up(self) -> None:
        assert self.role is not None
        self.do(self.part.tracked(self.world.same(self.role)))
        self.mode = "boundary"
        self.boundary()

    def save(self) -> None:
        """A checkpoint, where its turn has come."""
        every, step = self.world.checkpoint_every, self.state
        if every and step and step % every == 0 and step > self.saved:
            assert self.role is not None
            self.saved = self.writing = step
            self.later(self.world.delay(), partial(self.written, self.role, step))

    def leaves(self) -> bool:
        """Whether it goes with the generation that is proposed."""
        proposal = self.part.proposal
        return proposal is not None and proposal.roster.role_of(self.part.uid) is None

    def written(self, role: int, step: int) -> None:
        self.writing = 0 if self.writing == step else self.writing
        self.world.disk.add((role, step))
        self.agent.report(Relayed(self.part.uid, Saved(role, step)))

    def keep(self, roles: tuple[int, ...]) -> None:
        for role in roles:
            self.written(role, self.state)
        self.agent.report(Relayed(self.part.uid, Done(self.part.step, stopped=True)))
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
        twins = self.world.same(self.role)
        if source == "copy" and not any((twin, step) in self.copies for twin in twins):
            raise Violation(f"{self.part.uid} has no copy of step {step} of role {self.role}")
        self.world.say(f"{self.part.uid} goes back from {self.state} to {step}")
        self.state, self.saved = step, step
        self.copies = {key: state for key, state in self.copies.items() if key[1] <= step}
        self.do(self.part.went_back(generation, step))
        self.mode = "boundary"
        self.boundary()

    def stall(self, fabric: SimFabric, number: int) -> None:
        if self.mode == "voting" and self.fabric is fabric and fabric.rounds == number:
            self.agent.report(Relayed(self.part.uid, Stalled(fabric.roster.generation, (0, 1), 1, "waits")))

    def computed(self) -> None:
        over = self.part.step == self.world.steps
        proposal = self.part.proposal
        healthy = proposal is not None and self.part.uid not in self.world.fabrics[proposal.generation].poisoned
        ballot = self.part.ballot(healthy=healthy and not (self.leaves() and self.writing), over=over)
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
        self.agent.report(Relayed(self.part.uid, Done(self.part.step)))
        self.later(0.0, lambda: self.die(0))

    def apply(self) -> None:
        if self.state != self.part.step:
            raise Violation(f"{self.part.uid} applies step {self.part.step} to a state of {self.state} steps")
        self.state += 1
        self.part.applied()
        role = self.role
        if self.state == RECORDED and self.part.generation == 1 and role == min(self.world.same(role or 0)):
            self.agent.report(Relayed(self.part.uid, self.agent.keep(Recorded(role, f"of {role}", 100, RECORDED))))
        if self.said_settled != self.part.generation:
            self.said_settled = self.part.generation
            self.agent.report(Relayed(self.part.uid, Settled(self.part.generation, self.part.step, 0.1)))
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
            step = self.world.fabrics[generation].step
            keys = [(twin, step) for twin in self.world.same(role)]
            if not any(key in self.copies for key in keys):
                raise Violation(f"{self.part.uid} has no copy of step {step} of role {role}")
            state = step
        if self.mode == "applying" or self.part.passed:
            raise Violation(f"{self.part.uid} gives its state while it changes")
        self.later(self.world.random.uniform(0.0, 0.3), lambda: self._given(generation, to, state, step))

    def lacks(self, generation: int, giver: str) -> bool:
        """Whether parts of the state are missing, now that this giver's has come."""
        proposal = self.part.proposal
        if proposal is None or proposal.generation != generation:
            return False
        self.given.setdefault(generation, set()).add(giver)
        return (
            not {move.giver.uid for move in proposal.moves if move.taker.uid == self.part.uid} <= self.given[generation]
        )

    def _given(self, generation: int, to: str, state: int, step: int) -> None:
        taker = self.world.workers[to]
        if taker.alive and taker.lacks(generation, self.part.uid):
            self.later(self.world.delay(), lambda: self.do(self.part.gave(generation)))
        elif taker.alive and taker.part.took(generation, step):
            taker.state = state
            self.world.say(f"{to} takes {self.part.uid}'s state at step {step} for generation {generation}")
            taker.later(0.0, taker.woken)
            self.later(self.world.delay(), lambda: self.do(self.part.gave(generation)))
        elif taker.alive and taker.part.generation < generation and not self.part.halted:
            self.later(0.05, lambda: self._given(generation, to, state, step))  # it has not heard of it yet

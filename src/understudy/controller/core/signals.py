"""Who is gone, ill or late, and what is done about it: every signal with its source, judged in one place."""

from __future__ import annotations

from collections.abc import Iterable

from understudy.protocol.provisioning import StartMachines

from .cast import Machine, Worker
from .change import Change, QueuedReplacement
from .events import Replace
from .judgement import Situation, Source, Verdict, judge
from .transition import Transition


class Signals(Transition):
    # -- what may follow -----------------------------------------------------------------------------------------------

    def _halt(self, why: str) -> None:
        raise NotImplementedError

    def _lose(self, machine: Machine, why: str, source: Source = "heartbeat") -> None:
        raise NotImplementedError

    def _cancel(self, why: str) -> None:
        raise NotImplementedError

    def _refound(self, actors: list[Worker]) -> None:
        raise NotImplementedError

    def _conclude_job(self, why: str) -> None:
        raise NotImplementedError

    # -- signals -------------------------------------------------------------------------------------------------------

    def _signal(
        self,
        source: Source,
        actors: list[Worker],
        why: str,
        *,
        dead: bool = True,
        trusted: bool = True,
        cast: bool = False,
    ) -> Verdict:
        """Something says that these workers are gone or ill; `cast` says that they were to play, where their machine
        is gone with them."""
        uids = {actor.uid for actor in actors}
        situation = self._situation(uids, dead=dead, trusted=trusted, cast=cast)
        verdict = judge(situation)
        self._tale("signal", f"{why}: {verdict.reason}", source=source, act=verdict.act, workers=sorted(uids))
        if dead:
            self.halted -= uids
        match verdict.act:
            case "fail":
                self._fail(f"{why} while the job was starting")
            case "note":
                self.why = why
                if situation.founding:
                    self._refound(actors)
            case "halt":
                self._halt(why)
            case "cancel":
                self._cancel(why)
            case "replace":
                self._replace_ill({actor.machine for actor in actors})
            case "end":
                for actor in actors:
                    self._condemn(actor, why)
                return self._signal(source, actors, why, cast=cast)
            case "nothing":
                pass
        for actor in actors if dead else ():
            self._restaff(actor)
        return verdict

    def _situation(self, uids: set[str], *, dead: bool, trusted: bool, cast: bool) -> Situation:
        change = self.change
        planned = change is not None and change.planned
        needed: set[str] = set()
        if change is not None and planned:
            needed = set(change.joiners.values()) | (change.waiting if change.phase == "switch" else set())
        elif change is not None:
            givers = {uid for each in change.givers.values() for uid in each}
            needed = {*self._workers(change.places).values(), *givers} | self._seated(change)
        homes = [self.machines[self.actors[uid].machine] for uid in uids]
        return Situation(
            self.status,
            dead,
            trusted,
            founding=self.status == "forming" and change is None and (cast or any(m.state == "cast" for m in homes)),
            plays=bool(uids & self._seated(None)) and (change is None or planned or not dead),
            needed=bool(uids & needed),
            planned=planned,
            switching=change is not None and change.phase == "switch",
            standby=bool(self._free(set()))
            or all(m.alive and m.failures < self.plan.quarantine for m in homes)
            or bool(self.starts and self.plan.scarcity == "wait"),
        )

    def _replace_ill(self, names: set[str]) -> None:
        """A planned replacement of machines that still work; a standby is asked for where there is none."""
        waiting = {name for wish in self.queue for name in wish.request.machines}
        taken = set() if self.change is None else set(self.change.places.values())
        for name in sorted(names - waiting):
            if self.machines[name].state == "cast":
                if len(self._free(taken)) + self.wanted <= len(self.queue):
                    self._want(1)
                self.queue.append(QueuedReplacement("", Replace((name,))))

    def _want(self, count: int) -> None:
        self.wanted += count
        self._out.append(StartMachines(count, self._now))
        self._tale("wanted", f"{count} standby machine{'s' if count > 1 else ''} wanted", count=count)

    def _pending(self) -> bool:
        """Whether a planned change is under way that nobody has switched to."""
        return self.change is not None and self.change.planned and self.change.phase != "switch"

    def _reported_ill(self, id: str, name: str, why: str, fatal: bool) -> None:
        """Somebody outside says that a machine is ill."""
        machine = self.machines.get(name)
        if machine is None or not machine.alive:
            self._reply(id, False, f"there is no machine {name}; machines that play: {self._names('cast')}")
            return
        self._blemish(machine, why)
        machine.ill = True
        if machine.state == "standby" and (self.change is None or name not in self.change.places.values()):
            self._quarantined(machine)
            self._reply(id, True, f"{name} is a standby; it is in quarantine now")
            return
        said = f"{name} is ill: {why}"
        early = machine.state == "standby" and self._pending()  # nobody has to come who is to leave at once
        living = [actor for actor in machine.actors if actor.alive]
        verdict = self._signal("checker", living, said, dead=False, trusted=not (fatal or early))
        self._reply(id, True, verdict.reason, act=verdict.act)

    # -- those who do not answer ---------------------------------------------------------------------------------------

    def _attempt(self, change: Change) -> int:
        """Tells one rehearsal from the next."""
        return self.halts * 1000 + self.generations * 10 + (0 if change.wish is None else change.wish.attempts)

    def _expired(self, what: str, number: int) -> None:
        change = self.change
        if what == "start":
            late = self.actors[f"w{number}"]
            if late.alive and late.address is None:
                self._give_up_on([late.uid], f"has not come for {self.plan.rehearsal_limit:g} s")
        elif what == "answer" and self.status == "halting" and number == self.halts:
            self._give_up_on(self.halted, f"has not answered for {self.plan.answer_limit:g} s")
        elif what == "patience" and self.status == "halting" and number == self.halts and self.waiting:
            self._conclude_job(f"{self.waiting}, and none has come in {self.plan.patience:g} s")
        elif what == "patience" and self.status == "forming" and self.vacancies:
            self._fail(f"{self.waiting}, and none has come in {self.plan.patience:g} s")
        elif what == "end" and self.status in ("training", "closing") and self.roster is not None:
            awaited = self._keepers if self._last_words else self._seated(None)
            late_ones = [uid for uid in awaited if self.actors[uid].done is None]
            self._give_up_on(late_ones, f"has not ended within {self.plan.limit:g} s after the others")
        elif change is None:
            return
        elif what == "rehearse" and change.phase == "rehearse" and number == self._attempt(change):
            slow = [uid for role, uid in change.joiners.items() if self.actors[uid].rehearsed != role]
            self._give_up_on(slow, f"has rehearsed for {self.plan.rehearsal_limit:g} s")
        elif what == "cancel" and change.phase == "cancel" and number == change.generation:
            self._give_up_on(change.waiting, f"has not answered for {self.plan.answer_limit:g} s")
        elif what == "switch" and number == change.generation and not change.planned:
            takers = {move.taker.uid for move in change.moves}
            slow = [uid for uid in change.waiting if uid not in takers]
            if slow:
                self._give_up_on(slow, f"has not come to the boundary within {self.plan.limit:g} s")
            else:  # whoever it is does not answer
                self._halt(f"the hand-over took longer than {self.plan.limit:g} s")

    def _give_up_on(self, uids: Iterable[str], why: str) -> None:
        actors = [self.actors[uid] for uid in self._living(uids)]
        said = {actor.uid: f"{self._name(actor)} {why}" for actor in actors}
        for actor in actors:
            self._tale("died", f"{said[actor.uid]}; it is ended", machine=actor.machine, uid=actor.uid)
            self._condemn(actor, why)
        if actors:
            self._signal("limit", actors, ", ".join(said.values()))
            change = self.change
            if change is not None and change.phase == "cancel":
                change.waiting -= set(said)

    def _suspects(self) -> list[str]:
        """While others wait for long, who does not? They are what is waited for."""
        if self.roster is None:
            return []
        seats = [uid for uid in self.roster.seats if uid is not None]
        waiting = {
            uid
            for uid in seats
            if (stalled := self.actors[uid].stalled) is not None and stalled.generation == self.roster.generation
        }
        return [uid for uid in self._living(seats) if uid not in waiting] if waiting else []

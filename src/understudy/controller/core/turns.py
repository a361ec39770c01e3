"""Whose turn it is: requests wait here until standbys are ready, the earliest deadline first; machines that must go by
themselves are among them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

from understudy.protocol.frames import Leaving
from understudy.steward.drains import Drain, Outlook, deadline, next_turn, outlooks

from .cast import Machine
from .change import QueuedReplacement
from .company import ATTEMPTS
from .events import Overdue, Replace, Slipping
from .scaling import Scaling


class Turns(Scaling):
    def _begin(self, wish: QueuedReplacement, machines: list[Machine], chosen: list[Machine], reason: str) -> None:
        raise NotImplementedError

    # -- the queue -----------------------------------------------------------------------------------------------------

    def _line_up(self) -> None:
        """Bring the queue into the order in which it is worked off."""
        self.queue = deque(sorted(self.queue, key=lambda wish: deadline(wish.drain)))

    def _next(self) -> bool:
        """Let replicas go that are too many, refill what is vacant, or begin the first replacement that waits, when its
        standbys are there; whether there was one."""
        if self._shrink() or self._refill():
            return True
        self._line_up()
        while self.queue:
            wish = self._still_wanted(self.queue.popleft())
            if wish is None:
                continue
            machines = [self.machines[name] for name in wish.request.machines]
            if any(self._lies_idle(machine) for machine in machines):
                self.queue.appendleft(wish)
                return False  # it waits for its replica to be whole again
            chosen = self._choose(wish)
            turn = next_turn(wish.drain, list(chosen), self.plan.at_once)
            if turn.machines:
                rest = tuple(name for name in wish.request.machines if name not in turn.machines)
                if rest:
                    self.queue.appendleft(wish.part(rest))
                    wish = wish.part(turn.machines)
                wish.attempts += 1
                leavers = [self.machines[name] for name in turn.machines]
                self._begin(wish, leavers, [chosen[name] for name in turn.machines], turn.reason if rest else "")
                return True
            if wish.forced or self._expected() >= (1 if wish.request.in_turns else len(machines)):
                self.queue.appendleft(wish)
                return False
            self._close_wish(wish, False, "no standby is left; add one with: understudy standby add")
        return False

    def _still_wanted(self, wish: QueuedReplacement) -> QueuedReplacement | None:
        """What is left of a request whose turn has come; nothing where that is known to be over."""
        request = wish.request
        here = tuple(name for name in request.machines if self.machines[name].state == "cast")
        if not here or (len(here) < len(request.machines) and not request.in_turns):
            self._close_wish(wish, True, "no longer needed: the machine plays no role any more")
            return None
        if request.standbys and not all(self.machines[name].state == "standby" for name in request.standbys):
            self._close_wish(wish, False, f"standby {' or '.join(request.standbys)} is gone; ask for another one")
            return None
        return wish if len(here) == len(request.machines) else wish.part(here)

    def _choose(self, wish: QueuedReplacement) -> dict[str, Machine]:
        """Machine → the standby that is ready to take its place, for those that have one."""
        chosen: dict[str, Machine] = {}
        homes = self._homes()
        for number, name in enumerate(wish.request.machines):
            named = wish.request.standbys[number] if wish.request.standbys else ""
            machine = self._stand_in(homes[name], {other.name for other in chosen.values()}, named)
            if machine is not None:
                chosen[name] = machine
            elif not wish.request.in_turns:
                break
        return chosen

    def _take_back(self, id: str, name: str) -> None:
        """A machine that waits for its turn stays."""
        waiting = [wish for wish in self.queue if wish.id and name in wish.request.machines]
        machine = self.machines.get(name)
        if machine is not None and machine.notice is not None:
            self._reply(id, False, f"{name} has to leave by itself; that cannot be taken back here")
        elif self.change is not None and name in self.change.leaving:
            self._reply(id, False, f"{name} is being replaced already; that cannot be taken back")
        elif not waiting:
            queued = ", ".join(each for wish in self.queue if wish.id for each in wish.request.machines)
            self._reply(id, False, f"{name} does not wait to be replaced; those that do: {queued or 'none'}")
        else:
            for wish in waiting:
                self.queue.remove(wish)
                rest = tuple(each for each in wish.request.machines if each != name)
                if rest and wish.request.in_turns:
                    self.queue.append(wish.part(rest))
                self._close_wish(wish.part((name,)), False, "an operator has taken it back")
            self._tale("asked", f"{name} stays: taken back", id=id)
            self._reply(id, True, f"{name} stays")

    # -- deadlines -----------------------------------------------------------------------------------------------------

    def lately(self) -> float | None:
        """Seconds that a replacement takes, as far as it is known."""
        return median(self._took) if self._took else None

    def _busy(self, turn: float | None) -> float:
        """For how many seconds more the change under way takes, where a turn takes so many."""
        began = None if self.change is None else self.change.clock.get("rehearse")
        return 0.0 if began is None else max(0.0, (turn or 0.0) - (self._now - began))

    def _outlooks(self, drains: Iterable[Drain], turn: float | None) -> list[Outlook]:
        taken = set() if self.change is None else set(self.change.places.values())
        free = len(self._free(taken))
        return outlooks(list(drains), free, self.plan.at_once, self._now, turn, self._busy(turn))

    def prospects(self) -> list[tuple[QueuedReplacement, Outlook]]:
        """Those who wait, in their order, and what is to be expected of each."""
        waiting = sorted(self.queue, key=lambda wish: deadline(wish.drain))
        found = self._outlooks((wish.drain for wish in waiting), self.lately())
        return list(zip(waiting, found, strict=True))

    def objection(self, request: Replace) -> str:
        """Also where even turns as short as the shortest lately would end too late."""
        if problem := super().objection(request):
            return problem
        asked = QueuedReplacement("asked", request).drain
        for outlook in self._outlooks([*(wish.drain for wish in self.queue), asked], min(self._took, default=None)):
            if outlook.id == asked.id and outlook.late:
                return f"it cannot be done in time: {outlook.excuse}; name a later deadline, or none"
        return ""

    def _foresee(self) -> None:
        """Say of whom it is known that they will be late, once."""
        for wish, outlook in self.prospects() if self.status == "training" else ():
            if outlook.late and not wish.warned:
                wish.warned = True
                names = wish.request.machines
                self._tale("late", f"{', '.join(names)}: {outlook.reason}", id=wish.id, machines=list(names))

    def _deadlines(self) -> list[tuple[float, Overdue | Slipping]]:
        found: list[tuple[float, Overdue | Slipping]] = []
        change = self.change
        for wish in (*self.queue, *([change.wish] if change is not None and change.wish else [])):
            if wish.request.by is not None and not wish.forced:
                found.append((wish.request.by, Overdue(wish.id)))
        for machine in self.machines.values():
            if machine.alive and machine.notice is not None:
                found.append((machine.notice, Overdue(_notice(machine))))
        begins = self._now + self._busy(self.lately())
        for wish, outlook in self.prospects():
            if outlook.ends is not None and wish.request.by is not None and not wish.warned:
                last = wish.request.by - (outlook.ends - begins)  # when it must have begun
                found.append((last, Slipping(wish.id, last)))
        return found

    def _overdue(self, id: str) -> None:
        """A replacement was not done in time: it is no use any more where it has not begun to change anything."""
        for machine in self.machines.values():
            if machine.alive and machine.notice is not None and id == _notice(machine):
                self._time_is_up(machine)
                return
        late = [wish for wish in self.queue if wish.id == id]
        for wish in late:
            self.queue.remove(wish)
        for wish in late:
            self._close_wish(wish, False, "no standby was ready in time; training goes on as before")
        change = self.change
        if change is not None and change.request == id and change.planned and change.phase in ("rehearse", "prepare"):
            assert change.wish is not None
            change.wish.attempts = ATTEMPTS
            self._cancel("it was not done in time")

    # -- machines that must go -----------------------------------------------------------------------------------------

    def _notified(self, machine: Machine, leaving: Leaving) -> None:
        """A machine says that it goes soon, whatever happens."""
        if machine.notice is not None:
            return
        machine.notice, machine.why = self._now + leaving.seconds, leaving.why
        said = f"{machine.name} goes in {leaving.seconds:g} s: {leaving.why}"
        self._tale("notice", said, machine=machine.name, seconds=leaving.seconds)
        self._heed_notices()

    def _heed_notices(self) -> None:
        """Of those who must go, whoever plays is drained, and whoever waits goes at once."""
        for machine in [machine for machine in self.machines.values() if machine.notice is not None]:
            if machine.state in ("standby", "quarantined"):
                self._let_go(machine)
            elif machine.state in ("cast", "leaving"):
                self._drain_first(machine)

    def _let_go(self, machine: Machine) -> None:
        """A standby that is not needed; while everybody halts, it may hold what others have lost."""
        coming = self.change is not None and machine.name in self.change.places.values()
        if self.status in ("halting", "recovering") or (coming and not self._pending()):
            return
        living = [actor for actor in machine.everybody if actor.alive]
        self._tale("machine", f"{machine.name} is dismissed", machine=machine.name)
        self._dismiss(machine, machine.why)
        self._signal("agent", living, f"{machine.name} goes: {machine.why}")

    def _drain_first(self, machine: Machine) -> None:
        """Queue the drain of a machine that must go; a standby is asked for where there is none."""
        if any(machine.name in wish.request.machines and wish.forced for wish in self.queue):
            return
        taken = set() if self.change is None else set(self.change.places.values())
        lacking = len(self._free(taken)) + self.wanted <= len(self.queue)
        request = Replace((machine.name,), by=machine.notice, why=machine.why)
        self.queue.append(QueuedReplacement(_notice(machine), request, forced=True))
        if not lacking or machine.state != "cast":
            return
        then = "training waits for one then"
        if self.plan.mask:
            then = "its replica is given up then, and training goes on with the others"
        self._tale("late", f"{machine.name} goes, and no standby is free: without one, {then}", machine=machine.name)
        if self.plan.scarcity != "stop":
            self._want(1)

    def _time_is_up(self, machine: Machine) -> None:
        """It goes now. Where its place is as good as taken, nothing is to be done any more."""
        change = self.change
        going = change is not None and machine.name in change.leaving and change.phase in ("armed", "switch")
        plays = self.roster is not None and machine.name in self._homes()
        left = machine.state == "leaving" and not plays
        if not going and not left:
            self._lose(machine, f"its time was up: {machine.why}", "agent")


def _notice(machine: Machine) -> str:
    """The id of what follows from a machine's notice."""
    return f"notice-{machine.incarnation}"

"""Real threads that run one at a time, in an order and at a time that a seed decides.

Code that waits only through a `World` runs here unchanged. A thread hands the baton on whenever it waits, and now and
then when it takes a lock; the scheduler picks the next thread that can run at random, and moves the clock forward when
none can. The same seed gives the same order.
"""

from __future__ import annotations

import heapq
import os
import random
import secrets
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, repeat
from math import inf
from types import TracebackType

_PREEMPT = 0.05
"""Probability that a thread hands the baton on before it takes a free lock."""
_STALL_S, _LONG_STALL_S = 0.02, 0.3
"""Seconds for which a thread stands still, at most; one of five times for long."""
_LOOKS_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.02)
"""Seconds between looks at a socket that is not ready; the last again and again."""
_JOIN_S = 10.0


Look = Callable[[], float | None]
"""What a thread waits for: the seconds to wait until the next look, or None if the wait is over."""


class Killed(SystemExit):
    """Ends a thread of a process that is dead. A SystemExit, since production code lets that pass."""


class Deadlock(Exception):
    """No thread can run and no timer is set; the message has the stacks of all threads."""


class Task:
    """One thread of a simulated process. Also a `Thread` as the world's users see it."""

    def __init__(self, process: SimProcess, name: str, target: Callable[[], object]) -> None:
        self.process, self.name, self._target = process, name, target
        self.baton = threading.Lock()
        self.baton.acquire()
        self.turn = 0
        """Number of the wait under way; a timer of an earlier one wakes no thread."""
        self.waits = True
        """Whether it may be woken."""
        self.woken = True
        """Whether another thread ended its last wait; False: the time was over."""
        self.look: Look | None = None
        self.ended = False
        self.joining: list[Task] = []
        self.thread = threading.Thread(target=self._run, name=f"{process.name} {name}", daemon=True)

    def _run(self) -> None:
        self.baton.acquire()
        scheduler = self.process.scheduler
        try:
            if not self.process.dead:
                self._target()
        except Killed:
            pass
        except BaseException as error:
            error.add_note(f"in thread {self.name} of {self.process.name}")
            scheduler.fail(error)
        scheduler.finished(self)

    def join(self, timeout: float | None = None) -> None:
        scheduler = self.process.scheduler
        if not self.ended:
            self.joining.append(scheduler.current)
            scheduler.wait(timeout)

    def is_alive(self) -> bool:
        return not self.ended


@contextmanager
def _on_one_processor() -> Iterator[None]:
    """Keep the threads that start now on one processor. They run one at a time, and a switch to a thread on another
    processor takes several times as long."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {secrets.choice(sorted(allowed))})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


class Scheduler:
    """The seeded clock and the threads of all simulated processes."""

    began = 1_000_000.0
    """Seconds since the epoch at which the simulation begins."""

    def __init__(self, seed: int | str, *, stalls: float = 0.0) -> None:
        self.random = random.Random(f"scheduler {seed}")
        self.now = 0.0
        self.stalls = stalls
        """Probability that a thread stands still for a while before it takes a lock, as on a busy computer."""
        self.failure: BaseException | None = None
        self._over = False
        self._acting = False
        self._count = 0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self.runnable: list[Task] = []
        self._tasks: dict[Task, None] = {}
        self._main = Task(SimProcess(self, "main"), "main", lambda: None)
        self.current = self._main

    # -- what is to happen ---------------------------------------------------------------------------------------------

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Call `action` at this moment of the clock. It must not wait."""
        self._count += 1
        heapq.heappush(self._timers, (max(moment, self.now), self._count, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def spawn(self, process: SimProcess, name: str, target: Callable[[], object]) -> Task:
        task = Task(process, name, target)
        self._tasks[task] = None
        task.thread.start()
        self.ready(task)
        return task

    def ready(self, task: Task) -> None:
        """Let a thread run from now on, unless its process is frozen."""
        if not task.waits:
            return
        task.waits = False
        task.turn += 1
        (task.process.held if task.process.frozen else self.runnable).append(task)

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until `stop` is called, or a violation is found, which is raised."""
        with _on_one_processor():
            self._hand_on(self._main)
            self._reap()
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        self._over = True

    def fail(self, error: BaseException) -> None:
        """End the run; the first failure counts."""
        if self.failure is None and not isinstance(error, Killed):
            self.failure = error
        self._over = True

    def wait(self, seconds: float | None = None) -> bool:
        """The current thread waits until another one calls `ready` for it; False if the time was over first."""
        if self._acting:
            raise RuntimeError("an action of the scheduler must not wait")
        task = self.current
        self._wait(task, seconds)
        self._hand_on(task)
        return task.woken

    def wait_while(self, look: Look) -> None:
        """The current thread waits while `look` returns a time, which must not wait; `ready` ends that time early.

        Whichever thread is running calls `look`: a wait that goes on costs no switch.
        """
        if (seconds := look()) is not None:
            task = self.current
            task.look = look
            self.wait(seconds)
            task.look = None

    def _wait(self, task: Task, seconds: float | None) -> None:
        task.waits = task.woken = True
        if seconds is not None and seconds < inf:
            self.after(seconds, partial(self._late, task, task.turn))

    def _late(self, task: Task, turn: int) -> None:
        if task.turn == turn and not task.process.dead:
            task.woken = False
            self.ready(task)

    def give_way(self) -> None:
        """Let others run first, if chance has it so."""
        task = self.current
        task.waits = True
        self.ready(task)
        self._hand_on(task)

    def _hand_on(self, task: Task) -> None:
        following = self._next()
        if following is not task:
            self.current = following
            following.baton.release()
            task.baton.acquire()
        if task.process.dead:
            raise Killed

    def _next(self) -> Task:
        """The thread that runs next; moves the clock forward if none can run now."""
        while not self._over:
            if runnable := self.runnable:
                number = int(self.random.random() * len(runnable)) if len(runnable) > 1 else 0
                runnable[number], runnable[-1] = runnable[-1], runnable[number]
                task = runnable.pop()
                if not task.process.dead and self._goes_on(task):
                    return task
            elif self._timers:
                self.now, _, action = heapq.heappop(self._timers)
                self._act(action)
            else:
                self.fail(Deadlock(self.stacks()))
        return self._main

    def _goes_on(self, task: Task) -> bool:
        """Whether a thread whose turn has come has anything to do; otherwise it waits again."""
        if task.look is None or (seconds := task.look()) is None:
            return True
        self._wait(task, seconds)
        return False

    def _act(self, action: Callable[[], None]) -> None:
        self._acting = True
        try:
            action()
        except BaseException as error:
            self.fail(error)
        finally:
            self._acting = False

    def finished(self, task: Task) -> None:
        """A thread has ended: the last that it does."""
        task.ended = True
        self._tasks.pop(task, None)
        if task.process.dead and self.current is not task:
            return
        for other in task.joining:
            self.ready(other)
        if not self._over or self.current is task:
            following = self._next()
            self.current = following
            following.baton.release()

    def _reap(self) -> None:
        """End the threads that are left, one after another. All that they still try raises `Killed`."""
        self._over = True
        for task in list(self._tasks):
            task.process.dead = True
        while self._tasks:
            task = next(iter(self._tasks))
            task.baton.release()
            task.thread.join(_JOIN_S)
            if task.thread.is_alive():
                raise RuntimeError(f"{task.thread.name} does not end:\n{self.stacks()}")

    def stacks(self) -> str:
        """Where every thread of a live process waits."""
        frames = sys._current_frames()
        found = [
            f"{task.thread.name}:\n{''.join(traceback.format_stack(frames[task.thread.ident])[:-2])}"
            for task in self._tasks
            if task.thread.ident in frames and not task.process.dead
        ]
        return "\n".join(found)


class SimProcess:
    """A process and its `World`: its threads end, or stand still, together."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler, self.name = scheduler, name
        self.dead = self.frozen = False
        self.held: list[Task] = []
        """Threads that will run when the process does."""
        self.at_death: list[Callable[[], None]] = []

    # -- the world -----------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.scheduler.began + self.scheduler.now

    def monotonic(self) -> float:
        return self.scheduler.now

    def sleep(self, seconds: float) -> None:
        self.check()
        self.scheduler.wait(seconds)

    def condition(self) -> SimCondition:
        return SimCondition(self)

    def start(self, target: Callable[[], object], name: str) -> Task:
        self.check()
        return self.scheduler.spawn(self, name, target)

    def wait_ready(self, sock: socket.socket, event: int, seconds: float) -> bool:
        """Whether a socket can be read or written within this time."""
        poller = select.poll()
        poller.register(sock, event)
        deadline = self.scheduler.now + seconds
        pauses = chain(_LOOKS_S, repeat(_LOOKS_S[-1]))

        def look() -> float | None:
            left = deadline - self.scheduler.now
            return None if poller.poll(0) or left <= 0 else min(next(pauses), left)

        self.check()
        self.scheduler.wait_while(look)
        return bool(poller.poll(0))

    # -- what happens to it --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `Killed` in a thread of a dead process, so that it reaches no one."""
        if self.dead:
            raise Killed

    def kill(self) -> None:
        """As SIGKILL does: no thread of it runs any more, not even to clean up."""
        self.dead = True
        actions, self.at_death = self.at_death, []
        for action in actions:
            action()

    def freeze(self) -> None:
        """As SIGSTOP does."""
        if not self.frozen:
            self.frozen, runnable = True, self.scheduler.runnable
            self.held += [task for task in runnable if task.process is self]
            runnable[:] = [task for task in runnable if task.process is not self]

    def thaw(self) -> None:
        """As SIGCONT does."""
        if self.frozen:
            self.frozen = False
            self.scheduler.runnable += self.held
            self.held = []


class SimCondition:
    """A `threading.Condition` with its reentrant lock, between the threads of one process."""

    def __init__(self, process: SimProcess) -> None:
        self._process, self._scheduler = process, process.scheduler
        self._owner: Task | None = None
        self._depth = 0
        self._entering: list[Task] = []
        self._waiting: list[Task] = []

    def __enter__(self) -> bool:
        scheduler, task = self._scheduler, self._scheduler.current
        self._process.check()
        if self._owner is not task:
            draw, stalls = scheduler.random.random(), scheduler.stalls
            if draw < stalls:
                part = draw / stalls
                scheduler.wait(part * (_STALL_S if part < 0.8 else _LONG_STALL_S))
            elif draw < stalls + _PREEMPT:
                scheduler.give_way()
            self._take(task)
        self._depth += 1
        return True

    def _take(self, task: Task) -> None:
        while self._owner is not None:
            self._entering.append(task)
            self._scheduler.wait()
        self._owner = task

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._release()

    def _release(self) -> None:
        self._owner = None
        entering, self._entering = self._entering, []
        for task in entering:
            self._scheduler.ready(task)

    def wait(self, timeout: float | None = None) -> bool:
        self._process.check()
        task, depth = self._scheduler.current, self._depth
        self._depth = 0
        self._release()
        self._waiting.append(task)
        try:
            woken = self._scheduler.wait(None if timeout is None else max(0.0, timeout))
        finally:
            if task in self._waiting:
                self._waiting.remove(task)
        self._take(task)
        self._depth = depth
        return woken

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        deadline = inf if timeout is None else self._scheduler.now + timeout
        while not predicate():
            if (left := deadline - self._scheduler.now) <= 0:
                return predicate()
            self.wait(left)
        return True

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._scheduler.ready(task)

"""Where a worker waits for long, and whether a step takes too long: what others cannot see."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from understudy.comm.endpoint import Endpoint
from understudy.comm.fabric import Fabric
from understudy.comm.work import longest_wait_for_messages
from understudy.protocol.messages import Faulty, FromWorker, Stalled, WorkerSpec

from .protocol import WorkerProtocol

_LOOK_S = 1.0
_STALL_S = 5.0
"""Waiting for so long is worth a word to the controller."""


class Watch:
    """A thread beside training. All workers' answers together show a deadlock, and who keeps the others waiting."""

    def __init__(
        self, spec: WorkerSpec, fabric: Fabric, part: WorkerProtocol, say: Callable[[FromWorker], None]
    ) -> None:
        self._spec, self._fabric, self._part, self._say = spec, fabric, part, say
        self.votes: Endpoint | None = None
        """Where the votes are held."""
        self._began = 0.0
        self._stalled = Stalled(0)
        self._over = threading.Event()
        threading.Thread(target=self._run, name="understudy watch", daemon=True).start()

    def step_begins(self) -> None:
        self._began = time.monotonic()

    def step_ends(self) -> None:
        self._began = 0.0

    def close(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            stalled = self._stall(min(_STALL_S, self._spec.settings.comm.limit / 2))
            if stalled != self._stalled:
                self._stalled = stalled
                self._say(stalled)
            elif not stalled.roles:
                self._look_at_the_clock()

    def _stall(self, limit: float) -> Stalled:
        """Where this worker has waited for longer than that."""
        wait = self._fabric.longest_wait()
        if wait is not None and wait[3] > limit:
            endpoint, number, kind, _ = wait
            return Stalled(self._fabric.generation, endpoint.key.roles, number, self._describe(endpoint, kind))
        if longest_wait_for_messages() > limit and self._part.role is not None:
            what = f"waits in step {self._part.step} for a message"
            return Stalled(self._fabric.generation, (self._part.role,), 0, what)
        return Stalled(self._fabric.generation)

    def _look_at_the_clock(self) -> None:
        """A step that takes too long, and not because of others, is reported once."""
        began, limit = self._began, self._spec.settings.training.step_limit
        if limit and began and time.monotonic() - began > limit and not self._part.halted:
            self._began = 0.0
            self._say(Faulty(f"step {self._part.step} has taken longer than {limit:g} s", fatal=True))

    def _describe(self, endpoint: Endpoint, kind: str) -> str:
        step = self._part.step
        if endpoint is self.votes:
            if self._part.closing:
                return f"has come to the end of its training function after {step} steps"
            return f"waits at the end of step {step}"
        roles = ", ".join(map(str, endpoint.key.roles))
        return f"waits in step {step} in {kind} of the group of roles {roles}"

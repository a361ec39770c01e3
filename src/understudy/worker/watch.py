"""Detects inside a worker that it waits for long, or that a step takes too long."""

from __future__ import annotations

from understudy.comm.endpoint import Endpoint
from understudy.comm.fabric import Fabric
from understudy.comm.waits import longest_wait_for_messages
from understudy.host.world import REAL, World
from understudy.protocol.messages import Faulty, Stalled, WorkerSpec

from .driver import Send
from .protocol import WorkerProtocol

_LOOK_S = 1.0
_LATE_S = 0.5
"""Delay of a look that shows that the process was stopped meanwhile."""
_STALL_S = 5.0
"""A wait of this length is reported to the controller."""


class Watch:
    """A thread beside training. From the reports of all workers the controller finds deadlocks, and workers that keep
    others waiting."""

    def __init__(
        self, spec: WorkerSpec, fabric: Fabric, protocol: WorkerProtocol, send: Send, world: World = REAL
    ) -> None:
        self._spec, self._fabric, self._protocol, self._send, self._world = spec, fabric, protocol, send, world
        self.votes: Endpoint | None = None
        """The group of the votes."""
        self._began = 0.0
        self._stalled = Stalled(0)
        self._closed, self._changed = False, world.condition()
        world.start(self._run, "understudy watch")

    def step_begins(self) -> None:
        self._began = self._world.monotonic()

    def step_ends(self) -> None:
        self._began = 0.0

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        looked = self._world.monotonic()
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, _LOOK_S):
                    return
            looked, late = self._world.monotonic(), self._world.monotonic() - looked - _LOOK_S
            if late > _LATE_S:
                continue  # the process was stopped: operations may be over that this process has not noticed yet
            stalled = self._stall(min(_STALL_S, self._spec.settings.comm.limit / 2))
            if stalled != self._stalled:
                self._stalled = stalled
                self._send(stalled)
            elif not stalled.roles:
                self._look_at_the_clock()

    def _stall(self, limit: float) -> Stalled:
        """The wait that has lasted for longer than `limit`, if there is one."""
        wait = self._fabric.longest_wait()
        if wait is not None and wait[3] > limit:
            endpoint, number, kind, _ = wait
            return Stalled(self._fabric.generation, endpoint.key.roles, number, self._describe(endpoint, kind))
        if longest_wait_for_messages() > limit and self._protocol.role is not None:
            what = f"waits in step {self._protocol.step} for a message"
            return Stalled(self._fabric.generation, (self._protocol.role,), 0, what)
        return Stalled(self._fabric.generation)

    def _look_at_the_clock(self) -> None:
        """Report once a step that takes too long, if this worker does not wait for others."""
        began, limit = self._began, self._spec.settings.training.step_limit
        if limit and began and self._world.monotonic() - began > limit and not self._protocol.halted:
            self._began = 0.0
            self._send(Faulty(f"step {self._protocol.step} has taken longer than {limit:g} s", fatal=True))

    def _describe(self, endpoint: Endpoint, kind: str) -> str:
        step = self._protocol.step
        if endpoint is self.votes:
            if self._protocol.closing:
                return f"has come to the end of its training function after {step} steps"
            return f"waits at the end of step {step}"
        roles = ", ".join(map(str, endpoint.key.roles))
        return f"waits in step {step} in {kind} of the group of roles {roles}"

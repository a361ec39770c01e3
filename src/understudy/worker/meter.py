"""The duration of steps and of their parts, without the time for which a worker waits for others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from understudy.comm import waits
from understudy.comm.fabric import Fabric
from understudy.host.world import REAL, World
from understudy.protocol.samples import PARTS, Sample, Traffic

from .transfer.handover import Tempo

_DATA, _FORWARD, _BACKWARD, _OPTIMIZER = range(len(PARTS))
_FIRST = 3
"""Steps at the beginning of a generation that are not comparable with others."""
_LARGE = 1 << 20
"""Bytes in a step from which on the traffic with a neighbour is reported."""


class Meter:
    """Measures the parts of each step. Belongs to the training thread; a step is in exactly one part at any moment."""

    def __init__(self, known: bool = True, *, world: World = REAL) -> None:
        self._known = known
        """Whether the time that this thread blocks in operations is known; with some devices it is not."""
        self._clock = world.monotonic
        self.odd = ""
        """Why the step under way is not comparable with others; the first reason counts."""
        self.micro = 0
        self._generation, self._quiet, self._step = -1, 0, -1
        self._part: int | None = None
        self._own = [0.0] * len(PARTS)
        self._depth = 0
        self._seen = False
        """Whether a tracked module was in its forward in this step."""
        self._since = self._blocked = self._waited = 0.0
        self._unknown = 0
        self._hooks: list[RemovableHandle] = []

    # -- a step ------------------------------------------------------------------------------------------------------

    def begin(self, generation: int, step: int) -> None:
        """A step begins, or is repeated."""
        if generation != self._generation:
            self._generation, self._quiet = generation, _FIRST
        self.odd = "the first of a generation" if self._quiet else ""
        self._quiet = max(0, self._quiet - 1)
        if step == self._step:
            self.note("repeated")
        self._step = step
        self._own = [0.0] * len(PARTS)
        self._seen, self._depth, self.micro = False, 0, 0
        self._waited, (self._blocked, self._unknown) = 0.0, waits.waited()
        self._part, self._since = _DATA, self._clock()

    def note(self, why: str) -> None:
        """Mark the step under way as not comparable with others."""
        self.odd = self.odd or why

    def end(self, uid: str, role: int, step: int, traffic: tuple[Traffic, ...] = ()) -> Sample | None:
        """The step under way ends. Returns None if no step was begun."""
        if self._part is None:
            return None
        unknown = self._unknown
        self._turn(None)
        known = self._known and self._unknown == unknown
        return Sample(
            uid=uid,
            role=role,
            step=step,
            compute=sum(self._own),
            parts=tuple(self._own) if self._seen else (),
            waited=self._waited if known else None,
            micro=max(1, self.micro),
            odd=self.odd,
            traffic=traffic,
        )

    def shard(self) -> None:
        """A micro-shard begins."""
        if self._part is not None:
            self.micro += 1
            self._turn(_DATA)

    def update(self) -> None:
        """A micro-shard ends: from here on the time counts for the update."""
        if self._part is not None:
            self._turn(_OPTIMIZER)

    def _turn(self, part: int | None) -> None:
        """Close the part under way and begin another."""
        assert self._part is not None
        now, (blocked, self._unknown) = self._clock(), waits.waited()
        waited = blocked - self._blocked
        own = max(0.0, now - self._since - waited)
        self._own[self._part] += own
        self._waited += waited
        self._part, self._since, self._blocked = part, now, blocked

    # -- forward -----------------------------------------------------------------------------------------------------

    def watch(self, modules: Sequence[nn.Module]) -> None:
        """Measure the forward of those modules that are not part of others."""
        inner = {id(part) for module in modules for part in module.modules() if part is not module}
        for module in {id(module): module for module in modules if id(module) not in inner}.values():
            self._hooks += [
                module.register_forward_pre_hook(_Hook(self.entered)),
                module.register_forward_hook(_Hook(self.left), always_call=True),
            ]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def entered(self) -> None:
        self._depth += 1
        if self._part is not None and self._depth == 1:
            self._seen = True
            self._turn(_FORWARD)

    def left(self) -> None:
        self._depth = max(0, self._depth - 1)
        if self._part == _FORWARD and self._depth == 0:
            self._turn(_BACKWARD)


class StepTimes:
    """When steps have ended, how long they usually take, and what an interruption has cost."""

    def __init__(self) -> None:
        self._durations: deque[float] = deque(maxlen=200)
        self._ended = self._before = 0.0

    def usual(self) -> float:
        """Seconds of an undisturbed step; 0: not known. The lower quartile, since a rehearsal on the same computer may
        have slowed many of the last steps."""
        return sorted(self._durations)[len(self._durations) // 4] if self._durations else 0.0

    def tempo(self) -> Tempo:
        """For a worker that takes over this role."""
        return Tempo(self._ended, self._before, self.usual())

    def take_over(self, tempo: Tempo) -> None:
        """Continue with the times of the worker that gave its state."""
        self._ended, self._before = tempo.ended, tempo.before
        self._durations.clear()
        self._durations.append(tempo.usual)

    def forget(self) -> None:
        """Begin anew, after all workers have gone back."""
        self._durations.clear()
        self._ended = self._before = 0.0

    def ends(self, now: float, *, settles: bool) -> tuple[float, float | None]:
        """A step has ended. Returns its seconds and, if it settles a new generation, the seconds that training has lost
        by the change; None if the usual duration is not known."""
        seconds = now - self._ended if self._ended else 0.0
        lost = None
        if settles and self._before and self._durations:
            lost = max(0.0, now - self._before - 2 * self.usual())
        elif not settles and self._ended:
            self._durations.append(seconds)
        self._before, self._ended = self._ended, now
        return seconds, lost


class _Hook:
    """Calls a method of the meter; does nothing in a copy of its module, or after its module was pickled."""

    def __init__(self, method: Callable[[], None] | None = None) -> None:
        self._method = method

    def __call__(self, *_: object) -> None:
        if not torch.compiler.is_compiling() and self._method is not None:
            self._method()

    def __deepcopy__(self, memo: object) -> _Hook:
        return _Hook()

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()


def traffic_of(fabric: Fabric) -> tuple[Traffic, ...]:
    """Bulk transfers with each neighbour since the last call."""
    found: dict[str, Traffic] = {}
    for link in [link for endpoint in fabric.endpoints() for link in endpoint.transport.links()]:
        tally = link.tally
        if tally.sent + tally.got:
            before = found.get(link.peer, Traffic(link.peer))
            found[link.peer] = Traffic(
                link.peer,
                before.sent + tally.sent,
                before.pushing + tally.pushing,
                before.backed + tally.backed,
                before.starved + tally.starved,
                before.got + tally.got,
            )
            tally.clear()
    return tuple(each for each in found.values() if each.sent + each.got >= _LARGE)

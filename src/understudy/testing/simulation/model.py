"""What simulated workers train: a state that shows which steps were applied to it, and in which order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

from understudy.state.inventory import Inventory, take_inventory
from understudy.state.kinds import Tracked

from .scheduler import SimProcess
from .verdicts import Rule, RuleBroken


@cache
def history_after(kind: int, steps: int) -> str:
    """The history of a role of this kind after so many steps of an undisturbed run."""
    return _after(history_after(kind, steps - 1), steps - 1) if steps else f"kind {kind}"


def _after(history: str, step: int) -> str:
    return hashlib.blake2b(f"{history}+{step}".encode(), digest_size=8).hexdigest()


class SimModel:
    """The state of one role. Roles of the same kind hold the same state."""

    def __init__(self, kind: int) -> None:
        self.kind, self.steps, self.history = kind, 0, history_after(kind, 0)
        self.batches = 0
        """Changes with the computation of a step, before its vote, as statistics of batches do."""

    def see_batch(self) -> None:
        self.batches += 1

    def apply(self, step: int) -> None:
        self.history = _after(self.history, step)
        self.steps += 1

    def is_sound(self, kind: int, *, computed: bool = False) -> bool:
        """Whether this is a state of an undisturbed run, at a boundary or with the batch of a step `computed`."""
        expected = kind, history_after(kind, self.steps), self.steps + computed
        return (self.kind, self.history, self.batches) == expected

    def state_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "steps": self.steps, "history": self.history, "batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kind, self.steps = state["kind"], state["steps"]
        self.history, self.batches = state["history"], state["batches"]


class SimPosition:
    """State that each role has of its own, such as its position in the data."""

    def __init__(self, role: int) -> None:
        self.role, self.moves = role, 0

    def advance(self) -> None:
        self.moves += 1

    def state_dict(self) -> dict[str, Any]:
        return {"role": self.role, "moves": self.moves}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.role, self.moves = state["role"], state["moves"]


class SimWeights(nn.Module):
    """Parameters by which replicas are told apart from other roles."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), float(kind)))


class SimDisk:
    """Checkpoints that survive all processes."""

    def __init__(self, roles: int, fail: Callable[[RuleBroken], None]) -> None:
        self.roles, self.fail = roles, fail
        self.parts: dict[tuple[int, int], bytes] = {}
        """By role and step."""

    def complete(self) -> list[int]:
        steps = {step for _, step in self.parts}
        return sorted(step for step in steps if all((role, step) in self.parts for role in range(self.roles)))


class SimCheckpoints:
    """The checkpoints as one worker uses them; a `CheckpointStore`."""

    def __init__(self, process: SimProcess, disk: SimDisk, delay: Callable[[], float]) -> None:
        self.process, self.disk, self.delay = process, disk, delay

    def latest(self) -> int:
        return max(self.disk.complete(), default=0)

    def load(self, step: int, role: int, tracked: Tracked) -> None:
        data = self.disk.parts.get((role, step))
        if data is None:
            self.disk.fail(RuleBroken(Rule.FROM_CHECKPOINT, f"there is none of step {step} for role {role}"))
            self.process.kill()
        self.process.sleep(self.delay())
        take_inventory(tracked).restore_rest(data or b"")

    def writer(self, role: int, saved: Callable[[int, int], None]) -> SimCheckpointWriter:
        return SimCheckpointWriter(self, role, saved)


class SimCheckpointWriter:
    """Writes one role's parts of checkpoints, one at a time, in a thread."""

    def __init__(self, store: SimCheckpoints, role: int, saved: Callable[[int, int], None]) -> None:
        self._store, self._role, self._saved = store, role, saved
        self.busy = False
        self._changed = store.process.condition()

    def save(self, step: int, inventory: Inventory, others: Sequence[int] = ()) -> None:
        self.wait()
        data, store = inventory.rest(), self._store
        with self._changed:
            self.busy = True

        def write() -> None:
            for role in (*others, self._role):
                store.process.sleep(store.delay())
                store.disk.parts[role, step] = data
                self._saved(role, step)
            with self._changed:
                self.busy = False
                self._changed.notify_all()

        store.process.start(write, "checkpoint")

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self.busy)

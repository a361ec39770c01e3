"""Workers and machines that a fault may strike: only live ones, and never the last copy of a role's state. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Any

import msgspec

ACTIVE, STANDBY, GONE = "active", "standby", "gone"
"""States of a machine, as the controller shows them."""


class NotPossible(Exception):
    """A fault that is not possible now; the message says why."""


class LiveWorker(msgspec.Struct, frozen=True):
    """A worker that runs and is registered with the controller."""

    uid: str
    pid: int
    machine: str
    role: int | None
    """None: the worker has no role."""


class Snapshot(msgspec.Struct, frozen=True):
    """The workers and machines of a job at one moment."""

    workers: tuple[LiveWorker, ...]
    twins: dict[int, tuple[int, ...]]
    """Role → roles that hold identical copies of its state, as far as the controller knows."""
    states: dict[str, str]
    """Machine → its state."""

    def with_roles(self) -> list[LiveWorker]:
        return [worker for worker in self.workers if worker.role is not None]

    def on(self, machine: str) -> list[LiveWorker]:
        return [worker for worker in self.workers if worker.machine == machine]

    def machines(self, state: str) -> list[str]:
        """Machines in this state that have a live worker."""
        manned = {worker.machine for worker in self.workers}
        return [name for name, found in self.states.items() if found == state and name in manned]


def snapshot_of(machines: Sequence[Mapping[str, Any]], roster: Sequence[Mapping[str, Any]]) -> Snapshot:
    """From the controller's views of machines and roles."""
    roles = {entry["worker"]: int(entry["role"]) for entry in roster if entry["worker"] is not None}
    workers = tuple(
        LiveWorker(uid, pid, machine["name"], roles.get(uid))
        for machine in machines
        if machine["state"] != GONE
        for uid, pid in zip(machine["workers"], machine["pids"], strict=True)
        if pid
    )
    twins = {int(entry["role"]): tuple(entry.get("twins", ())) for entry in roster}
    return Snapshot(workers, twins, {machine["name"]: machine["state"] for machine in machines})


def orphaned(snapshot: Snapshot, dying: Collection[str]) -> list[int]:
    """Roles that would have no live copy of their state if these workers died."""
    left = {worker.role for worker in snapshot.with_roles() if worker.uid not in dying}
    return sorted(
        worker.role
        for worker in snapshot.with_roles()
        if worker.role is not None and worker.uid in dying and not left & set(snapshot.twins.get(worker.role, ()))
    )


def pick_worker(snapshot: Snapshot, dice: Random, *, reckless: bool = False, also: Collection[str] = ()) -> LiveWorker:
    """A worker with a role that may die, together with the workers in `also`."""
    able = [
        worker
        for worker in snapshot.with_roles()
        if worker.uid not in also and (reckless or not orphaned(snapshot, {worker.uid, *also}))
    ]
    if not able:
        raise NotPossible("each worker with a role holds the only copy of its state; --reckless strikes all the same")
    return dice.choice(able)


def pick_machines(snapshot: Snapshot, dice: Random, count: int = 1, *, reckless: bool = False) -> tuple[str, ...]:
    """Machines with roles that may be lost at once."""
    able = [
        names
        for names in combinations(snapshot.machines(ACTIVE), count)
        if reckless or not orphaned(snapshot, {worker.uid for name in names for worker in snapshot.on(name)})
    ]
    if not able:
        which = "each machine with roles holds" if count == 1 else f"any {count} machines with roles hold"
        raise NotPossible(f"{which} the only copy of some role's state; --reckless strikes all the same")
    return dice.choice(able)


def pick_standby(snapshot: Snapshot, dice: Random) -> str:
    waiting = snapshot.machines(STANDBY)
    if not waiting:
        raise NotPossible("there is no standby")
    return dice.choice(waiting)

"""Who may be struck: only who lives, and never the last that holds some role's state. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Any

import msgspec


class Passed(Exception):
    """A fault that is not possible now; the message says why."""


class Worker(msgspec.Struct, frozen=True):
    uid: str
    pid: int
    machine: str
    role: int | None


class Company(msgspec.Struct, frozen=True):
    """Who is there, at one moment."""

    workers: tuple[Worker, ...]
    """All that live and listen."""
    twins: dict[int, tuple[int, ...]]
    """Roles that hold identical copies of a role's state, where that is known."""
    states: dict[str, str]
    """Of the machines."""

    def cast(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.role is not None]

    def on(self, machine: str) -> list[Worker]:
        return [worker for worker in self.workers if worker.machine == machine]

    def machines(self, state: str) -> list[str]:
        """Those in this state that have a worker."""
        manned = {worker.machine for worker in self.workers}
        return [name for name, found in self.states.items() if found == state and name in manned]


def company_of(machines: Sequence[Mapping[str, Any]], roster: Sequence[Mapping[str, Any]]) -> Company:
    """From what the controller shows of machines and roles."""
    roles = {entry["worker"]: int(entry["role"]) for entry in roster if entry["worker"] is not None}
    workers = tuple(
        Worker(uid, pid, machine["name"], roles.get(uid))
        for machine in machines
        if machine["state"] != "gone"
        for uid, pid in zip(machine["workers"], machine["pids"], strict=True)
        if pid
    )
    twins = {int(entry["role"]): tuple(entry.get("twins", ())) for entry in roster}
    return Company(workers, twins, {machine["name"]: machine["state"] for machine in machines})


def orphaned(company: Company, dying: Collection[str]) -> list[int]:
    """Roles whose state nobody would hold any more if these workers died."""
    left = {worker.role for worker in company.cast() if worker.uid not in dying}
    return sorted(
        worker.role
        for worker in company.cast()
        if worker.role is not None and worker.uid in dying and not left & set(company.twins.get(worker.role, ()))
    )


def a_worker(company: Company, dice: Random, *, reckless: bool = False, also: Collection[str] = ()) -> Worker:
    """One that plays and may die, together with those who do already."""
    able = [
        worker
        for worker in company.cast()
        if worker.uid not in also and (reckless or not orphaned(company, {worker.uid, *also}))
    ]
    if not able:
        raise Passed("each worker that plays holds the only copy of its state; --reckless strikes it all the same")
    return dice.choice(able)


def some_machines(company: Company, dice: Random, count: int = 1, *, reckless: bool = False) -> tuple[str, ...]:
    """So many that play and may be lost at once."""
    playing = company.machines("active")
    able = [
        names
        for names in combinations(playing, count)
        if reckless or not orphaned(company, {worker.uid for name in names for worker in company.on(name)})
    ]
    if not able:
        which = "each machine that plays holds" if count == 1 else f"any {count} machines that play hold"
        raise Passed(f"{which} the only copy of some role's state; --reckless strikes all the same")
    return dice.choice(able)


def a_standby(company: Company, dice: Random) -> str:
    waiting = company.machines("standby")
    if not waiting:
        raise Passed("no standby is there")
    return dice.choice(waiting)

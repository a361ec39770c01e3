"""The workers of all roles in one generation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import msgspec


class RosterError(ValueError):
    """A roster that no job can run with; the message names the role and the worker."""


class WorkerAddress(msgspec.Struct, frozen=True):
    """One training process and the address at which it listens. A uid is never reused."""

    uid: str
    machine: str
    host: str = "127.0.0.1"
    port: int = 0
    local: str = ""
    """Name of its Unix socket in the abstract namespace, for workers of the same machine."""


class Roster(msgspec.Struct, frozen=True, dict=True):
    """Role → worker (or vacant) for one generation.

    `cells` is the cell of each role. The roles of one cell always share a machine and move together. Reductions fold
    within a cell first, so the result depends on the cells, but not on the machines.

    `since` is the generation in which each role was last given to another worker.

    `fresh` marks a roster that follows an interruption: messages of the earlier generation may be half-sent, so no
    stream is inherited from it.
    """

    generation: int
    seats: tuple[str | None, ...]
    workers: tuple[WorkerAddress, ...]
    cells: tuple[int, ...]
    since: tuple[int, ...]
    fresh: bool = False

    def __post_init__(self) -> None:
        where = f"roster of generation {self.generation}"
        if self.generation < 1:
            raise RosterError(f"{where}: generations count from 1")
        if not self.seats:
            raise RosterError(f"{where}: it has no roles; give it at least one")
        for name, given in (("cell number", self.cells), ("seating generation", self.since)):
            if len(given) != len(self.seats):
                raise RosterError(f"{where}: {len(self.seats)} roles but {len(given)} {name}s; give one per role")
        if len({worker.uid for worker in self.workers}) != len(self.workers):
            raise RosterError(f"{where}: a uid is listed twice among its workers; every worker needs its own")
        roles: dict[str, int] = {}
        home: dict[int, tuple[int, str]] = {}
        for role, uid in enumerate(self.seats):
            if uid is None:
                continue
            worker = self.worker(uid)
            if worker is None:
                raise RosterError(
                    f"{where}: role {role} is given to {uid}, which is not among its workers; "
                    "add that worker or leave the role vacant"
                )
            if uid in roles:
                raise RosterError(f"{where}: {uid} is given both role {roles[uid]} and role {role}; a worker has one")
            roles[uid] = role
            first, machine = home.setdefault(self.cells[role], (role, worker.machine))
            if machine != worker.machine:
                raise RosterError(
                    f"{where}: role {role} on {worker.machine} and role {first} on {machine} are of one cell; "
                    "roles of a cell move together"
                )

    @classmethod
    def of(
        cls,
        generation: int,
        assignment: Iterable[tuple[int, str]],
        workers: Iterable[WorkerAddress],
        *,
        roles: int | None = None,
        cells: Sequence[int] | None = None,
        fresh: bool = False,
    ) -> Roster:
        """A roster from (role, uid) pairs; roles without a pair are vacant. Cells default to one per machine."""
        workers = tuple(workers)
        pairs = list(assignment)
        count = roles if roles is not None else 1 + max((role for role, _ in pairs), default=-1)
        seats: list[str | None] = [None] * count
        for role, uid in pairs:
            if not 0 <= role < count:
                raise RosterError(
                    f"roster of generation {generation}: there is no role {role}; roles are 0 to {count - 1}"
                )
            if seats[role] is not None:
                raise RosterError(
                    f"roster of generation {generation}: role {role} is given to both {seats[role]} and {uid}; "
                    "a role has one worker"
                )
            seats[role] = uid
        if cells is None:
            machine_of = {worker.uid: worker.machine for worker in workers}
            numbers: dict[object, int] = {}
            cells = [
                numbers.setdefault(machine_of.get(uid, role) if uid is not None else role, len(numbers))
                for role, uid in enumerate(seats)
            ]
        return cls(generation, tuple(seats), workers, tuple(cells), (generation,) * count, fresh)

    def successor(
        self, changes: Mapping[int, WorkerAddress | None], *, generation: int | None = None, fresh: bool = False
    ) -> Roster:
        """The next roster, with these roles given to other workers or vacated."""
        number = self.generation + 1 if generation is None else generation
        if number <= self.generation:
            raise RosterError(f"generation {number} cannot follow generation {self.generation}; numbers only grow")
        seats = list(self.seats)
        for role, worker in changes.items():
            if not 0 <= role < len(seats):
                raise RosterError(f"there is no role {role}; roles are 0 to {len(seats) - 1}")
            if worker is not None and self._by_uid.get(worker.uid, worker) != worker:
                raise RosterError(
                    f"role {role} is given to a new worker {worker.uid}, but another worker has that uid; "
                    "a uid is never used again"
                )
            seats[role] = None if worker is None else worker.uid
        new = {worker.uid: worker for worker in self.workers}
        new.update({worker.uid: worker for worker in changes.values() if worker is not None})
        seated = set(seats)
        since = [was if uid == old else number for uid, old, was in zip(seats, self.seats, self.since, strict=True)]
        return Roster(
            number,
            tuple(seats),
            tuple(worker for worker in new.values() if worker.uid in seated),
            self.cells,
            tuple(since),
            fresh,
        )

    @cached_property
    def _by_uid(self) -> dict[str, WorkerAddress]:
        return {worker.uid: worker for worker in self.workers}

    @cached_property
    def _role_of(self) -> dict[str, int]:
        return {uid: role for role, uid in enumerate(self.seats) if uid is not None}

    @cached_property
    def vacant(self) -> tuple[int, ...]:
        """Roles without a worker."""
        return tuple(role for role, uid in enumerate(self.seats) if uid is None)

    def worker(self, uid: str) -> WorkerAddress | None:
        return self._by_uid.get(uid)

    def worker_of(self, role: int) -> WorkerAddress | None:
        """The worker that has this role; None if the role is vacant."""
        uid = self.seats[role]
        return None if uid is None else self._by_uid[uid]

    def role_of(self, uid: str) -> int | None:
        return self._role_of.get(uid)

    def names(self, uid: str) -> str:
        """A worker as a person reads it: `role 3 (w7 on m2)`."""
        role, worker = self.role_of(uid), self.worker(uid)
        who = uid if worker is None else f"{uid} on {worker.machine}"
        return who if role is None else f"role {role} ({who})"

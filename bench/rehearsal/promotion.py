"""A standby takes the roles of every role class, one death after the other, and the job ends with the bits of an
undisturbed one."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy_bench.harness.bench import Check, median, spread
from understudy_bench.harness.job import BenchJob, Entry
from understudy_bench.harness.processes import CommandFailed, rests
from understudy_bench.scripts import PACED

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SIZE = ("--steps", "1000000", "--width", "64", "--layers", "3", "--batch", "12")
PAUSE_S = 0.3
"""Pause after each step: all machines, rehearsing standbys included, share this computer."""
WARM_UP = 8

Row = dict[str, object]


@dataclass(frozen=True)
class Mesh:
    """A mesh, and the machines that it is spread over."""

    sizes: Mapping[str, int]
    machines: int
    nproc: int

    @property
    def name(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.sizes.items())

    def settings(self, folder: Path, pause: float = PAUSE_S) -> dict[str, Any]:
        args = (str(pause), str(EXAMPLES / "gpt_3d.py"), *SIZE)
        script = {"script": PACED, "args": args, "name": "bench-rehearsal", "run_dir": str(folder)}
        return {**script, "machines": self.machines, "nproc": self.nproc, "mesh": self.name, "threads": 1}


MESHES = (
    Mesh({"pp": 3, "dp": 2, "tp": 1}, 6, 1),
    Mesh({"pp": 2, "dp": 2, "tp": 2}, 4, 2),
)


# -- figures -----------------------------------------------------------------------------------------------------------


def kinds_of(roster: Sequence[Entry]) -> set[frozenset[int]]:
    """The sets of roles with equal state."""
    return {frozenset({int(each["role"]), *each["twins"]}) for each in roster}


def is_ready(standby: Entry, kinds: set[frozenset[int]]) -> bool:
    """Whether a standby has rehearsed every role class and waits in one of them."""
    seen = set(map(int, standby["rehearsal_seconds"]))
    return standby["state"] == "standby" and bool(standby["rehearsed"]) and all(kind & seen for kind in kinds)


def how_taken(roles: Sequence[int], standby: Entry) -> str:
    return "at once" if set(roles) <= set(standby["rehearsed"]) else "entered again"


def stage_of(places: Mapping[str, int]) -> str:
    """A role's place in its replica, as text."""
    return " ".join(f"{name}={place}" for name, place in places.items() if name != "dp")


def row_of(at: float, settled: Entry, decided: Entry) -> Row:
    """The cost of a death, from the events that followed."""
    return {
        "full_strength_s": settled["at"] - at,
        "lost_s": settled["data"]["lost"],
        "repeated": decided["data"]["repeated"],
        "phases": {name: round(seconds, 3) for name, seconds in settled["data"]["phases"].items()},
        **{f"{side}_links_s": seconds for side, seconds in settled["data"]["links"].items()},
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One row for each way in which the roles of a mesh were taken."""
    found: list[Row] = []
    for mesh, how in dict.fromkeys((row["mesh"], row["how"]) for row in rows):
        mine = [row for row in rows if (row["mesh"], row["how"]) == (mesh, how)]
        total: Row = {"part": "promotion", "mesh": mesh, "how": how, "round": f"all {len(mine)}"}
        for column in ("full_strength_s", "lost_s"):
            total[column] = round(median(row[column] for row in mine), 4)
            total[f"{column.removesuffix('_s')}_spread"] = [round(each, 4) for each in spread(r[column] for r in mine)]
        for column in ("joiners_links_s", "stayers_links_s"):
            total[column] = round(median(row[column] for row in mine), 4)
        found.append(total)
    return found


def differing(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """The roles with a final state that differs from that of an undisturbed run."""
    return sorted(role for role in {*found, *expected} if found.get(role) != expected.get(role))


def checks_of(wrong: Mapping[str, Sequence[str]], rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    """`wrong`: mesh → the roles with a different final state."""
    bad = [f"{mesh}: role {role}" for mesh, roles in wrong.items() for role in roles]
    told = ", ".join(bad) or f"{sum(len(row['roles']) for row in rows)} roles taken"
    return [Check("bit_identical", told, "every role ends as if undisturbed", not bad)]


# -- the job -----------------------------------------------------------------------------------------------------------


async def _kill(job: BenchJob, cell: int, mesh: Mesh, chance: random.Random) -> Row:
    """Kill the machine of a cell at a random moment, when a standby has nothing left to do. Returns the row."""
    roles = range(cell * mesh.nproc, (cell + 1) * mesh.nproc)
    roster = await job.call("GET", "/roster")
    kinds = kinds_of(roster)

    async def there() -> dict[str, Any] | None:
        for machine in await job.machines():
            if is_ready(machine, kinds) and await rests(job.processes_of(machine["name"])):
                return machine
        return None

    standby = await job.until(f"a standby that has rehearsed all of {mesh.name}", there)
    await job.train(2)
    victim = await job.machine_of(roles[0])
    dead = job.processes_of(victim["name"])
    await asyncio.sleep(2 * PAUSE_S * chance.random())
    (standby,) = [machine for machine in await job.machines() if machine["name"] == standby["name"]]
    at = time.time()
    for pid in dead:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    settled = await job.event("settled", at)
    decided = await job.event("decided", at)
    joiner = await job.machine_of(roles[0])
    if (joiner["name"], joiner["pids"]) != (standby["name"], standby["pids"]):
        raise CommandFailed(f"{joiner['name']} has taken role {roles[0]}, not the workers of {standby['name']}")
    places = [stage_of(roster[role]["places"]) for role in roles]
    where = {"mesh": mesh.name, "roles": list(roles), "places": places, "how": how_taken(roles, standby)}
    return {"part": "promotion", **where, **row_of(at, settled, decided)}


@dataclass(frozen=True)
class Promoted:
    """The result of one mesh."""

    rows: list[Row]
    wrong: list[str]
    recorded: list[int]


async def promote(mesh: Mesh, folder: Path, cells: Sequence[int], done: Callable[[str], None]) -> Promoted:
    """Kill each of these machines in turn; then run the job again without a death."""
    rows: list[Row] = []
    chance = random.Random(mesh.name)
    away = {"standbys": 1, "repair": 0.5, "quarantine": 1000}
    async with BenchJob({**mesh.settings(folder / "disturbed"), **away}) as job:
        await job.reach(WARM_UP)
        for cell in cells:
            rows.append(await _kill(job, cell, mesh, chance))
            done(f"{mesh.name}, machine {cell}: {rows[-1]['how']}")
        await job.train(3)
        disturbed = await job.stop()
        recorded = [int(event["data"]["bytes"]) for event in job.events if event["kind"] == "recorded"]
    async with BenchJob({**mesh.settings(folder / "undisturbed", 0.0), "steps": int(disturbed.view["step"])}) as job:
        undisturbed = await job.ended()
    if (disturbed.status, undisturbed.status) != ("stopped", "finished"):
        ends = [f"{ended.status} {ended.reason}" for ended in (disturbed, undisturbed)]
        raise CommandFailed(f"{mesh.name}: {ends[0]}; undisturbed: {ends[1]}")
    done(f"{mesh.name}, undisturbed")
    return Promoted(rows, differing(disturbed.view["digests"], undisturbed.view["digests"]), recorded)

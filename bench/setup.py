"""Set-up: the cost of replacing one machine as the group grows, against opening all links.

All roles are in one process and share its event loop. So the times of phase one and of the rebuild are those of all
workers one after the other; on a cluster they work at the same time. The switch is timed for each role by itself, and
summed over all roles for the comparison with the rebuild.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Iterable

from understudy.comm.links.rendezvous import IoLoop
from understudy.comm.network import NetworkFabric
from understudy.comm.sandbox import Echo
from understudy.comm.topology import GroupKey, LinkId, control_links, delta, layout
from understudy.protocol.roster import Roster
from understudy_bench.harness.bench import Bench, Check, Progress, Result, median, spread

SIZES = (8, 32, 128, 512, 1024)
PER_MACHINE = 2
DESCRIPTORS_PER_ROLE = 16


class WorkersInOneProcess:
    """Many workers in one process, each with a fabric, a listening port and links of its own."""

    def __init__(self, roles: int) -> None:
        self.io = IoLoop()
        self._started = 0
        self.fabrics = [fabric for machine in range(roles // PER_MACHINE) for fabric in self._machine(f"m{machine}")]
        self.roster = Roster.of(
            1, [(role, fabric.uid) for role, fabric in enumerate(self.fabrics)], [f.worker for f in self.fabrics]
        )
        self.key = GroupKey(tuple(range(roles)))

    def _machine(self, name: str) -> list[NetworkFabric]:
        found = []
        for _ in range(PER_MACHINE):
            uid = f"w{self._started}"
            self._started += 1
            found.append(
                NetworkFabric(
                    uid, name, job="setup", secret=b"setup", io=self.io, slot_bytes=1 << 16, setup_limit=300.0
                )
            )
        return found

    def build(self) -> float:
        """Open all links, as a restart of communication does. Returns the seconds for all workers together."""
        for role, fabric in enumerate(self.fabrics):
            fabric.assume(role, Echo())
            fabric.group(self.key.roles)
        start = time.perf_counter()
        _prepare(self.fabrics, self.roster)
        for fabric in self.fabrics:
            fabric.switch(1)
        return time.perf_counter() - start

    def replace(self, machine: int) -> tuple[int, float, list[float], list[float]]:
        """Replace a machine by a new one.

        Returns the links opened, the seconds of phase one, and the seconds of each switch: of the roles with a changed
        link, and of all roles.
        """
        first = machine * PER_MACHINE
        joiners = self._machine(f"n{self._started}")
        for offset, joiner in enumerate(joiners):
            joiner.assume(first + offset, Echo())
            joiner.group(self.key.roles)
        leavers = self.fabrics[first : first + PER_MACHINE]
        roster = self.roster.successor({first + i: joiner.worker for i, joiner in enumerate(joiners)})
        changed = delta(_links(self.roster, self.key), _links(roster, self.key))
        touched = {uid for link in (*changed.opened, *changed.dropped) for uid in (link.source, link.target)}
        start = time.perf_counter()
        _prepare([*self.fabrics, *joiners], roster)
        phase_one = time.perf_counter() - start
        near, each_role = [], []
        gc.collect()
        gc.disable()  # a collection here would walk the heaps of a thousand workers
        for fabric in [*self.fabrics, *joiners]:
            start = time.perf_counter()
            fabric.switch(roster.generation)
            took = time.perf_counter() - start
            self.io.start(_idle()).result()  # roles of a real job do not wait for the clean-up of others
            each_role.append(took)
            if fabric.uid in touched:
                near.append(took)
        gc.enable()
        self.fabrics[first : first + PER_MACHINE] = joiners
        self.roster = roster
        for leaver in leavers:
            leaver.close()
        return len(changed.opened), phase_one, near, each_role

    def close(self) -> None:
        for fabric in self.fabrics:
            fabric.close()
        self.io.close()


async def _idle() -> None:
    """Completes when the event loop has done the work queued before."""


def _prepare(fabrics: Iterable[NetworkFabric], roster: Roster) -> None:
    for done in [fabric.prepare(roster) for fabric in fabrics]:
        done.result()


def _links(roster: Roster, key: GroupKey) -> frozenset[LinkId]:
    plan, uids = layout(roster, key), [uid for uid in roster.seats if uid is not None]
    return frozenset[LinkId]().union(*(control_links(roster, uid) | plan.links_of(uid) for uid in uids))


def _need_descriptors(roles: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = roles * DESCRIPTORS_PER_ROLE
    if hard != resource.RLIM_INFINITY and hard < need:
        raise SystemExit(
            f"bench setup needs {need} open files for {roles} roles and this machine allows {hard}; raise `ulimit -Hn`"
        )
    if soft != resource.RLIM_INFINITY and soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def measure(quick: bool, progress: Progress) -> Result:
    replacements = 5 if quick else 15
    builds = {8: 7, 32: 7, 128: 5, 512: 3, 1024: 3} if not quick else dict.fromkeys(SIZES, 1)
    progress.total = sum(builds[size] + replacements for size in SIZES)
    _need_descriptors(max(SIZES))
    rows: list[dict[str, object]] = []
    for size in SIZES:
        rebuilds: list[float] = []
        for again in range(builds[size]):
            workers = WorkersInOneProcess(size)
            try:
                rebuilds.append(workers.build())
                progress.advance(f"{size} roles: rebuild {again + 1}")
                if again < builds[size] - 1:
                    continue
                seen = []
                for number in range(replacements):
                    seen.append(workers.replace(number % (size // PER_MACHINE)))
                    progress.advance(f"{size} roles: replacement {number + 1}")
            finally:
                workers.close()
        near = [took * 1e6 for _, _, times, _ in seen for took in times]
        totals = [sum(times) * 1e3 for _, _, _, times in seen]
        rows.append(
            {
                "roles": size,
                "links_total": len(_links(workers.roster, workers.key)),
                "links_opened": max(opened for opened, _, _, _ in seen),
                "phase_one_ms": round(median(phase * 1e3 for _, phase, _, _ in seen), 2),
                "phase_one_spread": [round(v, 2) for v in spread(phase * 1e3 for _, phase, _, _ in seen)],
                "switch_us": round(median(near), 1),
                "switch_spread": [round(value, 1) for value in spread(near)],
                "switch_all_ms": round(median(totals), 3),
                "rebuild_ms": round(median(rebuilds) * 1e3, 1),
                "rebuild_spread": [round(value * 1e3, 1) for value in spread(rebuilds)],
                "ratio": round(median(rebuilds) * 1e3 / median(totals), 1),
            }
        )
    by_size = {row["roles"]: row for row in rows}

    def figure(size: int, column: str) -> float:
        value = by_size[size][column]
        assert isinstance(value, int | float)
        return float(value)

    growth = figure(1024, "switch_us") / figure(32, "switch_us")
    gain = figure(1024, "ratio")
    links = figure(1024, "links_opened") / figure(32, "links_opened")
    return Result(
        rows,
        [
            Check("switch_growth_1024_to_32", round(growth, 2), "< 2", growth < 2),
            Check("rebuild_over_switch_1024", gain, ">= 20", gain >= 20),
            Check("links_opened_1024_to_32", round(links, 2), "<= 2 (log2 1024 / log2 32)", links <= 2),
        ],
    )


BENCH = Bench("setup", "replacing one machine of a group of 8 to 1024 roles, against opening all links", measure)

"""A joiner's first step after the switch, against its usual ones: with rehearsal and without."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy_bench.harness.bench import Check, median, rounded, spread
from understudy_bench.harness.job import BenchJob, Entry
from understudy_bench.scripts import TIMED

WARM_UP = 8
"""Steps before the first replacement; the recording is over by then."""
SKIPPED = 4
"""Steps after the first one that do not count: the leaver ends meanwhile."""
STEADY = 15
"""Steps after those, which give the usual time of one."""
BAR = 1.1
PARTS = ("forward", "backward", "update", "processor")
"""Parts of a step: its phases, and the processor time of all threads of the process."""

Row = dict[str, object]


@dataclass(frozen=True)
class Contestant:
    """A way to compile, with or without rehearsal."""

    backend: str
    """The backend of torch.compile; empty: eager."""
    rehearses: bool

    @property
    def name(self) -> str:
        return "compiled" if self.backend else "eager"

    @property
    def how(self) -> str:
        return "rehearsed" if self.rehearses else "cold"

    def settings(self, folder: Path) -> dict[str, Any]:
        args: tuple[str, ...] = ("--rest", str(folder / "rest"))
        if self.backend:
            args += ("--compile", self.backend, "--cache", str(folder / "cache"))
        if not self.rehearses:
            args += ("--by-hand",)
        found = {"script": TIMED, "args": args, "name": "bench-rehearsal", "machines": 2, "threads": 1}
        cold = {} if self.rehearses else {"rehearsals": 0, "warm": 0}
        # compile in the process itself: no helper process computes beside a step that is measured
        return {**found, **cold, "run_dir": str(folder / "run"), "env": {"TORCHINDUCTOR_COMPILE_THREADS": "1"}}


# -- figures -----------------------------------------------------------------------------------------------------------


def row_of(entries: Sequence[Entry], answer: Mapping[str, Any], wanted_at: float) -> Row:
    """The figures of a replacement, from the joiner's metrics, the controller's answer and the time of the request."""
    ordered = sorted(entries, key=lambda entry: int(entry["step"]))
    first, steady = ordered[0], ordered[1 + SKIPPED : 1 + SKIPPED + STEADY]
    usual = {name: median(entry[name] for entry in steady) for name in ("took", *PARTS)}
    shadows = [first[name] for name in sorted(name for name in first if name.startswith("shadow_"))]
    phases = answer["phases"]
    return {
        "ratio": first["took"] / usual["took"],
        "first_s": first["took"],
        "steady_s": usual["took"],
        "steady_spread": spread(entry["took"] for entry in steady),
        "graphs_after": max(entry["graphs"] for entry in ordered) - (first["graphs"] if shadows else 0),
        "start_s": first["process_at"] - wanted_at,
        "import_s": first["imported_at"] - first["begun_at"],
        "build_s": first["built_at"] - first["entered_at"],
        "shadow_s": shadows,
        "links_s": phases["prepare"],
        "hand_over_s": phases.get("hand-over", 0.0),
        "phases": dict(phases),
        "lost_s": answer.get("lost"),
        **{f"{name}_ratio": first[name] / usual[name] for name in PARTS},
    }


def of(rows: Iterable[Mapping[str, Any]], model: str, how: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if (row.get("model"), row.get("how")) == (model, how)]


def summary(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One row for all joiners of a contestant: medians, and the 80 % spread of the ratio."""
    found: list[Row] = []
    for model, how in dict.fromkeys((row["model"], row["how"]) for row in rows):
        mine = of(rows, model, how)
        total: Row = {"part": "first step", "model": model, "how": how, "round": f"all {len(mine)}"}
        for column in [name for name, value in mine[0].items() if isinstance(value, float)]:
            total[column] = median(row[column] for row in mine if row[column] is not None)
        total["ratio_spread"] = spread(row["ratio"] for row in mine)
        shadows = [row["shadow_s"] for row in mine]
        total["shadow_s"] = [median(times) for times in zip(*shadows, strict=True)]
        found.append(rounded(total))
    return found


def checks_of(rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    """A joiner that has rehearsed begins at full speed and compiles nothing; without rehearsal, there is no bar."""
    checks = []
    for model in ("eager", "compiled"):
        ratio = median(row["ratio"] for row in of(rows, model, "rehearsed"))
        checks.append(Check(f"first_step_{model}", round(ratio, 3), f"<= {BAR}", ratio <= BAR))
    for model in ("eager", "compiled"):
        ratio = median(row["ratio"] for row in of(rows, model, "cold"))
        checks.append(Check(f"cold_{model}", round(ratio, 3), "any", True))
    compiled = sum(row["graphs_after"] for row in of(rows, "compiled", "rehearsed"))
    return [*checks, Check("graphs_after_switch", compiled, "0", compiled == 0)]


# -- the job -----------------------------------------------------------------------------------------------------------


async def standby_of(job: BenchJob, contestant: Contestant) -> dict[str, Any]:
    """Add a standby and wait until it has nothing left to do."""
    return await job.new_standby((0, 1) if contestant.rehearses else (), idle=True)


@dataclass(frozen=True)
class Life:
    """The result of one job."""

    rows: list[Row]
    recorded: list[int]
    """Bytes of each recording."""


async def live(contestant: Contestant, folder: Path, replacements: int, done: Callable[[str], None]) -> Life:
    """Run one job in which so many machines are replaced one after the other."""
    folder.mkdir(parents=True)
    rows: list[Row] = []
    async with BenchJob(contestant.settings(folder)) as job:
        await job.reach(WARM_UP)
        for number in range(replacements):
            wanted_at = time.time()
            standby = await standby_of(job, contestant)
            await job.train(5)
            leaver = await job.machine_of((number + 1) % 2)  # the machine that has recorded goes last
            answer = await job.replace([leaver["name"]], [standby["name"]])
            name = standby["name"]

            async def steps(name: str = name) -> list[dict[str, Any]] | None:
                entries = job.metrics(name)
                return entries if len(entries) > 1 + SKIPPED + STEADY else None

            entries = await job.until(f"the steps of {name}", steps)
            row = row_of(entries, answer, wanted_at)
            rows.append(row)
            done(f"{contestant.name}, {contestant.how}: first step {row['ratio']:.2f} of a usual one")
        await job.stop()
        sizes = [int(event["data"]["bytes"]) for event in job.events if event["kind"] == "recorded"]
    return Life(rows, sizes)

"""The reproductions of `understudy reproduce`: their rows and checks from the models, and their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from understudy.cli.command import UsageError
from understudy.masking.placement import PlacementError
from understudy.planning.papers import spare, trainmover
from understudy.planning.papers.trainmover import SYSTEMS
from understudy_bench.harness.bench import Check, Progress, Result

ShownRow = Mapping[str, Any]

TICKS = 20
"""Ticks of the progress bar for each row."""
SPARE_WITHIN = 0.05
REPLICATION_WITHIN = 0.08
GAIN_WITHIN = 0.05
PROJECTED_WITHIN = 0.05


class SpareReproduction:
    """SPARe's table."""

    def __init__(
        self,
        sizes: Sequence[int],
        holders: Sequence[int] | None,
        distribution: spare.Distribution,
        runs: int,
        seed: int,
        engine: spare.Engine,
    ) -> None:
        self.distribution, self.runs, self.seed, self.engine = distribution, runs, seed, engine
        try:
            self.cases = [
                spare.case(kind, n, r) for n in sizes for r in (holders or spare.usual_r(n)) for kind in spare.KINDS
            ]
        except (PlacementError, spare.HopelessCase) as error:
            raise UsageError(str(error)) from error

    def measure(self, quick: bool, progress: Progress) -> Result:
        progress.total = TICKS * len(self.cases)
        rows: list[dict[str, object]] = []
        checks: list[Check] = []
        ratios: dict[tuple[str, int], float] = {}
        for case in self.cases:
            label = f"{case.kind}, n = {case.n:,}, r = {case.r}"
            found = spare.simulate(case, self.distribution, self.runs, self.seed, self.engine, ticking(progress, label))
            published = case.published if self.distribution == "weibull" else None
            rows.append(
                {
                    "strategy": case.kind,
                    "n": case.n,
                    "r": case.r,
                    "ttt_ratio": found.ttt_ratio.value,
                    "availability": found.availability.value,
                    "published": msgspec.structs.asdict(published) if published else None,
                    "ttt_ratio_95": [found.ttt_ratio.low, found.ttt_ratio.high],
                    "availability_95": [found.availability.low, found.availability.high],
                    "closed_form_exponential": case.closed_form,
                    "groups": case.groups,
                    "restarts": found.restarts,
                    "recovery_s": found.recovery,
                    "distribution": self.distribution,
                    "engine": self.engine,
                    "runs": self.runs,
                }
            )
            if published:
                ratios[case.kind, case.n] = found.ttt_ratio.value
                checks += checked(case, found, published)
        checks += [gained(n, ratios) for kind, n in ratios if kind == "spare" and ("replication", n) in ratios]
        return Result(rows, checks)

    def show(self, rows: Sequence[ShownRow], console: Console) -> None:
        table = Table()
        for column in ("strategy", "N", "r", "TTT/T₀", "95 %", "published", "off", "availability", "published", "off"):
            table.add_column(column, justify="left" if column == "strategy" else "right")
        for column in ("closed form*", "restarts", "recovery"):
            table.add_column(column, justify="right")
        notes: dict[str, None] = {}
        for case, row in zip(self.cases, rows, strict=True):
            ratio, share = row["ttt_ratio"], row["availability"]
            published = case.published if row["published"] else None
            cells = [
                case.kind,
                f"{case.n:,}",
                str(case.r),
                f"{ratio:.2f}",
                " – ".join(f"{end:.2f}" for end in row["ttt_ratio_95"]),
                f"{published.ttt_ratio:.2f}" if published else "",
                f"{ratio / published.ttt_ratio - 1:+.1%}" if published else "",
                f"{share:.1%}",
                f"{published.availability:.1%}" if published else "",
                f"{share / published.availability - 1:+.1%}" if published else "",
                f"{case.closed_form:.2f}",
                f"{row['restarts']:.1f}",
                "none" if row["recovery_s"] is None else f"{row['recovery_s']:,.0f} s",
            ]
            table.add_row(*map(Text, cells))
            if case.groups != case.n:
                notes[f"replication, n = {case.n:,}: {case.r} does not divide it, so {case.groups:,} groups"] = None
        console.print(table)
        _say(console, "* TTT/T₀ for exponential failures", *notes, f"published: {spare.SOURCE}")


def checked(case: spare.SpareCase, found: spare.SpareRow, published: spare.Published) -> list[Check]:
    within = SPARE_WITHIN if case.kind == "spare" else REPLICATION_WITHIN
    name, bar = f"{case.kind}_n{case.n}_r{case.r}", f"within {within:.0%} of the published {{}}"
    ratio, share = found.ttt_ratio.value, found.availability.value
    both = (("ttt_ratio", ratio, 3, published.ttt_ratio), ("availability", share, 4, published.availability))
    return [
        Check(f"{name}_{what}", round(ours, digits), bar.format(theirs), abs(ours / theirs - 1) <= within)
        for what, ours, digits, theirs in both
    ]


def gained(n: int, ratios: Mapping[tuple[str, int], float]) -> Check:
    """A check of the time that SPARe saves against replication."""
    gain = 1 - ratios["spare", n] / ratios["replication", n]
    theirs = {kind: row.ttt_ratio for (kind, size, _), row in spare.PUBLISHED.items() if size == n}
    published = 1 - theirs["spare"] / theirs["replication"]
    bar = f"within {100 * GAIN_WITHIN:.0f} points of the published {published:.3f}"
    return Check(f"gain_n{n}", round(gain, 3), bar, abs(gain - published) <= GAIN_WITHIN)


class TrainMoverReproduction:
    """TrainMover's projection."""

    def measure(self, quick: bool, progress: Progress) -> Result:
        progress.total = len(trainmover.SIZES) * len(SYSTEMS)
        rows: list[dict[str, object]] = []
        checks = []
        for gpus in trainmover.SIZES:
            simulated = {}
            for system in SYSTEMS:
                simulated[system] = trainmover.simulated(system, gpus)
                progress.advance(f"{system}, {gpus:,} GPUs")
            against: dict[str, object] = {}
            others: dict[str, object] = {}
            for system in SYSTEMS[1:]:
                ours, theirs = trainmover.reduction(system, gpus), trainmover.PROJECTED.get((system, gpus))
                against[system] = ours
                others[system] = {
                    reading.words: trainmover.reduction(system, gpus, reading) for reading in trainmover.OTHERS
                }
                if theirs is not None:
                    bar = f"within {100 * PROJECTED_WITHIN:.0f} points of the published {theirs}"
                    name = f"against_{system.replace(' ', '_')}_{gpus}"
                    checks.append(Check(name, round(ours, 3), bar, abs(ours - theirs) <= PROJECTED_WITHIN))
            published = {system: trainmover.PROJECTED.get((system, gpus)) for system in SYSTEMS[1:]}
            rows.append(
                {
                    "gpus": gpus,
                    "mttf_s": trainmover.mttf(gpus),
                    "standby_machines": trainmover.standbys_for(gpus),
                    "wasted_gpu_hours_per_week": {system: trainmover.wasted(system, gpus) for system in SYSTEMS},
                    "simulated_gpu_hours_per_week": simulated,
                    "reduction": against,
                    "published": published if any(published.values()) else None,
                    "other_readings": others,
                }
            )
        return Result(rows, checks)

    def show(self, rows: Sequence[ShownRow], console: Console) -> None:
        console.print(_projected(rows))
        console.print(_readings())
        saved = trainmover.wasted("no standby", 65_536) - trainmover.wasted("standbys", 65_536)
        _say(
            console,
            "The paper leaves open how many standbys are held and how long Parcae stands still at scale. Read here as: "
            f"{trainmover.USUAL.words}.",
            "In brackets the same simulated, with interruptions that may overlap: counted one by one, Parcae's would "
            "take more hours at 131,072 GPUs than a week has. At 1,024 GPUs the pool costs more than it saves.",
            f"Standbys save {saved / 1e6:.2f} M GPU-hours a week at 65,536 GPUs; published are "
            f"{trainmover.PROJECTED_SAVED_64K / 1e6:.1f} M, without saying against what.",
            f"published: {trainmover.SOURCE}",
        )


def _projected(rows: Sequence[ShownRow]) -> Table:
    table = Table(title="wasted GPU-hours per week (simulated)")
    headings = ("GPUs", "MTTF", "standby machines", "with them", "no standby", "Parcae")
    for column in (*headings, "against no standby", "published", "against Parcae", "published"):
        table.add_column(column, justify="right")
    for row in rows:
        gpus, simulated = row["gpus"], row["simulated_gpu_hours_per_week"]
        wasted = [f"{trainmover.wasted(one, gpus):,.0f} ({simulated[one]:,.0f})" for one in SYSTEMS]
        cells = [f"{gpus:,}", f"{trainmover.mttf(gpus) / 60:,.0f} min", str(trainmover.standbys_for(gpus)), *wasted]
        for system in SYSTEMS[1:]:
            cells += [_percent(trainmover.reduction(system, gpus)), _percent(trainmover.PROJECTED.get((system, gpus)))]
        table.add_row(*map(Text, cells))
    return table


def _readings() -> Table:
    table = Table(title="other readings of what is left open")
    table.add_column("reading")
    for gpus in trainmover.SIZES:
        table.add_column(f"{gpus:,} GPUs: no standby, Parcae", justify="right")
    for reading in (trainmover.USUAL, *trainmover.OTHERS):
        cells = [
            ", ".join(_percent(trainmover.reduction(system, gpus, reading)) for system in SYSTEMS[1:])
            for gpus in trainmover.SIZES
        ]
        table.add_row(*map(Text, (reading.words, *cells)))
    return table


Reproduction = SpareReproduction | TrainMoverReproduction


def ticking(progress: Progress, label: str) -> Callable[[float], None]:
    """A callback that turns a share growing to 1 into whole ticks of the progress bar."""
    told = 0

    def tell(share: float) -> None:
        nonlocal told
        while told < min(TICKS, int(share * TICKS + 1e-9)):
            told += 1
            progress.advance(label)

    return tell


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:+.1f} %"


def _say(console: Console, *sentences: str) -> None:
    for sentence in sentences:
        console.print(Text(sentence, style="dim"))

"""The options of `understudy plan` and `understudy simulate` that describe a cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from understudy.cli.command import UsageError
from understudy.protocol.durations import parse_duration, readable

if TYPE_CHECKING:
    from understudy.planning.inputs.assume import Assumption, PlanRequest
    from understudy.planning.inputs.calibrate import Calibrated
    from understudy.planning.inputs.fit import Fitted

T = TypeVar("T")

span = parse_duration
SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the cluster").add_argument
    add("--gpus", metavar="N", help="number of GPUs that train, for example 65536")
    add("--gpus-per-machine", metavar="N", help="GPUs of a machine, which fails as a whole (default 8)")
    add("--replicas", metavar="N", help="copies of the model, the data-parallel size (default: from the model)")
    add = parser.add_argument_group("the work").add_argument
    params = "parameters, such as 70B or 1.8T; step, replicas and checkpoints are estimated from them"
    add("--model-params", metavar="N", help=params)
    add("--step-seconds", metavar="S", help="duration of a step at full strength (default 30s, or from the model)")
    add("--days", metavar="N", help="days of undisturbed training to do (default 30)")
    add("--micro-shards", metavar="Q", help="micro-shards of a replica in a step (default 16)")
    add("--local-data", action="store_true", help="replicas read shards from local disks, not from shared storage")
    add = parser.add_argument_group("failures").add_argument
    mtbf = "mean time between failures of one machine, such as 6000h (default: that of Llama 3)"
    add("--mtbf", metavar="SPAN", help=mtbf)
    add("--failures-csv", type=Path, metavar="FILE", help="fit failures to a log of incidents instead of --mtbf")
    add("--observed", metavar="N", help="machines that the log covers (default: those of --gpus)")
    add("--watched", metavar="SPAN", help="time that the log covers (default: from its dates)")
    add("--shape", metavar="K", help="shape of the Weibull distribution; below 1, most failures are early")
    add("--together", metavar="SHARE", help="share of failures that take a whole domain, 0 to 1")
    add("--domain", metavar="N", help="machines of a domain, which may fail together (default 1)")
    add("--maintenance", metavar="SPAN", help="mean time between planned maintenances of a machine (default: none)")
    add("--straggling", metavar="SPAN", help="mean time until a machine becomes slow (default: never)")
    add("--repair", metavar="SPAN", help="time until a failed machine is a standby again (default 1d)")
    add = parser.add_argument_group("costs of interruptions").add_argument
    add("--restart", metavar="SPAN", help="time to restart the job from a checkpoint (default 15m)")
    add("--save", metavar="SPAN", help="time to save a checkpoint (default 60s, or from the model)")
    add("--cold", metavar="SPAN", help="time to get a machine that is not a standby (default 15m)")
    add("--calibrate", metavar="RUN", help="take durations that a run of Understudy measured; RUN is its folder")
    add("--price", metavar="MONEY", help="price of a GPU-hour (default 2)")


def ask(args: argparse.Namespace) -> PlanRequest:
    """The cluster that the options describe; `UsageError` names an impossible option."""
    from understudy.planning.failures import Repair
    from understudy.planning.inputs.assume import PlanRequest, PlanRequestError, assume

    if args.gpus is None:
        raise UsageError("--gpus is missing: give the number of GPUs that train, for example --gpus 65536")
    gpus, per_machine = number(args, "gpus", count), number(args, "gpus_per_machine", count)
    per_machine = 8 if per_machine is None else per_machine
    notes: list[Assumption] = []
    fitted = _fitted(args, (gpus or 0) // max(1, per_machine), notes)
    measured = _calibrated(args, notes)
    repair = fitted.repair if fitted else measured.repair if measured else None
    if (given := number(args, "repair", span)) is not None:
        repair = Repair(given, repair.spread if repair else "exponential")
    step, domain = number(args, "step_seconds", span), number(args, "domain", count)
    known = {
        "gpus": gpus,
        "gpus_per_machine": per_machine,
        "replicas": number(args, "replicas", count),
        "params": number(args, "model_params", count),
        "step": measured.step if step is None and measured else step,
        "mtbf": number(args, "mtbf", span),
        "failures": fitted.failures if fitted else None,
        "repair": repair,
        "restart": number(args, "restart", span),
        "save": number(args, "save", span),
        "cold": number(args, "cold", span),
        "durations": measured.durations if measured else None,
        "shared_data": not args.local_data,
        "domain": fitted.domain if domain is None and fitted else domain,
        "days": number(args, "days", real),
        "price": number(args, "price", real),
        "q": number(args, "micro_shards", count),
        "notes": tuple(notes),
    }
    found = PlanRequest(**{name: value for name, value in known.items() if value is not None})  # type: ignore[arg-type]
    readers = {"shape": real, "together": real, "maintenance": span, "straggling": span}
    more = {name: value for name, read in readers.items() if (value := number(args, name, read)) is not None}
    try:
        if more:
            found = found.with_failures(more)
        assume(found)
    except PlanRequestError as error:
        raise UsageError(str(error)) from None
    return found


def number(args: argparse.Namespace, name: str, read: Callable[[str], T], option: str = "") -> T | None:
    """An option's value; None if it is not given. `option`: its name, if it differs from the attribute's."""
    text = getattr(args, name)
    if text is None:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise UsageError(f"--{option or name.replace('_', '-')} {text}: {error}") from None


def seed(args: argparse.Namespace) -> int:
    """The value of `--seed`."""
    found = number(args, "seed", count) or 0
    if found < 0:
        raise UsageError(f"--seed {args.seed}: give a number from 0 on")
    return found


def count(text: str) -> int:
    """`65536`, `65_536`, `65,536`, `70B`, `1.8T`."""
    plain = text.strip().replace(",", "").replace("_", "")
    if plain.isdecimal() and len(plain) < 300:
        return int(plain)
    factor = SUFFIXES.get(plain[-1:].upper(), 1.0)
    try:
        value = float(plain[:-1] if factor != 1.0 else plain) * factor
        whole = int(value)
    except (ValueError, OverflowError):
        raise ValueError("write a whole number such as 65536 or 70B") from None
    if whole != value:
        raise ValueError("write a whole number such as 65536 or 70B")
    return whole


def real(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("write a number") from None
    if not isfinite(value):
        raise ValueError("write a number that is finite")
    return value


def _fitted(args: argparse.Namespace, machines: int, notes: list[Assumption]) -> Fitted | None:
    """Failures and repairs fitted to the log of incidents, if one is given; warnings go to stderr."""
    from understudy.planning.inputs.assume import LONGEST_MTBF, MOST_GPUS, SHORTEST_MTBF, Assumption
    from understudy.planning.inputs.fit import fit
    from understudy.planning.inputs.incidents import IncidentError, read

    path: Path | None = args.failures_csv
    if path is None:
        for name in ("observed", "watched"):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name} needs --failures-csv FILE, the log of incidents that it is about")
        return None
    if args.mtbf is not None:
        raise UsageError("--mtbf and --failures-csv both give the rate of failures: give one of them")
    seen = number(args, "observed", count)
    if seen is not None and not 1 <= seen <= MOST_GPUS:
        raise UsageError(f"--observed {args.observed}: give a number of machines from 1 to {MOST_GPUS:,}")
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as lines:
            found = fit(read(lines), seen or max(1, machines), window=number(args, "watched", span))
    except OSError as error:
        raise UsageError(f"--failures-csv {path}: {error.strerror}; name a file that can be read") from None
    except IncidentError as error:
        raise UsageError(f"--failures-csv {path}: {error}") from None
    if not SHORTEST_MTBF <= found.failures.mtbf <= LONGEST_MTBF:
        odd = f"a machine would fail every {readable(found.failures.mtbf)}"
        raise UsageError(f"--failures-csv {path}: {odd}; check its dates, --observed and --watched, or give --mtbf")
    if found.repair.mean < 1 and args.repair is None:
        raise UsageError(
            f"--failures-csv {path}: repairs take {readable(found.repair.mean)} on average; leave unknown "
            "repairs empty, or give --repair"
        )
    for warning in found.warnings:
        print(f"{path}: {warning}", file=sys.stderr)
    notes += [Assumption("from the log", "", reason) for reason in found.reasons]
    return found


def _calibrated(args: argparse.Namespace, notes: list[Assumption]) -> Calibrated | None:
    """Durations that a run measured, if one is named."""
    if args.calibrate is None:
        return None
    from understudy.cli.calibration import calibrated
    from understudy.planning.inputs.assume import Assumption

    found = calibrated(Path(args.calibrate))
    for name, source in found.sources.items():
        value = getattr(found.durations, name, None)
        shown = readable(value) if isinstance(value, float) else ""
        notes.append(Assumption(name.replace("_", " "), shown, source))
    return found

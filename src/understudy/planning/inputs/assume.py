"""Completes what a user says about a job into what the models need, with a reason for each assumption."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, isfinite, log2
from typing import Literal

import msgspec

from understudy.planning.failures import Failures, Repair
from understudy.planning.setting import DAY, HOUR, Cluster, Durations, PlanningSetting, StepWork
from understudy.protocol.durations import readable

LLAMA_RATE = 1.97e-5
"""Unplanned interruptions per GPU-hour in the training of Llama 3 (419 in 54 days on 16,384 GPUs)."""

STATE_BYTES = 16
"""Bytes per parameter in training: weights and gradients in 16 bits, a copy and two moments in 32 bits."""
SAVED_BYTES = 14
"""Bytes per parameter in a checkpoint: all of the training state but the gradients."""
GPU_MEMORY = 80e9
FOR_STATE = 0.6
GPU_FLOPS = 400e12
"""Achieved floating-point operations per second of one GPU in training."""
TOKENS_PER_STEP = 16e6
NETWORK = 25e9
"""Bytes per second that one GPU sends."""
STORAGE = 1e9
"""Bytes per second that the storage accepts per GPU."""
STEP = 30.0
COLD = 900.0
GPUS_PER_REPLICA = 512
MOST_GPUS = 2_000_000
MOST_REPLICAS = 20_000
"""With more replicas, the placement of shards takes too long to compute."""
SHORTEST_MTBF, LONGEST_MTBF = 1.0, 1000 * 365 * DAY


Note = Callable[[str, str, str], None]


class PlanRequestError(ValueError):
    """An input is out of range or contradicts another; the message names the option and says what to give."""


class Assumption(msgspec.Struct, frozen=True):
    """A value that the user did not give, and why it was chosen."""

    name: str
    value: str
    why: str


class PlanRequest(msgspec.Struct, frozen=True):
    """What the user says about the job. Fields that are None are assumed."""

    gpus: int
    gpus_per_machine: int = 8
    replicas: int | None = None
    params: float | None = None
    step: float | None = None
    mtbf: float | None = None
    """Mean time between failures of one machine, in seconds."""
    failures: Failures | None = None
    """Fitted to an incident log; overrides `mtbf`."""
    repair: Repair | None = None
    durations: Durations | None = None
    """Measured durations; None: assumed."""
    restart: float | None = None
    save: float | None = None
    cold: float | None = None
    """Seconds to make a machine ready that is not a standby: fetch, start, rehearse."""
    days: float = 30.0
    """Days of training without interruption that the job needs."""
    price: float = 2.0
    """Price of a GPU-hour."""
    goal: Literal["cost", "time"] = "cost"
    q: int = 16
    shared_data: bool = True
    """Whether every replica can read every sample."""
    domain: int = 1
    """Machines that may fail together."""
    notes: tuple[Assumption, ...] = ()
    """Sources of measured values."""

    def with_failures(self, more: Mapping[str, float]) -> PlanRequest:
        """The request with some properties of failures overridden. Raises PlanRequestError for a value out of range."""
        for name, low, high in _FAILURES:
            if name in more and not low <= more[name] <= high:
                say = readable if low == SHORTEST_MTBF else "{:g}".format
                raise PlanRequestError(f"--{name} {say(more[name])}: give {say(low)} to {say(high)}")
        known = self.failures or Failures(self.mtbf or HOUR / (LLAMA_RATE * self.gpus_per_machine))
        return msgspec.structs.replace(self, failures=msgspec.structs.replace(known, **more))


_FAILURES = (
    ("shape", 0.1, 10.0),
    ("together", 0.0, 1.0),
    ("maintenance", SHORTEST_MTBF, LONGEST_MTBF),
    ("straggling", SHORTEST_MTBF, LONGEST_MTBF),
)


class PlanAssumptions(msgspec.Struct, frozen=True):
    """Everything that the models need, with the assumptions that were made."""

    setting: PlanningSetting
    failures: Failures
    repair: Repair
    notes: tuple[Assumption, ...]

    @property
    def rate(self) -> float:
        """Unplanned failures of the job per second."""
        return self.setting.cluster.machines / self.failures.mtbf

    @property
    def interruptions(self) -> float:
        """Interruptions of the job per second: failures, failures of neighbours, maintenance, slow machines."""
        several = 1 + self.failures.together * (self.setting.cluster.domain - 1)
        others = sum(1 / every for every in (self.failures.maintenance, self.failures.straggling) if every)
        return self.rate * several + others * self.setting.cluster.machines


def assume(request: PlanRequest) -> PlanAssumptions:
    """Completes the request. Raises PlanRequestError for a number out of range."""
    _check(request)
    notes = list(request.notes)

    def note(name: str, value: str, why: str) -> None:
        notes.append(Assumption(name, value, why))

    machines = request.gpus // request.gpus_per_machine
    replicas = _replicas(request, machines, note)
    if replicas > MOST_REPLICAS:
        raise PlanRequestError(
            f"--replicas: {replicas:,} are too many to plan; give up to {MOST_REPLICAS:,}, or fewer --gpus"
        )
    machines -= machines % replicas
    gpus = machines * request.gpus_per_machine
    per_replica = gpus // replicas
    if gpus != request.gpus:
        note("GPUs used", f"{gpus:,}", f"whole machines, equal in {replicas:,} replicas")
    work = _work(request, gpus, per_replica, note)
    durations = _durations(request, per_replica, note)
    failures = request.failures or _failures(request, note)
    repair = request.repair or Repair()
    if request.repair is None:
        note("repair", "1 day", "usual for a machine that is sent to repair and returns")
    if replicas > 1 and replicas % 2 and replicas % 3:
        note("replication", "left out", f"{replicas:,} replicas cannot form blocks of 2 or 3; --replicas overrides")
    if replicas == 1 < machines:
        note("state of a dead machine", "a copy", "held by another machine (--copy-every 1): there is one replica")
    cluster = Cluster(machines, replicas, request.gpus_per_machine, request.domain)
    return PlanAssumptions(PlanningSetting(cluster, work, durations), failures, repair, tuple(notes))


def _check(request: PlanRequest) -> None:
    for name, value, most in (
        ("gpus", request.gpus, MOST_GPUS),
        ("gpus-per-machine", request.gpus_per_machine, 1024),
        ("days", request.days, 36_500),
        ("micro-shards", request.q, 10_000),
        ("domain", request.domain, 100_000),
    ):
        if not 1 <= value <= most:
            raise PlanRequestError(f"--{name} {value:,.12g}: give a number from 1 to {most:,}")
    if request.gpus < request.gpus_per_machine:
        raise PlanRequestError(
            f"--gpus {request.gpus} is less than one machine has (--gpus-per-machine {request.gpus_per_machine}); "
            "give both as they are"
        )
    for name, number, low, high in (
        ("step-seconds", request.step, 1e-4, DAY),
        ("mtbf", request.mtbf, SHORTEST_MTBF, LONGEST_MTBF),
        ("repair", None if request.repair is None else request.repair.mean, 1.0, 10 * 365 * DAY),
        ("restart", request.restart, 0.0, 30 * DAY),
        ("save", request.save, 0.0, DAY),
        ("cold", request.cold, 0.0, 365 * DAY),
    ):
        if number is not None and not (isfinite(number) and low <= number <= high):
            raise PlanRequestError(f"--{name} {readable(number)}: give {readable(low)} to {readable(high)}")
    for name, number, low, high in (("model-params", request.params, 1e3, 1e16), ("price", request.price, 0.0, 1e6)):
        if number is not None and not low <= number <= high:
            raise PlanRequestError(f"--{name} {number:g}: give a number from {low:g} to {high:g}")


def _replicas(request: PlanRequest, machines: int, note: Note) -> int:
    if request.replicas is not None:
        if not 1 <= request.replicas <= machines:
            raise PlanRequestError(
                f"--replicas {request.replicas:,.12g}: {machines:,} machines can hold 1 to {machines:,} replicas"
            )
        return request.replicas
    if request.params is not None:
        needed = request.params * STATE_BYTES / (FOR_STATE * GPU_MEMORY)
        gpus = max(request.gpus_per_machine, 1 << ceil(log2(max(needed, 1))))
        why = f"{STATE_BYTES} bytes of state per parameter in {FOR_STATE:.0%} of {GPU_MEMORY / 1e9:g} GB"
    else:
        gpus, why = GPUS_PER_REPLICA, "usual for a large model; --replicas or --model-params overrides"
    per_replica = max(1, gpus // request.gpus_per_machine)
    if per_replica > machines:
        if request.params is not None:
            raise PlanRequestError(
                f"--model-params {request.params:g} needs about {gpus:,} GPUs for one replica and there are "
                f"{request.gpus:,}; give more GPUs, or --replicas"
            )
        per_replica = max(1, machines // 8)
    found = machines // per_replica
    note("replicas", f"{found:,} of {per_replica * request.gpus_per_machine:,} GPUs", why)
    return found


def _work(request: PlanRequest, gpus: int, per_replica: int, note: Note) -> StepWork:
    if request.step is not None:
        sync = 0.1 * request.step
        note("gradient exchange", f"{sync:.3g} s", "a tenth of the step")
        return StepWork(request.step - sync, sync)
    if request.params is not None:
        compute = 6 * request.params * TOKENS_PER_STEP / (gpus * GPU_FLOPS)
        sync = 4 * request.params / per_replica / NETWORK
        why = f"{TOKENS_PER_STEP / 1e6:g} million tokens at {GPU_FLOPS / 1e12:g} TFLOP/s a GPU"
        note("step", f"{compute + sync:.3g} s", why)
        return StepWork(compute, sync)
    note("step", f"{STEP:g} s", "usual at this size; --step-seconds overrides")
    return StepWork(0.9 * STEP, 0.1 * STEP)


def _durations(request: PlanRequest, per_replica: int, note: Note) -> Durations:
    found = request.durations
    if found is None:
        found = Durations(detect=2.0, hand_over=18.0, planned=16.0, join=2.0, cold=COLD)
        note("hand-over", f"{found.detect + found.hand_over:g} s", "as published for 1,024 GPUs (TrainMover)")
        note("join", f"{found.join:g} s", "state is streamed during training; --calibrate RUN measures it")
        if request.params is not None:
            share = request.params / per_replica
            found = msgspec.structs.replace(found, save=max(5.0, SAVED_BYTES * share / STORAGE))
            note("save", f"{found.save:.3g} s", f"{SAVED_BYTES} bytes per parameter at {STORAGE / 1e9:g} GB/s a GPU")
        elif request.save is None:
            note("save", f"{found.save:g} s", "usual; --save overrides")
        if request.cold is None:
            note("a machine that is no standby", f"{COLD / 60:g} min", "fetch, start, rehearse; --cold overrides")
        if request.restart is None:
            note("restart", f"{found.restart / 60:g} min", "usual for a large job; --restart overrides")
    given = {"restart": request.restart, "cold": request.cold, "save": request.save}
    return msgspec.structs.replace(found, **{name: value for name, value in given.items() if value is not None})


def _failures(request: PlanRequest, note: Note) -> Failures:
    if request.mtbf is not None:
        return Failures(request.mtbf)
    mtbf = HOUR / (LLAMA_RATE * request.gpus_per_machine)
    why = "as in the training of Llama 3; --mtbf or --failures-csv overrides"
    note("MTBF of a machine", f"{mtbf / HOUR:,.0f} h", why)
    return Failures(mtbf)

"""Real workers that train with masking, lose some of them, and continue with fewer. The parent is the controller."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from understudy.comm.group import uninstall
from understudy.protocol.messages import Halt, Halted, Resume, WorkerSpec
from understudy.protocol.options import with_options
from understudy.protocol.settings import Settings
from understudy.state.inventory import digest, take_inventory
from understudy.testing.local_workers import LocalWorker as Wire
from understudy.testing.local_workers import LocalWorkers, WorkerHandle, first_roster
from understudy.worker.job import Job
from understudy.worker.process import TorchProcess
from understudy.worker.runtime import WorkerRuntime

WIDTH, BATCH = 12, 6
LIMIT = 100.0
"""Seconds; a process may take many before its first step on a busy computer."""


@dataclass(frozen=True)
class Death:
    """A role ends its process in a step: before or in the backward of a micro-shard that it computes (counted from 0),
    with an operation of the group that sums gradients, or just before its vote."""

    role: int
    step: int
    where: str = "before"
    number: int = 0


@dataclass(frozen=True)
class MaskedRun:
    kind: str = "ddp"
    mesh: tuple[tuple[str, int], ...] = (("dp", 3),)
    micro: int = 2
    steps: int = 3
    mask: str = "anywhere"
    deterministic: bool = True
    keep: str = "own"
    deaths: tuple[Death, ...] = ()

    @property
    def roles(self) -> int:
        count = 1
        for _, size in self.mesh:
            count *= size
        return count


@dataclass
class Result:
    """How a role has ended."""

    digest: str
    state: list[float]
    computed: list[tuple[int, int]] = field(default_factory=list)
    """(step, micro-shard) in the order of computation."""
    values: list[dict[str, float]] = field(default_factory=list)


# -- in the worker processes -------------------------------------------------------------------------------------------


def act(wire: Wire, role: int, run: MaskedRun) -> Result:
    """The life of a worker: train, hear what the controller says, and die where it is due."""
    warnings.simplefilter("ignore")
    lock, over = threading.Lock(), threading.Event()

    def say(message: object) -> None:
        with lock:
            wire.tell(message)

    spec = WorkerSpec(
        uid=wire.fabric.uid,
        machine=wire.fabric.machine,
        slot=0,
        job="local",
        secret=b"s",
        script="",
        args=(),
        nproc=1,
        mesh=run.mesh,
        settings=with_options(
            Settings(),
            seed=3,
            mask=run.mask,
            deterministic=run.deterministic,
            keep_gradients=run.keep,
            recording_limit=0,
        ),
    )
    runtime = WorkerRuntime(spec, wire.fabric, say, TorchProcess(wire.fabric))

    def listen() -> None:
        with suppress(EOFError, OSError, TimeoutError):
            while not over.is_set():
                runtime.hear(wire.hear(300))

    threading.Thread(target=listen, daemon=True).start()
    runtime.enter()
    job = Job(runtime)
    result = Result("", [])
    try:
        _train(job, run, [death for death in run.deaths if death.role == role], result)
        job._close()
        result.digest = digest(take_inventory(runtime.tracked))
        tensors = take_inventory(runtime.tracked).tensors
        result.state = torch.cat([tensor.flatten().double() for tensor in tensors]).tolist()
    finally:
        over.set()
        job._left()
        uninstall()
        runtime.close()
    return result


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _train(job: Job, run: MaskedRun, deaths: Sequence[Death], result: Result) -> None:
    compute = {"ddp": _ddp, "hsdp": _hsdp, "plain": _plain, "pipeline": _pipeline}[run.kind](job)
    (optim,) = (thing for thing in job._runtime.tracked.values() if isinstance(thing, torch.optim.Optimizer))
    for step in job.steps(run.steps):
        due = {death.where: death for death in deaths if death.step == step.index}
        with step:
            if "sum" in due:
                _die_with(job, due["sum"].number)
            for place, shard in enumerate(step.shards(run.micro)):
                if "before" in due and due["before"].number == place:
                    _die()
                inside = "backward" in due and due["backward"].number == place
                result.computed.append((step.index, shard.number))
                compute(step.index, shard.number, shard.weight, inside)
            if "vote" in due:
                _die()
            optim.step()
            optim.zero_grad()
        if step._voted and job._step is None:
            result.values.append(dict(step.values))


def _die_with(job: Job, operation: int) -> None:
    """With the n-th operation of the group that sums gradients."""
    assert job._masking is not None
    endpoint, left = job._masking._group.endpoint, operation

    def counting(act: Callable[..., None]) -> Callable[..., None]:
        def counted(*args: Any, **kwargs: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                _die()
            act(*args, **kwargs)

        return counted

    endpoint.submit = counting(endpoint.submit)  # type: ignore[method-assign]
    endpoint.message = counting(endpoint.message)  # type: ignore[method-assign]


def _data(step: int, number: int) -> torch.Tensor:
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1000 * step + number))


def _net() -> nn.Sequential:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.Tanh()]
    return nn.Sequential(*layers)


def _loss_of(job: Job, model: nn.Module, inner: nn.Module) -> Callable[[int, int, float, bool], None]:
    del inner

    def compute(step: int, number: int, weight: float, dying: bool) -> None:
        hidden = model(_data(step, number))
        if dying:
            hidden.register_hook(lambda _: _die())
        loss = hidden.square().mean()
        job.log(loss=loss)
        (loss * weight).backward()

    return compute


def _ddp(job: Job) -> Callable[[int, int, float, bool], None]:
    from torch.nn.parallel import DistributedDataParallel

    inner = _net()
    model = DistributedDataParallel(inner, process_group=job.mesh["dp"].get_group())
    job.track(model=model, optim=torch.optim.AdamW(model.parameters(), lr=0.01))
    return _loss_of(job, model, inner)


def _plain(job: Job) -> Callable[[int, int, float, bool], None]:
    model = _net()
    job.track(model=model, optim=torch.optim.AdamW(model.parameters(), lr=0.01))
    job.average(model, over="dp")
    return _loss_of(job, model, model)


def _hsdp(job: Job) -> Callable[[int, int, float, bool], None]:
    from torch.distributed.fsdp import fully_shard

    model = _net()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=job.mesh)
    fully_shard(model, mesh=job.mesh)
    job.track(model=model, optim=torch.optim.AdamW(model.parameters(), lr=0.01))
    return _loss_of(job, model, model)


def _pipeline(job: Job) -> Callable[[int, int, float, bool], None]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    pp = job.mesh["pp"]
    here, parts = pp.get_local_rank(), 2
    layers = _net()[4 * here : 4 * here + 5 - here]
    job.track(layers=layers, optim=torch.optim.AdamW(layers.parameters(), lr=0.01))
    job.average(layers, over="dp")
    example = torch.empty(BATCH // parts, WIDTH, requires_grad=True)
    stage = PipelineStage(
        layers, here, pp.size(), job.device, input_args=example, output_args=example, group=pp.get_group()
    )
    scale = [1.0]
    schedule = Schedule1F1B(
        stage, parts, loss_fn=lambda out, _: out.square().mean() * scale[0] / parts, scale_grads=False
    )

    def compute(step: int, number: int, weight: float, dying: bool) -> None:
        data, losses = _data(step, number), list[torch.Tensor]()
        scale[0] = weight
        handle = layers.register_full_backward_hook(lambda *_: _die()) if dying else None
        schedule.step(*([data] if here == 0 else []), target=data, losses=losses, return_outputs=False)
        if handle is not None:
            handle.remove()
        if here == pp.size() - 1:
            job.log(loss=torch.stack(losses).sum() / weight)

    return compute


# -- in the parent -----------------------------------------------------------------------------------------------------


class Controller:
    """Has all roles played, and goes on without the replicas of those that die."""

    def __init__(self, local: LocalWorkers, run: MaskedRun, replica_of: Callable[[int], int]) -> None:
        self._play, self._replica_of = run, replica_of
        self.hands: dict[int, WorkerHandle] = {}
        for role in range(run.roles):
            (self.hands[role],) = local.start(f"m{replica_of(role)}", 1, act, role, run)
        self._roster = first_roster(self.hands.values())
        self._halts = 0

    def run(self) -> dict[int, Result]:
        """What has become of the roles that are left."""
        self._tell(Resume(self._roster, 0))
        for number in range(1, 1 + len({self._replica_of(death.role) for death in self._play.deaths})):
            gone = self._await_death()
            step = self._halt(number)
            changes = dict.fromkeys(gone)
            self._roster = self._roster.successor(changes, fresh=True)
            self._tell(Resume(self._roster, step))
        return {role: self._result(hand) for role, hand in self.hands.items()}

    def _tell(self, message: object) -> None:
        for hand in self.hands.values():
            hand.tell(message)

    def _await_death(self) -> list[int]:
        """The roles of the replica that the next one to die belongs to; all of them are dead then."""
        from multiprocessing.connection import wait

        sentinels = {hand.process.sentinel: role for role, hand in self.hands.items()}
        found = wait(list(sentinels), timeout=LIMIT)
        assert found, "no worker has died within its limit"
        replica = self._replica_of(sentinels[found[0]])
        gone = [role for role in self.hands if self._replica_of(role) == replica]
        for role in gone:
            self.hands.pop(role).kill()
        return gone

    def _halt(self, number: int) -> int:
        """The step with which the survivors continue."""
        self._tell(Halt(number, "a worker has died"))
        reached = []
        for hand in self.hands.values():
            while not (isinstance(word := hand.hear(LIMIT), Halted) and word.number == number):
                pass
            reached.append(word.step)
        return max(reached)

    def _result(self, hand: WorkerHandle) -> Result:
        for kind, what in _words(hand):
            if kind == "done":
                hand.process.join(20)
                assert isinstance(what, Result)
                return what
            assert kind == "message", what
            assert not isinstance(what, Halted), what.reason
        raise AssertionError("it has ended without a result")


def _words(hand: WorkerHandle) -> Iterator[tuple[str, Any]]:
    while hand._connection.poll(LIMIT):
        yield hand._connection.recv()


def perform(run: MaskedRun, replica_of: Callable[[int], int] = int) -> dict[int, Result]:
    with LocalWorkers(limit=LIMIT) as local:
        return Controller(local, run, replica_of).run()

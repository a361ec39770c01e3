"""One step of training as a script sees it: the shards of its data and its random numbers."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from understudy.device.cpu import local_device
from understudy.protocol.mesh import replica_of

from .runtime import JobError

if TYPE_CHECKING:
    from .job import Job

BETWEEN_STEPS = -2
"""Seeds the random numbers that are drawn between a boundary and `with step:`, so that those of the step do not depend
on them."""


class Shard:
    """One micro-shard of a step's data: `number` of `count`, each of which is computed by exactly one replica."""

    def __init__(self, number: int, count: int, mine: int) -> None:
        self.number = number
        """The number of the micro-shard in its step. Together with `step.index` it determines the data."""
        self.count = count
        """Micro-shards of the step, over all replicas."""
        self.weight = 1.0 / mine
        """Factor for the loss that makes the gradient the mean over all micro-shards of all replicas."""

    def __repr__(self) -> str:
        return f"<shard {self.number} of {self.count}>"


class Step:
    """One step of training: `with step:` around everything that it does. An interrupted step is undone and repeated."""

    def __init__(self, job: Job, index: int) -> None:
        self._job = job
        self.index = index
        """The number of the step, from 0 on; a repeated step keeps its number."""
        self.values: dict[str, float] = {}
        """Values logged so far, of complete shards."""
        self._shard: dict[str, float] | None = None
        """Values logged with the micro-shard under way."""
        self._complete = False
        """Whether the loop over its shards has ended."""
        self._voted = False

    def shards(self, micro: int = 1) -> Iterator[Shard]:
        """The micro-shards that this replica computes in this step; `micro` for each replica.

        The loop must go through all of them: gradients that the runtime averages are complete after the last one. With
        `--mask` there are more of them while other replicas are missing, and fewer in a repeated step of which some are
        kept."""
        if micro < 1:
            raise JobError(f"step.shards({micro}): a replica has at least one micro-shard")
        return _masked(self._job, self, micro) if self._job._masking is not None else _own(self._job, self, micro)

    def __enter__(self) -> Step:
        self._job._begin(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return self._job._end(self, error)

    def __repr__(self) -> str:
        return f"<step {self.index}>"


def _own(job: Job, step: Step, micro: int) -> Iterator[Shard]:
    """The micro-shards of this replica's own shard, without masking."""
    replicas, mine = job.replicas
    logged: list[dict[str, float]] = []
    try:
        for part in range(micro):
            step._shard = {}
            logged.append(step._shard)
            job._meter.shard()
            yield Shard(mine * micro + part, replicas * micro, micro)
            job._meter.update()
    finally:
        step._shard = None
        step.values |= _means(logged)
    if job._averaging is not None:
        job._averaging.run()
    step._complete = True


def _means(logged: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each logged value over the micro-shards that have it."""
    names = dict.fromkeys(name for values in logged for name in values)
    found = {name: [values[name] for values in logged if name in values] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}


def _masked(job: Job, step: Step, micro: int) -> Iterator[Shard]:
    """The micro-shards of this replica's own shard and those that it computes for missing replicas."""
    assert job._masking is not None
    mesh, same = job._spec.mesh, job._masking.same
    values: dict[str, float] = {}
    try:
        for place, part in job._masking.run(step.index, micro, values):
            replicas, replica = replica_of(mesh, same[place])
            number = replica * micro + part
            job._masking.seed(step.index, number)
            step._shard = values
            job._meter.shard()
            yield Shard(number, replicas * micro, micro)
            job._meter.update()
            step._shard = None
    finally:
        step._shard = None
    step.values |= values
    step._complete = True


def seed_everything(seed: int, *where: int) -> None:
    """Seed the global generators of torch, numpy and Python from these numbers alone, such as seed, step and role."""
    digest = hashlib.blake2b(repr((seed, *where)).encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little") >> 1
    local_device().seed(number)
    random.seed(number)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(number & 0xFFFFFFFF)

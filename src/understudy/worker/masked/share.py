"""What one unit has computed of a step, held so that it outlives an interruption."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Gradients = list[torch.Tensor | None]
"""One for each parameter, or none."""


class Share:
    """The sums of gradients that are still this unit's own, by segment, and the totals that are everybody's.

    A segment is what is summed on its own: everything, or with `--deterministic` what one replica computes of a shard.
    The sum under way is where autograd puts it, in the parameters' `grad`; nothing is copied except on request."""

    def __init__(self, step: int, micro: int, parameters: Sequence[torch.Tensor]) -> None:
        self.step, self.micro = step, micro
        self.done: list[int] = []
        """Micro-shards whose gradients are in the sums, in order."""
        self.values: dict[int, dict[str, float]] = {}
        """What was logged with each."""
        self.sums: dict[int, Gradients] = {}
        self.totals: dict[int, Gradients] = {}
        """By bucket: its members' gradients once they are reduced over all replicas."""
        self._parameters = parameters
        self._members: dict[int, list[int]] = {}
        """Micro-shards of each segment."""
        self._loaded: int | None = None
        self._copy: Gradients | None = None

    def load(self, segment: int, *, copy: bool = False) -> None:
        """Let the parameters go on with this sum."""
        if self._loaded == segment:
            return
        self.store()
        found = self.sums.get(segment)
        for number, parameter in enumerate(self._parameters):
            parameter.grad = None if found is None else found[number]
        self._loaded = segment
        self._copy = _copied(found, None) if copy and found is not None else None

    def add(self, number: int, values: dict[str, float], *, copy: bool = False) -> None:
        """A micro-shard is complete and sound."""
        assert self._loaded is not None
        self.done.append(number)
        self.values[number] = values
        self._members.setdefault(self._loaded, []).append(number)
        if copy:
            self._copy = _copied([parameter.grad for parameter in self._parameters], self._copy)

    def store(self) -> None:
        """Take the sum under way out of the parameters."""
        segment, self._loaded = self._loaded, None
        if segment is not None:
            self.sums[segment] = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        self._copy = None

    def spoil(self) -> None:
        """The micro-shard under way has put something undefined into its segment's sum: that goes back to its copy, or
        is nothing again."""
        segment, copy = self._loaded, self._copy
        self.store()
        if segment is None:
            return
        if copy is not None:
            self.sums[segment] = copy
        else:
            del self.sums[segment]
            lost = set(self._members.pop(segment, ()))
            self.done = [number for number in self.done if number not in lost]

    def forget(self) -> None:
        """Nothing of this unit's own is of use; totals are."""
        self._loaded = self._copy = None
        self.done.clear()
        self.sums.clear()
        self._members.clear()
        self.values.clear()

    def settle(self, bucket: int, members: Sequence[int], totals: Gradients) -> None:
        """A bucket is reduced: the sums that went into it are not needed any more."""
        self.totals[bucket] = totals
        for found in self.sums.values():
            for member in members:
                found[member] = None


@torch.no_grad()
def _copied(gradients: Gradients, into: Gradients | None) -> Gradients:
    """A copy, in the memory of an earlier one where there is one."""
    old: Gradients = [None] * len(gradients) if into is None else into
    return [
        None if grad is None else grad.detach().clone() if kept is None else kept.copy_(grad)
        for grad, kept in zip(gradients, old, strict=True)
    ]

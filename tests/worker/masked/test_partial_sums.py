"""The partial sums of an interrupted step that are kept, and those that are not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from understudy.worker.masked.partial_sums import PartialSums, buckets_of


@pytest.fixture
def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))]


def backward(parameters: list[nn.Parameter], value: float) -> None:
    for parameter in parameters:
        (parameter * value).sum().backward()


def test_a_sum_goes_on_in_the_same_memory(parameters: list[nn.Parameter]) -> None:
    sums = PartialSums(0, 2, parameters)
    sums.load(0)
    backward(parameters, 1.0)
    sums.add(0, {"loss": 1.0})
    memory = parameters[0].grad
    sums.store()
    assert all(parameter.grad is None for parameter in parameters)
    sums.load(0)
    assert parameters[0].grad is memory
    backward(parameters, 2.0)
    sums.add(1, {"loss": 2.0})
    assert parameters[0].grad is memory
    assert memory is not None
    assert memory.tolist() == [3.0] * 3
    assert sums.done == [0, 1]


@pytest.mark.parametrize("copy", [True, False])
def test_spoilt(parameters: list[nn.Parameter], copy: bool) -> None:
    sums = PartialSums(0, 2, parameters)
    sums.load(0, copy=copy)
    backward(parameters, 1.0)
    sums.add(0, {}, copy=copy)
    backward(parameters, float("nan"))
    sums.spoil()
    assert sums.done == ([0] if copy else [])
    sums.load(0, copy=copy)
    grad = parameters[0].grad
    assert (grad is not None and grad.tolist() == [1.0] * 3) if copy else grad is None
    backward(parameters, float("nan"))  # and again
    sums.spoil()
    assert sums.done == ([0] if copy else [])


@pytest.mark.parametrize(("copy", "sets"), [(False, 1), (True, 2)])
def test_what_is_held_between_two_micro_shards(parameters: list[nn.Parameter], copy: bool, sets: int) -> None:
    """Of gradients, counted in bytes; and a copy is gone before they are summed."""
    one = sum(parameter.nbytes for parameter in parameters)
    sums = PartialSums(0, 3, parameters)
    sums.load(0, copy=copy)
    for number in range(3):
        backward(parameters, 1.0)
        sums.add(number, {}, copy=copy)
        assert held(sums) == sets * one
    sums.store()
    assert held(sums) == one


def held(sums: PartialSums) -> int:
    """Bytes of all gradients that can be reached from here, wherever they are."""
    found = [*sums.by_segment.values(), *sums.totals.values(), sums._copy or [], [p.grad for p in sums._parameters]]
    return sum(grad.nbytes for grad in {id(g): g for found in found for g in found}.values() if grad is not None)


def test_only_the_segment_under_way_is_spoilt(parameters: list[nn.Parameter]) -> None:
    sums = PartialSums(0, 1, parameters)
    sums.load(0)
    backward(parameters, 1.0)
    sums.add(0, {})
    sums.load(5)
    assert parameters[0].grad is None
    backward(parameters, 7.0)
    sums.add(5, {})
    sums.load(6)
    backward(parameters, float("nan"))
    sums.spoil()
    assert sums.done == [0, 5]
    sums.load(5)
    backward(parameters, float("nan"))
    sums.spoil()
    assert sums.done == [0]


def test_what_is_settled_stays(parameters: list[nn.Parameter]) -> None:
    sums = PartialSums(0, 1, parameters)
    sums.load(0)
    backward(parameters, 1.0)
    sums.add(0, {})
    sums.store()
    total = torch.ones(3)
    sums.settle(0, (0,), [total])
    sums.load(0)
    assert parameters[0].grad is None
    assert parameters[1].grad is not None
    sums.store()
    sums.forget()
    assert sums.totals[0][0] is total
    assert not sums.done


def test_buckets_are_of_one_kind_and_not_too_large() -> None:
    shapes = [(10,), (10,), (10,), (100,), (5,)]
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    parameters.append(nn.Parameter(torch.zeros(4, dtype=torch.bfloat16)))
    found = buckets_of(parameters, managed=[4], limit=80)
    assert [bucket.members for bucket in found] == [(0, 1), (2,), (3,), (4,), (5,)]
    assert [bucket.divided for bucket in found] == [False, False, False, True, False]
    assert found[-1].dtype == torch.bfloat16


def test_a_bucket_is_gathered_and_spread_in_order() -> None:
    parameters = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(2))]
    (bucket,) = buckets_of(parameters, [])
    gradients: list[torch.Tensor | None] = [torch.arange(6.0).view(3, 2).t(), None, torch.ones(2)]
    flat = bucket.gather(gradients, torch.full((9,), -1.0))
    assert flat.tolist() == [0, 2, 4, 1, 3, 5, 0, 1, 1]
    targets: list[torch.Tensor | None] = [torch.zeros(3, 2).t(), None, torch.zeros(2)]
    bucket.spread(flat, targets)
    assert targets[0] is not None
    assert torch.equal(targets[0], gradients[0] if gradients[0] is not None else targets[0])

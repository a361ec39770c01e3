"""What masking switches off while replicas compute, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.comm.helpers import Ensemble
from understudy.comm.group import RoleGroup
from understudy.worker.masked.deferral import DeferredReduction, check_suitable, trained
from understudy.worker.runtime import JobError


def refusal(tracked: dict[str, object], same: tuple[int, ...] = (0, 1), averaged: Any = (), over: Any = (0, 1)) -> str:
    with pytest.raises(JobError) as raised:
        check_suitable(tracked, same, averaged, over)
    return str(raised.value)


def test_a_plain_module_is_averaged_on_request_only() -> None:
    model = nn.Linear(2, 2)
    assert "the gradients of model.weight are not averaged" in refusal({"model": model})
    check_suitable({"model": model}, (0, 1), [model], (0, 1))


def test_masking_is_refused_without_a_twin() -> None:
    assert "none can be masked" in refusal({"model": nn.Linear(2, 2)}, same=(0,))


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(2), nn.SyncBatchNorm(2)])
def test_statistics_of_the_batch_are_refused(norm: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(2, 2), norm)
    assert "model.1" in refusal({"model": model}, averaged=[model])


def test_norms_without_statistics_are_fine() -> None:
    model = nn.Sequential(nn.LayerNorm(2), nn.GroupNorm(1, 2), nn.BatchNorm1d(2, track_running_stats=False))
    check_suitable({"model": model}, (0, 1), [model], (0, 1))


def test_one_set_of_replicas_for_all() -> None:
    model = nn.Linear(2, 2)
    assert "0, 1, 2, 3" in refusal({"model": model}, averaged=[model], over=(0, 1, 2, 3))


def test_frozen_parameters_do_not_matter() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    check_suitable({"model": model}, (0, 1), (), (0, 1))
    assert trained({"model": model, "again": model}) == []


class Reduced(torch.autograd.Function):
    """A backward that sums its gradient over a group, as a framework would."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: RoleGroup) -> torch.Tensor:
        ctx.group = group
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.AVG)
        options.asyncOp = False
        summed = gradient.clone()
        ctx.group.allreduce([summed], options).wait()
        return summed, None


def test_only_what_a_backward_reduces_over_twins_is_deferred() -> None:
    with Ensemble() as ensemble:
        _, (fabric,), (endpoint,) = ensemble.start("m0")
        group, apart = RoleGroup(endpoint), DeferredReduction({}, fabric.endpoints, (0,))
        value = torch.ones(3, requires_grad=True)
        for deferring in (True, False):
            before = endpoint.submitted
            if deferring:
                apart.start()
            Reduced.apply(value, group).sum().backward()  # type: ignore[no-untyped-call]
            assert (endpoint.submitted == before) == deferring
            group.allreduce([torch.ones(1)]).wait()  # the script's own
            assert endpoint.submitted == before + (1 if deferring else 2)
            apart.end()
            apart.end()
        assert apart.deferred == 1
        assert apart.divides


def test_a_sum_is_not_divided_again() -> None:
    apart = DeferredReduction({}, list, (0, 1))
    apart.kinds.add(dist.ReduceOp.SUM)
    assert not apart.divides
    apart.kinds.add(dist.ReduceOp.AVG)
    with pytest.raises(JobError, match="more than one way"):
        assert apart.divides


def test_ddp_is_as_before_afterwards() -> None:
    with Ensemble() as ensemble:
        _, (fabric,), (endpoint,) = ensemble.start("m0")
        ddp = DistributedDataParallel(nn.Linear(2, 2), process_group=RoleGroup(endpoint))
        apart = DeferredReduction({"model": ddp}, fabric.endpoints, (0,))
        apart.start()
        before = endpoint.submitted
        ddp(torch.ones(1, 2)).sum().backward()
        assert endpoint.submitted == before
        apart.end()
        assert ddp.require_backward_grad_sync
        ddp(torch.ones(1, 2)).sum().backward()
        assert endpoint.submitted > before


def test_sparse_gradients_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(4, 2), nn.EmbeddingBag(4, 2, sparse=True))
    with pytest.raises(JobError, match=r"--mask: model\.1 has sparse gradients; make it with sparse=False"):
        DeferredReduction({"model": model}, list, (0, 1))

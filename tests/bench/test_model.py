from __future__ import annotations

import torch

from understudy_bench import model


def test_state_has_the_size_the_benchmarks_speak_of() -> None:
    parameters = sum(parameter.numel() for parameter in model.build(0).parameters())
    assert 9_500_000 < parameters < 10_500_000
    assert 114e6 < parameters * 4 * 3 < 126e6, "parameters and AdamW's two moments"


def test_a_batch_depends_on_step_and_shard_alone() -> None:
    inputs, targets = model.batch(3, 1)
    torch.manual_seed(99)
    again, _ = model.batch(3, 1)
    assert torch.equal(inputs, again)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    for other in (model.batch(3, 2), model.batch(4, 1)):
        assert not torch.equal(inputs, other[0])


def test_parameters_depend_on_the_seed_alone() -> None:
    first, again, other = (model.build(seed).head.weight for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)

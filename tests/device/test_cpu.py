"""The CPU as a device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from understudy.device.cpu import HOST, local_device


@pytest.fixture(autouse=True)
def _random_numbers_as_before() -> Iterator[None]:
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def test_a_worker_without_an_accelerator_trains_on_the_host() -> None:
    device = local_device()
    assert device is HOST
    assert torch.device(device.name) == device.torch_device()


def test_bring_copies_only_what_is_not_contiguous() -> None:
    tensor = torch.arange(6.0).view(2, 3)
    assert HOST.bring(tensor).data_ptr() == tensor.data_ptr()
    turned = HOST.bring(tensor.t())
    assert turned.is_contiguous()
    assert torch.equal(turned, tensor.t())


def test_buffers_are_in_the_memory_of_the_host() -> None:
    assert HOST.holds(HOST.empty((2, 3), torch.bfloat16))
    assert not HOST.holds(torch.empty(2, device="meta"))
    assert HOST.host_empty((5,), torch.uint8).shape == (5,)


@pytest.mark.parametrize("accelerated", [False, True])
def test_random_numbers_follow_from_a_seed_and_from_a_state(monkeypatch: pytest.MonkeyPatch, accelerated: bool) -> None:
    monkeypatch.setattr("understudy.device.cpu._accelerated", lambda: accelerated)
    HOST.seed(7)
    state, first = HOST.rng_state(), torch.rand(3)
    HOST.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)
    HOST.seed(7)
    assert torch.equal(torch.rand(3), first)

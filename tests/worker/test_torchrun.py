"""Scripts for torchrun begin and end the process group: both calls take what is there, or say what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.comm.helpers import Ensemble
from understudy.comm.sandbox import Echo
from understudy.device.torch_private import HashStore
from understudy.worker.process import TorchProcess
from understudy.worker.torchrun import GIVEN


@pytest.fixture
def ensemble() -> Iterator[Ensemble]:
    with Ensemble() as ensemble:
        yield ensemble


@pytest.fixture
def process(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> Iterator[TorchProcess]:
    """Role 0 of 1, in training."""
    monkeypatch.setattr(GIVEN, "_hinted", False)
    ensemble.start("m0")
    process = TorchProcess(ensemble.fabrics[0])
    process.install(1)
    yield process
    process.uninstall()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "understudy.worker"]


def test_the_group_that_is_there_is_taken(process: TorchProcess, caplog: pytest.LogCaptureFixture) -> None:
    group = dist.group.WORLD
    dist.init_process_group()
    dist.init_process_group("gloo", rank=0, world_size=1)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    dist.init_process_group(backend=dist.Backend("understudy"), device_id=torch.device("cpu"))
    dist.destroy_process_group()
    dist.destroy_process_group(dist.group.WORLD)
    assert dist.group.WORLD is group
    assert (dist.is_initialized(), dist.get_rank(), dist.get_world_size()) == (True, 0, 1)
    assert said(caplog) == ["init_process_group is not needed: the runtime begins and ends the process group"]


def test_a_group_of_the_script_is_destroyed(process: TorchProcess, caplog: pytest.LogCaptureFixture) -> None:
    group = dist.new_group([0])
    assert group is not None
    dist.destroy_process_group(group)
    with pytest.raises(ValueError, match="Invalid process group"):
        dist.destroy_process_group(group)
    assert said(caplog) == []


def test_arguments_without_effect_are_named(process: TorchProcess, caplog: pytest.LogCaptureFixture) -> None:
    dist.init_process_group("gloo", "env://", timedelta(minutes=2), pg_options="fast")
    dist.init_process_group(store=HashStore(), rank=0, world_size=1)
    lines = said(caplog)
    assert lines[1:3] == [
        "init_process_group(init_method=env://) has no effect: the workers know one another already",
        "init_process_group(pg_options=fast) has no effect: the process group is there already",
    ]
    assert lines[3].startswith("init_process_group(store=<")
    assert len(lines) == 4


def test_the_timeout_is_that_of_the_group(process: TorchProcess, caplog: pytest.LogCaptureFixture) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=70))
    group: Any = dist.group.WORLD
    assert group.options._timeout == timedelta(seconds=70)
    assert len(said(caplog)) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"backend": "nccl"},
            r'"nccl"\): the workers of this job exchange tensors in cpu memory; write init_process_gro',
        ),
        ({"backend": "mpi"}, r'"mpi"\): '),
        ({"backend": "cuda:nccl"}, r'"cuda:nccl"\): '),
        ({"rank": 1}, r"\(rank=1\): the rank of this process is 0, since it has role 0 of 1; leave rank out"),
        ({"world_size": 8}, r"\(world_size=8\): the world_size of this process is 1"),
        ({"device_id": torch.device("cuda", 0)}, r"exchange tensors in cpu memory; leave device_id out"),
        ({"device_id": 0}, r"\(device_id=0\): "),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], words: str, process: TorchProcess) -> None:
    with pytest.raises(ValueError, match=words):
        dist.init_process_group(**arguments)
    assert dist.is_initialized()


def test_an_unknown_argument_is_refused_as_torch_does(process: TorchProcess) -> None:
    with pytest.raises(TypeError):
        dist.init_process_group(colour="green")  # type: ignore[call-arg]


def test_a_rehearsal_says_nothing(ensemble: Ensemble, caplog: pytest.LogCaptureFixture) -> None:
    (joiner,) = ensemble.hire("m9")
    joiner.assume(0, Echo())
    process = TorchProcess(joiner)
    process.install(2)
    dist.init_process_group("gloo")
    dist.destroy_process_group()
    assert dist.is_initialized()
    process.uninstall()
    assert said(caplog) == []


def test_without_a_worker_the_calls_are_torch_s(process: TorchProcess) -> None:
    """Also for a script that has imported them by name."""
    begin, end = dist.init_process_group, dist.destroy_process_group
    process.uninstall()
    assert not dist.is_initialized()
    begin("gloo", store=HashStore(), rank=0, world_size=1)
    assert dist.get_backend() == "gloo"
    end()
    assert not dist.is_initialized()
    process.install(1)

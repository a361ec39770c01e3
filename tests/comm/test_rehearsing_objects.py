"""Collectives of Python objects in a rehearsal: answered from the recording of the job, or refused in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.comm.helpers import Ensemble
from understudy.comm.group import install, uninstall
from understudy.comm.objects import answer_objects
from understudy.comm.recording import Recorder, Recording
from understudy.comm.sandbox import Echo, Replay, Sandbox, SandboxSeat, Unanswered
from understudy.testing.local_workers import LocalWorker, run_workers

ROLES = 3
Call = Callable[[int, str], Any]


def label(seat: SandboxSeat) -> str:
    return str(seat.key)


def thing(rank: int, where: str) -> dict[str, Any]:
    """Differs in length from role to role, and between the job and a rehearsal."""
    return {"rank": rank, "where": where, "text": "x" * 1000 * rank}


def all_gather_object(rank: int, where: str) -> Any:
    got: list[Any] = [None] * ROLES
    dist.all_gather_object(got, thing(rank, where))
    return got


def gather_object(rank: int, where: str) -> Any:
    got: list[Any] | None = [None] * ROLES if rank == 0 else None
    dist.gather_object(thing(rank, where), got, dst=0)
    return got


def broadcast_object_list(rank: int, where: str) -> Any:
    got = [thing(0, where), "second", 3] if rank == 0 else [None, None, None]
    dist.broadcast_object_list(got, src=0)
    return got


def broadcast_from_another(rank: int, where: str) -> Any:
    got = [thing(2, where)] if rank == 2 else [None]
    dist.broadcast_object_list(got, group_src=2)
    return got


def scatter_object_list(rank: int, where: str) -> Any:
    got: list[Any] = [None]
    dist.scatter_object_list(got, [thing(each, where) for each in range(ROLES)] if rank == 0 else None, src=0)
    return got[0]


def messages(rank: int, where: str) -> Any:
    got: list[Any] = [None, None]
    if rank == 2:
        dist.send_object_list([thing(2, where), "more"], 0)
    if rank == 0:
        return dist.recv_object_list(got, 2), got
    return None


def sizes_first(rank: int, where: str) -> Any:
    """As scripts send lists of different lengths: the size first, into memory that was never written."""
    size = torch.tensor([7]) if rank == 0 else torch.tensor([0x7F8A_3C00_1000])
    dist.broadcast(size, 0)
    values = torch.ones(int(size))
    dist.broadcast(values, 0)
    return len(values)


CALLS: list[Call] = [
    all_gather_object,
    gather_object,
    broadcast_object_list,
    broadcast_from_another,
    scatter_object_list,
    messages,
    sizes_first,
]


def _record(worker: LocalWorker, files: list[str]) -> list[Any]:
    rank = worker.fabric.role
    assert rank is not None
    install(worker.fabric, ROLES)
    answer_objects()
    with Path(files[rank]).open("w+b") as file:
        recorder = Recorder(file, "key", rank, 1 << 20, label)
        worker.fabric.record(recorder)
        got = [call(rank, "job") for call in CALLS]
        dist.barrier()
        worker.fabric.record(None)
        recorder.finish(1)
    uninstall()
    return got


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[list[Any]]]:
    """By role: the recording, and what the calls returned in the job."""
    folder = tmp_path_factory.mktemp("recorded")
    files = [folder / str(role) for role in range(ROLES)]
    return files, run_workers(_record, [1] * ROLES, [str(file) for file in files])


def replay(file: Path, otherwise: Sandbox | None = None) -> Replay:
    with file.open("rb") as opened:
        return Replay(Recording(opened, "key"), label, otherwise or Echo())


@pytest.fixture
def rehearse(ensemble: Ensemble) -> Iterator[Callable[[int, Sandbox], None]]:
    """Take a role in a rehearsal."""
    (joiner,) = ensemble.hire("m9")

    def enter(role: int, sandbox: Sandbox) -> None:
        joiner.assume(role, sandbox)
        install(joiner, ROLES)
        answer_objects()

    yield enter
    uninstall()


@pytest.fixture
def ensemble() -> Iterator[Ensemble]:
    with Ensemble() as ensemble:
        yield ensemble


@pytest.mark.parametrize("role", range(ROLES))
def test_a_joiner_gets_the_objects_of_the_job(
    role: int, recorded: tuple[list[Path], list[list[Any]]], rehearse: Callable[[int, Sandbox], None]
) -> None:
    """What the joiner gives may have another size than what was recorded; that is no difference."""
    files, results = recorded
    sandbox = replay(files[role])
    rehearse(role, sandbox)
    got = [call(role, "a rehearsal in another place") for call in CALLS]
    own = [thing(0, "a rehearsal in another place"), "second", 3], [thing(2, "a rehearsal in another place")]
    expected = list(results[role])
    if role == 0:
        expected[2], expected[4] = own[0], own[0][0]
    if role == 2:
        expected[3] = own[1]
    assert got == expected
    sandbox.begin(1)
    assert sandbox.diverged == ""


@pytest.mark.parametrize("role", [1, 2])
def test_a_recording_of_another_role(
    role: int, recorded: tuple[list[Path], list[list[Any]]], rehearse: Callable[[int, Sandbox], None]
) -> None:
    """Role 0, which was the root, has recorded for its twins."""
    files, results = recorded
    sandbox = replay(files[0])
    rehearse(role, sandbox)
    got = [call(role, "a rehearsal") for call in CALLS[:5]]
    expected = [results[0][0], None, results[0][2], results[0][3], results[0][4]]
    if role == 2:
        expected[3] = [thing(2, "a rehearsal")]
    assert got == expected
    assert sandbox.diverged == ""


def test_a_recording_of_a_role_that_was_not_the_root(
    recorded: tuple[list[Path], list[list[Any]]], rehearse: Callable[[int, Sandbox], None]
) -> None:
    """The root's own object stands for those that were not recorded."""
    files, results = recorded
    sandbox = replay(files[1])
    rehearse(0, sandbox)
    assert all_gather_object(0, "a rehearsal") == results[1][0]
    assert gather_object(0, "a rehearsal") == [thing(0, "a rehearsal")] * ROLES
    assert broadcast_object_list(0, "a rehearsal")[1:] == ["second", 3]
    assert sandbox.diverged == ""


def test_without_a_recording_what_a_role_gives_stands_for_all(rehearse: Callable[[int, Sandbox], None]) -> None:
    rehearse(0, Echo())
    mine = thing(0, "here")
    assert all_gather_object(0, "here") == [mine] * ROLES
    assert gather_object(0, "here") == [mine] * ROLES
    assert broadcast_object_list(0, "here") == [mine, "second", 3]
    assert scatter_object_list(0, "here") == mine
    dist.send_object_list([mine], 1)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (broadcast_object_list, "broadcast_object_list"),
        (broadcast_from_another, "broadcast_object_list"),
        (scatter_object_list, "scatter_object_list"),
        (lambda rank, where: dist.recv_object_list([None], 0), "recv_object_list"),
    ],
)
def test_without_a_recording_objects_of_others_are_not_made_up(
    call: Call, name: str, rehearse: Callable[[int, Sandbox], None]
) -> None:
    rehearse(1, Echo())
    with pytest.raises(Unanswered, match=rf"^{name} in group .*--recording-limit"):
        call(1, "here")


def test_after_a_difference_objects_are_not_made_up(
    recorded: tuple[list[Path], list[list[Any]]], rehearse: Callable[[int, Sandbox], None]
) -> None:
    sandbox = replay(recorded[0][1])
    rehearse(1, sandbox)
    dist.all_reduce(torch.ones(3))
    assert "all_reduce(sum) of 3 float32" in sandbox.diverged
    with pytest.raises(Unanswered):
        broadcast_object_list(1, "here")


def test_memory_that_was_never_written_becomes_no_size(rehearse: Callable[[int, Sandbox], None]) -> None:
    rehearse(1, Echo())
    assert sizes_first(1, "here") == 1
    value = torch.tensor([float("nan"), float("inf"), -2.5])
    dist.broadcast(value, 0)
    assert value.tolist() == [0.0, 0.0, -2.5]
    counts = torch.tensor([3, -1, -(1 << 40)])
    dist.broadcast(counts, 0)
    assert counts.tolist() == [3, -1, 1]


def test_objects_are_recorded_beyond_the_limit(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        recorder = Recorder(file, "key", 0, 8, lambda seat: "group")
        recorder.note(None, "broadcast", 0, [torch.ones(100)])
        recorder.note(None, "broadcast", 0, [torch.ones(100, dtype=torch.uint8)])
        recorder.finish(1)
        kept = [Recording(file, "key").data(entry.results[0]) for entry in Recording(file, "key")]
    assert kept[0] is None
    assert kept[1] is not None
    assert bytes(kept[1]) == bytes([1]) * 100

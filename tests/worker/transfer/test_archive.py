"""When a role's state is written to disk, and for which roles a worker writes."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch import nn

from understudy.comm.fabric import Fabric
from understudy.protocol.messages import FromWorker, Saved, Telemetry, WorkerSpec
from understudy.protocol.options import with_options
from understudy.protocol.roster import Roster, WorkerAddress
from understudy.protocol.settings import Settings
from understudy.state.checkpoint import CheckpointFolder, FolderWriter
from understudy.state.inventory import take_inventory
from understudy.worker.transfer.archive import Archive

WORKERS = [WorkerAddress(f"w{role}", f"m{role}") for role in range(7)]
FIRST = Roster.of(1, [(role, worker.uid) for role, worker in enumerate(WORKERS)], WORKERS)


class Scene:
    """Role 0 of seven that hold the same."""

    def __init__(self, folder: Path | None, *, mask: str, every: int = 0) -> None:
        self.said: list[FromWorker | Telemetry] = []
        self.current = SimpleNamespace(roster=FIRST)
        self.spec = WorkerSpec(
            *("w0", "m0", 0, "job", b"x", "train.py", (), 1, (("dp", 7),)),
            settings=with_options(Settings(), checkpoint=str(folder or ""), checkpoint_every=every, mask=mask),
        )
        tracked = {"model": nn.Linear(2, 2)}
        fabric = cast("Fabric", self.current)
        self.archive = Archive(
            *(self.spec, fabric, 0, tracked, tuple(range(7)), self.said.append),
            inventory_for=lambda role, step: take_inventory(tracked),
        )
        self.archive.entered(FIRST)

    def enter(self, *vacant: int) -> None:
        number = self.current.roster.generation + 1
        self.current.roster = FIRST.successor(dict.fromkeys(vacant), generation=number, fresh=True)
        self.archive.entered(self.current.roster)

    def saved(self) -> list[tuple[int, int]]:
        self.archive.close()
        return sorted((said.step, said.role) for said in self.said if isinstance(said, Saved))


def test_before_another_loss_would_be_one_too_many(tmp_path: Path) -> None:
    scene = Scene(tmp_path, mask="spare:r=2")
    scene.archive.boundary(1)
    scene.enter(3)
    scene.archive.boundary(2)
    scene.archive.boundary(3)
    assert scene.saved() == [(2, 0), (2, 3)]


def test_no_worker_leaves_while_a_checkpoint_begins_or_is_written(tmp_path: Path) -> None:
    scene = Scene(tmp_path, mask="", every=3)
    scene.archive.boundary(1)
    assert scene.archive.lets_go(1)
    scene.archive.boundary(2)
    assert not scene.archive.lets_go(2)  # the next boundary is one where it begins
    scene.archive.boundary(3)
    scene.saved()
    assert scene.archive.lets_go(3)
    scene.archive.boundary(5)
    assert scene.archive.lets_go(5)  # it was put off for one; that the next begins with the joiner does no harm
    assert scene.saved() == [(3, 0)]


def test_what_is_written_is_written_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step writes a checkpoint, and the disk is slow: one is put off, the next is waited for."""
    scene, go_on = Scene(tmp_path, mask="", every=1), threading.Event()
    write = FolderWriter._write

    def slow(writer: FolderWriter, *args: Any) -> None:
        go_on.wait(30)
        write(writer, *args)

    monkeypatch.setattr(FolderWriter, "_write", slow)
    scene.archive.boundary(1)
    assert not scene.archive.lets_go(1)
    assert not scene.archive.lets_go(1)
    go_on.set()
    scene.archive.boundary(2)
    assert scene.archive.lets_go(2)
    assert [said.step for said in scene.said if isinstance(said, Saved)] == [1, 2]


def test_if_all_replicas_have_all_data_only_the_last_one_writes(tmp_path: Path) -> None:
    scene = Scene(tmp_path, mask="anywhere")
    scene.enter(1, 2, 3)
    scene.archive.boundary(2)
    scene.enter(1, 2, 3, 4, 5, 6)
    scene.archive.boundary(5)
    assert scene.saved() == [(5, role) for role in range(7)]
    assert CheckpointFolder(tmp_path, 7, pytest.fail).complete() == [5]


def test_the_first_live_replica_writes_for_the_lost_ones(tmp_path: Path) -> None:
    scene = Scene(tmp_path, mask="anywhere", every=2)
    scene.enter(2, 4)
    scene.archive.boundary(4)
    assert scene.saved() == [(4, 0), (4, 2), (4, 4)]
    store = CheckpointFolder(tmp_path, 7, pytest.fail)
    parts = [sorted(file.name for file in store.part(4, role).iterdir()) for role in (0, 2, 4)]
    assert parts[0] == parts[1] == parts[2]
    assert "done" in parts[0]


def test_others_write_their_own_part_only(tmp_path: Path) -> None:
    scene = Scene(tmp_path, mask="anywhere", every=2)
    scene.archive.become(5, tuple(range(7)))
    scene.enter(2, 4)
    scene.archive.boundary(4)
    assert scene.saved() == [(4, 5)]


def test_nothing_is_written_without_a_folder() -> None:
    scene = Scene(None, mask="spare:r=2", every=1)
    scene.enter(3)
    scene.archive.boundary(2)
    assert scene.saved() == []

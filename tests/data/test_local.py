"""Local shards: each shard of the replica's stack is complete and right, or absent, after any copying."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from understudy.data import DataError, Local, Tokens, cut, files
from understudy.data.shards import ShardFolder, open_shards
from understudy.masking.placement import PlacementError, golomb

REPLICAS = 7
LIMIT = 10


@pytest.fixture
def source(tmp_path: Path) -> ShardFolder:
    np.arange(700).astype("<u2").tofile(tmp_path / "tokens")
    cut(tmp_path / "tokens", tmp_path / "source", REPLICAS)
    return open_shards(tmp_path / "source")


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    gc.collect()
    assert not [thread for thread in threading.enumerate() if "local shards" in thread.name]
    assert not list(tmp_path.glob("**/*.part"))


class Gate:
    """Stands in for `files.write`: lets some writes through, then fails, or waits until it is opened."""

    def __init__(self, through: int, error: OSError | None = None) -> None:
        self.left, self.error = through, error
        self.reached, self.open = threading.Event(), threading.Event()
        self.real = files.write

    def __call__(self, file: int, piece: memoryview | bytes) -> None:
        self.left -= 1
        if self.left < 0:
            self.real(file, piece[:5])
            self.reached.set()
            if self.error is not None:
                raise self.error
            assert self.open.wait(LIMIT)
            piece = piece[5:]
        self.real(file, piece)


def here(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def names(source: ShardFolder, *shards: int) -> set[str]:
    return {source.path(shard).name for shard in shards}


def test_a_replica_gets_its_stack_and_nothing_else(source: ShardFolder, tmp_path: Path) -> None:
    held = Local(tmp_path / "disk", source.folder, "spare:r=3", 2)
    assert held.stack == golomb(REPLICAS, 3).stack(2)
    held.wait()
    assert here(tmp_path / "disk") == names(source, *held.stack)
    assert str(held.report()) == f"3 of 3 shards in {tmp_path / 'disk'}, 600 bytes of 600 bytes"
    stranger = next(shard for shard in range(REPLICAS) if shard not in held.stack)
    with pytest.raises(
        DataError, match=rf"replica 2 does not hold shard {stranger}: it holds shards 2, .* \(spare:r=3\)"
    ):
        held.path(stranger)


def test_batches_are_the_same_as_from_the_source(source: ShardFolder, tmp_path: Path) -> None:
    held = Local(tmp_path / "disk", source.folder, golomb(REPLICAS, 3), 4)
    near, far = Tokens(held, 8, 2, prefetch=1), Tokens(source.folder, 8, 2)
    for step in range(12):
        for shard in held.stack:
            for number in (2 * shard, 2 * shard + 1):
                for one, other in zip(near.batch(step, (number, 14)), far.batch(step, (number, 14)), strict=True):
                    assert torch.equal(one, other)
    near.close()


def test_the_own_shard_is_copied_first_and_a_requested_one_does_not_wait(
    source: ShardFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(1)
    monkeypatch.setattr(files, "write", gate)
    held = Local(tmp_path / "disk", source.folder, "spare:r=3", 0)
    assert gate.reached.wait(LIMIT)
    assert here(tmp_path / "disk") == names(source, 0)
    assert held.report().here == 1
    monkeypatch.setattr(files, "write", gate.real)
    held.path(held.stack[2])
    assert here(tmp_path / "disk") == names(source, 0, held.stack[2])
    gate.open.set()
    held.wait()
    assert held.report().here == 3


def test_what_is_interrupted_is_removed_and_goes_on_later(
    source: ShardFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(1)
    monkeypatch.setattr(files, "PIECE", 50)
    monkeypatch.setattr(files, "write", gate)
    gate.left = 5  # a shard has four pieces
    held = Local(tmp_path / "disk", source.folder, "spare:r=3", 0)
    assert gate.reached.wait(LIMIT)
    closing = threading.Thread(target=held.close)
    closing.start()
    assert held._fetching._stop.wait(LIMIT)
    gate.open.set()
    closing.join(LIMIT)
    assert [path.name for path in (tmp_path / "disk").iterdir()] == [*names(source, 0)]
    with pytest.raises(DataError, match=r"is not in .*, and copying has been ended"):
        held.path(held.stack[1])

    again = Gate(8)  # two shards are missing
    monkeypatch.setattr(files, "write", again)
    Local(tmp_path / "disk", source.folder, "spare:r=3", 0).wait()
    assert here(tmp_path / "disk") == names(source, *held.stack)
    assert again.left == 0


def test_what_a_killed_process_left_is_taken_over(source: ShardFolder, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    for shard in range(REPLICAS):
        files.partial_path(folder / source.path(shard).name).write_bytes(b"half of it, or too much" * 50)
    held = Local(folder, source.folder, "spare:r=3", 5)
    held.wait()
    assert here(folder) == names(source, *held.stack)
    for shard in held.stack:
        assert held.path(shard).read_bytes() == source.path(shard).read_bytes()


def test_two_processes_share_a_folder(source: ShardFolder, tmp_path: Path) -> None:
    """While another process writes a shard, this one waits for it; if that one dies, it does the work."""
    folder = tmp_path / "disk"
    folder.mkdir()
    part = files.partial_path(folder / source.path(0).name)
    other = os.open(part, os.O_RDWR | os.O_CREAT)
    fcntl.flock(other, fcntl.LOCK_EX)
    os.write(other, b"half")
    held = Local(folder, source.folder, "off", 0)
    assert part.read_bytes() == b"half"
    os.close(other)
    assert held.path(0).read_bytes() == source.path(0).read_bytes()


def test_a_full_disk_is_told_and_leaves_nothing_half_written(
    source: ShardFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(1, OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(files, "write", gate)
    held = Local(tmp_path / "disk", source.folder, "spare:r=3", 0)
    sentence = "no space is left in .*disk after 0 bytes of shard-.*; free some, or name another folder"
    with pytest.raises(DataError, match=sentence):
        held.wait()
    held._fetching._thread.join(LIMIT)
    assert [path.name for path in (tmp_path / "disk").iterdir()] == [*names(source, 0)]
    assert "1 of 3 shards" in str(held.report())
    assert "no space is left" in str(held.report())
    monkeypatch.setattr(files, "write", gate.real)
    held.wait()
    assert held.report().failed == ()


def test_too_small_a_disk_is_told_at_once(source: ShardFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 500

    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage)
    with pytest.raises(DataError, match=r"600 bytes of shards are to be copied to .*, which has 500 bytes left"):
        Local(tmp_path / "disk", source.folder, "spare:r=3", 0)
    Local(tmp_path / "disk", source.folder, "off", 0).wait()


def test_a_damaged_shard_is_told_and_not_kept(source: ShardFolder, tmp_path: Path) -> None:
    content = bytearray(source.path(3).read_bytes())
    content[17] ^= 1
    source.path(3).write_bytes(content)
    held = Local(tmp_path / "disk", source.folder, "off", 3)
    with pytest.raises(DataError, match=r"is not what its index says: digest .*, not .*; it was changed or damaged"):
        held.path(3)
    held.close()
    assert not list((tmp_path / "disk").iterdir())


def test_a_source_that_is_missing_or_too_short_is_told(source: ShardFolder, tmp_path: Path) -> None:
    source.path(0).unlink()
    source.path(1).write_bytes(b"x" * 10)
    for replica, sentence in ((0, "cannot be read: No such file"), (1, "ends after 10 bytes of 200 bytes")):
        with pytest.raises(DataError, match=sentence):
            Local(tmp_path / "disk", source.folder, "off", replica).wait()
    with pytest.raises(DataError, match=r"there are no shards in nowhere: it has no index\.json"):
        Local(tmp_path / "disk", "nowhere", "off", 0)


def test_numbers_that_do_not_fit_are_told(source: ShardFolder, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with pytest.raises(PlacementError, match="r=8 holders per shard need 8 replicas and there are 7"):
        Local(disk, source.folder, "spare:r=8", 0)
    with pytest.raises(PlacementError, match="spare:r=4 does not fit: with 7 replicas at most r=3 is possible"):
        Local(disk, source.folder, "spare:r=4", 0)
    with pytest.raises(DataError, match="has 7 shards and there are 13 replicas; cut it into one shard for each"):
        Local(disk, source.folder, golomb(13, 3), 0)
    with pytest.raises(DataError, match="there is no replica 7: they are numbered 0 to 6"):
        Local(disk, source.folder, "off", 7)
    disk.write_text("a file")
    with pytest.raises(DataError, match=r"folder .* for local shards cannot be made: File exists"):
        Local(disk, source.folder, "off", 0)


def test_a_process_that_ends_while_copying_leaves_nothing_half_written(source: ShardFolder, tmp_path: Path) -> None:
    script = f"""
import threading
from understudy.data import Local, files
reached, real = threading.Event(), files.write
def write(file, piece):
    real(file, piece)
    reached.set()
    held._fetching._stop.wait({LIMIT})
files.write, files.PIECE = write, 50
held = Local({str(tmp_path / "disk")!r}, {str(source.folder)!r}, "off", 0)
assert reached.wait({LIMIT})
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    assert not list((tmp_path / "disk").iterdir())

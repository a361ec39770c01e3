"""Token files: windows, batches, shards that were cut from them, and what is wrong with a file."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from understudy.data import DataError, Tokens, cut, files
from understudy.data.shards import open_shards


def tokens(path: Path, first: int, count: int, dtype: str = "<u2") -> Path:
    np.arange(first, first + count).astype(dtype).tofile(path)
    return path


def windows(data: Tokens, count: int, steps: int, numbers: range) -> list[tuple[int, ...]]:
    return [
        tuple(row.tolist())
        for step in range(steps)
        for number in numbers
        for row in data.batch(step, (number, count))[0]
    ]


def test_targets_are_one_further_than_inputs(tmp_path: Path) -> None:
    data = Tokens(tokens(tmp_path / "a", 0, 100), context=8, batch=3)
    inputs, targets = data.batch(4, (1, 2))
    assert inputs.shape == targets.shape == (3, 8)
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    assert torch.equal(inputs + 1, targets)
    assert all(start % 8 == 0 for start in inputs[:, 0].tolist())


def test_an_epoch_has_every_window_once_and_none_across_files(tmp_path: Path) -> None:
    data = Tokens(
        [tokens(tmp_path / "a", 0, 41), tokens(tmp_path / "b", 1000, 25), tokens(tmp_path / "c", 2000, 9)], 8, 3
    )
    assert data.windows == 5 + 3 + 1
    starts = [*range(0, 40, 8), *range(1000, 1024, 8), 2000]
    assert sorted(windows(data, 3, 1, range(3))) == [tuple(range(start, start + 8)) for start in starts]


def test_a_file_need_not_be_longer_than_its_windows(tmp_path: Path) -> None:
    assert Tokens(tokens(tmp_path / "a", 0, 17), 8, 1).windows == 2
    assert Tokens(tokens(tmp_path / "b", 0, 16), 8, 1).windows == 1


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int16", "int32", "int64"])
def test_every_kind_of_token_is_read_from_raw_bytes(dtype: str, tmp_path: Path) -> None:
    path = tokens(tmp_path / "a", 3, 9, np.dtype(dtype).newbyteorder("<").str)
    assert Tokens(path, 8, 1, dtype=dtype, vocabulary=12).batch(0, (0, 1))[1].tolist() == [[*range(4, 12)]]


def test_made_ahead_it_is_the_same(tmp_path: Path) -> None:
    path = tokens(tmp_path / "a", 0, 1000)
    plain, ahead = Tokens(path, 8, 2), Tokens(path, 8, 2, prefetch=2)
    for step in range(5):
        assert torch.equal(plain.batch(step, (0, 1))[0], ahead.batch(step, (0, 1))[0])
    ahead.close()


def test_what_is_cut_has_all_tokens_and_each_shard_draws_from_its_own(tmp_path: Path) -> None:
    paths = [tokens(tmp_path / "a", 0, 130), tokens(tmp_path / "b", 200, 70)]
    index = cut(paths, tmp_path / "cut", 4)
    folder = open_shards(tmp_path / "cut")
    assert folder.index == index
    assert [piece.runs for piece in index.shards] == [(50,), (50,), (30, 20), (50,)]
    whole = np.concatenate([np.fromfile(folder.path(k), "<u2") for k in range(4)])
    assert whole.tolist() == [*range(130), *range(200, 270)]
    data = Tokens(tmp_path / "cut", 8, 2)
    expected = {k: {range(start, start + 8) for start in starts} for k, starts in STARTS.items()}
    for k in range(4):
        drawn = windows(data, 8, 3, range(2 * k, 2 * k + 2))
        assert {range(row[0], row[-1] + 1) for row in drawn} == expected[k]


STARTS = {0: range(0, 48, 8), 1: range(50, 98, 8), 2: (100, 108, 116, 200, 208), 3: range(220, 268, 8)}


def test_cutting_leaves_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tokens(tmp_path / "a", 0, 100)
    left = [3]

    def write(file: int, piece: memoryview | bytes) -> None:
        left[0] -= 1
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", write)
        with pytest.raises(DataError, match=r"no space is left in .* after 0 bytes of shard-00002"):
            cut(path, tmp_path / "cut", 4)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
    cut(path, tmp_path / "cut", 4)
    with pytest.raises(DataError, match="is there already; remove it, or name another folder"):
        cut(path, tmp_path / "cut", 4)


@pytest.mark.parametrize(
    ("content", "settings", "sentence"),
    [
        (b"x" * 21, {}, "has 21 bytes, which is no number of uint16 tokens of 2 bytes each"),
        (b"", {}, "has 0 bytes"),
        (b"x" * 22, {"dtype": "uint32"}, "has 22 bytes, which is no number of uint32 tokens of 4 bytes each"),
        (b"x" * 16, {}, "has 8 uint16 tokens, too few for a context of 8 and a target"),
        (b"\x93NUMPY" + bytes(100), {}, "is in numpy's format, with a header; write raw tokens with array.tofile"),
        (b"x" * 100, {"dtype": "float32"}, "tokens cannot be of dtype 'float32'; there are uint8, uint16"),
        (b"x" * 100, {"context": 0}, "the context must be at least one token, not 0"),
        (b"x" * 100, {"batch": 0}, "at least one sample in a batch, not 0"),
        (b"x" * 100, {"drop": True, "batch": 9}, "9 samples for each of 1 micro-shards are 9 and there are 6"),
        (None, {}, "token file FILE cannot be read: No such file"),
    ],
)
def test_a_file_that_does_not_fit_is_told(
    content: bytes | None, settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(sentence.replace("FILE", str(path)))):
        Tokens(path, **{"context": 8, "batch": 2, **settings})


def test_tokens_that_are_not_of_the_vocabulary_are_told(tmp_path: Path) -> None:
    data = Tokens(tokens(tmp_path / "a", 0, 90), 8, 11, vocabulary=85)
    with pytest.raises(DataError, match="has token 85, which is not of the vocabulary of 85; are its tokens uint16"):
        data.batch(0, (0, 1))


def test_shards_that_do_not_fit_are_told(tmp_path: Path) -> None:
    path = tokens(tmp_path / "a", 0, 100)
    with pytest.raises(DataError, match="no token file is named"):
        Tokens([], 8, 1)
    with pytest.raises(DataError, match="has no index"):
        Tokens(tmp_path, 8, 1)
    with pytest.raises(DataError, match="100 tokens cannot be cut into 101 shards"):
        cut(path, tmp_path / "cut", 101)
    cut(path, tmp_path / "cut", 10)
    with pytest.raises(DataError, match="shard 0 has at most 10 tokens in a row, too few for a context of 10"):
        Tokens(tmp_path / "cut", 10, 1)
    with pytest.raises(DataError, match="these shards are of uint16 tokens, not int32"):
        Tokens(tmp_path / "cut", 8, 1, dtype="int32")
    with pytest.raises(DataError, match="4 micro-shards cannot be shared out evenly among 10 shards"):
        Tokens(tmp_path / "cut", 8, 1).batch(0, (0, 4))
    folder = open_shards(tmp_path / "cut")
    tokens(folder.path(0), 0, 7)
    with pytest.raises(DataError, match="has 7 tokens and its index says 10"):
        Tokens(folder, 8, 1).batch(0, (0, 10))


def test_an_index_that_does_not_fit_is_told(tmp_path: Path) -> None:
    cut(tokens(tmp_path / "a", 0, 100), tmp_path / "cut", 2)
    path = tmp_path / "cut" / "index.json"
    index = json.loads(path.read_bytes())
    index["shards"][1]["file"] = "../a"
    path.write_text(json.dumps(index))
    with pytest.raises(DataError, match=re.escape("does not fit together at '../a'")):
        open_shards(tmp_path / "cut")
    path.write_text("{")
    with pytest.raises(DataError, match="is no index of shards"):
        open_shards(tmp_path / "cut")

"""A recording gives back what it was given, and a file that is none is refused."""

from __future__ import annotations

import io
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy.comm.links.link import bytes_of
from understudy.comm.ops import signature
from understudy.comm.recording import (
    LOST,
    RecordedOperation,
    RecordedTensor,
    Recorder,
    Recording,
    RecordingError,
    RecordingIndex,
    called,
    digest_of,
)

KEY = "this program"
MARK = signature("all_reduce", torch.float32, 4, 0)


def recorder(file: IO[bytes], limit: int = 1 << 20) -> Recorder:
    return Recorder(file, KEY, 3, limit, label=str)


def recorded(fill: Callable[[Recorder], None], limit: int = 1 << 20, steps: int = 1) -> tuple[Recording, bytes]:
    """What was kept, and the file as it is."""
    with tempfile.TemporaryFile() as file:
        it = recorder(file, limit)
        fill(it)
        digest, size = it.finish(steps)
        assert digest == digest_of(file)
        file.seek(0)
        content = file.read()
        assert len(content) == size
        return Recording(file, KEY), content


def reading(content: bytes, key: str = KEY) -> Recording:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        return Recording(file, key)


def kept(recording: Recording, entry: RecordedOperation) -> list[bytes | None]:
    return [None if (data := recording.data(result)) is None else bytes(data) for result in entry.results]


# -- what was kept -----------------------------------------------------------------------------------------------------

TENSORS = {
    "float32": torch.arange(6.0),
    "bfloat16": torch.arange(5, dtype=torch.bfloat16),
    "float8": torch.arange(3.0).to(torch.float8_e4m3fn),
    "bool": torch.tensor([True, False, True]),
    "complex64": torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64),
    "int64": torch.tensor([-1, 1 << 60]),
    "not a number": torch.tensor([float("nan"), -0.0]),
    "empty": torch.empty(0),
    "empty in two dimensions": torch.empty(3, 0, dtype=torch.int8),
    "scalar": torch.tensor(7.0),
    "columns": torch.arange(12.0).reshape(3, 4).t(),
    "every other": torch.arange(10, dtype=torch.int16)[::2],
    "one of many copies": torch.ones(1).expand(4),
    "with a gradient": torch.ones(2, requires_grad=True),
}


@pytest.mark.parametrize("name", TENSORS)
def test_what_goes_in_comes_out(name: str) -> None:
    tensor = TENSORS[name]
    recording, _ = recorded(lambda it: it.note("g", "all_reduce", MARK, [tensor]))
    (entry,) = recording
    assert kept(recording, entry) == [bytes(bytes_of(tensor.contiguous()))]


def test_operations_in_their_order_with_what_is_known_of_them() -> None:
    message = signature("send", torch.int8, 2)

    def fill(it: Recorder) -> None:
        it.note("a", "all_gather", MARK, [torch.zeros(2), torch.ones(2)])
        it.phase = 1
        it.note("b", "recv", message, [torch.tensor([1, 2], dtype=torch.int8)], 4, 5)
        it.note("a", "gather", MARK, [])
        it.phase = 2
        it.note("b", "all_reduce", MARK, [torch.ones(1)])

    recording, _ = recorded(fill, steps=2)
    assert (recording.index.key, recording.index.role, recording.index.steps) == (KEY, 3, 2)
    assert [(entry.phase, entry.group, entry.kind, entry.peer, entry.tag) for entry in recording] == [
        (0, "a", "all_gather", 0, 0),
        (1, "b", "recv", 4, 5),
        (1, "a", "gather", 0, 0),
        (2, "b", "all_reduce", 0, 0),
    ]
    entries = list(recording)
    assert kept(recording, entries[0]) == [bytes(8), bytes(bytes_of(torch.ones(2)))]
    assert kept(recording, entries[1]) == [b"\1\2"]
    assert kept(recording, entries[2]) == []
    assert called("recv", entries[1].mark) == "recv of 2 int8"
    assert called("all_reduce", entries[3].mark) == "all_reduce(sum) of 4 float32"


def test_what_is_changed_afterwards_is_kept_as_it_was() -> None:
    value = torch.ones(3)

    def fill(it: Recorder) -> None:
        it.note("g", "all_reduce", MARK, [value])
        value.zero_()

    recording, _ = recorded(fill)
    (entry,) = recording
    assert kept(recording, entry) == [bytes(bytes_of(torch.ones(3)))]


def test_equal_contents_are_kept_once() -> None:
    value = torch.rand(1000)

    def fill(it: Recorder) -> None:
        for group in ("a", "b", "a"):
            it.note(group, "all_gather", MARK, [value, value.clone(), value.view(torch.int32)])

    recording, content = recorded(fill)
    assert len({result for entry in recording for result in entry.results}) == 1
    assert len(content) < 2 * 4000


def test_what_is_over_the_limit_is_lost_and_the_order_stays() -> None:
    def fill(it: Recorder) -> None:
        for number in (1, 2, 3):
            it.note("g", "all_reduce", MARK, [torch.full((10,), float(number))])
        it.note("g", "all_reduce", MARK, [torch.full((10,), 1.0)])  # known
        it.note("g", "all_reduce", MARK, [torch.full((10,), 3.0)])  # known to be lost
        it.note("g", "all_reduce", MARK, [torch.tensor([7.0]), torch.zeros(10)])  # one of them still fits

    recording, _ = recorded(fill, limit=84)
    found = [[None if data is None else data[:4] for data in kept(recording, entry)] for entry in recording]
    one, two, seven = (bytes(bytes_of(torch.tensor([value]))) for value in (1.0, 2.0, 7.0))
    assert found == [[one], [two], [None], [one], [None], [seven, None]]
    assert [entry.results[0].length for entry in recording] == [40, 40, 40, 40, 40, 4]


def test_with_no_room_at_all_there_is_still_the_order() -> None:
    recording, _ = recorded(lambda it: it.note("g", "all_reduce", MARK, [torch.ones(1), torch.empty(0)]), limit=0)
    (entry,) = recording
    assert kept(recording, entry) == [None, b""]


def test_several_threads() -> None:
    """Those of one group keep their order, and no content is torn."""

    def fill(it: Recorder) -> None:
        def use(group: int) -> None:
            for number in range(50):
                it.note(group, "all_reduce", number, [torch.full((100,), float(group * 1000 + number))])

        threads = [threading.Thread(target=use, args=(group,)) for group in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    recording, _ = recorded(fill)
    for group in range(4):
        entries = [entry for entry in recording if entry.group == str(group)]
        assert [entry.mark for entry in entries] == list(range(50))
        for number, entry in enumerate(entries):
            assert kept(recording, entry) == [bytes(bytes_of(torch.full((100,), float(group * 1000 + number))))]


# -- what goes wrong while it is made ----------------------------------------------------------------------------------


class Full(io.BytesIO):
    """A disk on which there is no room after the first bytes."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 100:
            raise OSError(28, "No space left on device")
        return super().write(data)


def test_a_full_disk_spoils_it_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    it = recorder(Full())
    it.note("g", "all_reduce", MARK, [torch.ones(10)])
    assert not it.spoilt
    for number in range(3):
        it.note("g", "all_reduce", MARK, [torch.full((100,), float(number))])
        assert it.spoilt
    assert [record.message for record in caplog.records] == [
        "all_reduce(sum) of 4 float32 was not recorded: [Errno 28] No space left on device"
    ]


def test_a_file_that_was_closed_spoils_it() -> None:
    file = io.BytesIO()
    it = recorder(file)
    file.close()
    it.note("g", "all_reduce", MARK, [torch.ones(10)])
    assert it.spoilt


def test_memory_without_bytes_spoils_it() -> None:
    it = recorder(io.BytesIO())
    it.note("g", "all_reduce", MARK, [torch.ones(10, device="meta")])
    assert it.spoilt


def test_what_comes_after_the_end_changes_nothing() -> None:
    """A message may have been under way when the last step that is recorded ended."""
    with tempfile.TemporaryFile() as file:
        it = recorder(file)
        digest, size = it.finish(1)
        it.note("g", "recv", MARK, [torch.ones(10)])
        assert not it.spoilt
        file.flush()
        assert (digest_of(file), file.tell()) == (digest, size)


# -- what is no recording ----------------------------------------------------------------------------------------------


def some() -> bytes:
    def fill(it: Recorder) -> None:
        it.note("a", "all_reduce", MARK, [torch.arange(8.0)])
        it.phase = 1
        it.note("a", "recv", MARK, [torch.arange(3)], 1, 2)

    return recorded(fill)[1]


def made(*results: RecordedTensor, data: bytes = b"12345678") -> bytes:
    index = msgspec.msgpack.encode(
        RecordingIndex(KEY, 0, 1, (RecordedOperation(0, "g", "all_reduce", MARK, 0, 0, results),))
    )
    return data + index + len(index).to_bytes(8, "little") + b"understu"


def test_a_file_that_is_cut_short_at_any_length() -> None:
    content = some()
    for length in range(len(content)):
        with pytest.raises(RecordingError):
            reading(content[:length])
    assert list(reading(content))


def test_a_file_without_its_beginning() -> None:
    """Its end can be read, but what it speaks of is not there."""
    content = some()
    for missing in range(1, 32):
        with pytest.raises(RecordingError, match="cut short"):
            reading(content[missing:])


@given(st.binary(max_size=200))
def test_garbage(content: bytes) -> None:
    with pytest.raises(RecordingError):
        reading(content)


@given(st.binary(max_size=100), st.integers(0, (1 << 64) - 1))
def test_garbage_with_a_right_end(content: bytes, length: int) -> None:
    for claimed in (length, length % 101, len(content)):
        with pytest.raises(RecordingError):
            reading(content + claimed.to_bytes(8, "little") + b"understu")


@given(st.data())
def test_damage(data: st.DataObject) -> None:
    """A byte of the index or the trailer is another one: it is refused, or says something else about the same file."""
    content = bytearray(some())
    where = data.draw(st.integers(0, len(content) - 1))
    content[where] = data.draw(st.integers(0, 255))
    try:
        recording = reading(bytes(content))
    except RecordingError:
        return
    for entry in recording:
        for result in entry.results:
            found = recording.data(result)
            assert found is None or len(found) == result.length


def test_another_ending() -> None:
    with pytest.raises(RecordingError, match="this is no recording"):
        reading(some()[:-1] + b"x")


def test_another_program() -> None:
    with pytest.raises(RecordingError, match="of another script, mesh or version"):
        reading(some(), key="another program")


@pytest.mark.parametrize(
    "result",
    [
        RecordedTensor(0, 9),  # reaches into the index
        RecordedTensor(8, 1),
        RecordedTensor(9, 0),
        RecordedTensor(1 << 62, 1),
        RecordedTensor(0, 1 << 62),
        RecordedTensor(-2, 2),
        RecordedTensor(-8, 8),
        RecordedTensor(4, -2),
        RecordedTensor(LOST, -1),
    ],
    ids=str,
)
def test_a_result_that_is_not_in_the_file(result: RecordedTensor) -> None:
    with pytest.raises(RecordingError, match="cut short"):
        reading(made(RecordedTensor(0, 8), result))


@pytest.mark.parametrize(
    "result", [RecordedTensor(0, 8), RecordedTensor(8, 0), RecordedTensor(7, 1), RecordedTensor(LOST, 1 << 62)], ids=str
)
def test_a_result_that_is(result: RecordedTensor) -> None:
    assert list(reading(made(result)))


def test_an_index_without_end() -> None:
    """An index that is nested too deeply to be read."""
    index = b"\x81\xa4more" + b"\x91" * 100_000 + b"\xc0"
    with pytest.raises(RecordingError):
        reading(index + len(index).to_bytes(8, "little") + b"understu")


def test_a_pipe_is_no_recording() -> None:
    class Pipe:
        def fileno(self) -> int:
            raise OSError("it has none")

    with pytest.raises(RecordingError, match="it has none"):
        Recording(cast(IO[bytes], Pipe()), KEY)


def mapped() -> int:
    """Kilobytes of files in this process's memory."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile"))
    return int(line.split()[1])


def test_a_recording_that_rests_is_not_in_memory_and_can_be_read_again() -> None:
    big = torch.arange(4 << 20, dtype=torch.float32)
    recording, _ = recorded(lambda it: it.note("dp#0", "recv", MARK, [big]), limit=1 << 30)
    (entry,) = recording
    first, held = kept(recording, entry), mapped()
    recording.rest()
    assert held - mapped() > 0.9 * entry.results[0].length / 1024
    assert kept(recording, entry) == first == [big.numpy().tobytes()]

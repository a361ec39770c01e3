from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from understudy.comm.recording import Recorder, Recording
from understudy.comm.signature import signature


def mapped() -> int:
    """Kilobytes of files in this process's memory."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile"))
    return int(line.split()[1])


def test_a_recording_that_rests_is_not_in_memory_and_can_be_read_again() -> None:
    big = torch.arange(4 << 20, dtype=torch.float32)
    mark = signature("send", big.dtype, big.numel())
    with tempfile.TemporaryFile() as file:
        recorder = Recorder(file, "key", 0, 1 << 30, lambda seat: "dp#0")
        recorder.note(None, "recv", mark, [big])
        recorder.finish(1)
        recording = Recording(file, "key")
        (entry,) = recording
        (result,) = entry.results

        def read() -> bytes:
            data = recording.data(result)
            assert data is not None
            return bytes(data)

        first, held = read(), mapped()
        recording.rest()
        assert held - mapped() > 0.9 * result.length / 1024
        assert read() == first == big.numpy().tobytes()

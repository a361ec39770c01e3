"""A joiner alone replays the recording of a worker of the job, with the same bits."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, cast

import pytest
import torch
import torch.distributed as dist

from tests.comm.helpers import Ensemble, all_gather, all_reduce, at_once, broadcast, receive, send, streams
from understudy.comm.endpoint import Endpoint
from understudy.comm.links.pairs import Receive
from understudy.comm.ops import Op, reduction
from understudy.comm.recording import Recorder, Recording
from understudy.comm.sandbox import Echo, Replay, SandboxSeat

Results = list[torch.Tensor]


def label(seat: SandboxSeat) -> str:
    return str(seat.key)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with tempfile.TemporaryFile() as file:
        yield Recorder(file, "key", 0, 1 << 24, label)


def recording_of(recorder: Recorder, steps: int) -> Recording:
    recorder.finish(steps)
    return Recording(recorder._file, "key")


def mine(end: Endpoint, step: int) -> torch.Tensor:
    """What this rank has in this step, and no other."""
    return torch.rand(3000, generator=torch.Generator().manual_seed(100 * step + end.rank))


def reduce_scatter(end: Endpoint, value: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(value.numel() // end.size)
    fold = reduction(dist.ReduceOp.AVG, value.dtype, end.size)
    op = Op("reduce_scatter", inputs=list(value.chunk(end.size)), outputs=[out], reduction=fold)
    end.run(op)
    return out


def all_to_all(end: Endpoint, value: torch.Tensor) -> Results:
    """The block from rank a to rank b has a + 2 b + 1 elements."""
    inputs = [value[: end.rank + 2 * peer + 1].clone() for peer in range(end.size)]
    outputs = [torch.zeros(peer + 2 * end.rank + 1) for peer in range(end.size)]
    end.run(Op("all_to_all", inputs=inputs, outputs=outputs))
    return outputs


def step(end: Endpoint, number: int, heard: Results) -> None:
    """A bit of everything, twice as much in other steps than the first; what came goes to `heard`."""
    value = mine(end, number)
    for _ in range(1 if number == 1 else 2):
        heard.append(all_reduce(end, value.clone()))
        heard.extend(all_gather(end, value[:7].bfloat16()))
        heard.append(reduce_scatter(end, value))
        heard.append(broadcast(end, value[:5].clone(), 1))
        heard.extend(all_to_all(end, value))
    end.run(Op("barrier"))
    after, before = (end.rank + 1) % end.size, (end.rank - 1) % end.size
    got, any_got = torch.zeros(50), torch.zeros(60)
    at_once(partial(send, end, value[:50], after, number), partial(receive, end, got, before, number))
    any_job = Receive(None, 77, any_got)
    end.message(any_job)
    send(end, value[:60], after, 77)
    assert any_job.done.wait(10)
    heard += [got, any_got, torch.tensor(-1 if any_job.peer is None else any_job.peer)]


def run_steps(end: Endpoint, begin: Callable[[int], None]) -> Results:
    heard = [broadcast(end, mine(end, 0), 2)]
    for number in (1, 2):
        begin(number)
        step(end, number, heard)
    return heard


def test_a_joiner_hears_what_was_recorded_bit_by_bit(recorder: Recorder) -> None:
    def begin(number: int) -> None:
        recorder.phase = number

    with Ensemble() as job:
        _, fabrics, ends = job.start("m0", "m0", "m1")
        fabrics[0].record(recorder)
        assert [end.recorder for end in ends] == [recorder, None, None]
        (heard, _, _) = at_once(
            partial(run_steps, ends[0], begin), *[partial(run_steps, end, lambda _: None) for end in ends[1:]]
        )
    recording = recording_of(recorder, 2)

    with Ensemble() as later:
        (joiner,) = later.hire("m9")
        replay = Replay(recording, label, Echo())
        joiner.assume(0, replay)
        before, threads = streams(), threading.active_count()
        again = run_steps(joiner.group(range(3)), replay.begin)
        assert (streams(), threading.active_count()) == (before, threads)
    assert replay.diverged == ""
    assert len(again) == len(heard)
    for new, old in zip(again, heard, strict=True):
        assert new.dtype == old.dtype
        assert torch.equal(new, old)


def test_only_what_comes_from_other_machines_is_recorded(ensemble: Ensemble, recorder: Recorder) -> None:
    """Groups that are there and groups that come later."""
    _, fabrics, ends = ensemble.start("m0", "m0", "m1")
    inner = at_once(*[partial(fabric.group, (0, 1)) for fabric in fabrics[:2]])
    fabrics[0].record(recorder)
    outer = at_once(*[partial(fabrics[role].group, (0, 2)) for role in (0, 2)])
    late = at_once(*[partial(fabric.group, (0, 1)) for fabric in fabrics[:2]])
    alone = fabrics[0].group((0,))
    groups = (ends, inner, outer, late, [alone])
    assert [group[0].recorder is recorder for group in groups] == [True, False, True, False, False]
    for group in groups:
        at_once(*[partial(all_reduce, end, torch.ones(3)) for end in group])
        at_once(*[partial(_bar, end) for end in group])
    for first, second in (inner, outer):
        at_once(partial(send, first, torch.ones(2), 1), partial(receive, second, torch.zeros(2), 0))
        at_once(partial(send, second, torch.ones(4), 0), partial(receive, first, torch.zeros(4), 1))
    found = [(entry.group, entry.kind) for entry in recording_of(recorder, 0)]
    assert found == [("g0[0-2]", "all_reduce"), ("g0[0,2]", "all_reduce"), ("g0[0,2]", "recv")]


def _bar(end: Endpoint) -> None:
    end.run(Op("barrier"))


def test_after_the_end_nothing_is_recorded(ensemble: Ensemble, recorder: Recorder) -> None:
    _, fabrics, ends = ensemble.start("m0", "m1")
    fabrics[0].record(recorder)
    at_once(*[partial(all_reduce, end, torch.ones(3)) for end in ends])
    fabrics[0].record(None)
    assert ends[0].recorder is None
    late = at_once(*[partial(fabric.group, (0, 1)) for fabric in fabrics])
    assert late[0].recorder is None
    for group in (ends, late):
        at_once(*[partial(all_reduce, end, torch.ones(3)) for end in group])
        at_once(partial(send, group[1], torch.ones(2), 0), partial(receive, group[0], torch.zeros(2), 1))
    assert len(list(recording_of(recorder, 1))) == 1


def test_a_message_that_is_late_for_the_end(ensemble: Ensemble, recorder: Recorder) -> None:
    """It was asked for while there was a recorder, and comes when the recording is complete."""
    _, fabrics, ends = ensemble.start("m0", "m1")
    fabrics[0].record(recorder)
    job = Receive(1, 0, torch.zeros(2))
    ends[0].message(job)
    fabrics[0].record(None)
    digest, size = recorder.finish(1)
    send(ends[1], torch.ones(2), 0)
    assert job.done.wait(10)
    assert job.tensor.tolist() == [1.0, 1.0]
    recorder._file.flush()
    assert recorder._file.seek(0, 2) == size
    assert digest


def test_the_recorder_goes_in_the_middle_of_an_operation(ensemble: Ensemble, recorder: Recorder) -> None:
    """Other threads use the group while the training thread ends the recording: none of it fails."""
    _, fabrics, ends = ensemble.start("m0", "m1")
    over = threading.Event()

    def many(end: Endpoint) -> None:
        for _ in range(200):
            all_reduce(end, torch.ones(3))

    def flicker() -> None:
        while not over.is_set():
            fabrics[0].record(recorder)
            fabrics[0].record(None)

    thread = threading.Thread(target=flicker, daemon=True)
    thread.start()
    at_once(*[partial(many, end) for end in ends])
    over.set()
    thread.join(5)
    assert [fabric.fault for fabric in fabrics] == [None, None]


def test_a_full_disk_does_not_disturb_the_job(ensemble: Ensemble) -> None:
    _, fabrics, ends = ensemble.start("m0", "m1")
    with Path("/dev/full").open("wb", buffering=0) as full:
        recorder = Recorder(cast(IO[bytes], full), "key", 0, 1 << 20, label)
        fabrics[0].record(recorder)
        assert [float(value) for value in at_once(*[partial(all_reduce, end, torch.ones(1)) for end in ends])] == [2, 2]
        at_once(partial(send, ends[1], torch.ones(2), 0), partial(receive, ends[0], torch.zeros(2), 1))
    assert recorder.spoilt
    assert [fabric.fault for fabric in fabrics] == [None, None]


def test_what_an_interruption_has_left_undefined_is_not_taken_for_a_result(
    ensemble: Ensemble, recorder: Recorder
) -> None:
    _, fabrics, ends = ensemble.start("m0", "m1")
    fabrics[0].record(recorder)
    fabrics[0].interrupt("a test")
    all_reduce(ends[0], torch.ones(2))
    assert list(recording_of(recorder, 1)) == []

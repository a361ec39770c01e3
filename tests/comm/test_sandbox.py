"""The sandbox of a rehearsal: made-up values, or a recording as long as the script calls the recorded operations."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist

from understudy.comm.links.pairs import Receive, Send
from understudy.comm.ops import Op, OpKind, reduction, signature
from understudy.comm.recording import Recorder, Recording
from understudy.comm.sandbox import Echo, ObjectExchange, Replay, Sandbox
from understudy.comm.topology import GroupKey

SUM, AVG, MAX = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX


@dataclass
class Chair:
    """A role's place in a group of three."""

    key: GroupKey
    rank: int = 1
    size: int = 3
    exchange: ObjectExchange | None = None


A, B = Chair(GroupKey((0, 1, 2))), Chair(GroupKey((0, 1, 2), 1))


def label(seat: object) -> str:
    assert isinstance(seat, Chair)
    return "ab"[seat.key.ordinal]


def summing(*values: float, dtype: torch.dtype = torch.float32, op: object = SUM, kind: OpKind = "all_reduce") -> Op:
    value = torch.tensor(values, dtype=dtype)
    return Op(kind, outputs=[value], reduction=reduction(op, dtype, 3))


def gathering(size: int = 2) -> Op:
    return Op("all_gather", inputs=[torch.full((size,), -1.0)], outputs=[torch.zeros(size) for _ in range(3)])


def result(op: Op) -> list[list[float]]:
    return [output.tolist() for output in op.outputs]


# -- made-up values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (summing(1.0, 2.0), [[3.0, 6.0]]),
        (summing(1.0, 2.0, op=AVG), [[1.0, 2.0]]),
        (summing(1.0, 2.0, op=MAX), [[1.0, 2.0]]),
        (summing(1, 0, dtype=torch.bool), [[True, False]]),
        (summing(1, 2, dtype=torch.int64), [[3, 6]]),
        (summing(1.0, 2.0, kind="reduce"), [[3.0, 6.0]]),
        (
            Op(
                "reduce_scatter",
                inputs=[torch.tensor([float(rank)]) for rank in range(3)],
                outputs=[torch.zeros(1)],
                reduction=reduction(SUM, torch.float32, 3),
            ),
            [[3.0]],
        ),
        (
            Op(
                "reduce_scatter",
                inputs=[torch.tensor([rank > 0]) for rank in range(3)],
                outputs=[torch.tensor([False])],
                reduction=reduction(SUM, torch.bool, 3),
            ),
            [[True]],
        ),
        (gathering(1), [[-1.0]] * 3),
        (Op("gather", inputs=[torch.ones(1)]), []),
        (Op("gather", inputs=[torch.ones(1)], outputs=[torch.zeros(1) for _ in range(3)]), [[1.0]] * 3),
        (Op("broadcast", outputs=[torch.tensor([5.0])], root=2), [[5.0]]),
        (Op("scatter", outputs=[torch.tensor([5.0])], root=0), [[0.0]]),
        (Op("scatter", inputs=[torch.tensor([float(r)]) for r in range(3)], outputs=[torch.zeros(1)]), [[1.0]]),
        (Op("barrier"), []),
    ],
)
def test_in_an_echo_all_roles_send_what_this_role_sends(op: Op, expected: list[list[float]]) -> None:
    Echo().run(op, A)
    assert result(op) == expected


def test_blocks_of_any_size_are_exchanged() -> None:
    op = Op(
        "all_to_all",
        inputs=[torch.ones(1), torch.ones(2), torch.empty(0)],
        outputs=[torch.full((2,), 9.0), torch.full((1,), 9.0), torch.full((1,), 9.0)],
    )
    Echo().run(op, A)
    assert result(op) == [[1.0, 0.0], [1.0], [0.0]]


@pytest.mark.parametrize("peer", [0, None])
def test_messages_are_all_ones(peer: int | None) -> None:
    sent, got = Send(0, 0, torch.zeros(2)), Receive(peer, 0, torch.zeros(2, dtype=torch.int64))
    Echo().post(A, sent, got)
    assert sent.done.is_set()
    assert got.done.is_set()
    assert got.tensor.tolist() == [1, 1]


# -- a recording -------------------------------------------------------------------------------------------------------


@dataclass
class Written:
    """What was recorded, operation by operation."""

    recorder: Recorder

    def op(self, op: Op, seat: Chair = A) -> None:
        self.recorder.note(seat, op.kind, op.signature, op.outputs)

    def message(self, tensor: torch.Tensor, peer: int, tag: int = 0, seat: Chair = A, kind: str = "recv") -> None:
        mark = signature("send", tensor.dtype, tensor.numel())
        self.recorder.note(seat, kind, mark, [tensor], peer, tag)

    def step(self, number: int) -> None:
        self.recorder.phase = number


@dataclass
class Counting:
    """A sandbox that only notes what it is asked."""

    asked: list[str] = field(default_factory=list)

    def run(self, op: Op, seat: object) -> None:
        self.asked.append(op.kind)

    def post(self, seat: object, *jobs: Send | Receive) -> None:
        for job in jobs:
            self.asked.append(type(job).__name__)
            job.done.set()


def replay(
    fill: Callable[[Written], None], steps: int = 1, limit: int = 1 << 20, otherwise: Sandbox | None = None
) -> Replay:
    with tempfile.TemporaryFile() as file:
        recorder = Recorder(file, "key", 0, limit, label)
        fill(Written(recorder))
        recorder.finish(steps)
        return Replay(Recording(file, "key"), label, otherwise or Counting())


def asked(it: Replay) -> list[str]:
    """What it has passed on."""
    otherwise = it._otherwise
    assert isinstance(otherwise, Counting)
    return otherwise.asked


def run(it: Replay, op: Op, seat: Chair = A) -> list[list[float]]:
    it.run(op, seat)
    return result(op)


def receive(it: Replay, size: int, peer: int | None, tag: int = 0, seat: Chair = A) -> tuple[list[float], int | None]:
    """The received values and their sender."""
    job = Receive(peer, tag, torch.zeros(size))
    it.post(seat, job)
    assert job.done.is_set()
    return job.tensor.tolist(), job.peer


def test_each_group_is_answered_in_its_order() -> None:
    def fill(was: Written) -> None:
        was.op(summing(1.0))
        was.op(summing(2.0), B)
        was.op(gathering())
        was.op(summing(3.0))
        was.message(torch.tensor([4.0]), 0)
        was.op(summing(5.0), B)

    it = replay(fill)
    assert run(it, summing(0.0), B) == [[2.0]]
    assert run(it, summing(0.0), B) == [[5.0]]
    assert run(it, summing(0.0)) == [[1.0]]
    assert receive(it, 1, 0) == ([4.0], 0)
    assert run(it, gathering()) == [[0.0, 0.0]] * 3
    assert run(it, summing(0.0)) == [[3.0]]
    assert (it.diverged, asked(it)) == ("", [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64], ids=str)
def test_the_very_bytes(dtype: torch.dtype) -> None:
    op = summing(0.1, 1.0, 0.0, dtype=dtype, op=MAX)
    (value,) = op.outputs
    it = replay(lambda was: was.op(op))
    again = summing(7.0, 7.0, 7.0, dtype=dtype, op=MAX)
    it.run(again, A)
    assert torch.equal(again.outputs[0], value)


def test_messages_by_peer_and_tag() -> None:
    def fill(was: Written) -> None:
        for number, (peer, tag) in enumerate([(0, 0), (2, 0), (0, 1), (0, 0)]):
            was.message(torch.tensor([float(number)]), peer, tag)

    it = replay(fill)
    assert [receive(it, 1, *where)[0] for where in [(0, 1), (0, 0), (0, 0), (2, 0)]] == [[2.0], [0.0], [3.0], [1.0]]
    assert (it.diverged, asked(it)) == ("", [])


def test_a_receive_from_any_role_replays_the_recorded_one() -> None:
    """A receive from any role gets the messages that were recorded as such, with their senders."""

    def fill(was: Written) -> None:
        was.message(torch.tensor([1.0]), 2, kind="recv_any")
        was.message(torch.tensor([2.0]), 0)
        was.message(torch.tensor([3.0]), 0, kind="recv_any")

    it = replay(fill)
    assert [receive(it, 1, peer) for peer in (None, None, 0)] == [([1.0], 2), ([3.0], 0), ([2.0], 0)]
    it.begin(1)
    assert (it.diverged, asked(it)) == ("", [])


def test_sends_and_barriers_are_skipped() -> None:
    """They bring nothing, so they were not recorded."""
    it = replay(lambda was: was.op(summing(1.0)))
    job = Send(0, 0, torch.ones(1))
    it.post(A, job, Send(2, 9, torch.ones(1)))
    it.run(Op("barrier"), A)
    assert job.done.is_set()
    assert run(it, summing(0.0)) == [[1.0]]
    assert it.diverged == ""
    assert asked(it) == ["barrier"]


def test_steps_after_the_last_are_answered_like_that() -> None:
    def fill(was: Written) -> None:
        was.op(summing(0.5))
        for number in (1, 2):
            was.step(number)
            was.op(summing(float(number)))

    it = replay(fill, steps=2)
    assert run(it, summing(0.0)) == [[0.5]]
    found = []
    for number in (1, 2, 3, 4):
        it.begin(number)
        found += run(it, summing(0.0))[0]
    assert found == [1.0, 2.0, 2.0, 2.0]
    assert it.diverged == ""


def test_a_recording_of_the_build_only() -> None:
    """Its first step was interrupted. Steps are made up, which is no difference."""

    def fill(was: Written) -> None:
        was.op(summing(0.5))
        was.step(1)
        was.op(summing(1.0))

    it = replay(fill, steps=0, otherwise=Echo())
    assert run(it, summing(7.0)) == [[0.5]]
    for step in (1, 2):
        it.begin(step)
        assert run(it, summing(7.0)) == [[21.0]]
        assert receive(it, 1, 0) == ([1.0], 0)
    assert it.diverged == ""


def test_a_recording_that_began_after_the_build() -> None:
    """The build is made up, which is no difference; the steps are as recorded."""

    def fill(was: Written) -> None:
        was.step(1)
        was.op(summing(1.0))

    it = replay(fill, otherwise=Echo())
    assert run(it, summing(7.0)) == [[21.0]]
    it.begin(1)
    assert run(it, summing(7.0)) == [[1.0]]
    assert it.diverged == ""


def test_groups_that_were_not_recorded_are_made_up() -> None:
    it = replay(lambda was: was.op(summing(1.0)), otherwise=Echo())
    assert run(it, summing(7.0), B) == [[21.0]]
    assert it.diverged == ""


def test_what_was_over_the_limit_is_made_up() -> None:
    def fill(was: Written) -> None:
        was.op(summing(1.0, 1.0))
        was.op(summing(2.0, 2.0))
        was.message(torch.full((2,), 3.0), 0)
        was.op(summing(1.0, 1.0))

    it = replay(fill, limit=8, otherwise=Echo())
    assert [run(it, summing(7.0, 7.0))[0][0] for _ in range(3)] == [1.0, 21.0, 1.0]
    assert receive(it, 2, 0)[0] == [1.0, 1.0]
    assert it.diverged == ""


# -- something else than what was recorded -----------------------------------------------------------------------------


def several(was: Written) -> None:
    was.op(summing(1.0, 2.0))
    was.op(gathering())
    was.message(torch.ones(2), 0, 5)
    was.op(summing(8.0), B)


ALL = "all_reduce(sum) of 2 float32"


@pytest.mark.parametrize(
    ("op", "diverged"),
    [
        (gathering(), f"{ALL} was recorded while the model was built but the script calls all_gather of 2 float32"),
        (
            summing(1.0, 1.0, dtype=torch.float64),
            f"{ALL} was recorded while the model was built but the script calls all_reduce(sum) of 2 float64",
        ),
        (
            summing(1.0),
            f"{ALL} was recorded while the model was built but the script calls all_reduce(sum) of 1 float32",
        ),
        (
            summing(1.0, 1.0, op=MAX),
            f"{ALL} was recorded while the model was built but the script calls all_reduce(max) of 2 float32",
        ),
        (
            Op("broadcast", outputs=[torch.zeros(2)], root=2),
            f"{ALL} was recorded while the model was built but the script calls broadcast of 2 float32 at root 2",
        ),
    ],
)
def test_another_collective(op: Op, diverged: str) -> None:
    it = replay(several)
    it.run(op, A)
    assert it.diverged == f"group a: {diverged}"
    assert asked(it) == [op.kind]
    goes_on(it)


def goes_on(it: Replay) -> None:
    """What is left of the group is made up, and never more than one thing is named; other groups are not concerned."""
    named, before = it.diverged, len(asked(it))
    assert named.startswith("group a: ")
    run(it, gathering())
    receive(it, 2, 0, 5)
    assert asked(it)[before:] == ["all_gather", "Receive"]
    assert run(it, summing(0.0), B) == [[8.0]]
    it.begin(1)
    run(it, summing(0.0))
    assert it.diverged == named


@pytest.mark.parametrize(
    ("size", "peer", "tag", "calls"),
    [
        (3, 0, 5, "recv of 3 float32 from rank 0 with tag 5"),
        (2, 2, 5, "recv of 2 float32 from rank 2 with tag 5"),
        (2, 0, 4, "recv of 2 float32 from rank 0 with tag 4"),
        (2, None, 5, "recv of 2 float32 from any rank with tag 5"),
    ],
)
def test_another_message(size: int, peer: int | None, tag: int, calls: str) -> None:
    it = replay(several)
    receive(it, size, peer, tag)
    was = "recv of 2 float32 from rank 0 with tag 5 was recorded while the model was built"
    assert it.diverged == f"group a: {was} but the script calls {calls}"
    assert asked(it) == ["Receive"]
    goes_on(it)


def test_more_calls() -> None:
    it = replay(several)
    run(it, summing(0.0, 0.0))
    run(it, gathering())
    run(it, summing(0.0, 0.0))
    assert it.diverged == f"group a: the script calls {ALL} more often than was recorded while the model was built"
    assert asked(it) == ["all_reduce"]
    goes_on(it)


def test_more_messages() -> None:
    it = replay(several)
    receive(it, 2, 0, 5)
    receive(it, 2, 0, 5)
    what = "recv of 2 float32 from rank 0 with tag 5"
    assert it.diverged == f"group a: the script calls {what} more often than was recorded while the model was built"
    goes_on(it)


def test_fewer_calls() -> None:
    def fill(was: Written) -> None:
        several(was)
        was.step(1)
        was.op(summing(1.0, 1.0))
        was.op(gathering())
        was.op(summing(3.0), B)

    it = replay(fill)
    run(it, summing(0.0, 0.0))
    run(it, gathering())
    receive(it, 2, 0, 5)
    run(it, summing(0.0), B)
    it.begin(1)
    assert it.diverged == ""
    run(it, summing(0.0, 0.0))
    run(it, summing(0.0), B)
    it.begin(2)
    assert it.diverged == "group a: all_gather of 2 float32 was recorded in step 1 and the script has not called it"
    run(it, summing(0.0, 0.0))
    assert asked(it) == ["all_reduce"]
    assert run(it, summing(0.0), B) == [[3.0]]


def test_fewer_messages() -> None:
    it = replay(lambda was: was.message(torch.ones(1), 2, 7))
    it.begin(1)
    assert it.diverged == (
        "group a: recv of 1 float32 from rank 2 with tag 7 was recorded while the model was built "
        "and the script has not called it"
    )


def routing(*sizes: int) -> Op:
    """As the tokens of a mixture of experts are exchanged: how many come from where depends on the data."""
    return Op(
        "all_to_all",
        inputs=[torch.full((2,), -1.0) for _ in sizes],
        outputs=[torch.full((size,), 4.0) for size in sizes],
    )


def test_the_same_uneven_blocks() -> None:
    it = replay(lambda was: was.op(routing(0, 3, 1)))
    op = routing(0, 3, 1)
    for output in op.outputs:
        output.zero_()
    assert run(it, op) == [[], [4.0, 4.0, 4.0], [4.0]]


@pytest.mark.parametrize("sizes", [(0, 3, 2), (3, 0, 1), (0, 0, 0)])
def test_uneven_blocks_of_other_sizes(sizes: tuple[int, ...]) -> None:
    def fill(was: Written) -> None:
        was.op(routing(0, 3, 1))
        was.op(routing(1, 1, 1))

    it = replay(fill, otherwise=Echo())
    found = run(it, routing(*sizes))
    expected = tuple(4 * size for size in sizes)
    assert it.diverged == (
        "group a: all_to_all of 0: (0, 12, 4) bytes were recorded while the model was built, "
        f"the script expects {expected}"
    )
    assert [len(block) for block in found] == list(sizes)
    assert {value for block in found for value in block} <= {-1.0, 0.0}
    assert run(it, routing(1, 1, 1)) == [[-1.0]] * 3


def test_only_the_first_difference_is_told() -> None:
    it = replay(several)
    run(it, gathering())
    run(it, gathering(), B)
    assert it.diverged.startswith("group a: ")
    assert asked(it) == ["all_gather", "all_gather"]

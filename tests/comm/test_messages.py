"""send, recv and their relatives: tags, any source, nothing at all, many at once."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.comm.checks import Member, given, on_every_layout, perform, same

CASES = [
    (dtype, count)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2)
    for count in (0, 1, 1003)
] + [(torch.float32, 300_003), (torch.uint8, 1_200_007)]


def round_the_ring(member: Member) -> None:
    for dtype, count in CASES:
        sending = dist.isend(given(member.rank, count, dtype), member.next)
        got = torch.zeros(count).to(dtype)
        assert dist.recv(got, member.last) == member.last
        same(got, given(member.last, count, dtype), (dtype, count))
        assert sending is not None
        sending.wait()


def back_and_forth(member: Member) -> None:
    """Blocking calls only, between every two roles."""
    for low in range(member.size):
        for high in range(low + 1, member.size):
            ball = torch.zeros(1003)
            if member.rank == low:
                dist.send(ball + 1, high)
                dist.recv(ball, high)
                same(ball, torch.full((1003,), 2.0))
            elif member.rank == high:
                dist.recv(ball, low)
                dist.send(ball + 1, low)


def tags_out_of_order(member: Member) -> None:
    """What is received first was sent last; what was sent with one tag stays in order."""
    tags = [3, 0, 7, 1_000_000, 3, 7]
    kept = [torch.full((i * 500,), float(10 * member.rank + i)) for i in range(len(tags))]
    sending = [dist.isend(tensor, member.next, tag=tag) for tensor, tag in zip(kept, tags, strict=True)]
    for number in (3, 2, 0, 5, 1, 4):
        got = torch.zeros(number * 500)
        dist.recv(got, member.last, tag=tags[number])
        same(got, torch.full((number * 500,), float(10 * member.last + number)), number)
    for handle in sending:
        assert handle is not None
        handle.wait()


def from_any_rank(member: Member) -> None:
    """All ranks send to rank 0, and then to the last rank; the receiver cannot know which message arrives first."""
    for sink in (0, member.size - 1):
        if member.rank != sink:
            dist.send(torch.full((5,), float(member.rank)), sink, tag=sink)
            continue
        heard = set()
        for _ in range(member.size - 1):
            got = torch.zeros(5)
            source = dist.recv(got, tag=sink)
            same(got, torch.full((5,), float(source)))
            heard.add(source)
        assert heard == set(range(member.size)) - {sink}


def from_any_rank_with_another_tag(member: Member) -> None:
    """A message with a tag that is not received yet does not block the next one."""
    if member.rank == 1:
        handles = [dist.isend(torch.full((5,), float(tag)), 0, tag=tag) for tag in (8, 9)]
        for handle in handles:
            assert handle is not None
            handle.wait()
    elif member.rank == 0:
        got = torch.zeros(5)
        assert dist.recv(got, tag=9) == 1
        same(got, torch.full((5,), 9.0))
        assert dist.recv(got, tag=8) == 1
        same(got, torch.full((5,), 8.0))


def many_at_once(member: Member) -> None:
    """Twenty messages from every rank to every other, all posted before the first wait."""
    others = [rank for rank in range(member.size) if rank != member.rank]
    got = {(rank, i): torch.zeros(i * 300) for rank in others for i in range(20)}
    handles = [dist.irecv(tensor, rank, tag=i) for (rank, i), tensor in got.items()]
    handles += [
        dist.isend(torch.full((i * 300,), float(100 * member.rank + i)), rank, tag=i)
        for rank in others
        for i in range(20)
    ]
    for handle in handles:
        assert handle is not None
        handle.wait()
        assert handle.is_completed()
    for (rank, i), tensor in got.items():
        same(tensor, torch.full((i * 300,), float(100 * rank + i)), (rank, i))


def batches(member: Member) -> None:
    out, back = torch.full((70_001,), float(member.rank)), torch.zeros(70_001)
    up, down = torch.full((3,), -float(member.rank)), torch.zeros(3)
    batch = [
        dist.P2POp(dist.irecv, back, member.last),
        dist.P2POp(dist.isend, out, member.next),
        dist.P2POp(dist.isend, up, member.last),
        dist.P2POp(dist.irecv, down, member.next),
    ]
    for handle in dist.batch_isend_irecv(batch):
        handle.wait()
    same(back, torch.full((70_001,), float(member.last)))
    same(down, torch.full((3,), -float(member.next)))


def sliced_and_transposed(member: Member) -> None:
    numbers = torch.arange(12.0).view(3, 4)
    sending = dist.isend((numbers + member.rank).t(), member.next)
    base = torch.full((4, 6), -1.0)
    dist.recv(base[:, ::2], member.last)
    expected = torch.full((4, 6), -1.0)
    expected[:, ::2] = (numbers + member.last).t()
    same(base, expected)
    assert sending is not None
    sending.wait()


def one_element_of_a_slice(member: Member) -> None:
    """It counts as contiguous whatever its stride."""
    sending = dist.isend(torch.full((4,), float(member.rank))[::2][:1], member.next)
    base = torch.full((4,), -1.0)
    dist.recv(base[::2][:1], member.last)
    same(base, torch.tensor([float(member.last), -1.0, -1.0, -1.0]))
    assert sending is not None
    sending.wait()


def among_collectives(member: Member) -> None:
    """Messages and collectives that travel by pairs do not take each other's data."""
    got, outs = torch.zeros(1003), [torch.zeros(5) for _ in range(member.size)]
    receiving = dist.irecv(got, member.last)
    dist.all_to_all(outs, [torch.full((5,), float(10 * member.rank + to)) for to in range(member.size)])
    sending = dist.isend(torch.full((1003,), float(member.rank)), member.next)
    total = torch.ones(1)
    dist.all_reduce(total)
    for handle in (receiving, sending):
        assert handle is not None
        handle.wait()
    same(got, torch.full((1003,), float(member.last)))
    same(total, torch.full((1,), float(member.size)))
    for source, out in enumerate(outs):
        same(out, torch.full((5,), float(10 * source + member.rank)))


def futures(member: Member) -> None:
    """To ask for a future is not to wait: the message may not have been sent yet."""
    got = torch.zeros(4, 2)
    receiving = dist.irecv(got[:, 0], member.last)
    assert receiving is not None
    doubled = receiving.get_future().then(lambda done: done.value()[0] * 2)
    sending = dist.isend(torch.full((4,), float(member.rank)), member.next)
    assert sending is not None
    sending.get_future().wait()
    same(doubled.wait(), torch.full((4,), 2.0 * member.last))
    same(got, torch.tensor([[float(member.last), 0.0]] * 4))


def to_oneself(member: Member) -> None:
    """As a pipeline's schedule does that has two stages of one role in a row."""
    sent, got = torch.full((3,), float(member.rank)), torch.zeros(3, 2)
    ops = [dist.P2POp(dist.irecv, got[:, 0], member.rank), dist.P2POp(dist.isend, sent, member.rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(got, torch.stack([sent, torch.zeros(3)], 1))


CHECKS = [
    from_any_rank,
    from_any_rank_with_another_tag,
    round_the_ring,
    back_and_forth,
    tags_out_of_order,
    many_at_once,
    batches,
    sliced_and_transposed,
    one_element_of_a_slice,
    among_collectives,
    futures,
    to_oneself,
]


@on_every_layout
def test_messages(machines: list[int], transport: str) -> None:
    perform(CHECKS, machines, transport)

"""Tensors over socket pairs: whole, damaged, cut off, stopped."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy.state.errors import StreamBroken
from understudy.state.memory import Staging, blocks
from understudy.state.stream import Piece, give, plan, take

Pair = tuple[socket.socket, socket.socket]
Pairs = list[Pair]


def never() -> bool:
    return False


@contextmanager
def connected(count: int, make: Callable[[], Pair] = socket.socketpair) -> Iterator[Pairs]:
    with ExitStack() as stack:
        pairs = [make() for _ in range(count)]
        for pair in pairs:
            for end in pair:
                stack.enter_context(end)
        yield pairs


def over_tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def mixed() -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [
        torch.randn(300, 7),
        torch.randn(50, 3).to(torch.bfloat16),
        torch.rand(99) < 0.5,
        torch.arange(1000),
        torch.tensor(3.5),
        torch.tensor(True),
        torch.empty(0, 4),
        torch.randn(40, 30).t(),
        torch.randn(4, 5, 6, 7).to(memory_format=torch.channels_last),
        torch.randn(10, 10)[::2, 1:9:3],
        torch.randn(8, 3, dtype=torch.complex128).t(),
        torch.randn(5, dtype=torch.complex64),
        torch.randn(10)[3::7],
        torch.nn.Parameter(torch.randn(3, 3)),
    ]


def blank(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Others of the same sizes and layouts."""
    return [torch.zeros_like(t) if i % 2 else torch.zeros(t.shape, dtype=t.dtype) for i, t in enumerate(tensors)]


def bits(tensor: torch.Tensor) -> bytes:
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copy.reshape(-1).view(torch.uint8).numpy().tobytes()


def cross(pairs: Pairs, given_: list[torch.Tensor], taken: list[torch.Tensor], piece: int = 4 << 20) -> tuple[int, int]:
    with ThreadPoolExecutor(1) as pool:
        giving = pool.submit(give, [pair[0] for pair in pairs], given_, stop=never, piece=piece)
        count = take([pair[1] for pair in pairs], taken, stop=never, piece=piece)
        return giving.result(), count


# -- plan --------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 200), max_size=30), st.integers(1, 9), st.integers(1, 64))
def test_a_plan_covers_every_byte_once_and_is_balanced(sizes: list[int], streams: int, piece: int) -> None:
    carried = plan(sizes, streams, piece)
    assert len(carried) == streams
    spans = [(p.tensor, range(p.offset, p.offset + p.length)) for pieces in carried for p in pieces]
    seen = sorted((tensor, byte) for tensor, span in spans for byte in span)
    assert seen == [(tensor, byte) for tensor, size in enumerate(sizes) for byte in range(size)]
    assert all(0 < p.length <= piece for pieces in carried for p in pieces)
    loads = [sum(p.length for p in pieces) for pieces in carried]
    assert max(loads) - min(loads) <= piece


def test_a_plan_of_one_stream_is_in_order() -> None:
    assert plan([5, 0, 2], 1, 4) == [[Piece(0, 0, 4), Piece(0, 4, 1), Piece(2, 0, 2)]]


# -- staging -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), max_size=4), st.data())
def test_blocks_are_the_elements_in_logical_order(shape: list[int], data: st.DataObject) -> None:
    tensor = torch.arange(torch.Size(shape).numel()).view(shape)
    stop = data.draw(st.integers(0, tensor.numel()))
    start = data.draw(st.integers(0, stop))
    found = [value for part in blocks(tensor, start, stop) for value in part.flatten().tolist()]
    assert found == list(range(start, stop))


def test_a_part_of_a_turned_tensor_goes_through_the_buffer() -> None:
    source, target, staging = torch.arange(12.0).view(3, 4).t(), torch.zeros(3, 4).t(), Staging(64)
    for offset in range(0, 48, 12):
        staging.read(source, offset, 12)
        staging.write(target, offset, 12)
    assert torch.equal(source, target)
    with pytest.raises(ValueError, match="cut an element"):
        staging.read(source, 2, 4)


# -- whole -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [1, 3, 20])
@pytest.mark.parametrize("piece", [64, 4 << 20])
def test_mixed_tensors_arrive_bit_by_bit(streams: int, piece: int) -> None:
    tensors = mixed()
    taken = blank(tensors)
    with connected(streams) as pairs:
        sent, received = cross(pairs, tensors, taken, piece)
    assert sent == received == sum(t.numel() * t.element_size() for t in tensors)
    assert [bits(t) for t in taken] == [bits(t) for t in tensors]


@pytest.mark.parametrize("timeout", [None, 0.0, 5.0])
def test_sockets_stay_the_callers(timeout: float | None) -> None:
    tensors, taken = [torch.randn(3 << 20)], [torch.zeros(3 << 20)]
    with connected(2, over_tcp) as pairs:
        for pair in pairs:
            for end in pair:
                end.settimeout(timeout)
        cross(pairs, tensors, taken)
        assert torch.equal(tensors[0], taken[0])
        assert {end.gettimeout() for pair in pairs for end in pair} == {timeout}
        pairs[0][0].settimeout(5)
        pairs[0][1].settimeout(5)
        pairs[0][0].sendall(b"next")
        assert pairs[0][1].recv(10) == b"next"


@pytest.mark.parametrize("tensors", [[], [torch.empty(0)], [torch.tensor([7], dtype=torch.uint8)]], ids=len)
def test_little_or_nothing_arrives(tensors: list[torch.Tensor]) -> None:
    taken = [torch.zeros_like(t) for t in tensors]
    with connected(3) as pairs:
        cross(pairs, tensors, taken)
    assert [bits(t) for t in taken] == [bits(t) for t in tensors]


def test_less_than_a_piece_takes_one_connection() -> None:
    tensors, taken = [torch.arange(1000), torch.arange(7)], [torch.zeros(1000).long(), torch.zeros(7).long()]
    with connected(3) as pairs:
        for _, idle in pairs[1:]:
            idle.close()
        cross(pairs[:1] + [(near, near) for near, _ in pairs[1:]], tensors, taken)
    assert [bits(t) for t in taken] == [bits(t) for t in tensors]


def test_there_must_be_a_connection() -> None:
    with pytest.raises(ValueError, match="no connection"):
        give([], [], stop=never)


def test_a_closed_connection_is_a_broken_stream() -> None:
    with connected(2) as pairs:
        pairs[1][0].close()
        with pytest.raises(StreamBroken, match="stream 1 of 2 has no open connection"):
            take([pair[0] for pair in pairs], [torch.zeros(10)], stop=never, piece=20)
    assert nothing_runs()


def test_memory_is_not_copied() -> None:
    """What the kernel reads is the tensor's own memory."""
    source = torch.zeros(1 << 20, dtype=torch.uint8)
    with connected(1) as pairs, ThreadPoolExecutor(1) as pool:
        giving = pool.submit(give, [pairs[0][0]], [source], stop=never)
        first = pairs[0][1].recv(1)
        assert first == b"\0"
        source[-1] = 9  # the send buffer cannot hold a megabyte, so this byte has not been read yet
        rest = bytearray()
        while len(rest) < (1 << 20) - 1 + 8:
            rest += pairs[0][1].recv(1 << 20)
        giving.result()
        assert rest[(1 << 20) - 2] == 9


# -- damaged, cut off, stopped -----------------------------------------------------------------------------------------


def relay(source: socket.socket, target: socket.socket, flip_at: int) -> None:
    """Pass everything on, with one bit changed, until the streams are closed."""
    passed = 0
    while data := bytearray(source.recv(1 << 16)):
        if passed <= flip_at < passed + len(data):
            data[flip_at - passed] ^= 1
        passed += len(data)
        with suppress(OSError):
            target.sendall(data)


@pytest.mark.parametrize("flip_at", [0, 150_000, 400_007])
def test_a_flipped_bit_is_found(flip_at: int) -> None:
    tensors, taken = [torch.randn(100_000), torch.randn(100_000)], [torch.zeros(100_000) for _ in range(2)]
    with connected(2) as near, connected(2) as far, ThreadPoolExecutor(3) as pool:
        relays = [
            pool.submit(relay, near[number][1], far[number][0], flip_at if number == 1 else -1) for number in range(2)
        ]
        giving = pool.submit(give, [pair[0] for pair in near], tensors, stop=never, piece=400_000)
        with pytest.raises(StreamBroken, match=r"stream 1 of 2: what arrived is not what was sent"):
            take([pair[1] for pair in far], taken, stop=never, piece=400_000)
        for pair in far:
            pair[1].close()
        giving.result()
        for pair in near:
            pair[0].shutdown(socket.SHUT_WR)
        for passing in relays:
            passing.result()


def nothing_runs() -> bool:
    return not any(thread.name == "understudy-state" for thread in threading.enumerate())


@pytest.mark.parametrize("make", [socket.socketpair, over_tcp])
def test_a_taker_that_goes_breaks_the_giver(make: Callable[[], Pair]) -> None:
    with connected(3, make) as pairs, ThreadPoolExecutor(1) as pool:
        giving = pool.submit(give, [pair[0] for pair in pairs], [torch.zeros(16 << 20)], stop=never)
        pairs[1][1].recv(100_000)
        pairs[1][1].close()
        with pytest.raises(StreamBroken, match=r"stream 1 of 3 lost the taker \(.+\) after \d+ of \d+ bytes"):
            giving.result(10)
    assert nothing_runs()


@pytest.mark.parametrize("make", [socket.socketpair, over_tcp])
def test_a_giver_that_goes_breaks_the_taker(make: Callable[[], Pair]) -> None:
    with connected(3, make) as pairs, ThreadPoolExecutor(1) as pool:
        taking = pool.submit(take, [pair[1] for pair in pairs], [torch.zeros(16 << 20)], stop=never)
        pairs[2][0].sendall(bytes(1000))
        pairs[2][0].close()
        with pytest.raises(StreamBroken, match=r"stream 2 of 3 lost the giver \(end of file\) after 1000 of \d+ bytes"):
            taking.result(10)
    assert nothing_runs()


@pytest.mark.parametrize("move", [give, take])
def test_both_stop_when_asked(move: Callable[..., int]) -> None:
    stop = threading.Event()
    asked = threading.Event()

    def stopped() -> bool:
        asked.set()
        return stop.is_set()

    with connected(3) as pairs, ThreadPoolExecutor(1) as pool:
        moving = pool.submit(move, [pair[0] for pair in pairs], [torch.zeros(16 << 20)], stop=stopped)
        assert asked.wait(10)
        stop.set()
        with pytest.raises(StreamBroken, match="was stopped after"):
            moving.result(10)
    assert nothing_runs()


def test_a_failing_question_ends_the_transfer() -> None:
    def broken() -> bool:
        raise RuntimeError("who knows")

    with connected(3) as pairs, pytest.raises(RuntimeError, match="who knows"):
        take([pair[0] for pair in pairs], [torch.zeros(100)], stop=broken)
    assert nothing_runs()

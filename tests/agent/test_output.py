"""Progress bars in the output of workers: one line for each bar, with its last state, however the bytes arrive."""

from __future__ import annotations

import asyncio
import os

import pytest

from understudy.agent.output import LONGEST_LINE, Bars, OutputLines, OutputPipe

UP = "\x1b[A"

CASES = {
    "a line": ("one\ntwo\n", ["one", "two"]),
    "windows": ("one\r\ntwo\r\n", ["one", "two"]),
    "a bar": ("\r 10%\r 50%\r100%\nafter\n", ["100%", "after"]),
    "a bar behind a text": ("epoch 1: 10%\repoch 1: 100%\n", ["epoch 1: 100%"]),
    "a bar that is wiped out": ("\r 10%\r 90%\r    \rdone\n", ["done"]),
    "a bar that is wiped out at the end": ("\r 10%\r 90%\r    \r", [" 90%"]),
    "a bar without an end": ("\r 10%\r 90%", [" 90%"]),
    "two bars": ("\r 10%\r100%\n\r 20%\r 99%\n", ["100%", " 99%"]),
    "a line beside a bar": ("\r 10%\r     \ra line\n\r 10%\r 60%\n", ["a line", " 60%"]),
    "a bar and a gap": ("\r100%\n\n\nafter\n", ["100%", "", "", "after"]),
    "a bar below another": (f"\router 1\n\rinner 1{UP}\n\rinner 2{UP}\router 2\n", ["outer 2"]),
    "three bars": (f"\ra1\n\rb1{UP}\n\n\rc1{UP}{UP}\n\n\rc2{UP}{UP}\ra2\nend\n", ["a2", "end"]),
    "tqdm, nested": (
        f"\router:0/2\n\rinner:0/2{UP}\n\rinner:1/2{UP}\n\rinner:2/2{UP}\n\r         {UP}\router:1/2"
        f"\n\rinner:0/2{UP}\n\rinner:1/2{UP}\n\rinner:2/2{UP}\n\r         {UP}\router:2/2\router:2/2\n",
        ["outer:2/2"],
    ),
    "tqdm, nested and left": (
        f"\router:0/2\n\rinner:0/2{UP}\n\rinner:2/2{UP}\rinner:2/2\n\router:1/2\n\rinner:0/2{UP}"
        f"\n\rinner:2/2{UP}\rinner:2/2\n\router:2/2\router:2/2\n",
        ["inner:2/2", "inner:2/2", "outer:2/2"],
    ),
    "tqdm.write": (
        "\rb:0/2\r     \ra note\n\rb:0/2\rb:1/2\r     \ranother\n\rb:1/2\rb:2/2\rb:2/2\n",
        ["a note", "another", "b:2/2"],
    ),
    "colours": ("\r\x1b[32m 10%\r\x1b[32m 20%\n", ["\x1b[32m 20%"]),
    "a stray move": (f"one\n{UP}two\n", ["one", "two"]),
}


@pytest.mark.parametrize("step", [1, 2, 5, 1 << 10])
@pytest.mark.parametrize("name", CASES)
def test_a_bar_is_one_line(name: str, step: int) -> None:
    written, expected = CASES[name]
    data, lines = written.encode(), OutputLines(bars=True)
    got = [line for at in range(0, len(data), step) for line in lines.feed(data[at : at + step])]
    assert [line.decode() for line in (*got, *lines.end())] == expected
    assert (lines.end(), lines.state) == ([], b"")


def test_the_present_state() -> None:
    lines = OutputLines(bars=True)
    seen = []
    for part in ("a line without an end", "\r 10%", "\r 20", "%", "\r", "\r 30%", "\n"):
        assert lines.feed(part.encode()) == []
        seen.append(lines.state)
    assert seen == [b"", b" 10%", b" 20", b" 20%", b" 20%", b" 30%", b""]
    assert lines.ended
    assert lines.settle() == [b" 30%"]


def test_a_bar_of_any_length_takes_little_memory() -> None:
    lines = OutputLines(bars=True)
    for number in range(20_000):
        assert lines.feed(b"\r%6d of 20000" % number) == []
    assert len(lines._row) + len(lines._shown) < 100
    assert lines.feed(b"x" * 3 * LONGEST_LINE) == []
    assert len(lines._row) <= LONGEST_LINE
    assert lines.end()


def test_without_bars_lines_are_as_they_are() -> None:
    lines = OutputLines()
    assert lines.feed(b"\r10%\r20%\nstate\r\n\x1b[A") == [b"\r10%\r20%", b"state\r"]
    assert lines.end() == [b"\x1b[A"]


class Reader:
    """Both kinds of output of one stream, in the order in which they come."""

    def __init__(self, seconds: float) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.news = asyncio.Event()
        out, self.into = os.pipe()
        os.set_blocking(out, False)
        bars = Bars(lambda state, stream: self.hear("state", state), seconds)
        self.pipe = OutputPipe(out, "stderr", lambda line, stream: self.hear("line", line), bars)

    def hear(self, what: str, text: bytes) -> None:
        self.got.append((what, text))
        self.news.set()

    def write(self, text: str) -> None:
        os.write(self.into, text.encode())

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.got) < count:
                self.news.clear()
                await self.news.wait()


def test_states_and_then_the_line() -> None:
    async def body() -> None:
        reader = Reader(0.001)
        reader.write("\r 10%")
        await reader.until(1)
        reader.write("\r 10%\r 40%\r 80%")
        await reader.until(2)
        reader.write("\r100%\n")
        await reader.until(3)  # without anything after it
        os.close(reader.into)
        reader.pipe.drain()
        assert reader.got == [("state", b" 10%"), ("state", b" 80%"), ("line", b"100%")]

    asyncio.run(body())


def test_between_two_states_there_is_time() -> None:
    async def body() -> None:
        reader = Reader(3600)
        for number in range(1000):
            reader.write(f"\r{number}")
            reader.pipe._read()
        os.close(reader.into)
        reader.pipe.drain()
        assert reader.got == [("line", b"999")]

    asyncio.run(body())

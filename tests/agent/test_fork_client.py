"""Workers forked from a warm server: they start as specified, and their last output is received."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.agent.raising import BODIES, ROOT, Output, fork_server, offspring, receive, run, spawn
from understudy.agent.output import LONGEST_LINE, OutputLines

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("step", [1, 7, 4096, 1 << 20])
def test_lines_do_not_depend_on_how_the_bytes_arrive(step: int) -> None:
    long = bytes(range(14, 256)) * 600
    sizes = [3, 0, 1, LONGEST_LINE - 1, LONGEST_LINE, LONGEST_LINE + 1, 2 * LONGEST_LINE, 2 * LONGEST_LINE + 5]
    if step == 1:
        sizes = sizes[:3]
    data = b"\n".join(long[:size] for size in sizes) + b"\nend"
    lines = OutputLines()
    got = [line for at in range(0, len(data), step) for line in lines.feed(data[at : at + step])] + [*lines.end()]
    expected = [long[:size][at : at + LONGEST_LINE] for size in sizes for at in range(0, max(size, 1), LONGEST_LINE)]
    assert got == [*expected, b"end"]
    assert list(lines.end()) == []


def test_exit_codes() -> None:
    async def body() -> None:
        async with fork_server() as warm:
            output: Output = []
            for expression, code in (
                ("0", 0),
                ("None", 0),
                ("7", 7),
                ("255", 255),
                ("256", 0),
                ("-1", 255),
                ("True", 1),
            ):
                child = await spawn(warm, "leave", expression.encode(), output)
                assert await child.exited == code == child.code
            assert output == []
            child = await spawn(warm, "leave", b"'out of luck'", output)
            assert await child.exited == 1
            assert output == [("stderr", b"out of luck")]

    run(body)


def test_a_worker_collects_its_garbage_but_not_the_server_s() -> None:
    async def body() -> None:
        async with fork_server() as warm:
            child = await spawn(
                warm, "leave", b"__import__('gc').isenabled() + 2 * (__import__('gc').get_freeze_count() > 0)"
            )
            assert await child.exited == 3

    run(body)


def test_an_uncaught_exception_is_told_without_our_frames() -> None:
    async def body() -> None:
        async with fork_server() as warm:
            output: Output = []
            child = await spawn(warm, "fail", b"no such luck", output)
            assert await child.exited == 1
            told = [line for stream, line in output if stream == "stderr"]
            assert told[0] == b"Traceback (most recent call last):"
            assert told[-1] == b"ValueError: no such luck"
            assert not [line for line in told if b"forkserver.py" in line]
            assert ("stdout", b"before") in output

    run(body)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT])
def test_signals(number: signal.Signals) -> None:
    async def body() -> None:
        async with fork_server() as warm:
            assert await (await spawn(warm, "interrupt", b"%d" % number)).exited == -number
            child = await spawn(warm, "wait")
            await asyncio.get_running_loop().sock_recv(child.connection, 1)
            child.kill(number)
            assert await child.exited == -number
            child.kill(number)

    run(body)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_birth(number: signal.Signals) -> None:
    async def body() -> None:
        async with fork_server() as warm:
            for _ in range(10):
                child = await spawn(warm, "wait")
                child.kill(number)
                assert await child.exited == -number
                child.connection.close()

    run(body)


def test_output_comes_in_lines_and_before_the_exit() -> None:
    async def body() -> None:
        async with fork_server() as warm:
            output: Output = []
            child = await spawn(warm, "speak", output=output)
            assert await child.exited == 0
            assert [line for stream, line in output if stream == "stdout"] == [b"one", b"threefour"]
            assert [line for stream, line in output if stream == "stderr"] == [b"two"]

    run(body)


def test_long_and_partial_lines() -> None:
    async def body() -> None:
        async with fork_server() as warm:
            output: Output = []
            long = b"x" * (5 * LONGEST_LINE + 3)
            child = await spawn(warm, "write", b"\n\n" + long + b"\nrest", output)
            assert await child.exited == 0
            lines = [line for _, line in output]
            assert [len(line) for line in lines] == [0, 0, *[LONGEST_LINE] * 5, 3, 4]
            assert b"".join(lines) == long + b"rest"

    run(body)


def test_a_listener_that_fails_does_not_stop_the_others() -> None:
    async def body() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

        def heard(line: bytes, stream: str) -> None:
            raise ValueError(line)

        async with fork_server() as warm:
            child = await warm.spawn(target=f"{BODIES}:speak", spec=b"", env={}, cwd="/", on_output=heard)
            assert await child.exited == 0
        assert {str(context["exception"]) for context in told} == {"b'one'", "b'two'", "b'threefour'"}

    run(body)


def test_the_line_works_both_ways_and_outlives_the_worker() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with fork_server() as warm:
            child = await spawn(warm, "echo", b"hello")
            assert not child.connection.getblocking()
            assert await loop.sock_recv(child.connection, 100) == b"hello"
            await loop.sock_sendall(child.connection, b"and back")
            assert await loop.sock_recv(child.connection, 100) == b"and back"
            await loop.sock_sendall(child.connection, b"last")
            child.connection.shutdown(1)
            assert await child.exited == 0
            assert await receive(child) == b"last"

    run(body)


def test_a_large_spec_arrives() -> None:
    async def body() -> None:
        async with fork_server() as warm:
            spec = os.urandom(3 << 20)
            first, second = await asyncio.gather(spawn(warm, "echo", spec), spawn(warm, "leave", b"3"))
            first.connection.shutdown(1)
            assert await receive(first) == spec
            assert (await first.exited, await second.exited) == (0, 3)
            with pytest.raises(ValueError, match="too long"):
                await spawn(warm, "echo", bytes(1 << 26))

    run(body)


def test_a_worker_is_what_it_was_told_to_be(tmp_path: Path) -> None:
    async def body() -> None:
        async with fork_server("json") as warm:
            env = {"OMP_NUM_THREADS": "3", "EMPTY": "", "ODD": "a=b\nc"}
            other = await spawn(warm, "wait")
            child = await warm.spawn(
                target=f"{BODIES}:describe", spec=b"json", env=env, cwd=str(tmp_path), on_output=print
            )
            about = json.loads(await receive(child))
            assert await child.exited == 0
            assert about["connection"] == 3
            listing = about["fds"].pop("4")
            assert listing == "the listing" or listing.startswith("/proc/")
            kinds = {fd: what.partition(":")[0] for fd, what in about["fds"].items()}
            assert kinds == {"0": "/dev/null", "1": "pipe", "2": "pipe", "3": "socket"}
            assert about["fds"]["1"] != about["fds"]["2"]
            assert about["env"] == env
            assert sorted(about["libc"].rstrip("\0").split("\0")) == sorted(f"{k}={v}" for k, v in env.items())
            assert about["cwd"] == str(tmp_path)
            assert about["temporary"] is None
            assert about["group"] == child.pid
            assert [os.getpgid(server) for server in offspring()] == list(offspring())
            assert about["threads"] == [1, 1]
            assert about["blocked"] == 0
            assert sorted(map(int, about["signals"])) == [signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ]
            assert not about["loop"]
            assert about["json"]
            assert other.code is None

    run(body)


def test_a_directory_that_does_not_exist() -> None:
    async def body() -> None:
        async with fork_server() as warm:
            lines: list[bytes] = []
            child = await warm.spawn(
                target=f"{BODIES}:wait", spec=b"", env={}, cwd="/no/where", on_output=lambda line, _: lines.append(line)
            )
            assert await child.exited == 1
            assert lines[-1] == b"FileNotFoundError: [Errno 2] No such file or directory: b'/no/where'"

    run(body)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("no.such:thing", b"ModuleNotFoundError: No module named 'no'"),
        ("json:thing", b"AttributeError: module 'json' has no attribute 'thing'"),
    ],
)
def test_a_target_that_does_not_exist(target: str, told: bytes) -> None:
    async def body() -> None:
        async with fork_server() as warm:
            output: Output = []
            child = await spawn(warm, target, output=output)
            assert await child.exited == 1
            assert output[-1] == ("stderr", told)

    run(body)


def test_the_end_is_python_s(tmp_path: Path) -> None:
    """What the server's modules registered for its exit is not run in a worker; what the worker registers, is."""
    trace = tmp_path / "server"
    (tmp_path / "registers.py").write_text(f"import atexit\natexit.register(open, {str(trace)!r}, 'x')\n")

    async def body() -> None:
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
        async with fork_server("registers", env=env) as warm:
            output: Output = []
            child = await spawn(warm, "at_exit", output=output)
            assert await child.exited == 0
            assert output == [("stdout", b"thread"), ("stdout", b"handler")]
            assert not trace.exists()
        assert trace.exists()

    run(body)


@pytest.mark.job
def test_a_warm_worker_has_torch_at_once() -> None:
    async def body() -> None:
        async with fork_server("torch", "torch.distributed", "torch.nn.parallel", BODIES) as warm:
            for threads in (1, 2):
                output: Output = []
                child = await spawn(warm, "threads_of_torch", output=output, env={"OMP_NUM_THREADS": str(threads)})
                assert await child.exited == 0
                assert output == [("stdout", b"%d 8" % threads)]

    run(body)

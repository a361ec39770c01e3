"""Workers forked from a warm server: born as told, heard to the last word, seen to die, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from understudy.agent.forkserver import NO_TARGET
from understudy.agent.nursery import LONGEST_LINE, Child, Lines, Nursery, NurseryError

ROOT = Path(__file__).parents[2]
BODIES = "tests.agent.bodies"
LIMIT_S = 30.0

pytestmark = pytest.mark.timeout(60)

Output = list[tuple[str, bytes]]


def fds() -> dict[str, str]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[entry.name] = str(entry.readlink())
    return found


def children() -> set[int]:
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


_others: set[int] = set()
"""Children that this process had before the test: other tests' servers."""


def offspring() -> set[int]:
    return children() - _others


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Afterwards there is no process and no descriptor that was not there before."""

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await body()

    _others.clear()
    _others.update(children())
    before = fds()
    asyncio.run(limited())
    assert (fds(), offspring()) == (before, set())


@contextlib.asynccontextmanager
async def nursery(*preload: str) -> AsyncIterator[Nursery]:
    opened = await Nursery.open(preload=preload or ["json", BODIES], env={**os.environ, "PYTHONPATH": str(ROOT)})
    async with opened:
        yield opened


async def spawn(
    nursery: Nursery, body: str, spec: bytes = b"", output: Output | None = None, env: dict[str, str] | None = None
) -> Child:
    def heard(line: bytes, stream: Literal["stdout", "stderr"]) -> None:
        if output is not None:
            output.append((stream, line))

    target = body if ":" in body else f"{BODIES}:{body}"
    return await nursery.spawn(target=target, spec=spec, env=env or {}, cwd="/", on_output=heard)


async def receive(child: Child) -> bytes:
    """All that comes over the line until its end."""
    data = b""
    while piece := await asyncio.get_running_loop().sock_recv(child.line, 1 << 16):
        data += piece
    return data


@contextlib.contextmanager
def watched(pid: int) -> Iterator[int]:
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def died(pidfd: int, limit: float = LIMIT_S) -> bool:
    return bool(select.select([pidfd], [], [], limit)[0])


@pytest.mark.parametrize("step", [1, 7, 4096, 1 << 20])
def test_lines_do_not_depend_on_how_the_bytes_arrive(step: int) -> None:
    long = bytes(range(11, 256)) * 600
    sizes = [3, 0, 1, LONGEST_LINE - 1, LONGEST_LINE, LONGEST_LINE + 1, 2 * LONGEST_LINE, 2 * LONGEST_LINE + 5]
    if step == 1:
        sizes = sizes[:3]
    data = b"\n".join(long[:size] for size in sizes) + b"\nend"
    lines = Lines()
    got = [line for at in range(0, len(data), step) for line in lines.feed(data[at : at + step])] + [*lines.end()]
    expected = [long[:size][at : at + LONGEST_LINE] for size in sizes for at in range(0, max(size, 1), LONGEST_LINE)]
    assert got == [*expected, b"end"]
    assert list(lines.end()) == []


def test_exit_codes() -> None:
    async def body() -> None:
        async with nursery() as warm:
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


def test_an_uncaught_exception_is_told_without_our_frames() -> None:
    async def body() -> None:
        async with nursery() as warm:
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
        async with nursery() as warm:
            assert await (await spawn(warm, "interrupt", b"%d" % number)).exited == -number
            child = await spawn(warm, "wait")
            await asyncio.get_running_loop().sock_recv(child.line, 1)
            child.kill(number)
            assert await child.exited == -number
            child.kill(number)

    run(body)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_birth(number: signal.Signals) -> None:
    async def body() -> None:
        async with nursery() as warm:
            for _ in range(10):
                child = await spawn(warm, "wait")
                child.kill(number)
                assert await child.exited == -number
                child.line.close()

    run(body)


def test_output_comes_in_lines_and_before_the_exit() -> None:
    async def body() -> None:
        async with nursery() as warm:
            output: Output = []
            child = await spawn(warm, "speak", output=output)
            assert await child.exited == 0
            assert [line for stream, line in output if stream == "stdout"] == [b"one", b"threefour"]
            assert [line for stream, line in output if stream == "stderr"] == [b"two"]

    run(body)


def test_long_and_partial_lines() -> None:
    async def body() -> None:
        async with nursery() as warm:
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

        async with nursery() as warm:
            child = await warm.spawn(target=f"{BODIES}:speak", spec=b"", env={}, cwd="/", on_output=heard)
            assert await child.exited == 0
        assert {str(context["exception"]) for context in told} == {"b'one'", "b'two'", "b'threefour'"}

    run(body)


def test_the_line_works_both_ways_and_outlives_the_worker() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with nursery() as warm:
            child = await spawn(warm, "echo", b"hello")
            assert not child.line.getblocking()
            assert await loop.sock_recv(child.line, 100) == b"hello"
            await loop.sock_sendall(child.line, b"and back")
            assert await loop.sock_recv(child.line, 100) == b"and back"
            await loop.sock_sendall(child.line, b"last")
            child.line.shutdown(1)
            assert await child.exited == 0
            assert await receive(child) == b"last"

    run(body)


def test_a_large_spec_arrives() -> None:
    async def body() -> None:
        async with nursery() as warm:
            spec = os.urandom(3 << 20)
            first, second = await asyncio.gather(spawn(warm, "echo", spec), spawn(warm, "leave", b"3"))
            first.line.shutdown(1)
            assert await receive(first) == spec
            assert (await first.exited, await second.exited) == (0, 3)
            with pytest.raises(ValueError, match="too long"):
                await spawn(warm, "echo", bytes(1 << 26))

    run(body)


def test_a_worker_is_what_it_was_told_to_be(tmp_path: Path) -> None:
    async def body() -> None:
        async with nursery("json") as warm:
            env = {"OMP_NUM_THREADS": "3", "EMPTY": "", "ODD": "a=b\nc"}
            other = await spawn(warm, "wait")
            child = await warm.spawn(
                target=f"{BODIES}:describe", spec=b"json", env=env, cwd=str(tmp_path), on_output=print
            )
            about = json.loads(await receive(child))
            assert await child.exited == 0
            assert about["line"] == 3
            listing = about["fds"].pop("4")
            assert listing == "the listing" or listing.startswith("/proc/")
            kinds = {fd: what.partition(":")[0] for fd, what in about["fds"].items()}
            assert kinds == {"0": "/dev/null", "1": "pipe", "2": "pipe", "3": "socket"}
            assert about["fds"]["1"] != about["fds"]["2"]
            assert about["env"] == env
            assert sorted(about["libc"].rstrip("\0").split("\0")) == sorted(f"{k}={v}" for k, v in env.items())
            assert about["cwd"] == str(tmp_path)
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
        async with nursery() as warm:
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
        ("no.such:thing", b"No module named 'no'"),
        ("json:thing", b"module 'json' has no function 'thing'"),
        ("json:__name__", b"module 'json' has no function '__name__'"),
        ("json:", b"say module:function"),
    ],
)
def test_a_target_that_does_not_exist(target: str, told: bytes) -> None:
    async def body() -> None:
        async with nursery() as warm:
            output: Output = []
            child = await spawn(warm, target, output=output)
            assert await child.exited == NO_TARGET
            assert output == [("stderr", b"understudy: cannot start '%s': %s" % (target.encode(), told))]

    run(body)


def test_the_end_is_python_s(tmp_path: Path) -> None:
    """What the server's modules registered for its exit is not run in a worker; what the worker registers, is."""
    trace = tmp_path / "server"
    (tmp_path / "registers.py").write_text(f"import atexit\natexit.register(open, {str(trace)!r}, 'x')\n")

    async def body() -> None:
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
        async with await Nursery.open(preload=["registers"], env=env) as warm:
            output: Output = []
            child = await spawn(warm, "at_exit", output=output)
            assert await child.exited == 0
            assert output == [("stdout", b"thread"), ("stdout", b"handler")]
            assert not trace.exists()
        assert trace.exists()

    run(body)


def test_what_a_worker_leaves_in_its_group_dies_with_it() -> None:
    async def body() -> None:
        async with nursery() as warm:
            output: Output = []
            child = await spawn(warm, "orphan", output=output)
            pid = int(await receive(child))
            assert await child.exited == 5
            assert output == [("stdout", b"last words")]
            with contextlib.suppress(ProcessLookupError), watched(pid) as pidfd:
                assert died(pidfd)

    run(body)


def test_a_grandchild_that_holds_the_pipe_does_not_delay_the_exit() -> None:
    async def body() -> None:
        async with nursery() as warm:
            output: Output = []
            child = await spawn(warm, "orphan", b"session", output)
            with watched(int(await receive(child))) as pidfd:
                try:
                    assert await child.exited == 5
                    assert output == [("stdout", b"last words")]
                    assert not died(pidfd, 0)
                finally:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    run(body)


def test_a_waiter_that_gives_up_spoils_nothing() -> None:
    async def body() -> None:
        async with nursery() as warm:
            child = await spawn(warm, "wait")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(child.exited, 0)
            child.kill(signal.SIGKILL)
            assert await child.exited == -signal.SIGKILL

    run(body)


def test_a_cancelled_spawn_leaves_no_worker() -> None:
    async def body() -> None:
        async with nursery() as warm:
            births = [asyncio.create_task(spawn(warm, "wait")) for _ in range(8)]
            await asyncio.sleep(0)
            for birth in births[::2]:
                birth.cancel()
            kept = [await birth for birth in births[1::2]]
            abandoned = [child for child in warm._children.values() if child not in kept]
            assert await asyncio.gather(*(child.exited for child in abandoned)) == [-signal.SIGKILL] * 4
            assert [child.code for child in kept] == [None] * 4
            assert all(child.line.fileno() < 0 for child in abandoned)

    run(body)


def test_close_ends_everything_in_every_state() -> None:
    async def body() -> None:
        warm = await Nursery.open(preload=["json"], env={**os.environ, "PYTHONPATH": str(ROOT)})
        running = [await spawn(warm, "wait") for _ in range(3)]
        done = await spawn(warm, "leave", b"4")
        waiting = [asyncio.create_task(spawn(warm, "wait")) for _ in range(3)]
        await asyncio.sleep(0)
        exits = [child.exited for child in running]
        await asyncio.gather(warm.close(), warm.close())
        assert [await code for code in exits] == [-signal.SIGKILL] * 3
        assert done.code in (4, -signal.SIGKILL)
        assert offspring() == set()
        for birth in waiting:
            with contextlib.suppress(NurseryError):
                assert (await birth).code == -signal.SIGKILL
        with pytest.raises(NurseryError, match="closed"):
            await spawn(warm, "wait")
        await warm.close()

    run(body)


def test_a_close_that_is_cancelled_still_ends_everything() -> None:
    async def body() -> None:
        warm = await Nursery.open(preload=["json"], env={**os.environ, "PYTHONPATH": str(ROOT)})
        child = await spawn(warm, "wait")
        with watched(child.pid) as pidfd:
            closing = asyncio.create_task(warm.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert died(pidfd)
        assert child.code == -signal.SIGKILL

    run(body)


def test_a_server_that_hangs_does_not_keep_close_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.agent.nursery.CLOSE_S", 0.05)

    async def body() -> None:
        async with nursery() as warm:
            child = await spawn(warm, "wait")
            (server,) = offspring()
            os.kill(server, signal.SIGSTOP)
        assert child.code == -signal.SIGKILL

    run(body)


def test_when_the_server_dies_its_workers_do() -> None:
    async def body() -> None:
        async with nursery() as warm:
            children = [await spawn(warm, "wait") for _ in range(3)]
            (server,) = offspring()
            os.kill(server, signal.SIGSTOP)
            late = asyncio.create_task(spawn(warm, "wait"))
            await asyncio.sleep(0)
            os.kill(server, signal.SIGKILL)
            assert await asyncio.gather(*(child.exited for child in children)) == [-signal.SIGKILL] * 3
            for attempt in (late, spawn(warm, "wait")):
                with pytest.raises(NurseryError, match=r"the fork server was killed by SIGKILL.*open another"):
                    await attempt

    run(body)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "a thread running"),
    ],
)
def test_a_module_that_cannot_be_imported(tmp_path: Path, source: str, told: str) -> None:
    (tmp_path / "broken.py").write_text(source)

    async def body() -> None:
        with pytest.raises(NurseryError, match=f"the fork server cannot import broken: .*{told}"):
            await Nursery.open(preload=["json", "broken"], env={**os.environ, "PYTHONPATH": str(tmp_path)})

    run(body)


def test_a_server_that_dies_early(tmp_path: Path) -> None:
    (tmp_path / "fatal.py").write_text("import os; os.kill(os.getpid(), 9)")

    async def body() -> None:
        with pytest.raises(NurseryError, match="was killed by SIGKILL before it was ready"):
            await Nursery.open(preload=["fatal"], env={**os.environ, "PYTHONPATH": str(tmp_path)})

    run(body)


def test_an_open_that_is_cancelled(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import signal; signal.pause()")

    async def body() -> None:
        opening = asyncio.create_task(Nursery.open(preload=["slow"], env={**os.environ, "PYTHONPATH": str(tmp_path)}))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    run(body)


def test_fifty_workers_leak_nothing() -> None:
    async def body() -> None:
        async with nursery() as warm:
            (server,) = offspring()
            table = Path(f"/proc/{server}/fd")
            before, theirs = fds(), {entry.name for entry in table.iterdir()}
            for _ in range(10):
                children = await asyncio.gather(*(spawn(warm, "leave", b"%d" % code) for code in range(5)))
                assert await asyncio.gather(*(child.exited for child in children)) == list(range(5))
                for child in children:
                    child.line.close()
            assert fds() == before
            assert {entry.name for entry in table.iterdir()} == theirs
            assert Path(f"/proc/{server}/task/{server}/children").read_text() == ""
            assert len(warm._children) <= 5

    run(body)


AGENT = f"""
import asyncio, os
from understudy.agent.nursery import Nursery

async def main():
    nursery = await Nursery.open(preload=["json"])
    children = [await nursery.spawn("{BODIES}:wait", env={{}}, cwd="/", on_output=print) for _ in range(3)]
    print(nursery._server.pid, *(child.pid for child in children), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_when_the_agent_is_killed_nothing_survives() -> None:
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    with agent, contextlib.ExitStack() as stack:
        stack.callback(agent.kill)
        assert agent.stdout is not None
        pids = [int(pid) for pid in agent.stdout.readline().split()]
        assert len(pids) == 4
        pidfds = [stack.enter_context(watched(pid)) for pid in pids]
        assert not any(died(pidfd, 0) for pidfd in pidfds)
        agent.kill()
        assert all(died(pidfd) for pidfd in pidfds)


@pytest.mark.job
def test_a_warm_worker_has_torch_at_once() -> None:
    async def body() -> None:
        start = time.perf_counter()
        async with nursery("torch", "torch.distributed", "torch.nn.parallel", BODIES) as warm:
            print(f"import {time.perf_counter() - start:.3f} s")
            for threads in (1, 2):
                output: Output = []
                start = time.perf_counter()
                child = await spawn(warm, "threads_of_torch", output=output, env={"OMP_NUM_THREADS": str(threads)})
                print(f"spawn {time.perf_counter() - start:.4f} s")
                assert await child.exited == 0
                print(f"spawn, work and exit {time.perf_counter() - start:.4f} s")
                assert output == [("stdout", b"%d 8" % threads)]
            start = time.perf_counter()
        print(f"close {time.perf_counter() - start:.4f} s")

    run(body)

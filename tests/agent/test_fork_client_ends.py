"""The ends of workers, of their fork server and of the agent: each is noticed, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.raising import BODIES, ROOT, Output, died, fds, fork_server, offspring, receive, run, spawn, watched
from understudy.agent.fork_client import ForkClient, ForkServerError

pytestmark = pytest.mark.timeout(60)


def test_what_a_worker_leaves_in_its_group_dies_with_it() -> None:
    async def body() -> None:
        async with fork_server() as warm:
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
        async with fork_server() as warm:
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
        async with fork_server() as warm:
            child = await spawn(warm, "wait")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(child.exited, 0)
            child.kill(signal.SIGKILL)
            assert await child.exited == -signal.SIGKILL

    run(body)


def test_a_cancelled_spawn_leaves_no_worker() -> None:
    async def body() -> None:
        async with fork_server() as warm:
            births = [asyncio.create_task(spawn(warm, "wait")) for _ in range(8)]
            await asyncio.sleep(0)
            for birth in births[::2]:
                birth.cancel()
            kept = [await birth for birth in births[1::2]]
            abandoned = [child for child in warm._children.values() if child not in kept]
            assert await asyncio.gather(*(child.exited for child in abandoned)) == [-signal.SIGKILL] * 4
            assert [child.code for child in kept] == [None] * 4
            assert all(child.connection.fileno() < 0 for child in abandoned)

    run(body)


def test_close_ends_everything_in_every_state() -> None:
    async def body() -> None:
        warm = await ForkClient.open(preload=["json"], env={**os.environ, "PYTHONPATH": str(ROOT)})
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
            with contextlib.suppress(ForkServerError):
                assert (await birth).code == -signal.SIGKILL
        with pytest.raises(ForkServerError, match="closed"):
            await spawn(warm, "wait")
        await warm.close()

    run(body)


def test_a_close_that_is_cancelled_still_ends_everything() -> None:
    async def body() -> None:
        warm = await ForkClient.open(preload=["json"], env={**os.environ, "PYTHONPATH": str(ROOT)})
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
    monkeypatch.setattr("understudy.agent.fork_client.CLOSE_S", 0.05)

    async def body() -> None:
        async with fork_server() as warm:
            child = await spawn(warm, "wait")
            (server,) = offspring()
            os.kill(server, signal.SIGSTOP)
        assert child.code == -signal.SIGKILL

    run(body)


def test_when_the_server_dies_its_workers_do() -> None:
    async def body() -> None:
        async with fork_server() as warm:
            children = [await spawn(warm, "wait") for _ in range(3)]
            (server,) = offspring()
            os.kill(server, signal.SIGSTOP)
            late = asyncio.create_task(spawn(warm, "wait"))
            await asyncio.sleep(0)
            os.kill(server, signal.SIGKILL)
            assert await asyncio.gather(*(child.exited for child in children)) == [-signal.SIGKILL] * 3
            for attempt in (late, spawn(warm, "wait")):
                with pytest.raises(ForkServerError, match=r"the fork server was killed by SIGKILL.*open another"):
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
        with pytest.raises(ForkServerError, match=f"the fork server cannot import broken: .*{told}"):
            await ForkClient.open(preload=["json", "broken"], env={**os.environ, "PYTHONPATH": str(tmp_path)})

    run(body)


def test_a_server_that_dies_early(tmp_path: Path) -> None:
    (tmp_path / "fatal.py").write_text("import os; os.kill(os.getpid(), 9)")

    async def body() -> None:
        with pytest.raises(ForkServerError, match="was killed by SIGKILL before it was ready"):
            await ForkClient.open(preload=["fatal"], env={**os.environ, "PYTHONPATH": str(tmp_path)})

    run(body)


def test_an_open_that_is_cancelled(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import signal; signal.pause()")

    async def body() -> None:
        opening = asyncio.create_task(
            ForkClient.open(preload=["slow"], env={**os.environ, "PYTHONPATH": str(tmp_path)})
        )
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    run(body)


def test_fifty_workers_leak_nothing() -> None:
    async def body() -> None:
        async with fork_server() as warm:
            (server,) = offspring()
            table = Path(f"/proc/{server}/fd")
            before, theirs = fds(), {entry.name for entry in table.iterdir()}
            for _ in range(10):
                children = await asyncio.gather(*(spawn(warm, "leave", b"%d" % code) for code in range(5)))
                assert await asyncio.gather(*(child.exited for child in children)) == list(range(5))
                for child in children:
                    child.connection.close()
            assert fds() == before
            assert {entry.name for entry in table.iterdir()} == theirs
            assert Path(f"/proc/{server}/task/{server}/children").read_text() == ""
            assert len(warm._children) <= 5

    run(body)


AGENT = f"""
import asyncio, os
from understudy.agent.fork_client import ForkClient

async def main():
    fork_server = await ForkClient.open(preload=["json"])
    children = [await fork_server.spawn("{BODIES}:wait", env={{}}, cwd="/", on_output=print) for _ in range(3)]
    print(fork_server.pid, *(child.pid for child in children), flush=True)
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

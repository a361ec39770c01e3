"""The agent against a controller that is scripted by the test."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from aiohttp import WSMsgType, web

from understudy.agent.agent import Agent
from understudy.agent.fork_client import ForkClient, ForkServerError
from understudy.agent.spec import ABANDONED, AGAIN, UNFIT, AgentSpec
from understudy.agent.workers import WorkerProcess
from understudy.protocol.frames import (
    Dismiss,
    Frame,
    KeepCopy,
    KeptCopy,
    Leaving,
    Numbered,
    Refused,
    Register,
    StartWorker,
    Welcome,
)
from understudy.protocol.messages import Progress, Recorded, WorkerSpec
from understudy.protocol.options import with_options
from understudy.protocol.samples import Sample

LIMIT_S = 20.0
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Frame).decode


class Barren:
    """A client of a fork server that has died."""

    async def spawn(self, **options: object) -> None:
        raise ForkServerError("the fork server has died")

    async def close(self) -> None:
        pass


def agent_spec(machine: str, url: str, worker: WorkerSpec, folder: Path) -> AgentSpec:
    return AgentSpec(
        machine=machine,
        incarnation=f"{machine}-a",
        standby=False,
        url=url,
        worker=worker,
        run_dir=str(folder),
        cwd=str(folder),
        env={},
    )


def run_agent(
    folder: Path,
    talk: Callable[[web.WebSocketResponse], Awaitable[None]],
    told: Callable[[Agent], None] = lambda agent: None,
    **more: Any,
) -> Agent:
    """An agent's life with a controller that talks to it after its registration; `told` is called before it."""

    async def handle(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        register = decode(await ws.receive_bytes())
        assert isinstance(register, Register)
        await ws.send_bytes(encode(Welcome(0)))
        await talk(ws)
        async for message in ws:
            assert message.type == WSMsgType.BINARY
        return ws

    async def live() -> Agent:
        app = web.Application()
        app.router.add_get("/agent", handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = cast(Any, site)._server.sockets[0].getsockname()[1]
        script = folder / "train.py"
        script.touch()
        worker = WorkerSpec("", "m1", 0, "job", b"s" * 32, str(script), (), 1, (("dp", 1),))
        if "grace" in more:
            settings = with_options(worker.settings, grace=more.pop("grace"))
            worker = msgspec.structs.replace(worker, settings=settings)
        spec = agent_spec("m1", f"http://127.0.0.1:{port}", worker, folder)
        agent = Agent(msgspec.structs.replace(spec, **more), cast(ForkClient, Barren()), lambda text: None)
        told(agent)
        try:
            await asyncio.wait_for(agent.run(), LIMIT_S)
        finally:
            await runner.cleanup()
        return agent

    return asyncio.run(live())


def test_an_agent_that_can_start_no_workers_ends_and_may_come_back(tmp_path: Path) -> None:
    async def talk(ws: web.WebSocketResponse) -> None:
        await ws.send_bytes(encode(Numbered(1, StartWorker("w0", 0))))

    assert run_agent(tmp_path, talk).code == AGAIN


def test_an_agent_that_is_dismissed_ends(tmp_path: Path) -> None:
    async def talk(ws: web.WebSocketResponse) -> None:
        await ws.send_bytes(encode(Numbered(1, Dismiss("it was replaced"))))

    assert run_agent(tmp_path, talk).code == 0


def test_an_agent_that_was_given_up_may_come_back(tmp_path: Path) -> None:
    async def talk(ws: web.WebSocketResponse) -> None:
        await ws.send_bytes(encode(Numbered(1, Dismiss("no heartbeat", again=True))))

    assert run_agent(tmp_path, talk).code == AGAIN


def test_an_agent_says_when_it_cannot_keep_a_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No agent serves the recording at the given address: the controller is told, and may ask another machine."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        there = Recorded(3, "abc", 10, 3, f"http://127.0.0.1:{unused.getsockname()[1]}/recordings/abc")

        async def talk(ws: web.WebSocketResponse) -> None:
            await ws.send_bytes(encode(Numbered(1, KeepCopy(there))))
            said = decode(await ws.receive_bytes())
            while not isinstance(said, Numbered):
                said = decode(await ws.receive_bytes())
            assert said == Numbered(1, KeptCopy(msgspec.structs.replace(there, url="")))
            await ws.send_bytes(encode(Numbered(2, Dismiss("it was replaced"))))

        assert run_agent(tmp_path, talk).code == 0
    assert "no copy of role 3's recording" in caplog.text


# -- leaving -----------------------------------------------------------------------------------------------------------


async def known(ws: web.WebSocketResponse, agent: Agent) -> None:
    """The agent knows that it belongs to the job."""
    while not agent._known:
        await asyncio.sleep(0.01)


def leaving(folder: Path, after: Callable[[Agent, web.WebSocketResponse], Awaitable[None]], grace: float) -> Agent:
    """SIGTERM comes; what the agent says first is that it goes."""
    agents: list[Agent] = []

    async def talk(ws: web.WebSocketResponse) -> None:
        await known(ws, agents[0])
        agents[0].terminated()
        report = decode(await ws.receive_bytes())
        assert report == Numbered(1, Leaving(grace, "it was told to go by SIGTERM"))
        await after(agents[0], ws)

    return run_agent(folder, talk, agents.append, grace=grace)


@pytest.mark.parametrize("again", [True, False])
def test_an_agent_that_must_go_says_so_and_ends_when_it_is_dismissed(tmp_path: Path, again: bool) -> None:
    async def dismissed(agent: Agent, ws: web.WebSocketResponse) -> None:
        await ws.send_bytes(encode(Numbered(1, Dismiss("it was replaced", again=again))))

    assert leaving(tmp_path, dismissed, 60.0).code == 0  # it does not come back


def test_an_agent_that_must_go_waits_only_so_long(tmp_path: Path) -> None:
    async def nothing(agent: Agent, ws: web.WebSocketResponse) -> None:
        pass

    assert leaving(tmp_path, nothing, 0.2).code == 0


def test_an_agent_that_is_terminated_twice_does_not_wait(tmp_path: Path) -> None:
    async def again(agent: Agent, ws: web.WebSocketResponse) -> None:
        agent.leave("its launcher says so, too")  # which does not count
        assert not agent._over.is_set()
        agent.terminated()

    assert leaving(tmp_path, again, 60.0).code == 0


def test_an_agent_without_a_job_leaves_at_once(tmp_path: Path) -> None:
    async def talk(ws: web.WebSocketResponse) -> None:
        pass

    assert run_agent(tmp_path, talk, Agent.terminated, grace=60.0).code == 0


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_garbage_from_the_controller_is_a_reason_to_connect_anew(tmp_path: Path) -> None:
    said: list[bytes] = []

    async def talk(ws: web.WebSocketResponse) -> None:
        said.append(b"\xc1" if not said else encode(Numbered(1, Dismiss("enough"))))
        await ws.send_bytes(said[-1])

    assert run_agent(tmp_path, talk).code == 0
    assert len(said) == 2


def test_the_agent_of_an_unfit_machine_ends_and_need_not_come_back(tmp_path: Path) -> None:
    async def talk(ws: web.WebSocketResponse) -> None:
        await ws.send_bytes(encode(Refused("m1 has no torch", unfit=True)))

    assert run_agent(tmp_path, talk).code == UNFIT


def test_a_beat_has_what_was_measured_since_the_one_before(tmp_path: Path) -> None:
    async def live() -> list[tuple[int, ...]]:
        (tmp_path / "train.py").touch()
        own = WorkerSpec("", "m1", 0, "job", b"s" * 32, str(tmp_path / "train.py"), (), 1, (("dp", 1),))
        spec = agent_spec("m1", "http://127.0.0.1:9", own, tmp_path)
        agent = Agent(spec, cast(ForkClient, Barren()), lambda text: None)
        worker = agent._workers._running["w0"] = WorkerProcess("w0", 0, cast(Any, None))
        told = []
        for steps in (range(3), range(0), range(100)):
            for step in steps:
                agent._hear_worker(worker, Progress(0, step, 0.1, sample=Sample("w0", 0, step, 0.1)))
            told.append(tuple(sample.step for sample in agent._next_beat().samples))
        agent._metrics.close()
        return told

    first, second, third = asyncio.run(live())
    assert first == (0, 1, 2)
    assert second == ()
    assert third == tuple(range(36, 100))  # the latest, where there are too many


def test_an_agent_does_not_wait_for_ever_for_a_job_that_is_gone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    script = tmp_path / "train.py"
    script.touch()
    worker = WorkerSpec("", "m7", 0, "gpt", b"s", str(script), (), 1, (("dp", 1),))
    spec = agent_spec("m7", url, worker, tmp_path)
    spec = msgspec.structs.replace(spec, standby=True, env=dict(os.environ), patience=0.5)
    done = subprocess.run(
        [sys.executable, "-m", "understudy.agent.agent", "--parent", str(os.getpid())],
        input=msgspec.json.encode(spec),
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == ABANDONED
    assert done.stderr.decode() == "understudy: m7: nothing seen of the job for 0.5 s; it must be over\n"

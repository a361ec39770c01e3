"""The controller's process: agents by WebSocket, operators by HTTP, on one port."""

from __future__ import annotations

import argparse
import asyncio
import hmac
import logging
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from understudy.controller.core import events
from understudy.controller.core.state import OVER, JobState
from understudy.host.family import die_with_parent
from understudy.host.logs import show_log
from understudy.protocol.durations import parse_deadline, parse_duration
from understudy.protocol.frames import Frame, Refused, Register
from understudy.protocol.messages import ExtensionMessage
from understudy.protocol.provisioning import ProvisioningPage
from understudy.protocol.sessions import sign_of_life_s

from .controller import RENAME, WATCH_S, Controller
from .ledger import Ledger
from .spec import ControlSpec, Offer
from .views import job_view, machines_view, roster_view

log = logging.getLogger("understudy.controller")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)
_DISBAND_S = 4.0
_PING_S = 10.0


class FaultReport(msgspec.Struct, frozen=True):
    """Body of a health checker's report."""

    why: str
    fatal: bool = False


class DrainRequest(msgspec.Struct, frozen=True):
    """Body of a request for maintenance, such as a cloud's notice."""

    machines: tuple[str, ...]
    by: float | str | None = None
    """Seconds since the epoch, a duration such as 30m, or a time of day such as 18:30 on the controller's clock."""
    why: str = ""


class AgentEnd(msgspec.Struct, frozen=True):
    """Body of a launcher's report that an agent has ended."""

    why: str = "its agent has ended"
    incarnation: str = ""
    """Empty: the incarnation that has the machine's name now."""
    joined: bool = False
    """Whether the agent joined by itself: if it never registered, the job has not waited for it."""


class AgentSocket:
    """A `Connection` over a WebSocket: frames wait in a queue that a task of its own empties."""

    def __init__(self, ws: web.WebSocketResponse) -> None:
        self._ws = ws
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._task = asyncio.ensure_future(self._write())

    @property
    def closed(self) -> bool:
        return self._ws.closed

    def send(self, frame: Frame) -> None:
        self._frames.put_nowait(_encoder.encode(frame))

    def close(self) -> None:
        """Close the socket once all frames are sent."""
        self._frames.put_nowait(None)

    async def _write(self) -> None:
        try:
            while (data := await self._frames.get()) is not None:
                await self._ws.send_bytes(data)
        except ConnectionError:
            pass  # the agent is gone; what was not acknowledged is sent again over its next connection
        await self._ws.close()

    async def wait_closed(self) -> None:
        self.close()
        await self._task


class ControllerServer:
    """The surface of a controller for agents and operators."""

    def __init__(self, spec: ControlSpec) -> None:
        self.spec, self.ledger = spec, Ledger(Path(spec.ledger))
        self.controller = Controller(spec, self.ledger)
        self.controller.on_news = self._tell
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def job(self) -> JobState:
        return self.controller.job

    def _tell(self) -> None:
        """Wake the requests that wait for news."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def watch(self) -> None:
        """Look after time limits and silent machines for as long as the process lives."""
        while True:
            await asyncio.sleep(WATCH_S)
            self.controller.look()

    # -- agents --------------------------------------------------------------------------------------------------------

    async def agent(self, request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(heartbeat=sign_of_life_s(_PING_S, self.spec.machines))
        await ws.prepare(request)
        connection = AgentSocket(ws)
        register: Register | None = None
        try:
            async for message in ws:
                if message.type != WSMsgType.BINARY:
                    continue
                frame = _decoder.decode(message.data)
                if isinstance(frame, Register):
                    register = frame
                    if not self.controller.admit(connection, register):
                        break
                elif register is None:
                    break
                else:
                    self.controller.hear(connection, register, frame)
        except msgspec.MsgspecError as error:
            sender = request.remote if register is None else register.machine
            log.warning("%s sent what is not a message: %s", sender, error)
        finally:
            if register is not None:
                self.controller.disconnected(register.machine, connection)
            await connection.wait_closed()
        return ws

    # -- operators ---------------------------------------------------------------------------------------------------

    async def ask(self, request: events.Request) -> web.Response:
        """Take a request in. The answer may take a while; its id is what to ask for it with."""
        id = self.controller.ask(request)
        return _json({"id": id, **self.controller.answer(id)})

    async def get_answer(self, request: web.Request) -> web.Response:
        """The state or the answer of a request; waits up to `wait` for the answer."""
        id, wait = request.match_info["id"], parse_duration(request.query.get("wait", "0"))
        if id not in self.job.requests:
            raise ValueError(f"there was no request {id}; its id is in the answer to the POST that made it")
        deadline = time.monotonic() + min(wait, 60.0)
        while id not in self.job.answers and (left := deadline - time.monotonic()) > 0:
            await self._wait(left)
        return _json({"id": id, **self.controller.answer(id)})

    async def _wait(self, seconds: float) -> None:
        """Until there is news, or the time is over."""
        news = asyncio.get_running_loop().create_future()
        self._waiting.add(news)
        await asyncio.wait([news], timeout=seconds)
        self._waiting.discard(news)

    async def get_events(self, request: web.Request) -> web.StreamResponse:
        """Announcements from number `after` on, and the job's status; waits up to `wait` seconds for the first."""
        after, wait = int(request.query.get("after", "0")), parse_duration(request.query.get("wait", "0"))
        if len(self.controller.announcements) <= after and wait > 0:
            await self._wait(min(wait, 60.0))
        announcements = self.controller.announcements
        return _json({"next": len(announcements), "events": announcements[after:], "status": self.job.status})

    async def get_provision(self, request: web.Request) -> web.Response:
        """Requests for machines that follow the first `after`; waits up to `wait` seconds for the first of them."""
        after, wait = int(request.query.get("after", "0")), parse_duration(request.query.get("wait", "0"))
        deadline = time.monotonic() + min(wait, 60.0)
        while len(self.controller.provisioning) <= after and (left := deadline - time.monotonic()) > 0:
            await self._wait(left)
        return _json(ProvisioningPage(len(self.controller.provisioning), tuple(self.controller.provisioning[after:])))

    async def post_replace(self, request: web.Request) -> web.Response:
        """Put standbys in the place of machines, all at one boundary; with `by` it is a drain."""
        return await self.ask(await _body(request, events.Replace))

    async def post_drain(self, request: web.Request) -> web.Response:
        """Maintenance: {"machines": ["m1"], "by": "30m", "why": "…"}."""
        given: DrainRequest = await _body(request, DrainRequest)
        by = parse_deadline(given.by, datetime.now()) if isinstance(given.by, str) else given.by
        return await self.ask(events.Replace(given.machines, by=by, in_turns=True, why=given.why))

    async def delete_drain(self, request: web.Request) -> web.Response:
        """Withdraw the drain of a machine whose turn has not come."""
        return await self.ask(events.TakeBack(request.match_info["name"]))

    async def post_standbys(self, request: web.Request) -> web.Response:
        """Request more standbys."""
        return await self.ask(await _body(request, events.AddStandby))

    async def delete_standby(self, request: web.Request) -> web.Response:
        """Dismiss a standby."""
        return await self.ask(events.RemoveStandby(request.match_info["name"]))

    async def post_scale(self, request: web.Request) -> web.Response:
        """Set the number of replicas: more as soon as machines are ready, fewer at a boundary."""
        return await self.ask(await _body(request, events.Scale))

    async def post_stop(self, request: web.Request) -> web.Response:
        """End the job at its next step boundary."""
        return await self.ask(events.StopJob())

    async def post_lost(self, request: web.Request) -> web.Response:
        """Report the end of an agent, from the launcher that started it."""
        name = request.match_info["name"]
        machine = self.job.machines.get(name)
        news: AgentEnd = await _body(request, AgentEnd)
        if machine is None:
            if not news.joined:
                self.controller.feed(events.Lost(name, "", news.why, "agent"))
        elif machine.alive and news.incarnation in ("", machine.incarnation):
            self.controller.feed(events.Lost(name, machine.incarnation, news.why, "agent"))
        return _json({})

    async def post_fault(self, request: web.Request) -> web.Response:
        """Report a fault of a machine, from a health checker: it is replaced by plan while it still works."""
        given = await _body(request, FaultReport)
        return await self.ask(events.ReportFault(request.match_info["name"], given.why, given.fatal))

    async def post_readmit(self, request: web.Request) -> web.Response:
        """Use a machine again that is in quarantine."""
        return await self.ask(events.Readmit(request.match_info["name"]))

    async def get_spec(self, request: web.Request) -> web.Response:
        """All that a machine needs to join the job under this name."""
        spec, name = self.spec, request.query.get("machine", "")
        machine = self.job.machines.get(name)
        if spec.worker is None:
            raise ValueError("this job is not open for other machines")
        if name in spec.reserved or (machine is not None and machine.alive):
            raise ValueError(f"there is a machine {name} in this job already; {RENAME}")
        return _json(Offer(spec.job, self.job.status, spec.worker, spec.env))

    async def post_disband(self, request: web.Request) -> web.Response:
        """End all agents, because the controller is about to end for good. Answers when all are gone, or after a few
        seconds."""
        if self.job.status not in OVER:
            for connection in list(self.controller.connections.values()):
                connection.send(Refused("the job was ended"))
        deadline = time.monotonic() + _DISBAND_S
        while self.controller.connections and time.monotonic() < deadline:
            await asyncio.sleep(WATCH_S / 2)
        return _json({"left": sorted(self.controller.connections)})

    async def get_job(self, request: web.Request) -> web.Response:
        """The state of the job: a `JobView`."""
        silence = self.controller.silence
        view = job_view(self.spec.job, self.job, self.controller.beats, self.controller.observing.findings)
        if silence and view.status not in OVER:
            why = f"nothing heard from any machine for {silence:.0f} s: the controller seems to be cut off"
            view = msgspec.structs.replace(view, reason="; ".join(filter(None, (why, view.reason))))
        return _json(view)

    async def get_machines(self, request: web.Request) -> web.Response:
        """All machines that have ever registered: a list of `MachineView`."""
        return _json(machines_view(self.job))

    async def get_roster(self, request: web.Request) -> web.Response:
        """The worker of each role: a list of `RoleView`."""
        return _json(roster_view(self.job, self.spec.mesh))

    async def get_extensions(self, request: web.Request) -> web.Response:
        """The extensions of this job's workers and agents: module → argument."""
        return _json({} if self.spec.worker is None else self.spec.worker.extensions)

    async def post_extensions(self, request: web.Request) -> web.Response:
        """Send a message to the extensions of a worker or an agent."""
        message: ExtensionMessage = await _body(request, ExtensionMessage)
        connection = self.controller.connections.get(message.machine)
        if self.spec.worker is None or not self.spec.worker.extensions:
            raise ValueError("this job has no extensions; for faults, start it with: understudy run --chaos")
        if connection is None:
            raise ValueError(f"no agent of {message.machine} is connected")
        connection.send(message)
        return _json({})

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/agent", self.agent),
                web.get("/job", self.get_job),
                web.get("/spec", self.get_spec),
                web.post("/disband", self.post_disband),
                web.get("/machines", self.get_machines),
                web.get("/roster", self.get_roster),
                web.get("/events", self.get_events),
                web.get("/provision", self.get_provision),
                web.get("/requests/{id}", self.get_answer),
                web.post("/replace", self.post_replace),
                web.post("/drain", self.post_drain),
                web.delete("/drain/{name}", self.delete_drain),
                web.post("/standbys", self.post_standbys),
                web.delete("/standbys/{name}", self.delete_standby),
                web.post("/scale", self.post_scale),
                web.post("/stop", self.post_stop),
                web.get("/extensions", self.get_extensions),
                web.post("/extensions", self.post_extensions),
                web.post("/machines/{name}/lost", self.post_lost),
                web.post("/machines/{name}/fault", self.post_fault),
                web.post("/machines/{name}/readmit", self.post_readmit),
            ]
        )
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.spec.secret.hex().encode()):
            return _json({"error": "the job's secret is missing or wrong; send it as a bearer token"}, status=401)
        try:
            return await handler(request)
        except (msgspec.MsgspecError, ValueError) as error:
            return _json({"error": f"{request.method} {request.path}: {error}"}, status=400)


async def _body(request: web.Request, kind: type[Any]) -> Any:
    return msgspec.json.decode(await request.read() or b"{}", type=kind)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", status=status)


async def serve(spec: ControlSpec, sock: socket.socket) -> None:
    server = ControllerServer(spec)
    runner = web.AppRunner(server.app(), access_log=None)
    await runner.setup()
    await web.SockSite(runner, sock).start()
    await server.watch()


def main() -> None:
    """`python -m understudy.controller.server.server --fd N`: the spec comes on standard input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True, help="the listening socket")
    parser.add_argument("--parent", type=int, required=True, help="end when this process does")
    args = parser.parse_args()
    die_with_parent(args.parent)
    show_log()
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=ControlSpec)
    asyncio.run(serve(spec, socket.socket(fileno=args.fd)))


if __name__ == "__main__":
    main()

"""The controller's process: agents by WebSocket, operators by HTTP, on one port; every event is in the ledger first."""

from __future__ import annotations

import argparse
import asyncio
import hmac
import logging
import socket
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from understudy.controller.core.actions import UnexpectedEvent
from understudy.controller.core.director import Director
from understudy.controller.core.effects import Announcement, Effect, Provisioning
from understudy.controller.core.events import (
    AddStandby,
    Asked,
    Event,
    Lost,
    Readmit,
    Registered,
    Rejected,
    RemoveStandby,
    Replace,
    Reported,
    ReportFault,
    Request,
    Scale,
    StopJob,
    TakeBack,
)
from understudy.controller.core.state import OVER
from understudy.host.family import die_with_parent
from understudy.protocol.frames import Ack, Beat, Frame, Numbered, Refused, Register, Report, Welcome
from understudy.protocol.messages import ExtensionMessage
from understudy.protocol.roster_delta import Shortener
from understudy.protocol.sessions import sign_of_life_s

from .admission import objection
from .bodies import Ending, Illness, Maintenance
from .deadline import moment
from .ledger import Ledger
from .observing import Observing
from .silence import gone, quiet
from .spec import ControlSpec, Offer
from .steward import Steward
from .views import job_view, machines_view, roster_view, state_of

log = logging.getLogger("understudy.controller")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)
_WATCH_S = 0.1
_DISBAND_S = 4.0
_PING_S = 10.0
_RETURN_S = 8.0
"""In which whoever was cut off from the controller has reached it again."""
_RENAME = "choose another --name"


class Controller:
    def __init__(self, spec: ControlSpec) -> None:
        self.spec = spec
        self.director = Director(spec.plan)
        self.announcements: list[Announcement] = []
        self.provisioning: list[Provisioning] = []
        """Requests for machines and releases, in their order."""
        self.beats: dict[str, Beat] = {}
        self.observing = Observing(spec.stragglers, spec.mesh)
        self._ledger = Ledger(Path(spec.ledger))
        self._seen: dict[str, float] = {}
        self._silence = 0.0
        """For how long nobody was heard, where that is too long."""
        self._sockets: dict[str, web.WebSocketResponse] = {}
        self._sent: dict[str, int] = {}
        self._expired: set[Event] = set()
        self._shortener = Shortener()
        self._news = asyncio.Condition()
        for at, event in self._ledger.read():
            self._decide(event, at)
        self.steward = Steward(spec.steward, self.director.job, self.announcements, lambda: self.observing.suspects)
        self._seen = dict.fromkeys(self.director.job.machines, time.monotonic())

    def _decide(self, event: Event, now: float) -> None:
        """Feed the director and keep the effects; an event that the protocol rules out is announced and ignored."""
        effects: list[Effect]
        try:
            effects = self.director.feed(event, now)
        except UnexpectedEvent as error:
            log.error("ignored: %s", error)
            effects = [Announcement("unexpected", f"{error.what}; the event is ignored", now)]
        self.announcements += [effect for effect in effects if isinstance(effect, Announcement)]
        self.provisioning += [effect for effect in effects if isinstance(effect, Provisioning)]

    # -- events --------------------------------------------------------------------------------------------------------

    async def feed(self, event: Event) -> None:
        now = time.time()
        self._ledger.append(now, event)
        self._decide(event, now)
        async with self._news:
            self._news.notify_all()
        while self.director.job.addressed:  # one after the other, so that whoever is fed meanwhile takes part
            name, _ = self.director.job.addressed.popitem()
            await self._flush(name)

    async def _flush(self, name: str) -> None:
        machine, ws = self.director.job.machines.get(name), self._sockets.get(name)
        if machine is None or ws is None:
            return
        for number, order in machine.outbox.after(0):
            if number > self._sent.get(name, 0):
                self._sent[name] = number
                try:
                    await ws.send_bytes(_encoder.encode(Numbered(number, *self._shortener.shorten(name, order))))
                except ConnectionError:
                    return

    async def watch(self) -> None:
        """Whoever is silent for too long is gone."""
        looked = time.monotonic()
        while True:
            await asyncio.sleep(_WATCH_S)
            now = time.monotonic()
            looked, absent = now, now - looked - _WATCH_S
            if absent > self.spec.heartbeat / 2:  # it was this process that heard nothing
                self._seen = {name: seen + absent for name, seen in self._seen.items()}
                continue
            if self._deaf(now):
                continue
            why = f"nothing heard from its agent for {self.spec.heartbeat:g} s"
            for name in gone(self._heard(now), now, self.spec.heartbeat, self.spec.patience):
                await self.feed(Lost(name, self.director.job.machines[name].incarnation, why))
            for limit, event in self.director.due():
                if time.time() > limit and event not in self._expired:
                    self._expired.add(event)
                    await self.feed(event)
            for noted in self.observing.look(self.director.job, now):
                await self.feed(noted)
            for request in self.steward.look(time.time()):
                await self.feed(request)

    def _heard(self, now: float) -> dict[str, float]:
        return {
            name: self._seen.get(name, now) for name, machine in self.director.job.machines.items() if machine.alive
        }

    def _deaf(self, now: float) -> bool:
        """Whether nobody at all is heard. When that is over, not all are heard at once: connections that were cut take
        about as long to come back as they were away, or to be opened anew."""
        heard, limit = self._heard(now), self.spec.heartbeat
        silence = quiet(heard, now)
        if limit < silence < self.spec.patience:
            if not self._silence and self.director.job.status not in OVER:
                log.warning("nothing heard from any machine for %g s: it is the controller that is cut off", limit)
            self._silence = silence
            return True
        if self._silence:
            self._seen = dict.fromkeys(self._seen, now + min(self._silence, _RETURN_S))
            self._silence = 0.0
        return False

    # -- agents --------------------------------------------------------------------------------------------------------

    async def agent(self, request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(heartbeat=sign_of_life_s(_PING_S, self.spec.machines))
        await ws.prepare(request)
        name = incarnation = ""
        try:
            async for message in ws:
                if message.type != WSMsgType.BINARY:
                    continue
                frame = _decoder.decode(message.data)
                if isinstance(frame, Register):
                    name, incarnation = frame.machine, frame.incarnation
                    if not await self._admit(ws, frame):
                        break
                elif not name:
                    break
                else:
                    self._seen[name] = time.monotonic()
                    await self._hear(ws, name, incarnation, frame)
        except msgspec.MsgspecError as error:
            log.warning("%s sent what is not a message: %s", name or request.remote, error)
        except ConnectionError:
            pass  # it has gone while it was being answered
        finally:
            if self._sockets.get(name) is ws:
                del self._sockets[name]
            await ws.close()
        return ws

    async def _admit(self, ws: web.WebSocketResponse, register: Register) -> bool:
        name = register.machine
        known = self.director.job.machines.get(name)
        why = objection(name, register.facts, self.spec.facts)
        if not why and known is not None and known.alive and known.incarnation != register.incarnation:
            there = self._sockets.get(name)
            why = "" if there is None or there.closed else f"there is a machine {name} in this job already; {_RENAME}"
        if why:
            await self.feed(Rejected(name, register.incarnation, why))
            await ws.send_bytes(_encoder.encode(Refused(why, unfit=True)))
            return False
        self._seen[name] = time.monotonic()
        if known is None or known.incarnation != register.incarnation:
            await self.feed(Registered(name, register.incarnation, register.standby, register.labels))
        machine = self.director.job.machines[name]
        machine.outbox.acknowledged(register.received)
        self._sent[name] = register.received
        if not machine.alive and not list(machine.outbox.after(register.received)):
            await ws.send_bytes(_encoder.encode(Refused(machine.why)))
            return False
        self._sockets[name] = ws
        self._shortener.connected(name, register.seated)
        await ws.send_bytes(_encoder.encode(Welcome(machine.inbox.last)))
        await self._flush(name)
        return True

    async def _hear(self, ws: web.WebSocketResponse, name: str, incarnation: str, frame: Frame) -> None:
        machine = self.director.job.machines[name]
        if machine.incarnation != incarnation:
            await ws.send_bytes(_encoder.encode(Refused("another agent has this machine's name")))
            await ws.close()
        elif isinstance(frame, Numbered) and isinstance(frame.content, Report):
            if frame.number == machine.inbox.last + 1 and machine.alive:
                await self.feed(Reported(name, incarnation, frame.number, frame.content))
            await ws.send_bytes(_encoder.encode(Ack(machine.inbox.last)))
        elif isinstance(frame, Ack):
            machine.outbox.acknowledged(frame.number)
        elif isinstance(frame, Beat):
            self.beats[name] = frame
            self.observing.hear(frame.samples)

    # -- operators ---------------------------------------------------------------------------------------------------

    async def ask(self, request: Request) -> web.Response:
        """Take a request in. The answer may take a while; its id is what to ask for it with."""
        id = uuid.uuid4().hex[:12]
        await self.feed(Asked(id, request))
        return _json({"id": id, **self._answer(id)})

    def _answer(self, id: str) -> dict[str, object]:
        reply = self.director.job.answers.get(id)
        if reply is None:
            return {"done": False, "state": state_of(self.director.job, id)}
        return {"done": True, "ok": reply.ok, "text": reply.text, "at": reply.at, **reply.data}

    async def get_answer(self, request: web.Request) -> web.Response:
        """What has become of a request; waits up to `wait` seconds for its end."""
        id, wait = request.match_info["id"], float(request.query.get("wait", "0"))
        if id not in self.director.job.requests:
            raise ValueError(f"there was no request {id}; its id is in the answer to whoever has asked")
        deadline = time.monotonic() + min(wait, 60.0)
        while id not in self.director.job.answers and (left := deadline - time.monotonic()) > 0:
            await self._wait(left)
        return _json({"id": id, **self._answer(id)})

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait()
        except TimeoutError:
            pass

    async def get_events(self, request: web.Request) -> web.StreamResponse:
        """Announcements from number `after` on; waits up to `wait` seconds for the first."""
        after, wait = int(request.query.get("after", "0")), float(request.query.get("wait", "0"))
        if len(self.announcements) <= after and wait > 0:
            await self._wait(min(wait, 60.0))
        return _json({"next": len(self.announcements), "events": self.announcements[after:]})

    async def post_replace(self, request: web.Request) -> web.Response:
        """Put standbys in the place of machines, all at one boundary; with `by` it is a drain."""
        return await self.ask(await _body(request, Replace))

    async def post_drain(self, request: web.Request) -> web.Response:
        """Maintenance: {"machines": ["m1"], "by": "30m", "why": "…"}."""
        given: Maintenance = await _body(request, Maintenance)
        by = moment(given.by, datetime.now()) if isinstance(given.by, str) else given.by
        return await self.ask(Replace(given.machines, by=by, in_turns=True, why=given.why))

    async def delete_drain(self, request: web.Request) -> web.Response:
        """The machine stays, where its turn has not come."""
        return await self.ask(TakeBack(request.match_info["name"]))

    async def post_standbys(self, request: web.Request) -> web.Response:
        """Have more machines wait."""
        return await self.ask(await _body(request, AddStandby))

    async def delete_standby(self, request: web.Request) -> web.Response:
        """Dismiss a machine that waits."""
        return await self.ask(RemoveStandby(request.match_info["name"]))

    async def post_scale(self, request: web.Request) -> web.Response:
        """More replicas, as soon as machines are ready for them, or fewer, at a boundary."""
        return await self.ask(await _body(request, Scale))

    async def post_stop(self, request: web.Request) -> web.Response:
        """End the job at its next step boundary."""
        return await self.ask(StopJob())

    async def post_lost(self, request: web.Request) -> web.Response:
        """Whoever starts machines has seen one die."""
        name = request.match_info["name"]
        machine = self.director.job.machines.get(name)
        news: Ending = await _body(request, Ending)
        if machine is None:
            if not news.joined:
                await self.feed(Lost(name, "", news.why, "agent"))
        elif machine.alive and news.incarnation in ("", machine.incarnation):
            await self.feed(Lost(name, machine.incarnation, news.why, "agent"))
        return _json({})

    async def post_fault(self, request: web.Request) -> web.Response:
        """A health checker outside says that a machine is ill: it is replaced by plan while it still works."""
        given = await _body(request, Illness)
        return await self.ask(ReportFault(request.match_info["name"], given.why, given.fatal))

    async def post_readmit(self, request: web.Request) -> web.Response:
        """Use a machine again that is in quarantine."""
        return await self.ask(Readmit(request.match_info["name"]))

    async def get_spec(self, request: web.Request) -> web.Response:
        """What a machine has to know to join, if it may have the name it wants."""
        spec, name = self.spec, request.query.get("machine", "")
        machine = self.director.job.machines.get(name)
        if spec.worker is None:
            raise ValueError("this job is not open for other machines")
        if name in spec.reserved or (machine is not None and machine.alive):
            raise ValueError(f"there is a machine {name} in this job already; {_RENAME}")
        status, patience = self.director.job.status, spec.patience
        return _json(Offer(spec.job, status, spec.worker, spec.env, spec.repair, patience))

    async def post_disband(self, request: web.Request) -> web.Response:
        """The controller is about to go for good: nobody is to wait for it. Answers when all agents have gone, or
        after a few seconds."""
        if self.director.job.status not in OVER:
            for ws in list(self._sockets.values()):
                with suppress(ConnectionError):
                    await ws.send_bytes(_encoder.encode(Refused("the job was ended")))
        deadline = time.monotonic() + _DISBAND_S
        while self._sockets and time.monotonic() < deadline:
            await asyncio.sleep(_WATCH_S / 2)
        return _json({"left": sorted(self._sockets)})

    async def get_job(self, request: web.Request) -> web.Response:
        """How the job is: a `JobView`."""
        view = job_view(self.spec.job, self.director.job, self.beats, self.observing.findings)
        if self._silence and view.status not in OVER:
            why = f"nothing heard from any machine for {self._silence:.0f} s: the controller seems to be cut off"
            view = msgspec.structs.replace(view, reason="; ".join(filter(None, (why, view.reason))))
        return _json(view)

    async def get_machines(self, request: web.Request) -> web.Response:
        """All machines that have ever come: a list of `MachineView`."""
        return _json(machines_view(self.director.job))

    async def get_roster(self, request: web.Request) -> web.Response:
        """Who plays which role: a list of `RoleView`."""
        return _json(roster_view(self.director.job, self.spec.mesh))

    async def get_extensions(self, request: web.Request) -> web.Response:
        """The extensions of this job's workers and agents: module → argument."""
        return _json({} if self.spec.worker is None else self.spec.worker.extensions)

    async def post_extensions(self, request: web.Request) -> web.Response:
        """Send a message to the extensions of a worker or an agent."""
        message: ExtensionMessage = await _body(request, ExtensionMessage)
        ws = self._sockets.get(message.machine)
        if self.spec.worker is None or not self.spec.worker.extensions:
            raise ValueError("this job has no extensions; for faults, start it with: understudy run --chaos")
        if ws is None:
            raise ValueError(f"no agent of {message.machine} is connected")
        await ws.send_bytes(_encoder.encode(message))
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
    controller = Controller(spec)
    runner = web.AppRunner(controller.app(), access_log=None)
    await runner.setup()
    await web.SockSite(runner, sock).start()
    await controller.watch()


def main() -> None:
    """`python -m understudy.controller.server.server --fd N`: the spec comes on standard input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True, help="the listening socket")
    parser.add_argument("--parent", type=int, required=True, help="end when this process does")
    args = parser.parse_args()
    die_with_parent(args.parent)
    logging.basicConfig(level=logging.WARNING, format="understudy: %(message)s")
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=ControlSpec)
    asyncio.run(serve(spec, socket.socket(fileno=args.fd)))


if __name__ == "__main__":
    main()

"""The controller's server: which requests it serves, how it refuses others, and that a restart loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from understudy.controller.server.server import ControllerServer
from understudy.controller.server.spec import ControlSpec, Offer
from understudy.controller.server.views import job_view, machines_view, roster_view
from understudy.protocol.frames import Ack, Facts, Frame, Numbered, Refused, Register, Relayed, Report, Welcome
from understudy.protocol.messages import Here, WorkerSpec
from understudy.protocol.options import with_options
from understudy.protocol.roster import WorkerAddress
from understudy.protocol.settings import Settings

SECRET = b"s" * 32
LIMIT_S = 20.0


class Door:
    """A controller with its server, and hands to knock with."""

    def __init__(self, ledger: Path, machines: int = 2, **more: Any) -> None:
        settings = with_options(Settings(), recording_limit=0)
        mesh = (("dp", machines),)
        spec = ControlSpec("gpt", SECRET, machines, 1, mesh, str(ledger), settings=settings, **more)
        server = ControllerServer(spec)
        self.ledger = server.ledger
        self.controller = server.controller
        self.client: Any = TestClient(TestServer(server.app()))

    async def __aenter__(self) -> Door:
        await self.client.start_server()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.client.close()
        self.ledger.close()

    async def call(self, method: str, path: str, data: bytes | None = None, token: str | None = "") -> tuple[int, Any]:
        headers = {} if token is None else {"Authorization": f"Bearer {token or SECRET.hex()}"}
        async with self.client.request(method, path, data=data, headers=headers) as response:
            return response.status, await response.json()

    async def agent(
        self,
        name: str,
        incarnation: str = "a",
        received: int = 0,
        standby: bool = False,
        facts: Facts | None = None,
    ) -> Agent:
        ws = await self.client.ws_connect("/agent", headers={"Authorization": f"Bearer {SECRET.hex()}"})
        agent = Agent(ws)
        await agent.send(Register(name, incarnation, standby, received, facts))
        return agent

    def view(self) -> object:
        director = self.controller.director
        job = msgspec.to_builtins(job_view("gpt", director.job, {}))
        orders = {name: list(machine.outbox._kept) for name, machine in director.job.machines.items()}
        inboxes = {name: machine.inbox.last for name, machine in director.job.machines.items()}
        return (
            job,
            machines_view(director.job),
            roster_view(director.job, (("dp", 2),)),
            orders,
            inboxes,
            self.controller.announcements,
        )


class Agent:
    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws

    async def send(self, frame: Frame) -> None:
        await self.ws.send_bytes(msgspec.msgpack.encode(frame))

    async def receive(self) -> Any:
        """The next frame, or None at the end."""
        message = await self.ws.receive(LIMIT_S)
        if message.type != aiohttp.WSMsgType.BINARY:
            return None
        return msgspec.msgpack.decode(message.data, type=Frame)

    async def until(self, kind: type) -> Any:
        while not isinstance(frame := await self.receive(), kind):
            assert frame is not None, f"no {kind.__name__} came"
        return frame

    async def report(self, number: int, report: Report) -> int:
        await self.send(Numbered(number, report))
        ack: Ack = await self.until(Ack)
        return ack.number


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await body()

    asyncio.run(limited())


def here(uid: str, machine: str) -> Relayed:
    return Relayed(uid, Here(WorkerAddress(uid, machine, port=1)))


ROUTES = [
    ("GET", "/job"),
    ("GET", "/agent"),
    ("GET", "/events"),
    ("POST", "/replace"),
    ("POST", "/stop"),
    ("GET", "/x"),
]


@pytest.mark.parametrize("token", [None, "wrong", "ü", SECRET.hex()[:-1], SECRET.hex() + "0"])
def test_no_request_is_served_without_the_secret(tmp_path: Path, token: str | None) -> None:
    async def body() -> None:
        async with Door(tmp_path / "ledger") as door:
            for method, path in ROUTES:
                status, answer = await door.call(method, path, token=token)
                assert status == 401
                assert answer == {"error": "the job's secret is missing or wrong; send it as a bearer token"}
            assert door.controller.announcements == []

    run(body)


@pytest.mark.parametrize(
    ("method", "path", "data", "says"),
    [
        ("POST", "/replace", b"{", "truncated"),
        ("POST", "/replace", b"\xff\xff", "malformed"),
        ("POST", "/replace", b"", "missing required field `machines`"),
        ("POST", "/replace", b'{"type":"replace","machines":"m1"}', "$.machines"),
        ("POST", "/replace", b'{"type":"replace","machines":[1]}', "$.machines[0]"),
        ("POST", "/replace", b'{"type":"replace","machines":["m1"],"by":"soon"}', "$.by"),
        ("POST", "/replace", b'{"type":"stop-job"}', "$.type"),
        ("POST", "/replace", b"[]", "Expected `object`"),
        ("POST", "/standbys", b'{"type":"add-standby","count":"two"}', "$.count"),
        (
            "POST",
            "/extensions",
            b'{"type":"extension","kind":"nan","machine":"m0"}',
            "start it with: understudy run --chaos",
        ),
        ("POST", "/scale", b"{}", "missing required field `replicas`"),
        ("POST", "/scale", b'{"replicas":"all"}', "$.replicas"),
        ("POST", "/extensions", b'{"type":"extension"}', "missing required field `kind`"),
        ("GET", "/events?after=x", None, "'x'"),
        ("GET", "/events?wait=x", None, "'x'"),
        ("GET", "/requests/r1?wait=x", None, "'x'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, method: str, path: str, data: bytes | None, says: str) -> None:
    async def body() -> None:
        async with Door(tmp_path / "ledger") as door:
            status, answer = await door.call(method, path, data)
            assert status == 400
            assert answer["error"].startswith(f"{method} {path.split('?')[0]}: ")
            assert says in answer["error"]
            assert "\n" not in answer["error"]
            assert list(door.controller.ledger.read()) == []

    run(body)


@pytest.mark.parametrize("count", [0, -3])
def test_a_number_of_standbys_that_makes_no_sense(tmp_path: Path, count: int) -> None:
    async def body() -> None:
        async with Door(tmp_path / "ledger") as door:
            _, answer = await door.call("POST", "/standbys", b'{"type":"add-standby","count":%d}' % count)
            assert not answer.get("ok")
            assert door.controller.director.job.wanted == 0

    run(body)


def test_requests_for_machines_are_numbered_and_survive_a_restart(tmp_path: Path) -> None:
    async def body() -> None:
        async with Door(tmp_path / "ledger") as door:
            waiting = asyncio.ensure_future(door.call("GET", "/provision?after=0&wait=10"))
            await door.call("POST", "/standbys", b'{"type":"add-standby","count":2}')
            _, page = await waiting
            assert (page["next"], [item["type"] for item in page["items"]]) == (1, ["start-machines"])
            await (await door.agent("m7", standby=True)).until(Welcome)
            await door.call("DELETE", "/standbys/m7")
            _, both = await door.call("GET", "/provision")
            items = [(item["type"], item.get("count", item.get("machine"))) for item in both["items"]]
            assert items == [("start-machines", 2), ("release-machine", "m7")]
            assert (await door.call("GET", "/provision?after=1"))[1]["items"] == both["items"][1:]
            assert (await door.call("GET", "/provision?after=2&wait=0"))[1] == {"next": 2, "items": []}
        async with Door(tmp_path / "ledger") as door:
            assert (await door.call("GET", "/provision"))[1] == both

    run(body)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    async def body() -> None:
        async with Door(tmp_path / "ledger") as door:
            headers = {"Authorization": f"Bearer {SECRET.hex()}"}
            async with door.client.get("/nowhere", headers=headers) as response:
                assert response.status == 404

    run(body)


def test_requests_that_cannot_be_fulfilled_are_answered_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        async with Door(tmp_path / "ledger") as door:
            await (await door.agent("m0")).until(Welcome)
            status, answer = await door.call("POST", "/replace", b'{"type":"replace","machines":["m9"]}')
            assert (status, answer["done"], answer["ok"]) == (200, True, False)
            assert answer["text"] == "there is no machine m9; machines with roles: m0"
            _, again = await door.call("GET", f"/requests/{answer['id']}?wait=5")
            assert again == answer
            _, answer = await door.call("DELETE", "/standbys/m9")
            assert not answer["ok"]
            assert "m9 is not a standby; standbys: none" in answer["text"]
            _, answer = await door.call("POST", "/scale", b'{"replicas":1}')
            assert answer["text"].startswith("this job needs all its replicas")
            status, answer = await door.call("GET", "/requests/unknown")
            assert status == 400
            assert "there was no request unknown" in answer["error"]

    run(body)


def test_events_are_waited_for(tmp_path: Path) -> None:
    async def body() -> None:
        async with Door(tmp_path / "ledger") as door:
            assert (await door.call("GET", "/events"))[1] == {"next": 0, "events": [], "status": "forming"}
            waiting = asyncio.ensure_future(door.call("GET", "/events?after=0&wait=15"))
            await door.agent("m0")
            _, page = await waiting
            assert [event["text"] for event in page["events"]] == ["m0 has come"]
            assert (await door.call("GET", f"/events?after={page['next']}"))[1]["events"] == []

    run(body)


# -- agents ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("garbage", [b"", b"\xc1\xc1", b"\xff" * 100, msgspec.msgpack.encode({"type": "what"})])
def test_only_the_agent_that_sends_garbage_is_disconnected(tmp_path: Path, garbage: bytes, registered: bool) -> None:
    async def body() -> None:
        async with Door(tmp_path / "ledger") as door:
            good = await door.agent("m0")
            bad = await door.agent("m1")
            await good.until(Welcome)
            await bad.until(Welcome)
            if not registered:
                headers = {"Authorization": f"Bearer {SECRET.hex()}"}
                bad = Agent(await door.client.ws_connect("/agent", headers=headers))
            await bad.ws.send_bytes(garbage)
            while await bad.receive() is not None:
                pass
            assert await good.report(1, here("w0", "m0")) == 1

    run(body)


def test_an_agent_that_has_not_registered_is_not_heard(tmp_path: Path) -> None:
    async def body() -> None:
        async with Door(tmp_path / "ledger") as door:
            headers = {"Authorization": f"Bearer {SECRET.hex()}"}
            agent = Agent(await door.client.ws_connect("/agent", headers=headers))
            await agent.send(Numbered(1, here("w0", "m0")))
            assert await agent.receive() is None
            assert list(door.controller.ledger.read()) == []

    run(body)


def test_the_same_agent_comes_again_with_what_was_not_acknowledged(tmp_path: Path) -> None:
    async def body() -> None:
        async with Door(tmp_path / "ledger") as door:
            first = await door.agent("m0")
            assert (await first.until(Welcome)).received == 0
            order = await first.until(Numbered)
            assert await first.report(1, here("w0", "m0")) == 1
            again = await door.agent("m0")
            assert (await again.until(Welcome)).received == 1
            assert await again.until(Numbered) == order  # it has not said that it has it
            assert await again.report(1, here("w0", "m0")) == 1  # doubled
            assert await again.report(3, here("w0", "m0")) == 1  # a gap
            assert await again.report(2, here("w0", "m0")) == 2
            third = await door.agent("m0", received=1)
            assert (await third.until(Welcome)).received == 2
            assert list(door.controller.director.job.machines) == ["m0"]

    run(body)


def test_another_agent_with_the_same_name_takes_its_place_only_when_it_is_empty(tmp_path: Path) -> None:
    async def body() -> None:
        async with Door(tmp_path / "ledger", machines=1) as door:
            old = await door.agent("m0", "a", standby=True)
            await old.until(Welcome)
            refused = await (await door.agent("m0", "b", standby=True)).until(Refused)
            assert refused == Refused("there is a machine m0 in this job already; choose another --name", unfit=True)
            assert await old.report(1, here("w0", "m0")) == 1  # undisturbed
            await old.ws.close()
            while "m0" in door.controller.connections:
                await asyncio.sleep(0.01)
            new = await door.agent("m0", "c", standby=True)
            await new.until(Welcome)
            assert door.controller.director.job.machines["m0"].incarnation == "c"
            back = await door.agent("m0", "a", standby=True)
            assert await back.until(Refused) == refused

    run(body)


def test_a_restart_on_the_same_ledger_loses_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with Door(tmp_path / "ledger") as door:
            for number, name in enumerate(["m0", "m1"]):
                agent = await door.agent(name)
                await agent.until(Welcome)
                assert await agent.report(1, here(f"w{number}", name)) == 1
            await door.agent("m2", standby=True)
            await door.call("POST", "/replace", b'{"type":"replace","machines":["m9"]}')
            await door.call("POST", "/stop")
            before, answers = door.view(), dict(door.controller.director.job.answers)
        async with Door(tmp_path / "ledger") as door:
            assert door.view() == before
            assert door.controller.director.job.answers == answers
            agent = await door.agent("m1", received=0)
            assert (await agent.until(Welcome)).received == 1
            numbers = [(await agent.until(Numbered)).number for _ in range(2)]
            assert numbers == [1, 2]
        async with Door(tmp_path / "ledger") as door:
            assert door.view() == before

    run(body)


# -- machines from elsewhere -------------------------------------------------------------------------------------------

FACTS = Facts("1", "2.13.0", "3.11", "ab", (), (("dp", 2),), 1)
WORKER = WorkerSpec("", "", 0, "gpt", b"", "", (), 1, (("dp", 2),), host="")


def test_an_unfit_machine_is_refused_without_effect_on_the_job(tmp_path: Path) -> None:
    async def body() -> None:
        async with Door(tmp_path / "ledger", facts=FACTS) as door:
            good = await door.agent("m0", facts=FACTS)
            await good.until(Welcome)
            other = msgspec.structs.replace(FACTS, torch="2.12.0")
            for name, incarnation in (("m4", "a"), ("m0", "b")):  # a new machine, and one with the name of another
                bad = await door.agent(name, incarnation, standby=True, facts=other)
                why = f"{name} has torch 2.12.0 and the job runs 2.13.0; install the same version there"
                assert await bad.receive() == Refused(why, unfit=True)
                assert await bad.receive() is None
                assert (door.controller.announcements[-1].kind, door.controller.announcements[-1].text) == (
                    "refused",
                    why,
                )
            assert list(door.controller.director.job.machines) == ["m0"]
            assert await good.report(1, here("w0", "m0")) == 1
            before = door.view()
        async with Door(tmp_path / "ledger", facts=FACTS) as door:
            assert door.view() == before

    run(body)


def test_what_a_machine_is_told_that_wants_to_join(tmp_path: Path) -> None:
    async def body() -> None:
        options: dict[str, Any] = {"worker": WORKER, "env": {"A": "b"}, "reserved": ("m1",)}
        async with Door(tmp_path / "ledger", **options) as door:
            await (await door.agent("m0")).until(Welcome)
            status, said = await door.call("GET", "/spec?machine=m7")
            assert status == 200
            assert msgspec.convert(said, Offer) == Offer("gpt", "forming", WORKER, {"A": "b"})
            assert SECRET.hex() not in str(said)
            for taken in ("m0", "m1"):
                status, said = await door.call("GET", f"/spec?machine={taken}")
                assert status == 400
                assert said["error"].endswith(f"there is a machine {taken} in this job already; choose another --name")
        async with Door(tmp_path / "other") as door:
            assert (await door.call("GET", "/spec?machine=m7"))[0] == 400

    run(body)


def test_the_end_of_an_agent_counts_only_for_its_current_incarnation(tmp_path: Path) -> None:
    async def body() -> None:
        async with Door(tmp_path / "ledger") as door:
            await (await door.agent("m0", "b")).until(Welcome)
            await door.call("POST", "/machines/m0/lost", b'{"why": "late news", "incarnation": "a"}')
            await door.call("POST", "/machines/m9/lost", b'{"why": "it never came", "joined": true}')
            assert [event.text for event in door.controller.announcements] == ["m0 has come"]
            await door.call("POST", "/machines/m0/lost", b'{"why": "killed", "incarnation": "b"}')
            assert "m0 is gone: killed" in [event.text for event in door.controller.announcements]

    run(body)


def test_a_job_that_is_ended_at_once_leaves_no_agent_waiting(tmp_path: Path) -> None:
    async def body() -> None:
        async with Door(tmp_path / "ledger") as door:
            agent = await door.agent("m0")
            await agent.until(Welcome)
            asked = asyncio.ensure_future(door.call("POST", "/disband"))
            assert await agent.until(Refused) == Refused("the job was ended")
            await agent.ws.close()
            assert await asked == (200, {"left": []})

    run(body)

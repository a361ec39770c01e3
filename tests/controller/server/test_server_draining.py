"""Maintenance notices: POST /drain, and the state of the request."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.controller.core.rig import Rig
from tests.controller.server.test_server import Door

pytestmark = pytest.mark.timeout(60)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30.0))


def training(door: Door, standbys: int = 1) -> None:
    """The events of a job in which all roles have workers."""
    for at, event in Rig.training(standbys=standbys).ledger:
        door.controller.ledger.append(at, event)
        door.controller._decide(event, at)


async def drain(door: Door, **body: object) -> tuple[int, Any]:
    return await door.call("POST", "/drain", json.dumps(body).encode())


@pytest.mark.parametrize(("by", "seconds"), [("30m", 1800.0), (None, None), (60.0, 60.0)])
def test_a_notice_is_queued_and_can_be_asked_about(tmp_path: Path, by: object, seconds: float | None) -> None:
    async def scene() -> None:
        async with Door(tmp_path / "ledger") as door:
            training(door)
            before = time.time()
            given = before + by if isinstance(by, float) else by
            status, answer = await drain(door, machines=["m1"], by=given, why="the host is retired")
            assert (status, answer["done"], answer["state"]) == (200, False, "under way: rehearse")
            status, later = await door.call("GET", f"/requests/{answer['id']}")
            assert (status, later) == (200, answer)
            (asked,) = [event for event in door.controller.announcements if event.kind == "asked"]
            assert asked.data["why"] == "the host is retired"
            assert asked.text.endswith(": the host is retired")
            _, job = await door.call("GET", "/job")
            (entry,) = job["queue"]
            assert (entry["machines"], entry["why"]) == (["m1"], "the host is retired")
            if seconds is None:
                assert entry["by"] is None
            else:
                assert before + seconds <= entry["by"] <= time.time() + seconds

    run(scene())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"machines": ["m9"]}, "there is no machine m9; machines with roles: m0, m1"),
        ({"machines": ["m0", "m1"]}, "2 standby machines are needed and there are 1"),
        ({"machines": ["m1"], "by": 5.0}, "the deadline has passed"),
        ({"machines": []}, "name the machines to replace"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path: Path, body: dict[str, object], says: str) -> None:
    async def scene() -> None:
        async with Door(tmp_path / "ledger") as door:
            training(door)
            status, answer = await drain(door, **body)
            assert (status, answer["done"], answer["ok"]) == (200, True, False)
            assert answer["text"].startswith(says)

    run(scene())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"machines": ["m1"], "by": "soon"}, "by soon: write a time span such as 30m"),
        ({"machines": "m1"}, "Expected `array`"),
        ({"by": "30m"}, "missing required field `machines`"),
    ],
)
def test_what_is_no_notice_is_said_to_be_none(tmp_path: Path, body: dict[str, object], says: str) -> None:
    async def scene() -> None:
        async with Door(tmp_path / "ledger") as door:
            status, answer = await drain(door, **body)
            assert status == 400
            assert says in answer["error"]

    run(scene())


def test_a_drain_without_the_secret_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Door(tmp_path / "ledger") as door:
            status, _ = await door.call("POST", "/drain", b"{}", token="wrong")
            assert status == 401

    run(scene())


def test_an_unknown_request_is_an_error(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Door(tmp_path / "ledger") as door:
            status, answer = await door.call("GET", "/requests/abc")
            assert (status, answer["error"]) == (
                400,
                "GET /requests/abc: there was no request abc; its id is in the answer to the POST that made it",
            )

    run(scene())


def test_a_drain_is_taken_back(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Door(tmp_path / "ledger") as door:
            training(door)
            status, answer = await door.call("DELETE", "/drain/m1")
            assert (status, answer["ok"]) == (200, False)
            assert answer["text"] == "m1 does not wait to be replaced; machines that do: none"

    run(scene())

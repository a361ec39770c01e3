"""Joining a job: each error is one sentence, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from understudy.agent.spec import NOTICE
from understudy.cli.main import main
from understudy.launch import join

SECRET = "ab" * 32
OFFER: dict[str, Any] = {
    "job": "gpt",
    "status": "training",
    "worker": {
        **{"uid": "", "machine": "", "slot": 0, "job": "gpt", "secret": "", "script": "", "args": []},
        **{"nproc": 1, "mesh": [["dp", 2]]},
    },
    "env": {},
}


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNDERSTUDY_SECRET", SECRET)
    monkeypatch.setattr(join, "_ASK_S", 0.2)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "entry.json").write_text(json.dumps({"job": "gpt", "secret": SECRET}))
    (tmp_path / "secret").write_text(SECRET + "\n")


@pytest.fixture
def controller() -> Iterator[tuple[str, list[Any]]]:
    answers: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers[0]
            if self.headers["Authorization"] != f"Bearer {SECRET}":
                status, body = 401, {"error": "the job's secret is missing or wrong; send it as a bearer token"}
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", answers
        server.shutdown()
        thread.join()


def call(*words: str, url: str = "http://127.0.0.1:9", script: str = "train.py", host: str = "127.0.0.1") -> int:
    return main(["join", "--host", host, "--name", "m7", *words, url, script])


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("understudy join: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": "127.0.0.1:9"}, "127.0.0.1:9 is not a controller; write it as http://HOST:PORT"),
        ({"script": "none.py"}, "there is no script none.py; a copy of the job's must be here"),
        ({"host": "192.0.2.1"}, "cannot listen at 192.0.2.1: Cannot assign requested address"),
        ({"host": "0.0.0.0"}, "host 0.0.0.0 is no place others can come to"),
        ({}, "the controller at http://127.0.0.1:9 does not answer: Connection refused; is the address right"),
        ({"url": "http://no.such.host.invalid:80"}, "the controller at http://no.such.host.invalid:80 does not answer"),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, options: dict[str, str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert call(**options) == 2
    assert says in sentence(capsys)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_name_must_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["join", "--host", "127.0.0.1", "--name", "../m7", "http://127.0.0.1:9", "train.py"]) == 2
    assert "name is '../m7'" in sentence(capsys)


def test_what_is_said_of_a_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--label", "r7") == 2
    assert "--label r7: write a label as KEY=VALUE, such as rack=r1" in sentence(capsys)
    assert call("--grace", "-1") == 2
    assert "grace is -1.0; it must be at least 0 seconds" in sentence(capsys)


class Asked:
    """An agent's process that notes the signals it gets."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


def test_a_machine_that_is_told_twice_to_go_does_not_wait() -> None:
    async def scene() -> None:
        membership, agent = (
            join.JoinedMachine(join.Ticket(url="", secret="", script="", args=(), name="m7", host=""), print),
            Asked(),
        )
        membership._agent = cast("asyncio.subprocess.Process", agent)
        membership.leave()
        assert agent.signals == [NOTICE]
        assert not membership._stopping.is_set()
        membership.leave()
        assert agent.signals == [NOTICE]
        assert membership._stopping.is_set()

    asyncio.run(scene())


def test_the_sources_of_the_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, controller: tuple[str, list[Any]]
) -> None:
    url, answers = controller
    answers.append((200, OFFER | {"status": "finished"}))
    right = "the job gpt is finished; there is nothing to join"
    assert call(url=url) == 2
    assert right in sentence(capsys)
    monkeypatch.delenv("UNDERSTUDY_SECRET")
    for file in ("secret", "entry.json"):
        assert call("--secret-file", file, url=url) == 2
        assert right in sentence(capsys)
    assert call(url=url) == 2
    assert "the job's secret is missing; put it into UNDERSTUDY_SECRET, or give --secret-file" in sentence(capsys)
    assert call("--secret-file", "none", url=url) == 2
    assert "secret file none: No such file or directory" in sentence(capsys)
    assert call("--secret-file", "train.py", url=url) == 2
    assert "the job's secret is missing" in sentence(capsys)
    monkeypatch.setenv("UNDERSTUDY_SECRET", "not one")
    assert call(url=url) == 2
    assert "the secret is not one" in sentence(capsys)
    monkeypatch.setenv("UNDERSTUDY_SECRET", "cd" * 32)
    assert call(url=url) == 2
    assert "this is not the job's secret; it is in the file that understudy run names" in sentence(capsys)


@pytest.mark.parametrize(
    ("status", "answer", "says"),
    [
        (400, {"error": "GET /spec: there is a machine m7 in this job already; choose another --name"}, "m7 in this"),
        (400, {"error": "GET /spec: this job is not open for other machines"}, ": this job is not open for other"),
        (200, {"hello": "world"}, "is not a controller like this one"),
        (200, OFFER | {"status": "failed"}, "the job gpt is failed; there is nothing to join"),
    ],
)
def test_what_the_controller_says(
    status: int, answer: Any, says: str, capsys: pytest.CaptureFixture[str], controller: tuple[str, list[Any]]
) -> None:
    url, answers = controller
    answers.append((status, answer))
    assert call(url=url) == 2
    text = sentence(capsys)
    assert says in text
    assert "GET" not in text

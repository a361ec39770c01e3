"""A scripted controller, and a shell that runs commands against it."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from understudy.cli.main import main
from understudy.controller.core.effects import Announcement
from understudy.controller.server.views import JobView, MachineView, RoleView

SECRET = "5ec7e7"
JOB = JobView("gpt", "training", "", 2, 12, 0.25, {"loss": 2.5}, None, 1, {})
MACHINES = [
    MachineView("m0", "active", (0, 1), ("w0", "w1"), (10, 11)),
    MachineView("m1", "gone", (), (), (), "it was replaced"),
    MachineView("m2", "active", (2, 3), ("w4", "w5"), (14, 15)),
    MachineView("m3", "standby", (), ("w6", "w7"), (16, 17)),
]
ROSTER = [
    RoleView(role, {"pp": role // 2, "dp": role % 2}, uid, machine, source="nothing" if role // 2 else "live replica")
    for role, (uid, machine) in enumerate([("w0", "m0"), ("w1", "m0"), ("w4", "m2"), ("w5", "m2")])
]


class Fake:
    """A controller that says what it is given to say. Requests are answered from `answers`, one for each time that
    a command asks. An answer may bring events."""

    def __init__(self) -> None:
        self.job, self.machines, self.roster = JOB, MACHINES, ROSTER
        self.events: list[Announcement] = []
        self.answers: list[tuple[dict[str, Any], list[Announcement]]] = []
        self.asked: list[tuple[str, str, Any]] = []
        """Method, path and body of what is not only looked at."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake._handle(self)

            do_POST = do_DELETE = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def says(self, ok: bool, text: str, *events: Announcement, **data: object) -> None:
        self.answers.append(({"done": True, "ok": ok, "text": text, "at": 15.0, **data}, list(events)))

    def takes_its_time(self, *events: Announcement) -> None:
        self.answers.append(({"done": False}, list(events)))

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        answer: object = {"error": "the job's secret is missing or wrong; send it as a bearer token"}
        status = 401
        if handler.headers["Authorization"] == f"Bearer {SECRET}":
            status, answer = self._answer(handler.command, handler.path, json.loads(body) if body else None)
        data = msgspec.json.encode(answer)
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def _answer(self, method: str, target: str, body: Any) -> tuple[int, object]:
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        match method, path:
            case "GET", "/job":
                return 200, self.job
            case "GET", "/machines":
                return 200, self.machines
            case "GET", "/roster":
                return 200, self.roster
            case "GET", "/events":
                return 200, {"next": len(self.events), "events": self.events[int(query["after"][0]) :]}
        if method != "GET":
            self.asked.append((method, target, body))
        answer, events = self.answers.pop(0)
        self.events += events
        return 200, {"id": "r1", **answer}


class Shell:
    """Runs a command and keeps what it wrote."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = self._capsys.readouterr()
        assert "\x1b" not in out + err, "colours, although this is no terminal"
        return code, out, err

    def lines(self, *words: str) -> list[Any]:
        """With --json, of a command that may fail but has nothing to complain about."""
        _, out, err = self(*words, "--json")
        assert err == ""
        return [json.loads(line) for line in out.splitlines()]

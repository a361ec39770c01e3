"""The errors of the client if the controller does not answer, refuses, or is another server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from understudy.controller.client import Client, ControllerError


@contextmanager
def answering(*answers: tuple[int, bytes]) -> Iterator[tuple[str, list[str]]]:
    """A server that gives these answers, the last one again and again; its address and what it was asked."""
    left, asked = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers['Authorization']}")
            status, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_answer() -> None:
    with answering((200, b'{"step": 3}')) as (url, asked):
        assert Client(url + "/", "ab").job() == {"step": 3}
        assert asked == ["/job Bearer ab"]


def test_events_are_followed_from_the_end_of_the_last_page() -> None:
    pages = [(200, b'{"next": 2, "events": [{"n": 0}, {"n": 1}]}'), (200, b'{"next": 3, "events": [{"n": 2}]}')]
    with answering(*pages) as (url, asked):
        follow = Client(url, "ab").follow()
        assert [next(follow)["n"] for _ in range(3)] == [0, 1, 2]
        assert [line.split("?")[1].split("&")[0] for line in asked] == ["after=0", "after=2"]


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (401, b'{"error": "the secret is wrong"}', "the secret is wrong"),
        (400, b'{"error": "GET /job: no"}', "GET /job: no"),
        (404, b"404: Not Found", "the controller answered 404 Not Found"),
        (500, b"[]", "the controller answered 500 Internal Server Error"),
        (500, b'"x"', "the controller answered 500 Internal Server Error"),
        (500, b"\xff", "the controller answered 500 Internal Server Error"),
    ],
)
def test_a_refusal_is_one_sentence_and_not_repeated(status: int, body: bytes, says: str) -> None:
    with answering((status, body)) as (url, asked):
        with pytest.raises(ControllerError, match=f"^{says}$"):
            Client(url, "ab").job()
        assert len(asked) == 1


def test_what_is_no_controller() -> None:
    with answering((200, b"<html>")) as (url, _), pytest.raises(ControllerError, match=f"controller at {url} does not"):
        Client(url, "ab", patience=0.0).job()


def test_a_controller_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    with pytest.raises(ControllerError, match=f"the controller at {url} does not answer: "):
        Client(url, "ab", patience=0.2).job()


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://127.0.0.1:port", "http://[::1"])
def test_an_address_that_cannot_be(url: str) -> None:
    with pytest.raises(ControllerError, match="does not answer"):
        Client(url, "ab", patience=0.0).job()

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cli.controller import SECRET, Fake, Shell
from understudy.controller import client as client_module
from understudy.controller.client import Client
from understudy.launch.registry import Entry, enter


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests away from the jobs and the terminal of the user."""
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "UNDERSTUDY_SECRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(client_module, "Client", partial(Client, patience=0.2))


@pytest.fixture
def fake(apart: None) -> Iterator[Fake]:
    """A controller, and its job in the registry."""
    fake = Fake()
    thread = threading.Thread(target=fake.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    enter(Entry("gpt", fake.url, SECRET, os.getpid(), "/runs/1"))
    try:
        yield fake
    finally:
        fake.server.shutdown()
        thread.join()
        fake.server.server_close()


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)

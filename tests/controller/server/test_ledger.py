from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.controller.core.test_events import EVENTS
from understudy.controller.core.events import Event, Registered
from understudy.controller.server.ledger import Ledger, LedgerError


@contextmanager
def opened(path: Path) -> Iterator[Ledger]:
    with closing(Ledger(path)) as ledger:
        yield ledger


def content(path: Path) -> list[tuple[float, Event]]:
    with opened(path) as ledger:
        return list(ledger.read())


def test_everything_is_there_in_order_after_it_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    expected = []
    for round_ in range(3):
        with opened(path) as ledger:
            for number, event in enumerate(EVENTS):
                ledger.append(round_ + number / 7, event)
                expected.append((round_ + number / 7, event))
        assert content(path) == expected


def test_a_new_ledger_is_empty(tmp_path: Path) -> None:
    assert content(tmp_path / "ledger.sqlite") == []


def test_what_was_appended_survives_the_death_of_the_process(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from understudy.controller.server.ledger import Ledger\n"
        "from understudy.controller.core.events import Registered\n"
        "ledger = Ledger(Path(sys.argv[1]))\n"
        "for n in range(50): ledger.append(float(n), Registered(f'm{n}', 'x'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert content(path) == [(float(n), Registered(f"m{n}", "x")) for n in range(50)]


def raises(path: Path) -> str:
    """The one sentence that says what is wrong with this ledger."""
    with pytest.raises(LedgerError) as raised:
        content(path)
    text = str(raised.value)
    assert text.startswith(f"ledger {path}: ")
    assert "\n" not in text
    return text


@pytest.mark.parametrize("garbage", [b"not a database at all\n" * 100, os.urandom(5000), b"\0" * 4096])
def test_a_file_that_is_no_ledger(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(garbage)
    assert "move it away" in raises(path)
    assert path.read_bytes() == garbage


def test_a_database_with_other_tables_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE events (something TEXT)")
    assert "move it away" in raises(path)


def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    raises(tmp_path / "nowhere" / "ledger.sqlite")
    raises(tmp_path)


def test_a_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with opened(path) as ledger:
        for number in range(500):
            ledger.append(number, EVENTS[number % len(EVENTS)])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "move it away" in raises(path)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"type":"registered","machine":"m',
        b'{"type":"registered","machine":3,"incarnation":"x"}',
        b'{"type":"unheard-of"}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_entry_is_named(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    with opened(path) as ledger:
        for number in range(3):
            ledger.append(number, EVENTS[number])
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE events SET event = ? WHERE number = 2", (body,))
    text = raises(path)
    assert "entry 2 cannot be read" in text
    assert "move it away" in text


def fill(ledger: Ledger) -> None:
    for _ in range(1000):
        ledger.append(1.0, EVENTS[0])


def test_a_disk_that_is_full_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with opened(path) as ledger:
        ledger.append(1.0, EVENTS[0])
        ledger._db.execute("PRAGMA max_page_count = 2")
        with pytest.raises(LedgerError, match=r"ledger .*: .*full"):
            fill(ledger)

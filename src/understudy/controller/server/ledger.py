"""The ledger: every event of a job, in order, on disk before the controller acts on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from understudy.controller.core.events import Event

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)
_SCHEMA = "CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY, at REAL NOT NULL, event BLOB NOT NULL)"
_ALL = "SELECT number, at, event FROM events ORDER BY number"


class LedgerError(RuntimeError):
    """The ledger cannot be used; the message names its file."""


class Ledger:
    """An append-only list of events. An event survives the death of this process once `append` has returned.

    With `reading`, no file is made or changed: the run may be over or under way."""

    def __init__(self, path: Path, *, reading: bool = False) -> None:
        self.path = path
        self._way_out = "name another run" if reading else "move it away to start anew"
        try:
            if reading:
                closed = not path.with_name(f"{path.name}-wal").exists()  # else the latest events are only there
                how = "immutable=1" if closed else "mode=ro"
                self._db = sqlite3.connect(f"{path.resolve().as_uri()}?{how}", isolation_level=None, uri=True)
            else:
                self._db = sqlite3.connect(path, isolation_level=None)
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._db.execute(_SCHEMA)
            self._db.execute(f"{_ALL} LIMIT 0")
        except sqlite3.Error as error:
            raise LedgerError(f"ledger {path}: {error}; {self._way_out}") from None

    def append(self, at: float, event: Event) -> None:
        try:
            self._db.execute("INSERT INTO events (at, event) VALUES (?, ?)", (at, _encoder.encode(event)))
        except sqlite3.Error as error:
            raise LedgerError(f"ledger {self.path}: {error}; an event must be on disk before it is decided") from None

    def read(self) -> Iterator[tuple[float, Event]]:
        try:
            for number, at, body in self._db.execute(_ALL):
                try:
                    yield at, _decoder.decode(body)
                except (msgspec.MsgspecError, RecursionError) as error:
                    why = f"entry {number} cannot be read: {error}"
                    raise LedgerError(f"ledger {self.path}: {why}; {self._way_out}") from None
        except sqlite3.Error as error:
            raise LedgerError(f"ledger {self.path}: {error}; {self._way_out}") from None

    def close(self) -> None:
        self._db.close()

"""The controller's memory: every event it was ever told, in order, on disk before anything follows from it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from .events import Event

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)
_SCHEMA = "CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY, at REAL NOT NULL, event BLOB NOT NULL)"


class LedgerError(RuntimeError):
    """The file cannot be used; the message names it."""


class Ledger:
    """Append-only. What `append` has returned for survives the death of this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(_SCHEMA)
        except sqlite3.Error as error:
            raise LedgerError(f"ledger {path}: {error}; move it away to start anew") from None

    def append(self, at: float, event: Event) -> None:
        self._db.execute("INSERT INTO events (at, event) VALUES (?, ?)", (at, _encoder.encode(event)))

    def read(self) -> Iterator[tuple[float, Event]]:
        for number, at, body in self._db.execute("SELECT number, at, event FROM events ORDER BY number"):
            try:
                yield at, _decoder.decode(body)
            except msgspec.MsgspecError as error:
                raise LedgerError(f"ledger {self.path}: entry {number} cannot be read: {error}") from None

    def close(self) -> None:
        self._db.close()

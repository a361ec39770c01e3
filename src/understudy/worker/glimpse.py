"""What a probed worker writes down at a step boundary, for whoever compares runs."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Value(msgspec.Struct, frozen=True, array_like=True):
    """A variable that nobody tracks, as it was."""

    kind: str
    """`module`, `optimizer`, `scheduler`, `tensor`, `array`, `generator`, `iterator`, `number`, `counter`, …"""
    digest: str
    """Equal where the value is; empty where it cannot be looked into."""
    short: str
    """For people."""


class Scope(msgspec.Struct, frozen=True):
    """A function that is under way, or a module: where variables live."""

    file: str
    function: str
    """`<module>` for the globals of a file."""
    first: int = 0
    """The line where the function begins."""
    line: int = 0
    """Where it is now."""


class Glimpse(msgspec.Struct, frozen=True):
    """A role before a step: everything that it tracks, and everything that its script holds beside that."""

    role: int
    step: int
    """The one that is about to begin: so many are in the state."""
    uid: str
    machine: str
    state: dict[str, str]
    """Name → digest of each tracked tensor, and of the parts of everything else that is tracked."""
    values: dict[str, Value] = {}
    """Scope number and path, as in `0:ema` or `1:trainer.count`."""
    scopes: tuple[Scope, ...] = ()
    twins: tuple[int, ...] = ()
    """Roles that hold identical copies of its state."""
    files: tuple[str, ...] = ()
    """Of the script and the modules beside it."""
    act: int = 0
    """How many disturbances had begun."""


class Pace(msgspec.Struct, frozen=True):
    """What workers are told by whoever rehearses with them."""

    steps: int
    """How many may begin."""
    act: int = 0
    """How many disturbances have begun."""
    falling: str = ""
    """The machine whose workers stop before the vote of the last of these steps, and wait for their end."""


PACE = "pace.json"
FALLEN = "fallen-"
"""Followed by the uid of a worker that waits for its end."""


def read_glimpses(folder: Path) -> list[Glimpse]:
    """All that workers have written; the last line of one that was killed may be torn."""
    decoder = msgspec.json.Decoder(Glimpse)
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        *lines, _ = file.read_bytes().split(b"\n")
        found += [decoder.decode(line) for line in lines]
    return found

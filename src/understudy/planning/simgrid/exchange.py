"""What the script in SimGrid's interpreter is told and what it answers. Both sides read this: standard library only."""

from __future__ import annotations

from dataclasses import dataclass

INPUT, PLATFORM, RESULT = "input.json", "platform.xml", "result.json"
SPEED = 1e9
"""Of every host in operations and of every link in bytes per second: amounts are seconds times this."""
BLINK = 1e-3
"""Seconds for which a failed host is off. Who stands in its place from when on is the conductor's affair."""


@dataclass(frozen=True)
class SimgridInput:
    """What the conductor has to know; the words are those of `Strategy` and `Durations`."""

    machines: int
    members: int
    compute: float
    sync: float
    steps: int
    horizon: float
    known: float
    """Failures have been drawn until this date."""
    answer: str
    period: float
    save: float
    restart: float
    cold: float
    standbys: int
    stall: float
    redo: bool
    planned: float
    recover: float
    refills: bool
    refill: float
    join: float
    restart_after: int
    restart_anew: bool
    slowness: float
    """Seconds that a slow machine costs everybody until it is found out."""
    pace: float
    """How long computing a shard takes where everybody waits for the slowest, in times to compute one: mean."""
    loads: list[float]
    """How long computing takes, in times to compute a shard, by the number of missing members."""
    patch: float
    """Seconds that a step lacks in which a member is lost whose work nobody else has done."""
    shares: list[float]
    """How often a lost member is one of those, by the number of members that were missing before."""
    masks: list[list[bool]]
    """Whether to mask, by the number of missing members and by whether a standby is ready."""
    holders: list[list[list[int]]]
    """Of every member, who holds each of the shards that it holds; nothing where everybody holds everything."""
    draws: list[float]
    """Of every lost member a number between 0 and 1: below the share there is a patch."""
    repairs: list[float]
    maintained: list[float]
    slowed: list[float]


@dataclass(frozen=True)
class SimgridResult:
    """How it went. `wasted` has the names of `Waste`; `beyond`: failures were not drawn for long enough."""

    seconds: float
    useful: float
    wasted: dict[str, float]
    failures: int
    restarts: int
    activities: int
    beyond: bool

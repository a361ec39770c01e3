"""What the script in SimGrid's interpreter is told and what it answers. Both sides read this: standard library only."""

from __future__ import annotations

from dataclasses import dataclass

SCENE, PLATFORM, PLAYED = "scene.json", "platform.xml", "played.json"
SPEED = 1e9
"""Of every host in operations and of every link in bytes per second: amounts are seconds times this."""
BLINK = 1e-3
"""Seconds for which a failed host is off. Who stands in its place from when on is the conductor's affair."""
LIFELINE = 2**63
OPTIONS = (
    "--log=root.thres:warning",
    "--cfg=network/model:CM02",
    "--cfg=network/TCP-gamma:0",
    "--cfg=network/crosstraffic:0",
    "--cfg=surf/precision:1e-9",
    "--cfg=maxmin/precision:1e-9",
)
"""Messages take their size divided by the bandwidth and nothing else; dates are exact to a nanosecond."""


@dataclass(frozen=True)
class Scene:
    """What the conductor has to know; the words are those of `Strategy` and `Durations`."""

    machines: int
    units: int
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
    patch: float
    planned: float
    recover: float
    refills: bool
    refill: float
    join: float
    redo: bool
    restart_after: int
    restart_anew: bool
    slowness: float
    """Seconds that a slow machine costs everybody until it is found out."""
    pace: float
    """How many times as long as one shard takes all compute theirs, because the slowest is waited for."""
    loads: list[float]
    """How many times as long as one shard takes a step computes, by the number of missing units."""
    patched: list[float]
    """How often a failure costs a patch, by the number of units that are missing before it."""
    masks: list[list[bool]]
    """Whether to mask, by the number of missing units and by whether a standby is ready."""
    holders: list[list[list[int]]]
    """Of every unit, who holds each of the shards that it holds; nothing where everybody holds everything."""
    chances: list[float]
    """From 0 to 1, one for each failure: below `patched` there is a patch."""
    repairs: list[float]
    maintained: list[float]
    slowed: list[float]


@dataclass(frozen=True)
class Played:
    """How it went. `wasted` has the names of `Waste`; `beyond`: failures were not drawn for long enough."""

    seconds: float
    useful: float
    wasted: dict[str, float]
    failures: int
    restarts: int
    activities: int
    beyond: bool

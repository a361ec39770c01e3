"""Input and result of the script in SimGrid's interpreter. Both sides import this module: standard library only."""

from __future__ import annotations

from dataclasses import dataclass

INPUT, PLATFORM, RESULT = "input.json", "platform.xml", "result.json"
SPEED = 1e9
"""Operations per second of every host and bytes per second of every link. Amounts are seconds times this speed."""
BLINK = 1e-3
"""Seconds for which a failed host is off. The run decides when a machine takes its place."""


@dataclass(frozen=True)
class SimgridInput:
    """Everything that the script needs. Fields have the names of `Strategy` and `Durations`."""

    machines: int
    members: int
    compute: float
    sync: float
    steps: int
    horizon: float
    known: float
    """Failures are drawn until this date."""
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
    """Seconds that the job loses to a slow machine until it is detected."""
    pace: float
    """Mean computing time of the slowest member at full strength, in times to compute one shard."""
    loads: list[float]
    """Computing time by number of missing members, in times to compute one shard."""
    patch: float
    """Seconds to recompute the work that is lost with a member in the middle of a step."""
    shares: list[float]
    """Share of losses that need a patch, by number of members that were missing before."""
    masks: list[list[bool]]
    """Whether to mask, by number of missing members and by whether a standby is ready."""
    holders: list[list[list[int]]]
    """For every member, the holders of each shard that it holds; empty if every member holds every shard."""
    draws: list[float]
    """A number between 0 and 1 for every loss: a number below the share means a patch."""
    repairs: list[float]
    maintained: list[float]
    slowed: list[float]


@dataclass(frozen=True)
class SimgridResult:
    """Result of a run. `wasted` has the names of `Waste`; `beyond`: the run lasted longer than the drawn failures."""

    seconds: float
    useful: float
    wasted: dict[str, float]
    failures: int
    restarts: int
    activities: int
    beyond: bool

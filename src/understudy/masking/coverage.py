"""Coverage of shards by live replicas: which shards are lost, and which failure would lose one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from understudy.masking.placement import Placement
from understudy.protocol.sentences import counted, listed, named

Alive = bytes
"""One byte for each replica: 1 live, 0 vacant."""


def alive_of(placement: Placement, live: Iterable[int]) -> Alive:
    """The live set as bytes. Raises ValueError for a replica that does not exist."""
    alive = bytearray(placement.replicas)
    for replica in live:
        if not 0 <= replica < placement.replicas:
            raise ValueError(f"there is no replica {replica}: replicas are numbered 0 to {placement.replicas - 1}")
        alive[replica] = 1
    return bytes(alive)


def live_count(alive: Alive) -> int:
    """Number of live replicas."""
    return int.from_bytes(alive, "little").bit_count()


@dataclass(frozen=True)
class WipeOut:
    """Shards without a live holder. False if there is none: every step can be committed."""

    shards: tuple[int, ...]
    reason: str

    def __bool__(self) -> bool:
        return bool(self.shards)


@dataclass(frozen=True)
class Risk:
    """Replicas that are the only live holder of some shards, with these shards. A failure of one is a wipe-out."""

    sole: Mapping[int, tuple[int, ...]]
    reason: str

    def __bool__(self) -> bool:
        return bool(self.sole)


def wipe_out(placement: Placement, live: Iterable[int]) -> WipeOut:
    """The shards that no live replica holds."""
    return wiped(placement, alive_of(placement, live), range(placement.replicas))


def wiped(placement: Placement, alive: Alive, among: Iterable[int]) -> WipeOut:
    """The shards in `among` that no live replica holds."""
    if placement.everywhere:
        lost = () if any(alive) else tuple(among)
    else:
        lost = tuple(shard for shard in among if not any(alive[replica] for replica in placement.hosts[shard]))
    if not lost:
        return WipeOut((), "every shard has a live holder")
    none = "no replica is live" if not any(alive) else f"no live replica holds {named('shard', lost)}"
    return WipeOut(lost, f"wipe-out: {none} ({placement.name})")


def at_risk(placement: Placement, live: Iterable[int]) -> Risk:
    """The replicas that are the only live holder of a shard, with a warning in words."""
    alive = alive_of(placement, live)
    sole: dict[int, list[int]] = {}
    if not placement.everywhere:
        for shard, holders in enumerate(placement.hosts):
            left = [replica for replica in holders if alive[replica]]
            if len(left) == 1:
                sole.setdefault(left[0], []).append(shard)
    elif sum(alive) == 1:
        sole[alive.index(1)] = list(range(placement.replicas))
    found = {replica: tuple(shards) for replica, shards in sorted(sole.items())}
    if not found:
        return Risk(found, "every shard has at least two live holders, or none")
    if placement.r == 1:
        return Risk(found, f"no shard has a second holder ({placement.name}): any failure is a wipe-out")
    total = sum(map(len, found.values()))
    has = "has" if total == 1 else "have"
    which = listed([f"replica {replica} ({named('shard', shards)})" for replica, shards in found.items()])
    return Risk(found, f"{counted(total, 'shard')} {has} a single live holder: {which}")

"""Fewer replicas than there could be are wanted: which of them are not to play? Pure, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from understudy.masking.coverage import wipe_out
from understudy.masking.placement import Placement
from understudy.protocol.sentences import counted, named


@dataclass(frozen=True)
class Outside:
    """Replicas that are to be vacant. Where that are fewer than asked for, `problem` says why, and the way out."""

    replicas: tuple[int, ...] = ()
    problem: str = ""


def outside(
    placement: Placement,
    bundles: Sequence[tuple[int, ...]],
    target: int,
    *,
    vacant: Collection[int] = (),
    deserted: Collection[int] = (),
    sooner: Collection[int] = (),
) -> Outside:
    """All but `target` replicas, chosen so that few who play have to go, and every shard keeps a live holder.

    `bundles` are replicas that share machines: they come and go together. First go those in `sooner`, then the vacant
    ones (before others those whose machines are gone, `deserted`), then the last.
    """
    surplus = placement.replicas - target
    gone: set[int] = set()
    blocked = ""

    def order(bundle: tuple[int, ...]) -> tuple[bool, bool, int, int]:
        members = set(bundle)
        return members <= set(sooner), members <= set(deserted), len(members & set(vacant)), max(bundle)

    for bundle in sorted(bundles, key=order, reverse=True):
        if len(gone) + len(bundle) > surplus:
            continue
        left = set(range(placement.replicas)) - gone - set(bundle)
        plays = not set(bundle) <= set(vacant)
        lost = wipe_out(placement, left - set(vacant)) if plays else None
        if lost:
            blocked = blocked or f"nobody who is left would hold {named('shard', lost.shards)} ({placement.name})"
            continue
        gone |= set(bundle)
    if len(gone) == surplus:
        return Outside(tuple(sorted(gone)))
    possible = placement.replicas - len(gone)
    if not blocked:
        size = max(map(len, bundles))
        blocked = f"machines are shared by {counted(size, 'replica')} each, and come and go as a whole"
    return Outside(tuple(sorted(gone)), f"{blocked}; ask for {possible} or more")

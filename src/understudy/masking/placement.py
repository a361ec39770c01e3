"""Placements: which replicas hold which shards.

There are as many shards as replicas. Every shard has r holders, and every replica has a stack of r shards: its own (the
shard with its number) first. The choice of the other holders decides which sets of failures are a wipe-out, and how
evenly the survivors can share the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from random import Random

from understudy.masking import rulers

SHUFFLES = 2
"""Shuffles of each column of holders (all second holders, all third holders, …) in a random placement."""


class PlacementError(ValueError):
    """Shards cannot be placed as requested; the message says why and what is possible."""


@dataclass(frozen=True)
class Placement:
    """Holders of every shard. `hosts` is empty if every replica holds every shard: that table would be too large."""

    name: str
    replicas: int
    r: int
    explanation: str
    hosts: tuple[tuple[int, ...], ...]

    @property
    def everywhere(self) -> bool:
        """Whether every replica holds every shard."""
        return not self.hosts

    def holders(self, shard: int) -> tuple[int, ...]:
        """The replicas that hold the shard, its own replica first."""
        if self.everywhere:
            return (*range(shard, self.replicas), *range(shard))
        return self.hosts[shard]

    def stack(self, replica: int) -> tuple[int, ...]:
        """The shards that the replica holds: its own, then the one of which it is the second holder, and so on."""
        if self.everywhere:
            return (replica, *range(replica - 1, -1, -1), *range(self.replicas - 1, replica, -1))
        return self._stacks[replica]

    @cached_property
    def _stacks(self) -> tuple[tuple[int, ...], ...]:
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.replicas)]
        for shard, holders in enumerate(self.hosts):
            for position, replica in enumerate(holders):
                found[replica].append((position, shard))
        return tuple(tuple(shard for _, shard in sorted(stack)) for stack in found)

    def __str__(self) -> str:
        return f"{self.name}: {self.explanation}"


def golomb(replicas: int, r: int, domain: int = 1, *, wide: bool = True) -> Placement:
    """Shard t on replicas t + domain · g for the marks g of a ruler: two shards share at most one holder.

    Replicas that fail together (`domain` neighbours, such as a host or a rack) never hold the same shard. The marks lie
    all over the ring if there is room; `wide=False` takes the shortest ruler, as SPARe does.
    """
    _check(replicas, r, domain)
    places = replicas // domain
    ruler = (rulers.wide_ruler_on(places, r) if wide else None) or rulers.ruler_on(places, r)
    if ruler is None:
        most = rulers.largest_on(places)
        room = f"{replicas} replicas" if domain == 1 else f"{replicas} replicas in domains of {domain}"
        instead = f"r={most}" if most > 1 else "more replicas" if domain == 1 else "a smaller domain"
        raise PlacementError(
            f"spare:r={r} does not fit: with {room} at most r={most} is possible "
            f"if two shards are to share at most one holder; use {instead}, or random:r={r}"
        )
    name = f"spare:r={r}" if domain == 1 else f"spare:r={r},domain={domain}"
    apart = "" if domain == 1 else f", never two in the same domain of {domain} replicas"
    explanation = f"{r} holders per shard, any two shards share at most one{apart}"
    return Placement(name, replicas, r, explanation, _shifted(replicas, [domain * mark for mark in ruler]))


def random_regular(replicas: int, r: int, seed: int = 0) -> Placement:
    """Every shard on its own replica and r - 1 random others; every replica has r shards. The seed decides."""
    _check(replicas, r)
    if r == replicas:
        return everywhere(replicas)
    hosts = [list(holders) for holders in _shifted(replicas, range(r))]
    uniform = Random(seed).random  # the one method whose numbers are the same in every version of Python
    for column in range(1, r):
        for _ in range(SHUFFLES):
            for a in range(replicas - 1, 0, -1):
                one, other = hosts[a], hosts[int(uniform() * (a + 1))]
                if one[column] not in other and other[column] not in one:
                    one[column], other[column] = other[column], one[column]
    explanation = f"{r} holders per shard, chosen at random with seed {seed}"
    return Placement(f"random:r={r},seed={seed}", replicas, r, explanation, tuple(map(tuple, hosts)))


def blocks(replicas: int, r: int, domain: int = 1) -> Placement:
    """Classic replication: r replicas hold the same r shards. With `domain`, these replicas are in r domains."""
    _check(replicas, r, domain)
    domains = replicas // domain
    if domains % r:
        what = f"{replicas} replicas" if domain == 1 else f"{domains} domains of {domain} replicas"
        near = next(d for d in range(r, 0, -1) if domains % d == 0)
        raise PlacementError(f"blocks:r={r} does not fit: r must divide the {what}; the nearest below is r={near}")

    def holders(shard: int) -> tuple[int, ...]:
        at, place = divmod(shard, domain)
        first = at - at % r
        return tuple((first + (at + k) % r) * domain + place for k in range(r))

    name = f"blocks:r={r}" if domain == 1 else f"blocks:r={r},domain={domain}"
    table = tuple(holders(shard) for shard in range(replicas))
    return Placement(name, replicas, r, f"{replicas // r} blocks of {r} replicas that hold the same shards", table)


def consecutive(replicas: int, r: int) -> Placement:
    """Shard t on replicas t … t + r - 1, for comparison: neighbours share most of their shards."""
    _check(replicas, r)
    table = _shifted(replicas, range(r))
    return Placement(f"consecutive:r={r}", replicas, r, f"every shard on {r} neighbours; for comparison only", table)


def everywhere(replicas: int) -> Placement:
    """Every replica can read every sample, as with shared storage: no wipe-out as long as one replica lives."""
    _check(replicas, replicas)
    return Placement("anywhere", replicas, replicas, "every replica holds every shard", ())


def off(replicas: int) -> Placement:
    """No redundancy: every failure is a wipe-out."""
    _check(replicas, 1)
    return Placement("off", replicas, 1, "every shard is held by its own replica only", _shifted(replicas, [0]))


KINDS: dict[str, tuple[Callable[..., Placement], tuple[str, ...]]] = {
    "spare": (golomb, ("r", "domain")),
    "random": (random_regular, ("r", "seed")),
    "blocks": (blocks, ("r", "domain")),
    "consecutive": (consecutive, ("r",)),
    "anywhere": (everywhere, ()),
    "off": (off, ()),
}


def parse(text: str, replicas: int) -> Placement:
    """The placement that a text names, such as `spare:r=3,domain=4`, `anywhere` or `off`."""
    kind, given = _read(text)
    return KINDS[kind][0](replicas, **given)


def holders_of(text: str) -> int | None:
    """The number of holders per shard that a placement's text gives; None: it gives none, such as `anywhere`."""
    return _read(text)[1].get("r")


def _read(text: str) -> tuple[str, dict[str, int]]:
    """(kind, settings) of a placement's text."""
    kind, colon, rest = text.strip().partition(":")
    if kind not in KINDS:
        raise PlacementError(f"{text!r}: there is no placement {kind!r}; there are {', '.join(KINDS)}")
    allowed = KINDS[kind][1]
    if colon and not allowed:
        raise PlacementError(f"{text!r}: {kind} takes no settings; write {kind}")
    given: dict[str, int] = {}
    for part in rest.split(",") if colon else ():
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in allowed:
            raise PlacementError(f"{text!r}: {kind} has no setting {key!r}; write {_usage(kind)}")
        if key in given:
            raise PlacementError(f"{text!r}: {key} is given twice")
        if not (value.isascii() and value.isdigit()):
            raise PlacementError(f"{text!r}: {key} must be a whole number, not {value!r}; write {_usage(kind)}")
        given[key] = int(value)
    if "r" in allowed and "r" not in given:
        raise PlacementError(f"{text!r}: how many holders per shard? Write {_usage(kind)}")
    return kind, given


def _usage(kind: str) -> str:
    examples = {"r": "r=3", "domain": "domain=4", "seed": "seed=1"}
    first, *others = (examples[key] for key in KINDS[kind][1])
    return f"{kind}:{first}" + "".join(f" or {kind}:{first},{other}" for other in others)


def _check(replicas: int, r: int, domain: int = 1) -> None:
    if replicas < 1:
        raise PlacementError(f"there must be at least one replica, not {replicas}")
    if r < 1:
        raise PlacementError(f"a shard needs at least one holder, r=1, not r={r}")
    if r > replicas:
        raise PlacementError(
            f"r={r} holders per shard need {r} replicas and there are {replicas}; use r={replicas} or less"
        )
    if domain < 1 or replicas % domain:
        fits = ", ".join(str(d) for d in range(1, replicas) if replicas % d == 0 and replicas // d >= r)
        raise PlacementError(
            f"domain={domain} does not divide the {replicas} replicas into equal domains"
            + (f"; with r={r} one of {fits} does" if fits else "")
        )


def _shifted(replicas: int, shifts: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    steps = tuple(shifts)
    return tuple(tuple((shard + step) % replicas for step in steps) for shard in range(replicas))

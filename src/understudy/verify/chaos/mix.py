"""Which faults come, in what order and when: a pure function of a seed and a mix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from random import Random

import msgspec


class MixError(ValueError):
    """What is wrong with the mix, and what to write instead."""


class PlannedFault(msgspec.Struct, frozen=True):
    """A fault that is to come."""

    kind: str
    wait: float
    """Seconds between the job's recovery from the previous fault and this one."""
    seed: int
    """For everything that the fault leaves to chance, so that it does not depend on earlier faults."""


def parse_mix(text: str, kinds: Mapping[str, str], usual: Mapping[str, int]) -> dict[str, int]:
    """Parse `kill-worker=3,pause-agent` into weights by kind.

    `kinds` maps each known kind to its origin. The name of an origin stands for all of its kinds, `all` for all kinds,
    `usual` for the mix `usual`. A later word overrides an earlier one.
    """
    mix: dict[str, int] = {}
    origins = set(kinds.values())
    for word in text.split(","):
        name, equals, number = (part.strip() for part in word.partition("="))
        if not name:
            raise MixError(f"--mix {text!r} has an empty place; write kind=weight,kind=weight")
        if equals and not re.fullmatch(r"\d{1,6}", number):
            raise MixError(f"--mix {name}={number}: the weight must be a whole number, such as {name}=3")
        weight = int(number) if equals else 1
        if name == "usual":
            mix |= {kind: share * weight for kind, share in usual.items()}
        elif name == "all":
            mix |= dict.fromkeys(kinds, weight)
        elif name in origins:
            mix |= {kind: weight for kind, origin in kinds.items() if origin == name}
        elif name in kinds:
            mix[name] = weight
        else:
            close = difflib.get_close_matches(name, [*kinds, *origins, "all", "usual"], 1)
            hint = f"did you mean {close[0]}?" if close else "see understudy chaos --list"
            raise MixError(f"there is no kind of fault {name!r}; {hint}")
    mix = {kind: weight for kind, weight in mix.items() if weight}
    if not mix:
        raise MixError(f"--mix {text!r} leaves nothing to do; give at least one kind a weight above 0")
    return mix


def schedule(seed: int, mix: Mapping[str, int], every: float) -> Iterator[PlannedFault]:
    """Faults without end, about `every` seconds apart.

    Kinds are dealt like cards from a deck that holds each kind as often as its weight: all kinds come before any comes
    more often than the mix says.
    """
    dice = Random(seed)
    while True:
        deck = [kind for kind in sorted(mix) for _ in range(mix[kind])]
        dice.shuffle(deck)
        for kind in deck:
            yield PlannedFault(kind, every * dice.uniform(0.5, 1.5), dice.getrandbits(32))

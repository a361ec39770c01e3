"""Which faults come, in what order and when: a pure function of a seed and a mix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from random import Random

import msgspec

from understudy.protocol.durations import DurationError, parse_duration


class MixError(ValueError):
    """What is wrong with the mix, and what to write instead."""


class Draw(msgspec.Struct, frozen=True):
    """A fault that is to come."""

    kind: str
    wait: float
    """Seconds before it, from the moment the job has recovered from the one before."""
    seed: int
    """Of everything that is left to chance in it, so that it does not depend on what came before."""


def parse_mix(text: str, kinds: Mapping[str, str], usual: Mapping[str, int]) -> dict[str, int]:
    """`kill-worker=3,pause-agent` as weights; `kinds` maps each known kind to its group, whose name stands for all of
    it, as does `all`; `usual` is what the word `usual` stands for. A later word comes before an earlier one."""
    mix: dict[str, int] = {}
    groups = set(kinds.values())
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
        elif name in groups:
            mix |= {kind: weight for kind, group in kinds.items() if group == name}
        elif name in kinds:
            mix[name] = weight
        else:
            close = difflib.get_close_matches(name, [*kinds, *groups, "all", "usual"], 1)
            hint = f"did you mean {close[0]}?" if close else "see understudy chaos --list"
            raise MixError(f"there is no kind of fault {name!r}; {hint}")
    mix = {kind: weight for kind, weight in mix.items() if weight}
    if not mix:
        raise MixError(f"--mix {text!r} leaves nothing to do; give at least one kind a weight above 0")
    return mix


def schedule(seed: int, mix: Mapping[str, int], every: float) -> Iterator[Draw]:
    """Without end. Kinds are dealt like cards from a deck that has each as often as its weight, so that all of them
    come before any comes more often than the mix says; about `every` seconds lie between two."""
    dice = Random(seed)
    while True:
        deck = [kind for kind in sorted(mix) for _ in range(mix[kind])]
        dice.shuffle(deck)
        for kind in deck:
            yield Draw(kind, every * dice.uniform(0.5, 1.5), dice.getrandbits(32))


def span(text: str) -> float:
    """Seconds: `3`, `3s`, `500ms`, `2m`."""
    try:
        return parse_duration(text)
    except DurationError as error:
        raise MixError(str(error)) from None

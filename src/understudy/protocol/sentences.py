"""Short lists and numbers for sentences."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 6


def listed(items: Sequence[object], shown: int = SHOWN) -> str:
    """`5`, `5 and 9`, `1, 2 and 3`; the beginning of a long list, and how many items follow."""
    words = [str(item) for item in items[:shown]]
    if len(items) > shown:
        return f"{', '.join(words)} and {len(items) - shown:,} more"
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def counted(number: int, thing: str) -> str:
    """`1 shard`, `2 shards`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def named(thing: str, items: Sequence[object], shown: int = SHOWN) -> str:
    """`shard 5`, `shards 5 and 9`."""
    return f"{thing if len(items) == 1 else thing + 's'} {listed(items, shown)}"

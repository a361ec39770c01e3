"""What a process holds in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Memory:
    """In bytes."""

    pss: int
    """With its share of what it has in common with other processes, such as torch's code."""
    own: int
    """What nobody else has."""
    resident: int


def memory_in(lines: Iterable[str]) -> Memory:
    """As the kernel tells it in `smaps_rollup`."""
    sizes = {}
    for line in lines:
        name, _, rest = line.partition(":")
        if rest.endswith("kB\n"):
            sizes[name] = int(rest.split()[0]) * 1024
    return Memory(sizes["Pss"], sizes["Private_Clean"] + sizes["Private_Dirty"], sizes["Rss"])


def memory_of(pid: int) -> Memory:
    with Path(f"/proc/{pid}/smaps_rollup").open() as file:
        return memory_in(file)

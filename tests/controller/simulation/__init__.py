"""The whole control protocol under one seeded clock and network: the real director, the real worker parts, the real
sessions; delays, broken connections, duplicates, crashes of anybody at any moment.

    python -m tests.controller.simulation SEED     runs one seed and prints its story
"""

from __future__ import annotations

from .violation import Violation
from .world import World

__all__ = ["Violation", "World", "run"]


def run(seed: int, *, verbose: bool = False) -> World:
    world = World(seed, verbose=verbose)
    world.run()
    return world

"""Simulate one seed and print its story, or many seeds.

python -m understudy.testing.simulation 121
python -m understudy.testing.simulation --seeds 0:20000
"""

from __future__ import annotations

import argparse
import logging
import os
import sys

from .job import simulate_seed
from .many import simulate_many


def main() -> int:
    """The exit code: 1 if a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m understudy.testing.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="the seed whose story is printed")
    parser.add_argument("--seeds", metavar="A:B", help="seeds A to B - 1, without their stories")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: all processors)")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if args.seeds:
        first, _, last = args.seeds.partition(":")
        ends, broken = simulate_many(range(int(first), int(last)), args.jobs)
        print(", ".join(f"{count} {end}" for end, count in ends.most_common()))
        return 1 if broken else 0
    if args.seed is None:
        parser.error("name a seed, or --seeds A:B")
    simulate_seed(args.seed, verbose=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

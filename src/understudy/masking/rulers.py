"""Golomb rulers: sets of marks with distinct differences, so that shifted copies meet in at most one mark.

Up to 24 marks, the shortest rulers are known and tabulated; their lengths are sequence A003022 of the OEIS. Longer
rulers are built by Ruzsa's construction: for a prime p with primitive root g, the p - 1 numbers p·i + (p - 1)·g^i have
distinct differences modulo p(p - 1). On a ring of n places, the differences must be distinct modulo n. They are if n is
more than twice the length of the ruler; on smaller rings, another ruler is searched for.

On a large ring, the shortest ruler is not the best: only neighbours share shards, and in a region with many failures,
help is many moves away. The marks of a wide ruler lie all over the ring, so that no two replicas are far from each
other. `bench reorder` compares both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import count
from random import Random

Ruler = tuple[int, ...]

SHORTEST: dict[int, Ruler] = {
    len(marks): marks
    for marks in (
        (0,),
        (0, 1),
        (0, 1, 3),
        (0, 1, 4, 6),
        (0, 1, 4, 9, 11),
        (0, 1, 4, 10, 12, 17),
        (0, 1, 4, 10, 18, 23, 25),
        (0, 1, 4, 9, 15, 22, 32, 34),
        (0, 1, 5, 12, 25, 27, 35, 41, 44),
        (0, 1, 6, 10, 23, 26, 34, 41, 53, 55),
        (0, 1, 4, 13, 28, 33, 47, 54, 64, 70, 72),
        (0, 2, 6, 24, 29, 40, 43, 55, 68, 75, 76, 85),
        (0, 2, 5, 25, 37, 43, 59, 70, 85, 89, 98, 99, 106),
        (0, 4, 6, 20, 35, 52, 59, 77, 78, 86, 89, 99, 122, 127),
        (0, 4, 20, 30, 57, 59, 62, 76, 100, 111, 123, 136, 144, 145, 151),
        (0, 1, 4, 11, 26, 32, 56, 68, 76, 115, 117, 134, 150, 163, 168, 177),
        (0, 5, 7, 17, 52, 56, 67, 80, 81, 100, 122, 138, 159, 165, 168, 191, 199),
        (0, 2, 10, 22, 53, 56, 82, 83, 89, 98, 130, 148, 153, 167, 188, 192, 205, 216),
        (0, 1, 6, 25, 32, 72, 100, 108, 120, 130, 153, 169, 187, 190, 204, 231, 233, 242, 246),
        (0, 1, 8, 11, 68, 77, 94, 116, 121, 156, 158, 179, 194, 208, 212, 228, 240, 253, 259, 283),
        (0, 2, 24, 56, 77, 82, 83, 95, 129, 144, 179, 186, 195, 255, 265, 285, 293, 296, 310, 329, 333),
        (0, 1, 9, 14, 43, 70, 106, 122, 124, 128, 159, 179, 204, 223, 253, 263, 270, 291, 330, 341, 353, 356),
        (0, 3, 7, 17, 61, 66, 91, 99, 114, 159, 171, 199, 200, 226, 235, 246, 277, 316, 329, 348, 350, 366, 372),
        (
            *(0, 9, 33, 37, 38, 97, 122, 129, 140, 142, 152, 191),
            *(205, 208, 252, 278, 286, 326, 332, 353, 368, 384, 403, 425),
        ),
    )
}

EXHAUSTED_UP_TO = 57
"""Rings of up to this many places are searched exhaustively: if no ruler is found, there is none."""
SEARCHED_UP_TO = 256
"""On rings of up to this many places, the search gives up after `TRIALS`; larger rings use known rulers only."""
TRIALS = 50_000
WIDE_FROM = 64
"""Smaller rings do not use wide rulers."""
WIDE_TRIALS = 500
"""Draws for each mark of a wide ruler."""


def is_ruler_on(marks: Sequence[int], ring: int) -> bool:
    """Whether the differences of all ordered pairs are distinct and not zero modulo `ring`."""
    gaps = [(b - a) % ring for i, a in enumerate(marks) for j, b in enumerate(marks) if i != j]
    return 0 not in gaps and len(set(gaps)) == len(gaps)


def most_marks(ring: int) -> int:
    """Upper bound of the marks on a ring of this size: r marks need r(r - 1) distinct differences other than zero."""
    marks = 1
    while (marks + 1) * marks < ring:
        marks += 1
    return marks


@cache
def short_ruler(marks: int) -> Ruler:
    """A ruler with `marks` marks: the shortest if it is known, else a short one."""
    if marks < 1:
        raise ValueError(f"a ruler has at least one mark, not {marks}")
    if marks in SHORTEST:
        return SHORTEST[marks]
    primes = (p for p in count(marks + 1) if is_prime(p))
    return min((_window(ruzsa(next(primes)), marks) for _ in range(3)), key=lambda found: (found[-1], found))


@cache
def ruler_on(ring: int, marks: int) -> Ruler | None:
    """A ruler with `marks` marks, the first 0, and distinct differences modulo `ring`. None: no ruler is known.

    For rings of up to 57 places, None means that there is no such ruler.
    """
    if not 1 <= marks <= most_marks(ring):
        return None
    ruler = short_ruler(marks)
    if is_ruler_on(ruler, ring):
        return ruler
    for prime in range(marks + 1, marks + 40):
        if prime * (prime - 1) == ring and is_prime(prime):
            return ruzsa(prime)[:marks]
    return _search(ring, marks) if ring <= SEARCHED_UP_TO else None


@cache
def wide_ruler_on(ring: int, marks: int) -> Ruler | None:
    """A ruler with marks drawn from all over a large ring, always the same. None: the ring is too small or too full."""
    if ring < WIDE_FROM:
        return None
    uniform = Random(marks).random  # the one method whose numbers are the same in every version of Python
    ruler, used = [0], {0}
    for _ in range(WIDE_TRIALS * marks):
        if len(ruler) == marks:
            return tuple(sorted(ruler))
        mark = int(uniform() * ring)
        gaps = {gap for old in ruler for gap in ((mark - old) % ring, (old - mark) % ring)}
        if len(gaps) == 2 * len(ruler) and used.isdisjoint(gaps):
            ruler.append(mark)
            used |= gaps
    return None


@cache
def largest_on(ring: int) -> int:
    """The largest number of marks for which `ruler_on` finds a ruler."""
    return next(marks for marks in range(most_marks(ring), 0, -1) if ruler_on(ring, marks) is not None)


def ruzsa(prime: int) -> Ruler:
    """p - 1 marks with distinct differences modulo p(p - 1); the first mark is 0."""
    root, ring = _primitive_root(prime), prime * (prime - 1)
    marks = sorted((prime * i + (prime - 1) * pow(root, i, prime)) % ring for i in range(1, prime))
    return tuple(mark - marks[0] for mark in marks)


def is_prime(number: int) -> bool:
    return number > 1 and all(number % d for d in range(2, int(number**0.5) + 1))


def _primitive_root(prime: int) -> int:
    factors = [d for d in range(2, prime) if (prime - 1) % d == 0 and is_prime(d)]
    return next(g for g in range(1, prime) if all(pow(g, (prime - 1) // d, prime) != 1 for d in factors))


def _window(ring_ruler: Ruler, marks: int) -> Ruler:
    """The shortest segment with `marks` marks of a ruler with p - 1 marks on a ring of p(p - 1) places."""
    ring = (len(ring_ruler) + 1) * len(ring_ruler)
    round_twice = [*ring_ruler, *(mark + ring for mark in ring_ruler)]
    best = min(range(len(ring_ruler)), key=lambda i: round_twice[i + marks - 1] - round_twice[i])
    return tuple(mark - round_twice[best] for mark in round_twice[best : best + marks])


def _search(ring: int, marks: int) -> Ruler | None:
    """Searches depth first, smallest mark first. The first gap is the smallest, because a ruler can be rotated.

    A set of places is a number with one bit per place; a rotation of the ring is a rotation of the bits.
    """
    whole, trials = (1 << ring) - 1, 0

    def grow(ruler: Ruler, places: int, mirrored: int, used: int) -> Ruler | None:
        nonlocal trials
        if len(ruler) == marks:
            return ruler
        smallest = ruler[1] if len(ruler) > 1 else 1
        last = ring - smallest * (marks - len(ruler)) if len(ruler) > 1 else ring // marks
        for mark in range(ruler[-1] + smallest, last + 1):
            trials += 1
            if ring > EXHAUSTED_UP_TO and trials > TRIALS:
                return None
            ahead = (mirrored << mark | mirrored << mark >> ring) & whole
            behind = (places << ring - mark | places >> mark) & whole
            if ahead & behind or (ahead | behind) & used:
                continue
            mirror = mirrored | 1 << ring - mark
            found = grow((*ruler, mark), places | 1 << mark, mirror, used | ahead | behind)
            if found is not None:
                return found
        return None

    return grow((0,), 1, 1, 1)

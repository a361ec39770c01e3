"""How many standbys are enough: machines fail, are repaired and come back; somebody must stand in meanwhile.

Failures come at random, each machine is away for as long as its repair takes, and repairs do not wait for each other.
So the number of machines that are away is Poisson distributed whatever the repairs' distribution is, and whenever it
is larger than the number of standbys, places are vacant.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, lgamma, log, sqrt

SIGMAS = 3.0


def in_repair(rate: float, repair: float) -> float:
    """Mean number of machines that are away, for so many failures per second."""
    return rate * repair


def enough(rate: float, repair: float) -> int:
    """The mean in repair and three standard deviations more: then hardly anybody ever waits for a machine."""
    away = in_repair(rate, repair)
    return max(1, int(-(-(away + SIGMAS * sqrt(away)) // 1)))


@lru_cache(1024)
def short(away: float, standbys: int) -> float:
    """How often there are fewer standbys than places to fill, `away` being how many machines are away on average."""
    return 1.0 if _hopeless(away, standbys) else sum(_chances(away, standbys))


@lru_cache(1024)
def vacant(away: float, standbys: int) -> float:
    """Mean number of places that wait for a machine."""
    if _hopeless(away, standbys):
        return away - standbys
    return sum(place * chance for place, chance in enumerate(_chances(away, standbys), 1))


def _hopeless(away: float, standbys: int) -> bool:
    """Whether there are next to never enough, to the last digit."""
    return away - standbys > 40 * sqrt(away) + 40


def _chances(away: float, standbys: int) -> list[float]:
    """With which probability 1, 2, … more are away than there are standbys."""
    if away <= 0:
        return []
    most = max(standbys + 1, int(away)) + int(12 * sqrt(away)) + 20
    return [exp(number * log(away) - away - lgamma(number + 1)) for number in range(standbys + 1, most)]

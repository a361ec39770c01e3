"""How many standbys are enough: machines fail, are repaired and come back; somebody must stand in meanwhile."""

from __future__ import annotations

from math import exp, lgamma, log, sqrt

SIGMAS = 3.0


def in_repair(rate: float, repair: float) -> float:
    """Mean number of machines that are away, for so many failures per second."""
    return rate * repair


def enough(rate: float, repair: float) -> int:
    """The mean in repair and three standard deviations more: then hardly anybody ever waits for a machine."""
    away = in_repair(rate, repair)
    return max(1, int(-(-(away + SIGMAS * sqrt(away)) // 1)))


def mean_wait(rate: float, repair: float, standbys: int) -> float:
    """Seconds that a failure waits for a machine: Erlang's formula, repairs being as irregular as failures.

    Infinite where more machines break than are repaired.
    """
    away = in_repair(rate, repair)
    if not away:
        return 0.0
    if standbys <= away:
        return float("inf")
    return all_away(away, standbys) * repair / (standbys - away)


def all_away(away: float, standbys: int) -> float:
    """How often a failure finds no standby (Erlang C), `away` being how many are in repair on average."""
    top = standbys * log(away) - lgamma(standbys + 1) + log(standbys / (standbys - away))
    terms = [number * log(away) - lgamma(number + 1) - top for number in range(standbys)]
    if max(terms, default=0.0) > 600:
        return 0.0
    return 1 / (1 + sum(exp(term) for term in terms))

"""How many failures a placement endures and how deep the stacks get, in closed form.

N replicas, r holders per shard, f of them vacant, replicas failing in random order and none refilled. `bench reorder`
measures how far these are from what happens.
"""

from __future__ import annotations

from math import exp, gamma, lgamma, pow


def failures_at_least(replicas: int, r: int) -> float:
    """The same for any placement with r holders: a lower bound, as if each shard had holders of its own."""
    return _endured(replicas, r, replicas)


def failures(replicas: int, r: int) -> float:
    """The same for a Golomb or random placement: the bound, corrected for shards that share a holder."""
    return failures_at_least(replicas, r) + (r - 1) / 2 * (1 - gamma(2 + 1 / r) * pow(replicas, -1 / r))


def failures_for_large(replicas: int, r: int) -> float:
    """SPARe's own form, what the lower bound tends to for many replicas."""
    return gamma(1 + 1 / r) * pow(replicas, 1 - 1 / r)


def depth_bound(replicas: int, vacant: int) -> int:
    """No smaller depth can cover all shards; with a Golomb placement it nearly always suffices."""
    return -(-replicas // (replicas - vacant))


def patched_share(replicas: int, vacant: int) -> float:
    """Of the failures that come when so many are vacant, the share after which a shard is computed in addition.

    Whole shards in stacks: N - f survivors compute S shards each, so S (N - f) - N more than needed. While these are
    spread over different shards, the others have one copy only, and a failure that meets one of them is not free.
    """
    live = replicas - vacant
    slots = live * depth_bound(replicas, vacant)
    single = max(0, 2 * replicas - slots) / slots
    return float(1 - (1 - single) ** (slots // live))


def mean_depth_over_failures(replicas: int, endured: float) -> float:
    """Mean of the depth bound over the failures from none to `endured`, each counted alike."""
    deepest = _deepest(replicas, endured)
    harmonic = sum(1 / k for k in range(1, deepest))
    return deepest - replicas / endured * (deepest - 1 - harmonic)


def _endured(replicas: int, r: int, groups: float) -> float:
    return (replicas + 1) * gamma(1 + 1 / r) * exp(lgamma(groups + 1) - lgamma(groups + 1 + 1 / r))


def _deepest(replicas: int, endured: float) -> int:
    if not 0 < endured < replicas:
        raise ValueError(f"between none and all of the {replicas} replicas can have failed, not {endured}")
    return int(-(-replicas // (replicas - endured)))

"""Closed forms: the number of failures until a wipe-out, and the depth of stacks.

There are N replicas and r holders per shard; replicas fail in random order and none is refilled. `bench reorder`
compares the formulas with measurements.
"""

from __future__ import annotations

from math import exp, gamma, lgamma, pow


def failures_at_least(replicas: int, r: int) -> float:
    """Lower bound of the mean number of failures until a wipe-out, the last one included, for r holders per shard.

    The bound is exact if no two shards share a holder.
    """
    return (replicas + 1) * gamma(1 + 1 / r) * exp(lgamma(replicas + 1) - lgamma(replicas + 1 + 1 / r))


def failures(replicas: int, r: int) -> float:
    """Mean number of failures until a wipe-out for a Golomb or random placement: the bound, with a correction."""
    return failures_at_least(replicas, r) + (r - 1) / 2 * (1 - gamma(2 + 1 / r) * pow(replicas, -1 / r))


def failures_for_large(replicas: int, r: int) -> float:
    """SPARe's formula for the mean number of failures until a wipe-out: the lower bound for many replicas."""
    return gamma(1 + 1 / r) * pow(replicas, 1 - 1 / r)


def depth_bound(replicas: int, vacant: int) -> int:
    """The smallest depth that could cover all shards. With a Golomb placement it nearly always suffices."""
    return -(-replicas // (replicas - vacant))


def patched_share(replicas: int, vacant: int) -> float:
    """Share of failures after which a shard must be computed in addition, if `vacant` replicas are vacant already.

    Shards are whole, in stacks: N - f survivors compute S shards each, S (N - f) - N more than needed. As long as these
    are spread over different shards, each of the other shards has one copy, and a failure of its replica is not free.
    """
    live = replicas - vacant
    slots = live * depth_bound(replicas, vacant)
    single = max(0, 2 * replicas - slots) / slots
    return float(1 - (1 - single) ** (slots // live))


def mean_depth_over_failures(replicas: int, endured: float) -> float:
    """Mean of the depth bound over the first `endured` failures."""
    if not 0 < endured < replicas:
        raise ValueError(f"the number of failed replicas must be between 0 and {replicas}, not {endured}")
    deepest = int(-(-replicas // (replicas - endured)))
    harmonic = sum(1 / k for k in range(1, deepest))
    return deepest - replicas / endured * (deepest - 1 - harmonic)

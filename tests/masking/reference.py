"""Reference answers by a library's maximum flows: slow, plain and independent of the tested code."""

from __future__ import annotations

from collections.abc import Callable, Collection

import networkx as nx  # type: ignore[import-untyped]

from understudy.masking.placement import Placement


def feasible(placement: Placement, q: int, live: Collection[int], limit: int) -> bool:
    """Whether all micro-shards fit on the live replicas with at most `limit` on each."""
    graph = nx.DiGraph()
    for shard in range(placement.replicas):
        graph.add_edge("source", ("shard", shard), capacity=q)
        for replica in placement.holders(shard):
            if replica in live:
                graph.add_edge(("shard", shard), ("replica", replica), capacity=q)
    for replica in live:
        graph.add_edge(("replica", replica), "sink", capacity=limit)
    if "sink" not in graph:
        return False
    return bool(nx.maximum_flow_value(graph, "source", "sink") == q * placement.replicas)


def smallest_load(placement: Placement, q: int, live: Collection[int]) -> int | None:
    """The smallest possible load, None after a wipe-out."""
    most = q * placement.replicas
    return next((limit for limit in range(1, most + 1) if feasible(placement, q, live, limit)), None)


def fewest_moves(
    placement: Placement, q: int, live: Collection[int], limit: int, kept: Callable[[int, int], int]
) -> int:
    """The smallest number of micro-shards on a replica beyond what `kept(shard, replica)` allows, by min-cost flow."""
    graph = nx.MultiDiGraph()
    graph.add_node("source", demand=-q * placement.replicas)
    graph.add_node("sink", demand=q * placement.replicas)
    for shard in range(placement.replicas):
        graph.add_edge("source", ("shard", shard), capacity=q, weight=0)
        for replica in placement.holders(shard):
            if replica in live:
                graph.add_edge(("shard", shard), ("replica", replica), capacity=kept(shard, replica), weight=0)
                graph.add_edge(("shard", shard), ("replica", replica), capacity=q, weight=1)
    for replica in live:
        graph.add_edge(("replica", replica), "sink", capacity=limit, weight=0)
    flow = nx.min_cost_flow(graph)
    return sum(
        units * graph[tail][head][key]["weight"]
        for tail, heads in flow.items()
        for head, keys in heads.items()
        for key, units in keys.items()
    )

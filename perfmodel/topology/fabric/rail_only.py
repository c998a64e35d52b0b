"""Rail-only fabric: a network of its own for each rail, and no cable between rails."""

from __future__ import annotations

import math
from collections.abc import Hashable

import networkx as nx


def rail_only(
    hosts: int, rails: tuple[int, ...], *, radix: int = 64, routing: str = "ecmp"
) -> nx.Graph[Hashable]:
    """One switch per rail, or leaves and spines that do not block where hosts need more ports.

    NICs of different rails do not reach each other: bytes change rails inside a host, over NVLink.
    Source: Wang, Ghobadi, Shakeri, Zhang and Hasani, "Rail-only: A Low-Cost High-Performance
    Network for Training LLMs with Trillion Parameters", arXiv:2307.12169.

    Parameters
    ----------
    hosts : int
    rails : tuple of int
        Rail of each NIC of a host.
    radix : int
        Ports of a switch.
    routing : str
        "ecmp", or "adaptive": flows of a leaf share its uplinks evenly.
    """
    graph: nx.Graph[Hashable] = nx.Graph(routing=routing)
    graph.add_nodes_from(range(hosts), kind="host")
    for rail in sorted(set(rails)):
        nics = tuple(nic for nic, other in enumerate(rails) if other == rail)
        per_leaf = hosts if hosts * len(nics) <= radix else max(1, radix // 2 // len(nics))
        leaves = [f"rail{rail}/leaf{leaf}" for leaf in range(math.ceil(hosts / per_leaf))]
        graph.add_nodes_from(leaves, kind="switch")
        for host in range(hosts):
            graph.add_edge(host, leaves[host // per_leaf], nics=nics)
        if len(leaves) > 1:
            _join_leaves(graph, leaves, per_leaf * len(nics), radix)
    return graph


def _join_leaves(graph: nx.Graph[Hashable], leaves: list[str], uplinks: int, radix: int) -> None:
    """Join the leaves of a rail by the fewest spines that have ports enough."""
    fits = (s for s in range(1, uplinks + 1)
            if uplinks % s == 0 and len(leaves) * uplinks // s <= radix)  # fmt: skip
    spines = next(fits, uplinks)
    adaptive = graph.graph["routing"] == "adaptive"
    rail = leaves[0].partition("/")[0]
    names = [f"{rail}/spine{spine}" for spine in range(1 if adaptive else spines)]
    trunk = {"lanes": uplinks} if adaptive else {"cables": uplinks // spines}
    graph.add_nodes_from(names, kind="switch")
    graph.add_edges_from(((leaf, spine) for leaf in leaves for spine in names), **trunk)

"""Rail-only fabric: a network of its own for each rail, and no cable between rails."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from perfmodel.topology.fabric.clos import Rails, plugged

if TYPE_CHECKING:
    import networkx as nx


def rail_only(
    hosts: int, rails: Rails, *, radix: int = 64, routing: str = "ecmp"
) -> nx.Graph[int | str]:
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
        "ecmp", "rail", or "adaptive": all flows of a leaf share its uplinks evenly.
    """
    used = sorted(set(rails))
    nics = len(rails) // len(used)  # of one host on one rail
    group = hosts if hosts * nics <= radix else max(1, radix // 2 // nics)
    leaves = math.ceil(hosts / group)
    uplinks = group * nics if leaves > 1 else 0
    fits = (s for s in range(1, uplinks + 1) if uplinks % s == 0 and leaves * uplinks // s <= radix)
    spines = next(fits, uplinks)
    names = [f"rail{rail}/leaf{leaf}" for rail in used for leaf in range(leaves)]
    own = [used.index(rail) * leaves for rail in rails]
    graph = plugged(hosts, [[leaf + host // group for leaf in own] for host in range(hosts)], names)
    adaptive = routing == "adaptive"
    for name in names if leaves > 1 else ():
        for spine in range(1 if adaptive else spines):
            upper = f"{name.partition('/')[0]}/spine{spine}"
            graph.add_node(upper, kind="switch")
            trunk = {"lanes": uplinks} if adaptive else {"cables": uplinks // spines}
            graph.add_edge(name, upper, **trunk)
    graph.graph["routing"] = routing
    above, cables = (1, 1) if adaptive else (spines, uplinks // max(1, spines))
    levels = {"above": above, "cables": cables} if leaves > 1 else {}
    graph.graph["tiers"] = {"leaves": len(names), "pod": leaves, **levels}
    return graph

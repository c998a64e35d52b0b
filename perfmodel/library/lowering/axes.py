"""What a group of chips can move on a torus or mesh whose collectives spread over all axes.

Austin et al., "How to Scale Your Model", 2025, part "Sharded Matrices and How to Multiply Them": a
gather over one axis with links that close its ring runs at the rate of two links of a chip, over
several axes at that of all of them together; without such links, at that of one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.arrays import RankGroup, distinct, rank_array
from perfmodel.library.machine import Machine
from perfmodel.library.model import Protocol


def limit_to_axes(
    machine: Machine, op: str, group: RankGroup, protocols: Mapping[str, Protocol]
) -> Mapping[str, Protocol]:
    """Limit protocols to the links that a group spans; as they are where its network is another."""
    topology = machine.topology
    facts = {} if topology.fabric_graph is None else topology.fabric_graph.graph
    if facts.get("routing") != "adaptive" or "dims" not in facts:
        return protocols
    node = topology.node_graph
    nics = {name: data for name, data in node.nodes(data=True) if data["kind"] == "nic"}
    all_Bps = sum(data["port_bandwidth"] * data["port_efficiency"] for data in nics.values())
    links = sum(data["lanes"] for *_, data in node.edges(nics, data=True))
    hosts = rank_array(group) // topology.gpus_per_host
    used = links_used(hosts, facts["dims"], op, ring=facts["line"] == "ring")
    most_Bps = all_Bps * min(1.0, used / links)
    return {
        name: each.model_copy(update={"max_rate": most_Bps}) for name, each in protocols.items()
    }


def links_used(chips: np.ndarray, dims: tuple[int, ...], op: str, *, ring: bool) -> float:
    """Return how many of a chip's links, two for each side, a collective of some chips fills.

    Chips are numbered with the last side fastest. An all-to-all crosses the middle of its longest
    axis: of n chips in a ring each receives no more than the rate of 8 / n links.

    Examples
    --------
    >>> links_used(np.arange(256), (16, 16), "all_gather", ring=True)
    4.0
    >>> links_used(np.arange(16), (16, 16), "all_gather", ring=True)
    2.0
    >>> links_used(np.arange(4), (4, 4), "all_gather", ring=False)
    1.0
    >>> links_used(np.arange(256), (16, 16), "all_to_all", ring=True)
    0.5
    """
    counts = [len(distinct(places)) for places in np.unravel_index(chips, dims)]
    links = [
        (count > 1) * (2 if ring and count == side > 2 else 1)
        for count, side in zip(counts, dims, strict=True)
    ]
    longest = max(counts)
    across = 4.0 * links[counts.index(longest)] / longest
    return float(min(sum(links), across) if op == "all_to_all" else sum(links))

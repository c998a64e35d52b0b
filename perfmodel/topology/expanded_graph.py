"""Every device and link of a machine as one NetworkX graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfmodel.topology.arcs import Arcs, Device

if TYPE_CHECKING:
    import networkx as nx

SWITCH = "fabric/"
"""What precedes the name of a switch of the fabric among the names of devices."""

FABRIC_FACTS = ("kind", "routing", "tiers", "line", "dims", "sources", "assumptions")
"""What the expanded graph says of the fabric as a whole: the rest is in its links."""

SWITCH_FACTS = ("group", "place")
"""What it says of switches: where they stand among others, by which some routings go."""


def expand(
    node: nx.MultiDiGraph[str],
    fabric: nx.Graph[int | str] | None,
    devices: Mapping[str, Device],
    arcs: Arcs,
    gpus_per_node: int,
) -> nx.MultiDiGraph[str]:
    """Return the devices and links of a machine, and what its graphs say as a whole.

    Parameters
    ----------
    node, fabric : networkx graphs
        `Topology.node_graph` and `Topology.fabric_graph`.
    devices : mapping of str to Device
    arcs : Arcs
    gpus_per_node : int
        GPUs of each node that are ranks.

    Returns
    -------
    networkx.MultiDiGraph
        Nodes have ``kind``, what the graph of their node says of them, ``node`` (number of their
        host; switches of the fabric have none) and ``local`` (their name in it). Edges have
        ``kind``, ``bandwidth``, ``latency``, ``lanes`` and ``index``, the number of the link.
        `perfmodel.topology.own_graph.topology_of` makes the same topology of it.
    """
    import networkx as nx  # takes longer than a small simulation

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(
        perfmodel=1, gpus_per_node=gpus_per_node, machine=dict(node.graph)
    )
    if fabric is not None:
        own = fabric.graph
        graph.graph["fabric"] = {name: own[name] for name in FABRIC_FACTS if name in own}
    for name, device in devices.items():
        if device.host < 0:
            local = name.removeprefix(SWITCH)
            switch = {} if fabric is None else fabric.nodes[local]
            where = {fact: switch[fact] for fact in SWITCH_FACTS if fact in switch}
            graph.add_node(name, kind=device.kind, local=local, **where)
        else:
            graph.add_node(name, **node.nodes[device.local], node=device.host, local=device.local)
    columns = {
        "kind": arcs.kinds,
        "bandwidth": arcs.bandwidth_Bps.tolist(),
        "latency": arcs.latency_s.tolist(),
        "lanes": arcs.lanes.tolist(),
        "index": range(len(arcs)),
    }
    graph.add_edges_from(
        (*ends, dict(zip(columns, numbers, strict=True)))
        for ends, *numbers in zip(arcs.names, *columns.values(), strict=True)
    )
    return graph

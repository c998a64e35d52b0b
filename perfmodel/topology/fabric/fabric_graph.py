"""The network between hosts as a NetworkX graph: of a shape's generator, or of a list of cables.

Nodes are the hosts, by their numbers, and switches, by their names. An edge of a host plugs in some
of its NICs (``nics``, all if it is the only edge); an edge between switches is a number of parallel
``cables`` with ``lanes`` bonded into each, of which each cable carries ``bandwidth`` (raw; that of
the NICs' ports if left out) after ``latency`` (that of the fabric's cables).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from perfmodel.errors import Fault, InputError
from perfmodel.topology.fabric.clos import (
    Rails,
    fat_tree,
    leaf_spine,
    one_switch,
    plugged,
    rail_only,
    rail_optimised,
)
from perfmodel.topology.fabric.direct_networks import GRIDS, direct_network
from perfmodel.topology.fabric.dragonfly import dragonfly
from perfmodel.topology.fabric.fabric import Fabric
from perfmodel.topology.templates.spec import OPTIONS, FabricSpec

if TYPE_CHECKING:
    import networkx as nx


def fabric_graph(fabric: Fabric, rails: Rails, hosts: int) -> nx.Graph[int | str]:
    """Join hosts by a fabric of which every number is settled.

    `rails`: rail of each NIC of one host.

    Returns
    -------
    networkx.Graph
        ``graph.graph`` has the fabric's ``kind``, ``routing``, latencies and sources.

    Raises
    ------
    InputError
        The fabric has too few ports, or a list does not fit the hosts.
    """
    spec, numbers = fabric.spec, fabric.numbers
    clos = {
        "radix": spec.radix,
        "oversubscription": spec.oversubscription,
        "adaptive": spec.routing == "adaptive",
    }
    leaves = {**clos, "down_ports": fabric.down_ports, "hosts_per_leaf": spec.hosts_per_leaf}
    own = {"routing": spec.routing, **{name: numbers[name] for name in OPTIONS & numbers.keys()}}
    shapes: Mapping[str, tuple[Callable[..., nx.Graph[int | str]], Mapping[str, Any]]] = {
        "one-switch": (one_switch, {}),
        "rail-optimised": (rail_optimised, leaves),
        "leaf-spine": (leaf_spine, leaves),
        "fat-tree": (fat_tree, {"k": spec.k, **clos}),
        "rail-only": (rail_only, {"radix": spec.radix, **own}),
        "dragonfly": (dragonfly, {"radix": spec.radix, **own}),
        "listed": (partial(_listed, spec), {}),
        **{kind: (partial(direct_network, kind), own) for kind in GRIDS},
    }
    make, options = shapes[spec.kind]
    graph = make(hosts, rails, **options)
    facts = ("kind", "routing", "switch_latency", "cable_latency", "uplink_bandwidth")
    graph.graph |= {name: numbers[name] for name in facts if name in numbers}
    graph.graph["sources"] = dict(fabric.sources)
    return graph


# ---------------------------------------------------------------- listed fabrics


def _listed(spec: FabricSpec, hosts: int, rails: Rails) -> nx.MultiGraph[int | str]:
    """Plug the NICs of the first hosts into the switches that the list says.

    Raises `InputError`: more hosts than the list has, NICs that differ in number, or switches that
    no cable joins.
    """
    import networkx as nx

    listed, trunks = spec.hosts or (), spec.trunks or ()
    rows = listed[:hosts]
    faults = []
    if hosts > len(listed):
        faults.append(Fault("hosts", str(hosts), f"at most {len(listed)} in this fabric"))
    odd_host = next((row for row in rows if len(row.leaves) != len(rails)), None)
    if odd_host is not None:
        other = f"{len(odd_host.leaves)} of {odd_host.name} in the fabric"
        mismatch = f"{len(rails)} NICs per host, and {other}"
        faults.append(Fault("fabric", mismatch, "as many as the host template has"))
    faults += [
        Fault("fabric.trunks", f"{trunk.to} joined to itself", "two different switches")
        for trunk in trunks
        if trunk.from_ == trunk.to
    ]
    if faults:
        raise InputError(faults)
    leaves = list(dict.fromkeys(leaf for row in rows for leaf in row.leaves))
    joined: nx.Graph[str] = nx.Graph((trunk.from_, trunk.to) for trunk in trunks)
    joined.add_node(leaves[0])
    reached = [leaves[0], *(name for _, name in nx.bfs_edges(joined, leaves[0]))]
    unreachable = next((leaf for leaf in leaves if leaf not in set(reached)), None)
    if unreachable is not None:
        problem = f"no cables from {leaves[0]} to {unreachable}"
        raise InputError(Fault("fabric.trunks", problem, "switches that are joined"))
    place = {name: at for at, name in enumerate(dict.fromkeys((*leaves, *reached)))}
    leaf_of = [[place[leaf] for leaf in row.leaves] for row in rows]
    notes = [f"assumption: the first {hosts} of {len(listed)} hosts of the fabric"]
    facts = {"assumptions": notes} if hosts < len(listed) else {}
    graph: nx.MultiGraph[int | str] = nx.MultiGraph(plugged(hosts, leaf_of, place, **facts))
    for index, trunk in enumerate(trunks):
        if trunk.from_ in place:
            low, high = sorted((trunk.from_, trunk.to), key=place.__getitem__)
            numbers = {} if trunk.bandwidth is None else {"bandwidth": trunk.bandwidth}
            graph.add_edge(low, high, cables=trunk.cables, index=index, **numbers)
    return graph

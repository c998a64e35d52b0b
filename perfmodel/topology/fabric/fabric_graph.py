"""The network between hosts as a NetworkX graph: of a shape's generator, or of a list of cables.

Nodes are the hosts, by their numbers, and switches, by their names. An edge of a host plugs in some
of its NICs (``nics``, all if it is the only edge); an edge between switches is a number of parallel
``cables`` with ``lanes`` bonded into each, of which each cable carries ``bandwidth`` (raw; that of
the NICs' ports if left out) after ``latency`` (that of the fabric's cables).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
from perfmodel.topology.fabric.direct_networks import (
    flattened_butterfly,
    hypercube,
    mesh,
    torus,
)
from perfmodel.topology.fabric.dragonfly import dragonfly
from perfmodel.topology.fabric.fabric import Fabric

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
    adaptive = fabric.routing == "adaptive"
    levels: dict[str, Any] = {
        "radix": fabric.radix,
        "oversubscription": fabric.oversubscription,
        "adaptive": adaptive,
    }
    leaves = {
        **levels,
        "down_ports": fabric.down_ports,
        "hosts_per_leaf": fabric.hosts_per_leaf,
    }
    own: dict[str, Any] = {"routing": fabric.routing, **fabric.options}
    shapes: Mapping[str, Callable[[], nx.Graph[int | str]]] = {
        "one-switch": lambda: one_switch(hosts, rails),
        "rail-optimised": lambda: rail_optimised(hosts, rails, **leaves),
        "leaf-spine": lambda: leaf_spine(hosts, rails, **leaves),
        "fat-tree": lambda: fat_tree(hosts, rails, k=fabric.k, **levels),
        "rail-only": lambda: rail_only(hosts, rails, radix=fabric.radix, **own),
        "dragonfly": lambda: dragonfly(hosts, rails, radix=fabric.radix, **own),
        "torus": lambda: torus(hosts, rails, **own),
        "mesh": lambda: mesh(hosts, rails, **own),
        "hypercube": lambda: hypercube(hosts, rails, **own),
        "flattened-butterfly": lambda: flattened_butterfly(hosts, rails, **own),
        "listed": lambda: _listed(fabric, rails, hosts),
    }
    graph = shapes[fabric.kind]()
    numbers = {
        "kind": fabric.kind,
        "routing": fabric.routing,
        "switch_latency": fabric.switch_latency_s,
        "cable_latency": fabric.cable_latency_s,
        "uplink_bandwidth": fabric.uplink_Bps,
        "sources": dict(fabric.sources),
    }
    graph.graph |= {name: value for name, value in numbers.items() if value is not None}
    return graph


# ---------------------------------------------------------------- listed fabrics


def _listed(fabric: Fabric, rails: Rails, hosts: int) -> nx.MultiGraph[int | str]:
    """Plug the NICs of the first hosts into the switches that the list says.

    Raises `InputError`: more hosts than the list has, NICs that differ in number, or switches that
    no cable joins.
    """
    import networkx as nx

    rows = fabric.hosts[:hosts]
    faults = []
    if hosts > len(fabric.hosts):
        faults.append(Fault("hosts", str(hosts), f"at most {len(fabric.hosts)} in this fabric"))
    odd_host = next((row for row in rows if len(row.leaves) != len(rails)), None)
    if odd_host is not None:
        listed = f"{len(odd_host.leaves)} of {odd_host.name} in the fabric"
        faults.append(
            Fault(
                "fabric",
                f"{len(rails)} NICs per host, and {listed}",
                "as many as the host template has",
            )
        )
    faults += [
        Fault("fabric.trunks", f"{trunk.to} joined to itself", "two different switches")
        for trunk in fabric.trunks
        if trunk.from_ == trunk.to
    ]
    if faults:
        raise InputError(faults)
    leaves = list(dict.fromkeys(leaf for row in rows for leaf in row.leaves))
    reached = _reached(leaves[:1], [(trunk.from_, trunk.to) for trunk in fabric.trunks])
    unreachable = [leaf for leaf in leaves if leaf not in reached]
    if unreachable:
        raise InputError(
            Fault(
                "fabric.trunks",
                f"no cables from {leaves[0]} to {unreachable[0]}",
                "switches that are joined",
            )
        )
    names = [*leaves, *(name for name in reached if name not in set(leaves))]
    place = {name: at for at, name in enumerate(names)}
    leaf_of = [[place[leaf] for leaf in row.leaves] for row in rows]
    graph: nx.MultiGraph[int | str] = nx.MultiGraph(plugged(hosts, leaf_of, names))
    for index, trunk in enumerate(fabric.trunks):
        if trunk.from_ in place:
            low, high = sorted((trunk.from_, trunk.to), key=place.__getitem__)
            numbers = {} if trunk.bandwidth is None else {"bandwidth": trunk.bandwidth}
            graph.add_edge(low, high, cables=trunk.cables, index=index, **numbers)
    if hosts < len(fabric.hosts):
        note = f"assumption: the first {hosts} of {len(fabric.hosts)} hosts of the fabric"
        graph.graph["assumptions"] = [note]
    return graph


def _reached(start: Iterable[str], pairs: list[tuple[str, str]]) -> dict[str, None]:
    """Switches that cables lead to, in the order in which they are met."""
    neighbours: dict[str, list[str]] = {}
    for a, b in pairs:
        neighbours.setdefault(a, []).append(b)
        neighbours.setdefault(b, []).append(a)
    reached = dict.fromkeys(start)
    queue = list(reached)
    for name in queue:
        for other in neighbours.get(name, ()):
            if other not in reached:
                reached[other] = None
                queue.append(other)
    return reached

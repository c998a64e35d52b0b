"""The network between hosts as a NetworkX graph: of a shape, a list, or a function of the user's.

Nodes are the hosts, by their numbers, and switches, by their names. An edge of a host plugs in some
of its NICs (``nics``, all if it is the only edge); an edge between switches is a number of parallel
``cables`` with ``lanes`` bonded into each, of which each cable carries ``bandwidth`` (raw; that of
the NICs' ports if left out) after ``latency`` (that of the fabric's cables).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from perfmodel.errors import Fault, InputError, describe_type, failed, raise_faults, refuse_if
from perfmodel.files import (
    LinkBandwidth,
    LinkLatency,
    Parts,
    validate_document,
)
from perfmodel.own_functions import call_function, name_of
from perfmodel.topology.expanded_graph import SWITCH_FACTS
from perfmodel.topology.fabric.clos import (
    Rails,
    fat_tree,
    leaf_spine,
    one_switch,
    plugged,
    rail_only,
    rail_optimised,
)
from perfmodel.topology.fabric.direct_networks import GRIDS, direct_network, dragonfly
from perfmodel.topology.fabric.fabric import Fabric, resolve_fabric
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
    faults = failed(
        (hosts > len(listed), "hosts", str(hosts), f"at most {len(listed)} in this fabric")
    )
    odd_hosts = [row for row in rows if len(row.leaves) != len(rails)]
    faults += [
        Fault(
            "fabric",
            f"{len(rails)} NICs per host, and {len(row.leaves)} of {row.name} in the fabric",
            "as many as the host template has",
        )
        for row in odd_hosts[:1]
    ]
    faults += [
        Fault("fabric.trunks", f"{trunk.to} joined to itself", "two different switches")
        for trunk in trunks
        if trunk.from_ == trunk.to
    ]
    raise_faults(faults)
    leaves = list(dict.fromkeys(leaf for row in rows for leaf in row.leaves))
    joined: nx.Graph[str] = nx.Graph((trunk.from_, trunk.to) for trunk in trunks)
    joined.add_node(leaves[0])
    reached = [leaves[0], *(name for _, name in nx.bfs_edges(joined, leaves[0]))]
    unreachable = next((leaf for leaf in leaves if leaf not in set(reached)), None)
    refuse_if(
        unreachable is not None,
        "fabric.trunks",
        f"no cables from {leaves[0]} to {unreachable}",
        "switches that are joined",
    )
    place = {name: at for at, name in enumerate(dict.fromkeys((*leaves, *reached)))}
    leaf_of = [[place[leaf] for leaf in row.leaves] for row in rows]
    notes = [f"assumption: the first {hosts} of {len(listed)} hosts of the fabric"]
    graph: nx.MultiGraph[int | str] = nx.MultiGraph(
        plugged(hosts, leaf_of, place, **{"assumptions": notes} if hosts < len(listed) else {})
    )
    for index, trunk in enumerate(trunks):
        if trunk.from_ in place:
            low, high = sorted((trunk.from_, trunk.to), key=place.__getitem__)
            numbers = {} if trunk.bandwidth is None else {"bandwidth": trunk.bandwidth}
            graph.add_edge(low, high, cables=trunk.cables, index=index, **numbers)
    return graph


A_FUNCTION = "a function of the numbers of hosts and NICs that returns an undirected nx.Graph"

Generator = Callable[[int, int], "nx.Graph[Any]"]
"""From the number of hosts and of NICs of each to a graph of hosts and switches."""


class _Cable(BaseModel):
    """What an edge of the graph may say."""

    bandwidth: LinkBandwidth | None = None
    latency: LinkLatency | None = None
    cables: Parts = 1
    lanes: Parts = 1
    nics: tuple[int, ...] | None = None


def own_fabric(make: Generator, hosts: int, nics: int) -> nx.Graph[Any]:
    """Call a function of the user's, and check what it returns.

    Parameters
    ----------
    make : callable
        ``make(hosts, nics)`` returns an undirected graph whose nodes ``0`` to ``hosts - 1`` are the
        hosts; all others are switches. An edge of a host plugs in the NICs with the numbers
        ``nics``: by default all of them if it is the only one, else one each. An edge between
        switches may have ``bandwidth`` (default: that of the NICs' ports), ``latency`` (default: a
        cable's), parallel ``cables`` and ``lanes`` bonded into each. ``graph.graph["routing"]`` may
        be "minimal" or "valiant" where switches have a ``group``, and "dimension-ordered" or
        "valiant" on a grid whose ``dims`` and ``line`` (ring, path or complete) the graph states.
    hosts, nics : int

    Raises
    ------
    InputError
        No such function or graph, hosts or cables that are missing, wrong numbers; every fault.
    """
    import networkx as nx

    graph = call_function("fabric", make, (hosts, nics), "(hosts, nics)", A_FUNCTION)
    refuse_if(
        not isinstance(graph, nx.Graph) or graph.is_directed(),
        "fabric",
        f"{name_of(make)}, which returned {describe_type(graph)}",
        A_FUNCTION,
    )
    faults = [
        Fault(f"fabric.{host}", f"no host {host} in the graph", f"the nodes 0 to {hosts - 1}")
        for host in range(hosts)
        if host not in graph
    ]
    grid = {fact: graph.graph[fact] for fact in ("dims", "line") if fact in graph.graph}
    own: nx.MultiGraph[int | str] = nx.MultiGraph(
        kind=name_of(make), routing=graph.graph.get("routing", "ecmp"), **grid
    )
    own.add_nodes_from(range(hosts), kind="host")
    own.add_nodes_from(
        (node, {**{fact: data[fact] for fact in SWITCH_FACTS if fact in data}, "kind": "switch"})
        for node, data in graph.nodes(data=True)
        if node not in range(hosts)
    )
    for src, dst, data in graph.edges(data=True):
        try:
            own.add_edge(
                src, dst, **validate_document(_Cable, dict(data)).model_dump(exclude_none=True)
            )
        except InputError as error:
            place = f"fabric.{src} -- {dst}"
            faults += [replace(each, field=f"{place}.{each.field}") for each in error.faults]
    raise_faults(faults)
    usual = resolve_fabric("one-switch")
    own.graph |= {
        "switch_latency": usual.spec.switch_latency,
        "cable_latency": usual.spec.cable_latency,
        "sources": dict(usual.sources),
    }
    return own

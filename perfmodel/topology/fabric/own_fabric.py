"""Fabrics of one's own: a function that returns a NetworkX graph of hosts and switches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from perfmodel.errors import Fault, InputError, describe_type
from perfmodel.files import (
    LinkBandwidth,
    LinkLatency,
    Parts,
    validate_document,
)
from perfmodel.own_functions import call_function, name_of
from perfmodel.topology.expanded_graph import SWITCH_FACTS
from perfmodel.topology.fabric.fabric import resolve_fabric

if TYPE_CHECKING:
    import networkx as nx

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
    if not isinstance(graph, nx.Graph) or graph.is_directed():
        raise InputError(
            Fault("fabric", f"{name_of(make)}, which returned {describe_type(graph)}", A_FUNCTION)
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
            cable = validate_document(_Cable, dict(data))
            own.add_edge(src, dst, **cable.model_dump(exclude_none=True))
        except InputError as error:
            place = f"fabric.{src} -- {dst}"
            faults += [replace(each, field=f"{place}.{each.field}") for each in error.faults]
    if faults:
        raise InputError(faults)
    usual = resolve_fabric("one-switch")
    own.graph |= {
        "switch_latency": usual.spec.switch_latency,
        "cable_latency": usual.spec.cable_latency,
        "sources": dict(usual.sources),
    }
    return own

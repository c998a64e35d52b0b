"""The parts of a topology as plain rows, and the graph and arrays made of them in bulk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from perfmodel.topology.bulk import collector_off
from perfmodel.topology.fabrics import Fabric, Wiring, wire
from perfmodel.topology.model import Arcs
from perfmodel.topology.spec import LinkSpec, NodeSpec, expand, pairs

Arc = tuple[str, str, str, float, float, int]
"""Source, destination, kind, usable bytes per second, seconds, lanes."""


# ---------------------------------------------------------------- one host


@dataclass(frozen=True, slots=True)
class Host:
    """One host, its patterns expanded.

    Parameters
    ----------
    devices : tuple of (str, str)
        Name and kind.
    arcs : tuple of Arc
        Both directions of every edge, in file order.
    gpus, nics : tuple of str
    ports : tuple of LinkSpec
        The link that leaves each NIC.
    rails : tuple of int
        Rail of each NIC.
    """

    devices: tuple[tuple[str, str], ...]
    arcs: tuple[Arc, ...]
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    ports: tuple[LinkSpec, ...]
    rails: tuple[int, ...]


def host_of(spec: NodeSpec) -> Host:
    """Expand a template."""
    devices = tuple((name, d.kind) for d in spec.nodes for name in expand(d.id))
    nics = [(name, i, d) for d in spec.nodes if d.kind == "nic"
            for i, name in enumerate(expand(d.id))]  # fmt: skip
    return Host(
        devices=devices,
        arcs=tuple(_host_arcs(spec)),
        gpus=tuple(name for name, kind in devices if kind == "gpu"),
        nics=tuple(name for name, _, _ in nics),
        ports=tuple(spec.links[d.port or ""] for _, _, d in nics),
        rails=tuple(i % d.rails if d.rails else at for at, (_, i, d) in enumerate(nics)),
    )


def _host_arcs(spec: NodeSpec) -> Iterator[Arc]:
    for edge in spec.edges:
        link = spec.links[edge.link]
        rate_Bps = link.usable_Bps * edge.lanes
        for a, b in pairs(edge):
            yield a, b, link.kind, rate_Bps, link.latency, edge.lanes
            yield b, a, link.kind, rate_Bps, link.latency, edge.lanes


# ---------------------------------------------------------------- the network


@dataclass(frozen=True, slots=True)
class Network:
    """The fabric of a cluster.

    Parameters
    ----------
    fabric : Fabric
    wiring : Wiring
    arcs : tuple of Arc
        Of the cables: each NIC and its leaf, both ways, then the trunks, both ways.
    """

    fabric: Fabric
    wiring: Wiring
    arcs: tuple[Arc, ...]


def network_of(host: Host, hosts: int, fabric: Fabric) -> Network:
    """Plug all hosts into a fabric."""
    wiring = wire(fabric, host.rails, hosts)
    arcs: list[Arc] = []
    leaves = iter(wiring.leaves)
    plugs = [(nic, *_plug(port, fabric)) for nic, port in zip(host.nics, host.ports, strict=True)]
    for h in range(hosts):
        for nic, kind, rate_Bps, into_s, out_s in plugs:
            name, leaf = f"n{h}/{nic}", next(leaves)
            arcs.append((name, leaf, kind, rate_Bps, into_s, 1))
            arcs.append((leaf, name, kind, rate_Bps, out_s, 1))
    port = max(host.ports, key=lambda link: link.usable_Bps)
    rate_Bps = (fabric.uplink_Bps or port.bandwidth) * port.efficiency
    hop_s = fabric.switch_latency_s + fabric.cable_latency_s
    for lower, upper, cables in wiring.trunks:
        for _ in range(cables):
            arcs.append((lower, upper, port.kind, rate_Bps, hop_s, 1))
            arcs.append((upper, lower, port.kind, rate_Bps, hop_s, 1))
    return Network(fabric, wiring, tuple(arcs))


def _plug(port: LinkSpec, fabric: Fabric) -> tuple[str, float, float, float]:
    """Kind, rate, seconds from NIC to leaf and back: a switch delays what leaves it."""
    into_s = port.latency + fabric.cable_latency_s
    return port.kind, port.usable_Bps, into_s, into_s + fabric.switch_latency_s


# ---------------------------------------------------------------- the graph


def names_of(host: Host, hosts: int) -> list[list[str]]:
    """Names of all devices, host by host; made once, because a cluster has a million of them."""
    return [[f"n{h}/{local}" for local, _ in host.devices] for h in range(hosts)]


def arrays_of(host: Host, names: list[list[str]], network: Network | None) -> Arcs:
    """All arcs as arrays: each host's block in turn, then the fabric's."""
    cables = network.arcs if network else ()
    hosts = len(names)
    place = {local: at for at, (local, _) in enumerate(host.devices)}
    ends = [(place[arc[0]], place[arc[1]]) for arc in host.arcs]
    inside = [(own[a], own[b]) for own in names for a, b in ends]
    kinds = tuple(arc[2] for arc in host.arcs) * hosts

    def column(at: int) -> Any:
        own = np.array([arc[at] for arc in host.arcs], dtype=float)
        return np.concatenate([np.tile(own, hosts), np.array([c[at] for c in cables], dtype=float)])

    return Arcs(
        names=(*inside, *((arc[0], arc[1]) for arc in cables)),
        kinds=(*kinds, *(arc[2] for arc in cables)),
        bandwidth_Bps=column(3),
        latency_s=column(4),
    )


def graph_of(
    host: Host, names: list[list[str]], network: Network | None, arcs: Arcs
) -> nx.MultiDiGraph[str]:
    """Make the graph, with the attributes that `Topology` promises."""
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    template = list(_keyed(host.arcs))
    with collector_off():
        graph.add_nodes_from(
            (name, {"kind": kind, "host": h, "local": local})
            for h, own in enumerate(names)
            for name, (local, kind) in zip(own, host.devices, strict=True)
        )
        graph.add_edges_from(_numbered(template * len(names), arcs, 0))  # type: ignore[arg-type]
        if network is not None:
            graph.add_nodes_from(
                (name, {"kind": "switch", "host": -1, "local": name})
                for name in network.wiring.switches
            )
            cables = _numbered(_keyed(network.arcs), arcs, len(template) * len(names))
            graph.add_edges_from(cables)  # type: ignore[arg-type]
    return graph


def _keyed(arcs: Iterable[Arc]) -> Iterator[tuple[int, Arc]]:
    """Give parallel arcs between two devices their numbers, so that networkx need not look."""
    seen: Counter[tuple[str, str]] = Counter()
    for arc in arcs:
        yield seen[arc[0], arc[1]], arc
        seen[arc[0], arc[1]] += 1


def _numbered(
    keyed: Iterable[tuple[int, Arc]], arcs: Arcs, start: int
) -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    for index, (key, (_, _, kind, rate_Bps, latency_s, lanes)) in enumerate(keyed, start):
        src, dst = arcs.names[index]
        yield src, dst, key, {
            "kind": kind, "bandwidth_Bps": rate_Bps, "latency_s": latency_s, "lanes": lanes,
            "index": index,
        }  # fmt: skip

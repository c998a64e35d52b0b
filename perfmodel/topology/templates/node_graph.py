"""One node as a NetworkX graph: what a template, a composed node or an import describes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from perfmodel.files import FileModel
from perfmodel.topology.templates.name_ranges import expand_pattern
from perfmodel.topology.templates.spec import GraphSpec, NodeSpec, pairs, resolve_source

if TYPE_CHECKING:
    import networkx as nx


def node_graph(spec: NodeSpec) -> nx.MultiDiGraph[str]:
    """Make the graph of one node.

    Returns
    -------
    networkx.MultiDiGraph
        Nodes are devices with their ``kind``; a GPU has its ``model``, a NIC its ``rail`` and what
        its port carries. Edges are directed links with ``kind``, ``bandwidth`` (usable bytes per
        second), ``latency`` (seconds) and ``lanes``, in the order of the file. ``graph.graph`` has
        what concerns the node as a whole (see `node_facts`).
    """
    import networkx as nx

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(**node_facts(spec))
    nics = 0
    for device in spec.nodes:
        for place, name in enumerate(expand_pattern(device.id)):
            own: dict[str, Any] = {"kind": device.kind}
            if device.kind == "gpu":
                own["model"] = spec.gpu
            if device.kind == "nic":
                own["rail"] = place % device.rails if device.rails else nics
                own |= _stated(_renamed(spec.links[device.port or ""], _PORT))
                nics += 1
            graph.add_node(name, **own)
    index = count()
    for edge in spec.edges:
        link = spec.links[edge.link]
        numbers = {
            "kind": link.kind,
            "bandwidth": link.usable_Bps * edge.lanes,
            "latency": link.latency,
            "lanes": edge.lanes,
        }
        for a, b in pairs(edge):
            graph.add_edge(a, b, index=next(index), **numbers)
            graph.add_edge(b, a, index=next(index), **numbers)
    return graph


def node_facts(spec: NodeSpec) -> dict[str, Any]:
    """Return what a template says of the node as a whole, in SI units, without what it leaves out.

    Sources are sentences by the number that they stand for.
    """
    facts = {
        "name": spec.name or "",
        "routing": "nccl",
        "gpu_p2p": spec.gpu_p2p,
        "gpudirect_rdma": spec.gpudirect_rdma,
        "staging_Bps": spec.staging.bandwidth if spec.staging else None,
        "power_limit_W": spec.power_limit,
        "launch_s": spec.launch.time if spec.launch else None,
        "host_memory_bytes": spec.host_memory.capacity if spec.host_memory else None,
        "drives": spec.nvme and _renamed(spec.nvme, _DRIVES),
        "sockets": spec.sockets
        and {**_renamed(spec.sockets, _SOCKETS), "burst_bytes": spec.sockets.burst or 0.0},
        "channels": [_channels(graph) for graph in spec.graphs] or None,
        "sources": dict(_sources(spec)),
        "assumptions": list(spec.assumed) or None,
    }
    return _stated(facts)


_DRIVES = {"read": "read_Bps", "write": "write_Bps", "capacity": "capacity_bytes"}
_SOCKETS = {
    "burst": "burst_bytes",
    "cores": "cores",
    "core_speed": "core_speed",
    "frame": "frame_bytes",
    "pods": "pods",
}
_PORT = {
    "kind": "port_kind",
    "bandwidth": "port_bandwidth",
    "efficiency": "port_efficiency",
    "latency": "port_latency",
    "network_kind": "network",
    "flow": "flow_bandwidth",
    "adapter": "adapter",
}
"""Names of fields in a graph, which are in SI units, by those of a template."""


def _renamed(section: FileModel, names: Mapping[str, str]) -> dict[str, Any]:
    """What a section of a template states, by the names that a graph has for it."""
    return {own: getattr(section, name) for name, own in names.items()}


def _stated(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def _channels(graph: GraphSpec) -> dict[str, Any]:
    """Channels of one dump of NCCL's, by the names of GPUs and NICs."""
    return {
        "pattern": graph.pattern,
        "intra_Bps": graph.intra,
        "inter_Bps": graph.inter,
        "type_intra": graph.type_intra,
        "type_inter": graph.type_inter,
        "same_channels": graph.same_channels,
        "paths": [
            {"gpus": list(each.gpus), "enter": each.enter, "leave": each.leave}
            for each in graph.channels
        ],
    }


def _sources(spec: NodeSpec) -> Iterator[tuple[str, str]]:
    """Sentence by number."""

    def sentence(text: str) -> str:
        return resolve_source(text, spec.sources)

    for name, link in spec.links.items():
        yield f"{name} bandwidth", sentence(link.source)
        yield f"{name} efficiency", sentence(link.efficiency_source or link.source)
        yield f"{name} latency", sentence(link.latency_source or link.source)
        if link.flow_source is not None:
            yield f"{name} flow", sentence(link.flow_source)
    sections = {
        "staging bandwidth": spec.staging,
        "gpu launch": spec.launch,
        "host memory": spec.host_memory,
        "nvme drives": spec.nvme,
        "sockets": spec.sockets,
    }
    yield from ((name, sentence(each.source)) for name, each in sections.items() if each)

"""From files to a `Topology`: a node template, repeated, and joined by a fabric.

`check` finds every fault of a template, a built topology or a file at once.

One node as a NetworkX graph: what a template, a composed node or an import describes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.errors import Fault, InputError, TopologyError, failed, raise_faults
from perfmodel.files import FileModel, read_yaml, validate_document
from perfmodel.garbage import no_collections
from perfmodel.topology.compilation import compile_topology
from perfmodel.topology.composed.load import load_node
from perfmodel.topology.fabric.fabric import (
    Fabric,
    resolve_fabric,
    states_routing,
    usual_routing,
)
from perfmodel.topology.fabric.fabric_graph import Generator, fabric_graph, own_fabric
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.gpus import source_faults
from perfmodel.topology.templates.load import reference_faults, template_names
from perfmodel.topology.templates.name_ranges import expand_pattern
from perfmodel.topology.templates.spec import (
    FABRIC_KINDS,
    FabricSpec,
    GpuTable,
    GraphSpec,
    NodeSpec,
    device_names,
    nic_ports,
    pairs,
    resolve_source,
)

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["MOST_GPUS", "build_topology", "load_node", "template_names", "with_usual_routing"]

MOST_GPUS = 200_000
"""GPUs of one cluster: a step of 100,000 takes 2 GB and some 10 s."""


def with_usual_routing(
    node: NodeSpec | str, fabric: FabricSpec | str | Generator | None
) -> FabricSpec | Fabric | str | Generator | None:
    """A fabric, with the routing usual on the node's network if neither it nor its file names one.

    A user's function says it by its graph. `build_topology` itself takes the hash: its parts keep
    the names of single switches and cables.
    """
    if isinstance(fabric, str) and fabric in FABRIC_KINDS:
        fabric = FabricSpec.model_validate({"kind": fabric})
    if fabric is None or callable(fabric) or states_routing(fabric):
        return fabric
    kind = (resolve_fabric(fabric) if isinstance(fabric, str) else fabric).kind
    ports = nic_ports(load_node(node) if isinstance(node, str) else node)
    routing = usual_routing(kind, ports[0].network_kind if ports else "none")
    if routing == "ecmp":
        return fabric
    if isinstance(fabric, FabricSpec):
        return fabric.model_copy(update={"routing": routing})
    settled = resolve_fabric(fabric)
    return replace(settled, spec=settled.spec.model_copy(update={"routing": routing}))


def build_topology(
    node: NodeSpec | str,
    *,
    hosts: int = 1,
    fabric: FabricSpec | Fabric | str | Generator | None = None,
    gpus_per_host: int | None = None,
) -> Topology:
    """Build a host or a cluster.

    Parameters
    ----------
    node : NodeSpec or str
        Template of every host, or its name or path.
    hosts : int
    fabric : FabricSpec, str or callable, optional
        Network between the hosts, or a function that returns its graph (see
        `perfmodel.topology.fabric.fabric_graph`); needed for more than one, unused for one.
    gpus_per_host : int, optional
        Use only the first GPUs of each host as ranks. All hardware stays in the graph.

    Raises
    ------
    InputError
        Unknown names, more GPUs than there are, several hosts without NICs or fabric; every fault.
    """
    spec = load_node(node) if isinstance(node, str) else node
    if spec is node:  # made in code: names in files were checked when they were read
        raise_faults(reference_faults(spec.model_dump(by_alias=True), spec.name))
    raise_faults(_faults(spec, hosts, fabric, gpus_per_host))
    node_alone = node_graph(spec)
    if hosts == 1 or fabric is None:
        return compile_topology(node_alone, gpus_per_host=gpus_per_host)
    rails = tuple(data["rail"] for _, data in node_alone.nodes(data=True) if data["kind"] == "nic")
    with no_collections(all_stays=True):
        joined = (
            own_fabric(fabric, hosts, len(rails))
            if callable(fabric)
            else fabric_graph(resolve_fabric(fabric), rails, hosts)
        )
        return compile_topology(node_alone, hosts=hosts, fabric=joined, gpus_per_host=gpus_per_host)


# ---------------------------------------------------------------- what may go wrong


def _faults(
    spec: NodeSpec,
    hosts: int,
    fabric: FabricSpec | Fabric | str | Generator | None,
    gpus_per_host: int | None,
) -> list[Fault]:
    gpus = len(device_names(spec, "gpu"))
    return failed(
        (hosts < 1, "hosts", str(hosts), "one or more"),
        (
            gpus_per_host is not None and not 1 <= gpus_per_host <= gpus,
            "gpus_per_host",
            str(gpus_per_host),
            f"1 to {gpus} on {spec.name}",
        ),
        (
            hosts * gpus > MOST_GPUS,
            "hosts",
            f"{hosts:,} of {gpus} GPUs each",
            f"at most {MOST_GPUS:,} GPUs: {MOST_GPUS // max(1, gpus):,} of {spec.name}",
        ),
        (
            hosts > 1 and not device_names(spec, "nic"),
            "hosts",
            f"{hosts} of {spec.name}",
            "1: this node has no NIC to join hosts by",
        ),
        (
            hosts > 1 and fabric is None,
            "fabric",
            f"nothing for {hosts} hosts",
            "'one-switch', 'rail-optimised', 'leaf-spine' or 'fat-tree'",
        ),
    )


def check(machine: NodeSpec | Topology | str | Path) -> tuple[Fault, ...]:
    """Find every fault of a node template, of a built topology, or of a file.

    `machine`: a string is the name or the path of a node template; a `Path` may also be that of a
    fabric or of a table of GPUs.

    Returns
    -------
    tuple of Fault
        Empty if all is well. Faults of a file carry its name and the line.
    """
    if isinstance(machine, Topology):
        return tuple(_graph_faults(machine))
    if isinstance(machine, NodeSpec):
        return tuple(reference_faults(machine.model_dump(by_alias=True), machine.name)) or tuple(
            _graph_faults(build_topology(machine), machine.name)
        )
    try:
        return _file_faults(machine) if isinstance(machine, Path) else check(load_node(machine))
    except InputError as error:
        return error.faults


def _file_faults(path: Path) -> tuple[Fault, ...]:
    document = read_yaml(path)
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind == "fabric":
        resolve_fabric(str(path))
        return ()
    if kind == "gpus":
        validate_document(GpuTable, document, str(path))
        return tuple(source_faults(document, str(path)))
    return tuple(_graph_faults(build_topology(load_node(str(path))), str(path)))


# ---------------------------------------------------------------- graphs


def _graph_faults(topology: Topology, file: str | None = None) -> Iterator[Fault]:
    faults = [*_device_faults(topology)] or _route_faults(topology)
    return (replace(fault, file=file) for fault in faults)


def _device_faults(topology: Topology) -> Iterator[Fault]:
    devices, names = topology.devices, topology.built.names
    linked = {end for ends in names for end in ends}
    leaving = {src for src, dst in names if devices[src].host != devices[dst].host}
    for name, device in devices.items():
        if name not in linked and len(devices) > 1:
            yield Fault(f"nodes.{name}", "no link", "a link to every device")
        if device.kind == "nic" and topology.hosts > 1 and name not in leaving:
            yield Fault(
                f"nodes.{name}", "a NIC without a cable", "a link to a switch of the fabric"
            )


def _route_faults(topology: Topology) -> Iterator[Fault]:
    """GPUs that cannot reach each other. Hosts are alike, so one GPU of each other host will do."""
    router = Router(topology)
    first, inside = topology.ranks[0], topology.ranks[: topology.gpus_per_host]
    others = topology.ranks[topology.gpus_per_host :: topology.gpus_per_host]
    yield from _unreached_faults(router, [(a, b) for a in inside for b in inside if a != b])
    if not _all_reached(topology, router):
        yield from _unreached_faults(
            router, [pair for name in others for pair in ((first, name), (name, first))]
        )


def _all_reached(topology: Topology, router: Router) -> bool:
    """Whether the first GPUs of all hosts reach each other's first, in both directions, at once."""
    nics = router.nearest_nics(topology.ranks[0])
    if topology.hosts == 1 or not nics or (router.variants >= 0).any():
        return topology.hosts == 1
    hosts = np.arange(topology.hosts)
    ports = router.ports(hosts, np.full_like(hosts, router.nic_number(nics[0])))
    origin = np.full_like(ports[1:], ports[0])
    try:
        router.across(origin, ports[1:], hosts[1:])
        router.across(ports[1:], origin, hosts[1:])
    except TopologyError:
        return False
    return True


def _unreached_faults(router: Router, pairs: Iterable[tuple[str, str]]) -> Iterator[Fault]:
    cut: dict[str, list[str]] = {}
    for src, dst in pairs:
        try:
            router.route(src, dst)
        except TopologyError:
            cut.setdefault(dst, []).append(src)
    for dst, sources in cut.items():
        names = ", ".join(sources[:3]) + (
            f" and {len(sources) - 3} more" if len(sources) > 3 else ""
        )
        yield Fault(f"nodes.{dst}", f"no way from {names}", "a way between every two GPUs")


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
            own: dict[str, Any] = {
                "kind": device.kind,
                **({"model": spec.gpu} if device.kind == "gpu" else {}),
            }
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
            "bandwidth": link.bandwidth * link.efficiency * edge.lanes,
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
    return _stated(
        {
            "name": spec.name or "",
            "routing": "nccl",
            "cpu": spec.cpu,
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
            "sources": _sources(spec),
            "assumptions": list(spec.assumed) or None,
        }
    )


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


def _sources(spec: NodeSpec) -> dict[str, str]:
    """Sentence by number."""
    texts: dict[str, str | None] = {}
    for name, link in spec.links.items():
        texts |= {
            f"{name} bandwidth": link.source,
            f"{name} efficiency": link.efficiency_source or link.source,
            f"{name} latency": link.latency_source or link.source,
            f"{name} flow": link.flow_source,
        }
    sections = {
        "staging bandwidth": spec.staging,
        "gpu launch": spec.launch,
        "host memory": spec.host_memory,
        "nvme drives": spec.nvme,
        "sockets": spec.sockets,
    }
    texts |= {name: each.source for name, each in sections.items() if each}
    return {name: resolve_source(text, spec.sources) for name, text in texts.items() if text}

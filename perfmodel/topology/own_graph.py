"""Machines from anybody's NetworkX graph.

Nodes have a ``kind``, GPUs a ``model``; edges have a ``bandwidth`` and a ``latency``, as numbers in
SI units or as text with units. An undirected edge is a link of two directions. Devices of several
hosts name theirs by ``node``. Where these are alike and joined from NIC to switch, libraries see
nodes with a fabric between them; any other graph is one machine whose devices all forward.
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import BaseModel, Field

from perfmodel.errors import Fault, InputError, allowed_names, raise_faults, refuse_if
from perfmodel.files import (
    LinkBandwidth,
    LinkLatency,
    Parts,
    validate_document,
)
from perfmodel.memo import first_applying, grouped
from perfmodel.topology.arcs import LinkKind, NodeKind
from perfmodel.topology.compilation import compile_topology, rows
from perfmodel.topology.expanded_graph import SWITCH_FACTS
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import MOST_GPUS
from perfmodel.topology.templates.gpus import gpu_names

if TYPE_CHECKING:
    import networkx as nx

NETWORKS = {"infiniband": "infiniband", "ethernet": "roce"}
"""What drives a NIC by the kind of link that leaves it, where its ``network`` does not say."""

DEVICE_FACTS = (
    "kind",
    "model",
    "rail",
    "port_kind",
    "port_bandwidth",
    "port_efficiency",
    "port_latency",
    "network",
    "flow_bandwidth",
    "adapter",
)
"""What a device of a graph may say; other attributes are the user's own."""

EDGE_FACTS = ("bandwidth", "latency", "kind", "lanes", "index")
"""What a link may say; what is spelt much like one of these is refused, all else the user's own."""
MISSPELT = 0.75
"""Likeness of a word to what was meant, as difflib has it: "lanse" 0.8, "label" to "lanes" 0.6."""

ROUTINGS = ("shortest", "nccl")
"""Routes between devices of one node: the shortest, or those that NCCL prefers."""

FORWARDING = {"routing": "shortest", "reach": {"peer": "SYS"}}
"""Facts of a graph of one's own: every device forwards, and GPUs copy along any path."""


def topology_of(graph: nx.Graph[Any], name: str = "") -> Topology:
    """Make a machine of a graph.

    Parameters
    ----------
    graph : networkx.Graph, DiGraph, MultiGraph or MultiDiGraph
        See the module; also what `Topology.graph` returns, of which the same topology is made.
    name : str
        Default: ``graph.graph["name"]``, or "own graph".

    Raises
    ------
    InputError
        Every fault, with its node or edge: an unknown kind, a GPU of no known model, an edge
        without bandwidth, a number that is zero, negative or not finite, GPUs without a path.

    Examples
    --------
    >>> import networkx as nx
    >>> ring = nx.cycle_graph(4)
    >>> for gpu in ring:
    ...     ring.nodes[gpu].update(kind="gpu", model="a100-sxm4-80gb")
    >>> for link in ring.edges:
    ...     ring.edges[link].update(bandwidth="25 GB/s", latency="1 us")
    >>> topology_of(ring).ranks
    ('n0/0', 'n0/1', 'n0/2', 'n0/3')
    """
    import networkx as nx

    refuse_if(
        not isinstance(graph, nx.Graph), "topology", f"a {type(graph).__name__}", "a NetworkX graph"
    )
    stated, stated_facts = _stated(graph), graph.graph
    facts = dict(stated_facts.get("machine", FORWARDING))
    facts["name"] = name or facts.get("name") or str(stated_facts.get("name") or "own graph")
    facts["routing"] = stated_facts.get("routing", facts.get("routing", "nccl"))
    refuse_if(
        facts["routing"] not in ROUTINGS,
        "graph.routing",
        repr(facts["routing"]),
        allowed_names(ROUTINGS, str(facts["routing"])),
    )
    per_node = stated_facts.get("gpus_per_node")
    hosts = _hosts(stated)
    if len(hosts) < 2:
        return compile_topology(_one_node(stated, facts), gpus_per_host=per_node)
    parts = _parts(stated, hosts)
    if parts is None:
        note = "its nodes differ, or other links than from NICs to switches join them"
        facts["assumptions"] = (f"one machine whose devices all forward: {note}",)
        return compile_topology(_one_node(stated, facts))
    node, fabric = parts
    node.graph.update(facts)
    fabric.graph.update(stated_facts.get("fabric", {"kind": "own"}))
    return compile_topology(node, hosts=len(hosts), fabric=fabric, gpus_per_host=per_node)


# ---------------------------------------------------------------- what is stated


class _StatedNode(BaseModel):
    kind: NodeKind
    model: str | None = None


class _StatedEdge(BaseModel):
    bandwidth: LinkBandwidth
    latency: LinkLatency
    kind: LinkKind | None = None
    lanes: Parts = 1


class _StatedMachine(BaseModel):
    reach: dict[str, Any] = {}
    sockets: dict[str, Any] = {}
    power_limit_W: float | None = None
    launch_s: float | None = None


class _StatedFacts(BaseModel):
    gpus_per_node: Annotated[int, Field(strict=True, ge=1)] | None = None
    machine: _StatedMachine = _StatedMachine()
    fabric: dict[str, Any] = {}


class _StatedGraph(BaseModel):
    """Attributes that a user's graph, its nodes and edges must have or may have, by their names.

    Others are left alone, but for those of edges that are misspelt.
    """

    graph: _StatedFacts
    nodes: dict[str, _StatedNode]
    edges: dict[str, _StatedEdge]


def _stated(graph: nx.Graph[Any]) -> nx.MultiDiGraph[str]:
    """Return the graph with names, kinds and SI numbers, each direction a link of its own.

    Raises `InputError`: every fault.
    """
    import networkx as nx

    names = {node: _name(node) for node in graph}
    links = rows(graph)
    labels = _labels([(names[src], names[dst]) for src, dst, _ in links])
    faults = [
        Fault(f"nodes.{name}", f"{nodes} nodes of this name", "one node of each name")
        for name, nodes in Counter(names.values()).items()
        if nodes > 1
    ]
    faults += _model_faults(graph, names)
    document = {
        "graph": graph.graph,
        "nodes": {names[node]: dict(data) for node, data in graph.nodes(data=True)},
        "edges": {label: dict(row[2]) for label, row in zip(labels, links, strict=True)},
    }
    try:
        read = validate_document(_StatedGraph, document)
    except InputError as error:
        faults += [
            replace(each, allowed=REQUIRED[each.field.rpartition(".")[2]])
            if each.found == "nothing"
            else each
            for each in error.faults
        ]
    faults += [
        Fault(f"edges.{label}", "an edge from a node to itself", "two different nodes")
        for label, (src, dst, _) in zip(labels, links, strict=True)
        if src == dst
    ]
    faults += [
        Fault(f"edges.{label}.{name}", "an unknown attribute", allowed_names(EDGE_FACTS, name))
        for label, (_, _, data) in zip(labels, links, strict=True)
        for name in map(str, data)
        if name not in EDGE_FACTS
        and difflib.get_close_matches(name.lower(), EDGE_FACTS, 1, MISSPELT)
    ]
    raise_faults(faults)
    stated: nx.MultiDiGraph[str] = nx.MultiDiGraph(**graph.graph)
    stated.add_nodes_from((names[node], data) for node, data in graph.nodes(data=True))
    kinds = _kinds(stated)
    networked, index = "nic" in kinds.values(), count()
    for label, (start, end, _) in zip(labels, links, strict=True):
        src, dst = names[start], names[end]
        numbers = read.edges[label].model_dump()
        numbers["kind"] = numbers["kind"] or _usual_kind({kinds[src], kinds[dst]}, networked)
        for ends in [(src, dst)] if graph.is_directed() else [(src, dst), (dst, src)]:
            stated.add_edge(*ends, **numbers, index=next(index))
    _check_paths(stated)
    return stated if "machine" in stated.graph else _bond(stated)


def _bond(graph: nx.MultiDiGraph[str]) -> nx.MultiDiGraph[str]:
    """Make parallel NVLinks of one latency one link: what a GPU sends is striped over them."""
    import networkx as nx

    alike = grouped(
        ((src, dst, data["latency"], None if data["kind"] == "nvlink" else key), data)
        for src, dst, key, data in graph.edges(keys=True, data=True)
    )
    bonded: nx.MultiDiGraph[str] = nx.MultiDiGraph(**graph.graph)
    bonded.add_nodes_from(graph.nodes(data=True))
    for (src, dst, *_), links in alike.items():
        sums = {name: sum(link[name] for link in links) for name in ("bandwidth", "lanes")}
        bonded.add_edge(src, dst, **links[0] | sums)
    return bonded


REQUIRED = {
    "kind": allowed_names(get_args(NodeKind)),
    "bandwidth": "bytes per second, or text such as '25 GB/s'",
    "latency": "seconds, or text such as '1.3 us'",
}
"""What a node or an edge has to say, by its attribute."""


def _name(node: Hashable) -> str:
    """Name of a node; that of a tuple such as (0, 1) is "0-1"."""
    return "-".join(map(str, node)) if isinstance(node, tuple) else str(node)


def _labels(ends: Sequence[tuple[str, str]]) -> list[str]:
    """Name of each edge; parallel ones are numbered."""
    numbers: defaultdict[tuple[str, str], count[int]] = defaultdict(count)
    numbered = [(*pair, next(numbers[pair])) for pair in ends]
    return [f"{src} -- {dst}" + (f" #{number}" if number else "") for src, dst, number in numbered]


def _model_faults(graph: nx.Graph[Any], names: Mapping[Hashable, str]) -> Iterator[Fault]:
    gpus = [
        (names[node], data) for node, data in graph.nodes(data=True) if data.get("kind") == "gpu"
    ]
    known = gpu_names()
    counts = Counter(str(data.get("model")) for _, data in gpus)
    usual = max(counts, key=lambda model: counts[model], default=None)
    for name, data in gpus:
        model, field = data.get("model"), f"nodes.{name}.model"
        if not isinstance(model, str) or model not in known:
            found = "nothing" if model is None else repr(model)
            yield Fault(field, found, allowed_names(known, None if model is None else str(model)))
        elif usual in known and model != usual:
            yield Fault(field, repr(model), f"{usual!r}, as most GPUs of the graph have")
    if not 1 <= len(gpus) <= MOST_GPUS:
        yield Fault("nodes", f"{len(gpus):,} GPUs", f"1 to {MOST_GPUS:,} nodes of kind 'gpu'")


def _kinds(graph: nx.Graph[Any]) -> dict[Any, str]:
    """Kind of each node."""
    return {name: str(data.get("kind")) for name, data in graph.nodes(data=True)}


def _usual_kind(kinds: set[str], networked: bool) -> str:
    """Kind of a link that does not say it: by what it joins, and whether the graph has NICs."""
    return first_applying(
        ("memory" in kinds, "memory"),
        ("switch" in kinds and networked, "infiniband"),
        (kinds == {"cpu"}, "upi"),
        (kinds == {"nic"}, "infiniband"),
        (bool(kinds & {"pcie_switch", "cpu", "nic"}), "pcie"),
        (True, "nvlink"),
    )


def _check_paths(graph: nx.MultiDiGraph[str]) -> None:
    """Refuse GPUs that cannot reach each other."""
    import networkx as nx

    gpus = {name for name, kind in _kinds(graph).items() if kind == "gpu"}
    largest = max([part & gpus for part in nx.strongly_connected_components(graph)], key=len)
    hub = next(name for name in graph if name in largest)
    faults = []
    for name in (name for name in graph if name in gpus - largest):
        src, dst = (hub, name) if not nx.has_path(graph, hub, name) else (name, hub)
        found = f"no path from {src} to {dst}" if graph.degree(name) else "no link"
        faults.append(Fault(f"nodes.{name}", found, "a path between every two GPUs"))
    raise_faults(faults)


# ---------------------------------------------------------------- hosts


def _hosts(graph: nx.MultiDiGraph[str]) -> dict[Hashable, list[str]]:
    """Names of the devices of each host, by its ``node``."""
    stated = ((data.get("node"), name) for name, data in graph.nodes(data=True))
    return grouped((host, name) for host, name in stated if host is not None)


def _one_node(graph: nx.MultiDiGraph[str], facts: Mapping[str, Any]) -> nx.MultiDiGraph[str]:
    """The whole graph as one node."""
    import networkx as nx

    local = {name: str(data.get("local", name)) for name, data in graph.nodes(data=True)}
    distinct = len(set(local.values())) == len(graph)
    node: nx.MultiDiGraph[str] = nx.relabel_nodes(graph, local if distinct else {})
    for _, data in node.nodes(data=True):
        data.pop("local", None)
        data.pop("node", None)
    node.graph.clear()
    node.graph.update(facts)
    return node


def _parts(
    graph: nx.MultiDiGraph[str], hosts: Mapping[Hashable, list[str]]
) -> tuple[nx.MultiDiGraph[str], nx.MultiDiGraph[int | str]] | None:
    """One of many alike hosts, and the directed graph of hosts and switches.

    None where the hosts differ or are not joined from NICs to switches.
    """
    import networkx as nx

    members = list(hosts.values())
    if any(len(each) != len(members[0]) for each in members):
        return None
    first = _local_names(graph, members[0])
    local = {name: own for each in members for name, own in zip(each, first, strict=True)}
    place = {name: at for at, each in enumerate(members) for name in each}
    alike = [_host_graph(graph, each, local) for each in members]
    if any(not nx.utils.graphs_equal(each, alike[0]) for each in alike[1:]):
        return None
    fabric = _fabric(graph, place, local)
    if "fabric" not in graph.graph and not _joins_nics(fabric, alike[0]):  # not of `Topology.graph`
        return None
    leaving = {data.get("src_device"): data["kind"] for *_, data in fabric.edges(data=True)}
    for nic, data in alike[0].nodes(data=True):
        if data["kind"] == "nic":
            data.setdefault("network", NETWORKS.get(leaving[nic], "infiniband"))
    return alike[0], fabric


def _fabric(
    graph: nx.MultiDiGraph[str], place: Mapping[str, int], local: Mapping[str, str]
) -> nx.MultiDiGraph[int | str]:
    """Hosts by their numbers, whatever stands in none, and the links between them."""
    import networkx as nx

    names: dict[str, int | str] = {
        name: place.get(name, str(data.get("local", name))) for name, data in graph.nodes(data=True)
    }
    fabric: nx.MultiDiGraph[int | str] = nx.MultiDiGraph()
    fabric.add_nodes_from(range(len(set(place.values()))), kind="host")
    facts = ("kind", *SWITCH_FACTS)
    fabric.add_nodes_from(
        (names[name], {fact: data[fact] for fact in facts if fact in data})
        for name, data in graph.nodes(data=True)
        if name not in place
    )
    for src, dst, data in rows(graph):
        if src in place and place[src] == place.get(dst):
            continue
        ends = (("src_device", src), ("dst_device", dst))
        devices = {key: local[name] for key, name in ends if name in place}
        fabric.add_edge(names[src], names[dst], None, **data, **devices)
    return fabric


def _local_names(graph: nx.MultiDiGraph[str], names: Sequence[str]) -> list[str]:
    """Names of a host's devices within it: as they say, else their kind and number."""
    numbers: defaultdict[str, count[int]] = defaultdict(count)
    devices = [graph.nodes[name] for name in names]
    usual = [f"{device['kind']}{next(numbers[device['kind']])}" for device in devices]
    return [str(each.get("local", own)) for each, own in zip(devices, usual, strict=True)]


def _host_graph(
    graph: nx.MultiDiGraph[str], names: Sequence[str], local: Mapping[str, str]
) -> nx.MultiDiGraph[str]:
    """One host by its local names; its links are numbered in their order."""
    import networkx as nx

    host: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    for name in names:
        own = graph.nodes[name]
        host.add_node(local[name], **{fact: own[fact] for fact in DEVICE_FACTS if fact in own})
    for index, (src, dst, data) in enumerate(rows(graph.subgraph(names))):
        host.add_edge(local[src], local[dst], **{**data, "index": index})
    return host


def _joins_nics(fabric: nx.MultiDiGraph[int | str], host: nx.MultiDiGraph[str]) -> bool:
    """Whether hosts end in NICs only, and the switches join every NIC with every other."""
    import networkx as nx

    switches = [name for name, kind in _kinds(fabric).items() if kind != "host"]
    if any(fabric.nodes[name]["kind"] != "switch" for name in switches):
        return False
    nics = {name for name, kind in _kinds(host).items() if kind == "nic"}
    ends = [
        (data[device], other)
        for src, dst, data in fabric.edges(data=True)
        for device, other in (("src_device", dst), ("dst_device", src))
        if device in data
    ]
    if any(device not in nics or isinstance(other, int) for device, other in ends):
        return False
    plugged = {
        (src, data["src_device"])
        for src, _, data in fabric.edges(data=True)
        if "src_device" in data
    }
    complete = 0 < len(plugged) == ((len(fabric) - len(switches)) * len(nics)) and bool(switches)
    return complete and nx.is_strongly_connected(fabric.subgraph(switches))

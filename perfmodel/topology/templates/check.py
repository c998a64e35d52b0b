"""Check of a node template, a built topology or a file: every fault at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import networkx as nx
import numpy as np

from perfmodel.errors import Fault, InputError, TopologyError, allowed_names
from perfmodel.files import read_yaml, validate_document
from perfmodel.topology.fabric.fabric import resolve_fabric
from perfmodel.topology.model import NodeKind, Topology
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology, load_node
from perfmodel.topology.templates.gpus import gpu_names, source_faults
from perfmodel.topology.templates.references import reference_faults
from perfmodel.topology.templates.spec import LINK_KINDS, GpuTable, NodeSpec

NODE_KINDS: tuple[str, ...] = get_args(NodeKind)


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
        document = machine.model_dump(by_alias=True)
        faults = reference_faults(document, machine.name)
        return tuple(faults) or tuple(_graph_faults(build_topology(machine), machine.name))
    try:
        if isinstance(machine, Path):
            return _file_faults(machine)
        return check(load_node(machine))
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
    node = load_node(str(path))
    return tuple(_graph_faults(build_topology(node), str(path)))


# ---------------------------------------------------------------- graphs


def _graph_faults(topology: Topology, file: str | None = None) -> Iterator[Fault]:
    broken = [*_device_faults(topology), *_arc_faults(topology), *_rank_faults(topology)]
    yield from (Fault(f.field, f.found, f.allowed, file) for f in broken)
    if not broken:
        yield from (Fault(f.field, f.found, f.allowed, file) for f in _route_faults(topology))


def _device_faults(topology: Topology) -> Iterator[Fault]:
    graph = topology.graph
    linked, leaving = _linked_devices(topology)
    for name, data in graph.nodes(data=True):
        lacking = [key for key in ("kind", "host", "local") if key not in data]
        if lacking:
            yield Fault(
                f"nodes.{name}", f"no {', '.join(lacking)} (only the end of a link?)",
                "a node that is declared before a link names it",
            )  # fmt: skip
            continue
        if data["kind"] not in NODE_KINDS:
            yield Fault(
                f"nodes.{name}.kind",
                repr(data["kind"]),
                allowed_names(NODE_KINDS, str(data["kind"])),
            )
        if name not in linked and len(graph) > 1:
            yield Fault(f"nodes.{name}", "no link", "a link to every device")
        if data["kind"] == "nic" and topology.hosts > 1 and name not in leaving:
            yield Fault(
                f"nodes.{name}", "a NIC without a cable", "a link to a switch of the fabric"
            )
    if topology.gpu.name not in gpu_names():
        yield Fault("gpu", repr(topology.gpu.name), allowed_names(gpu_names(), topology.gpu.name))


def _linked_devices(topology: Topology) -> tuple[set[str], set[str]]:
    """Devices with any link, and those with a link that leaves their host."""
    hosts = nx.get_node_attributes(topology.graph, "host")
    linked, leaving = set[str](), set[str]()
    for src, neighbours in topology.graph.adjacency():
        if neighbours:
            linked.add(src)
            linked.update(neighbours)
            own = hosts.get(src)
            if any(hosts.get(dst) != own for dst in neighbours):
                leaving.add(src)
    return linked, leaving


def _arc_faults(topology: Topology) -> Iterator[Fault]:
    rows = [
        data
        for _, neighbours in topology.graph.adjacency()
        for cables in neighbours.values()
        for data in cables.values()
    ]
    if not _all_arcs_sound(rows):
        yield from _faults_of_each_arc(topology)


def _all_arcs_sound(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no arc has a fault; a million arcs are looked at in columns."""
    kinds, types = {row.get("kind") for row in rows}, set[type]()
    for field in ("bandwidth_Bps", "latency_s", "index"):
        types |= {type(row.get(field)) for row in rows}
    if not kinds <= set(LINK_KINDS) or not types <= {int, float}:
        return False
    rate_Bps, latency_s = (
        np.array([row[field] for row in rows], dtype=float)
        for field in ("bandwidth_Bps", "latency_s")
    )
    index = np.sort([row["index"] for row in rows])
    return bool(
        (rate_Bps > 0).all()
        and (latency_s >= 0).all()
        and np.isfinite(rate_Bps + latency_s).all()
        and (index == np.arange(len(rows))).all()
    )


def _faults_of_each_arc(topology: Topology) -> Iterator[Fault]:
    indices = []
    for src, dst, data in topology.graph.edges(data=True):
        field = f"links.{src} -> {dst}"
        kind, rate_Bps, latency_s = map(data.get, ("kind", "bandwidth_Bps", "latency_s"))
        if kind not in LINK_KINDS:
            yield Fault(f"{field}.kind", repr(kind), allowed_names(LINK_KINDS, str(kind)))
        if not _is_at_least(0, rate_Bps) or rate_Bps == 0:
            yield Fault(f"{field}.bandwidth_Bps", repr(rate_Bps), "a finite bandwidth above zero")
        if not _is_at_least(0, latency_s):
            yield Fault(f"{field}.latency_s", repr(latency_s), "a finite time of zero or more")
        indices.append(data.get("index"))
    if sorted(i for i in indices if isinstance(i, int)) != list(range(len(indices))):
        yield Fault("links", "indices with gaps or repeats", f"0 to {len(indices) - 1}, each once")


def _is_at_least(least: float, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value >= least


def _rank_faults(topology: Topology) -> Iterator[Fault]:
    kinds = nx.get_node_attributes(topology.graph, "kind")
    for rank, name in enumerate(topology.ranks):
        if kinds.get(name) != "gpu":
            yield Fault(f"ranks.{rank}", f"{name!r}, a {kinds.get(name, 'missing node')}", "a GPU")
    if not topology.ranks:
        yield Fault("ranks", "no GPU", "at least one GPU")
    elif len(topology.ranks) % topology.hosts:
        yield Fault(
            "ranks", f"{len(topology.ranks)} on {topology.hosts} hosts", "as many on each host"
        )


def _route_faults(topology: Topology) -> Iterator[Fault]:
    """GPUs that cannot reach each other. Hosts are alike, so one GPU of each other host will do."""
    router = Router(topology)
    first = topology.ranks[0]
    inside = topology.ranks[: topology.gpus_per_host]
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

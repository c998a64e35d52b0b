"""Check of a node template, a built topology or a file: every fault at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from perfmodel.errors import Fault, InputError, TopologyError
from perfmodel.files import read_yaml, validate_document
from perfmodel.topology.fabric.fabric import resolve_fabric
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology, load_node
from perfmodel.topology.templates.gpus import source_faults
from perfmodel.topology.templates.references import reference_faults
from perfmodel.topology.templates.spec import GpuTable, NodeSpec


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
        faults = reference_faults(machine.model_dump(by_alias=True), machine.name)
        return tuple(faults) or tuple(_graph_faults(build_topology(machine), machine.name))
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
    broken = [*_device_faults(topology)]
    yield from (Fault(f.field, f.found, f.allowed, file) for f in broken)
    if not broken:
        yield from (Fault(f.field, f.found, f.allowed, file) for f in _route_faults(topology))


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

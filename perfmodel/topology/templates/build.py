"""From files to a `Topology`: a node template, repeated, and joined by a fabric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from perfmodel.errors import Fault, InputError
from perfmodel.topology.composed.load import load_node
from perfmodel.topology.fabric.assemble import (
    Host,
    Network,
    build_arcs,
    build_devices,
    build_network,
    channel_graphs,
    collector_off,
    expand_host,
)
from perfmodel.topology.fabric.fabric import (
    Fabric,
    resolve_fabric,
    states_routing,
    usual_routing,
)
from perfmodel.topology.model import Drives, Sockets, Topology
from perfmodel.topology.templates.gpus import gpu_sources, load_gpu
from perfmodel.topology.templates.load import template_names
from perfmodel.topology.templates.power_limits import describe_limit, limit_power
from perfmodel.topology.templates.references import reference_faults
from perfmodel.topology.templates.spec import FABRIC_KINDS, FabricSpec, NodeSpec, resolve_source

__all__ = ["MOST_GPUS", "build_topology", "load_node", "template_names", "with_usual_routing"]

MOST_GPUS = 200_000
"""GPUs of one cluster: a step of 100,000 takes 2 GB and some 10 s."""


def with_usual_routing(
    node: NodeSpec | str, fabric: FabricSpec | str | None
) -> FabricSpec | Fabric | str | None:
    """A fabric, with the routing usual on the node's network if neither it nor its file names one.

    `build_topology` itself takes the hash: its parts keep the names of single switches and cables.
    """
    if isinstance(fabric, str) and fabric in FABRIC_KINDS:
        fabric = FabricSpec.model_validate({"kind": fabric})
    if fabric is None or states_routing(fabric):
        return fabric
    kind = (resolve_fabric(fabric) if isinstance(fabric, str) else fabric).kind
    ports = expand_host(load_node(node) if isinstance(node, str) else node).ports
    routing = usual_routing(kind, ports[0].network_kind if ports else "none")
    if routing == "ecmp":
        return fabric
    if isinstance(fabric, FabricSpec):
        return fabric.model_copy(update={"routing": routing})
    return replace(resolve_fabric(fabric), routing=routing)


def build_topology(
    node: NodeSpec | str,
    *,
    hosts: int = 1,
    fabric: FabricSpec | Fabric | str | None = None,
    gpus_per_host: int | None = None,
) -> Topology:
    """Build a host or a cluster.

    Parameters
    ----------
    node : NodeSpec or str
        Template of every host, or its name or path.
    hosts : int
    fabric : FabricSpec or str, optional
        Network between the hosts; needed for more than one, unused for one.
    gpus_per_host : int, optional
        Use only the first GPUs of each host as ranks. All hardware stays in the graph.

    Raises
    ------
    InputError
        Unknown names, more GPUs than there are, several hosts without NICs or fabric; every fault.
    """
    spec = load_node(node) if isinstance(node, str) else _check_references(node)
    host = expand_host(spec)
    ranks = host.gpus[: gpus_per_host or len(host.gpus)]
    faults = list(_faults(spec, host, hosts, fabric, gpus_per_host))
    if faults:
        raise InputError(faults)
    gpu = limit_power(load_gpu(spec.gpu), spec.power_limit)
    if spec.launch is not None:
        gpu = replace(gpu, launch_s=spec.launch.time)
    with collector_off():
        plan = resolve_fabric(fabric) if hosts > 1 and fabric is not None else None
        network = build_network(host, hosts, plan) if plan is not None else None
        arcs = build_arcs(host, hosts, network)
        devices = build_devices(host, hosts, network)
    sources = _sources(spec, network)
    if gpu.limited_rate < 1:
        sources = {**sources, "gpu power_limit": describe_limit(gpu)}
    return Topology(
        name=f"{spec.name} x {hosts}" if hosts > 1 else f"{spec.name}",
        devices=devices,
        built=arcs,
        ranks=tuple(f"n{h}/{local}" for h in range(hosts) for local in ranks),
        gpu=gpu,
        hosts=hosts,
        host_arcs=len(host.arcs),
        gpu_p2p=spec.gpu_p2p,
        gpudirect_rdma=spec.gpudirect_rdma,
        staging_Bps=spec.staging.bandwidth if spec.staging else None,
        sources=sources,
        template=spec.name or "",
        fabric=network.fabric.kind if network else "none",
        tiers=network.tiers(hosts * len(host.arcs)) if network else None,
        assumptions=_assumptions(spec, sources, network),
        network=host.ports[0].network_kind if host.ports else "none",
        graphs=channel_graphs(spec, host),
        sockets=_sockets(spec, host),
        host_memory_bytes=spec.host_memory.capacity if spec.host_memory else None,
        drives=_drives(spec),
    )


def _sockets(spec: NodeSpec, host: Host) -> Sockets:
    port = host.ports[0] if host.ports else None
    own = spec.sockets
    limits = Sockets() if own is None else Sockets(
        own.burst or 0.0, own.cores, own.core_speed, own.frame, pods=own.pods
    )  # fmt: skip
    if port is None:
        return limits
    flow_Bps = None if port.flow is None else port.flow * port.efficiency
    return replace(limits, flow_Bps=flow_Bps, adapter=port.adapter)


def _drives(spec: NodeSpec) -> Drives | None:
    stated = spec.nvme
    return None if stated is None else Drives(stated.read, stated.write, stated.capacity)


def _check_references(node: NodeSpec) -> NodeSpec:
    """Refuse a template made in code whose names point nowhere; files were checked when read."""
    faults = reference_faults(node.model_dump(by_alias=True), node.name)
    if faults:
        raise InputError(faults)
    return node


# ---------------------------------------------------------------- what may go wrong


def _faults(
    spec: NodeSpec,
    host: Host,
    hosts: int,
    fabric: FabricSpec | Fabric | str | None,
    gpus_per_host: int | None,
) -> Iterator[Fault]:
    if hosts < 1:
        yield Fault("hosts", str(hosts), "one or more")
    if gpus_per_host is not None and not 1 <= gpus_per_host <= len(host.gpus):
        yield Fault("gpus_per_host", str(gpus_per_host), f"1 to {len(host.gpus)} on {spec.name}")
    if hosts * len(host.gpus) > MOST_GPUS:
        most = f"at most {MOST_GPUS:,} GPUs: {MOST_GPUS // len(host.gpus):,} of {spec.name}"
        yield Fault("hosts", f"{hosts:,} of {len(host.gpus)} GPUs each", most)
    if hosts > 1 and not host.nics:
        yield Fault("hosts", f"{hosts} of {spec.name}", "1: this node has no NIC to join hosts by")
    if hosts > 1 and fabric is None:
        yield Fault(
            "fabric", f"nothing for {hosts} hosts",
            "'one-switch', 'rail-optimised', 'leaf-spine' or 'fat-tree'",
        )  # fmt: skip


# ---------------------------------------------------------------- sources


def _sources(spec: NodeSpec, network: Network | None) -> Mapping[str, str]:
    sources = {f"gpu {field}": text for field, text in gpu_sources(spec.gpu).items()}
    for name, link in spec.links.items():
        for number, text in (
            ("bandwidth", link.source),
            ("efficiency", link.efficiency_source or link.source),
            ("latency", link.latency_source or link.source),
        ):
            sources[f"{name} {number}"] = resolve_source(text, spec.sources)
        if link.flow_source is not None:
            sources[f"{name} flow"] = resolve_source(link.flow_source, spec.sources)
    if spec.staging is not None:
        sources["staging bandwidth"] = resolve_source(spec.staging.source, spec.sources)
    if spec.launch is not None:
        sources["gpu launch"] = resolve_source(spec.launch.source, spec.sources)
    for name, section in (("host memory", spec.host_memory), ("nvme drives", spec.nvme)):
        if section is not None:
            sources[name] = resolve_source(section.source, spec.sources)
    if spec.sockets is not None:
        sources["sockets"] = resolve_source(spec.sockets.source, spec.sources)
    if network is not None:
        sources |= {f"fabric {field}": text for field, text in network.fabric.sources.items()}
    return sources


def _assumptions(
    spec: NodeSpec, sources: Mapping[str, str], network: Network | None
) -> tuple[str, ...]:
    assumed = [
        f"{number}: {text}" for number, text in sources.items() if text.startswith("assumption")
    ]
    stated = (f"{spec.name}: {note}" for note in spec.assumed)
    return (*stated, *assumed, *(network.wiring.assumptions if network else ()))

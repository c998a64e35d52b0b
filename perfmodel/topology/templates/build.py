"""From files to a `Topology`: a node template, repeated, and joined by a fabric."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfmodel.errors import Fault, InputError
from perfmodel.garbage import no_collections
from perfmodel.topology.compilation import compile_topology
from perfmodel.topology.composed.load import load_node
from perfmodel.topology.fabric.fabric import (
    Fabric,
    resolve_fabric,
    states_routing,
    usual_routing,
)
from perfmodel.topology.fabric.fabric_graph import fabric_graph
from perfmodel.topology.fabric.own_fabric import Generator, own_fabric
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.load import template_names
from perfmodel.topology.templates.node_graph import node_graph
from perfmodel.topology.templates.references import reference_faults
from perfmodel.topology.templates.spec import (
    FABRIC_KINDS,
    FabricSpec,
    NodeSpec,
    device_names,
    nic_ports,
)

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
        `perfmodel.topology.fabric.own_fabric`); needed for more than one, unused for one.
    gpus_per_host : int, optional
        Use only the first GPUs of each host as ranks. All hardware stays in the graph.

    Raises
    ------
    InputError
        Unknown names, more GPUs than there are, several hosts without NICs or fabric; every fault.
    """
    spec = load_node(node) if isinstance(node, str) else _check_references(node)
    faults = list(_faults(spec, hosts, fabric, gpus_per_host))
    if faults:
        raise InputError(faults)
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


def _check_references(node: NodeSpec) -> NodeSpec:
    """Refuse a template made in code whose names point nowhere; files were checked when read."""
    faults = reference_faults(node.model_dump(by_alias=True), node.name)
    if faults:
        raise InputError(faults)
    return node


# ---------------------------------------------------------------- what may go wrong


def _faults(
    spec: NodeSpec,
    hosts: int,
    fabric: FabricSpec | Fabric | str | Generator | None,
    gpus_per_host: int | None,
) -> Iterator[Fault]:
    gpus = len(device_names(spec, "gpu"))
    if hosts < 1:
        yield Fault("hosts", str(hosts), "one or more")
    if gpus_per_host is not None and not 1 <= gpus_per_host <= gpus:
        yield Fault("gpus_per_host", str(gpus_per_host), f"1 to {gpus} on {spec.name}")
    if hosts * gpus > MOST_GPUS:
        yield Fault(
            "hosts",
            f"{hosts:,} of {gpus} GPUs each",
            f"at most {MOST_GPUS:,} GPUs: {MOST_GPUS // gpus:,} of {spec.name}",
        )
    if hosts > 1 and not device_names(spec, "nic"):
        yield Fault("hosts", f"{hosts} of {spec.name}", "1: this node has no NIC to join hosts by")
    if hosts > 1 and fabric is None:
        yield Fault(
            "fabric",
            f"nothing for {hosts} hosts",
            "'one-switch', 'rail-optimised', 'leaf-spine' or 'fat-tree'",
        )

"""A host as a template has it, or put together from words, with what the words correct in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfmodel.topology.build import load_node
from perfmodel.topology.described import describe
from perfmodel.topology.spec import NodeSpec
from perfmodel.validate.templates import Wanted, fitting

FRAME_BYTES = {"roce": 82, "infiniband": 26}
"""Bytes around the payload of one packet. RoCE v2: preamble 8, Ethernet 14 + 4, gap 12 (IEEE
802.3), IP 20, UDP 8, base transport header 12, ICRC 4; InfiniBand: LRH 8, BTH 12, ICRC 4, VCRC 2
(InfiniBand Architecture Specification, volume 1)."""


@dataclass(frozen=True, slots=True)
class Host:
    """A node to build, and what was assumed of it."""

    node: NodeSpec
    assumptions: tuple[str, ...]


def host_for(wanted: Wanted) -> Host:
    """Take the template that fits, or describe a node of the same parts.

    Raises
    ------
    InputError
        Nothing known has these parts.
    """
    facts = fitting(wanted)
    if facts is not None:
        return _corrected(Host(load_node(facts.name), (f"machine: template {facts.name}",)), wanted)
    return _corrected(_described(wanted), wanted)


def _described(wanted: Wanted) -> Host:
    """Put a node together from words."""
    found = describe(
        wanted.gpu_text,
        gpus=wanted.gpus,
        intra=wanted.intra_text,
        network=_network(wanted),
        nics=None if wanted.nics is None else round(wanted.nics),
        nic_Gbps=wanted.nic_Gbps,
    )
    return Host(found.node, found.assumptions)


def _network(wanted: Wanted) -> str | None:
    """The kind of network, and whether the words put its NIC under another CPU than the GPUs."""
    words = wanted.network_text.lower()
    across = re.search(r"(?:across|other|remote|between) (?:the )?(?:cpu )?sockets?", words)
    if wanted.network and across:
        return f"{wanted.network} across sockets"
    return wanted.network or wanted.network_text or None


# ---------------------------------------------------------------- what the words correct


def _corrected(host: Host, wanted: Wanted) -> Host:
    """Take GPUDirect away, or account for a small MTU, where the words say so."""
    node, notes = host.node, list(host.assumptions)
    if wanted.gpudirect is not None and wanted.gpudirect != node.gpudirect_rdma:
        node = node.model_copy(update={"gpudirect_rdma": wanted.gpudirect})
        notes.append(f"GPUDirect RDMA is {'on' if wanted.gpudirect else 'off'}, as stated")
    if wanted.peer_access is not None and wanted.peer_access != node.gpu_p2p:
        node = node.model_copy(update={"gpu_p2p": wanted.peer_access})
        notes.append(f"P2P over PCIe is {'on' if wanted.peer_access else 'off'}, as stated")
    if wanted.mtu_bytes is not None and wanted.network in {"roce", "infiniband"}:
        share = wanted.mtu_bytes / (wanted.mtu_bytes + FRAME_BYTES[wanted.network])
        node = _with_efficiency(node, share)
        notes.append(f"MTU {wanted.mtu_bytes}: {100 * share:.0f} % of the wire is payload")
    return Host(node, tuple(notes))


def _with_efficiency(node: NodeSpec, share: float) -> NodeSpec:
    """Give the ports of NICs another share of payload."""
    ports = {device.port for device in node.nodes if device.kind == "nic"}
    links = {
        name: link.model_copy(update={"efficiency": min(share, link.efficiency)})
        if name in ports
        else link
        for name, link in node.links.items()
    }
    return node.model_copy(update={"links": links})

"""What a text says of TCP beyond its rate: whose cloud it is, and whether processes are in pods."""

from __future__ import annotations

import re
from collections.abc import Iterable

from perfmodel.topology.from_text.parts import CloudPart, hardware_parts
from perfmodel.topology.templates.spec import NodeSpec, SocketsSpec

_PLACED = re.compile(r"placement group")


def with_socket_limits(node: NodeSpec, text: str) -> tuple[NodeSpec, list[str]]:
    """Set the limits of a TCP connection that a text in lower case implies; what was assumed."""
    parts, notes = hardware_parts(), []
    cloud = next((part for part in parts.clouds.values() if _names(part.spelled, text)), None)
    if cloud is not None:
        flow_Bps = cloud.placed if _PLACED.search(text) else cloud.flow
        node = _with_flow(node, cloud, flow_Bps)
        if flow_Bps is not None:
            notes.append(
                f"a TCP connection carries {flow_Bps * 8e-9:g} Gbit/s, as its cloud states"
            )
    if _names(parts.pods, text):
        sockets = node.sockets or SocketsSpec(source="as described")
        node = node.model_copy(update={"sockets": sockets.model_copy(update={"pods": True})})
        notes.append("processes run in pods: NCCL has one connection for each channel")
    return node, notes


def _names(words: Iterable[str], text: str) -> bool:
    return any(re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", text) for word in words)


def _with_flow(node: NodeSpec, cloud: CloudPart, flow_Bps: float | None) -> NodeSpec:
    limits = {"adapter": cloud.adapter, "flow": flow_Bps, "flow_source": cloud.flow_source}
    ports = {device.port for device in node.nodes if device.kind == "nic"}
    links = {
        name: link.model_copy(update=limits) if name in ports else link
        for name, link in node.links.items()
    }
    return node.model_copy(
        update={"links": links, "sources": {**hardware_parts().sources, **node.sources}}
    )

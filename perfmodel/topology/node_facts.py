"""What the graph of a node says of it as a whole: its GPU, its ports, sockets, dumped channels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfmodel.topology.model import ChannelGraph, ChannelPath, Gpu, Sockets
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.topology.templates.power_limits import limit_power

if TYPE_CHECKING:
    import networkx as nx


def named(node: nx.MultiDiGraph[str], kind: str) -> list[str]:
    """Names of the devices of a kind, in order."""
    return [name for name, data in node.nodes(data=True) if data["kind"] == kind]


def gpu_of(node: nx.MultiDiGraph[str], name: str) -> Gpu:
    """The model of a GPU, under the power limit and with the CPU that the node has."""
    gpu = limit_power(load_gpu(node.nodes[name]["model"]), node.graph.get("power_limit_W"))
    return replace(gpu, launch_s=node.graph.get("launch_s", gpu.launch_s))


def first_port(node: nx.MultiDiGraph[str], number: str, default: Any) -> Any:
    """What the first NIC says of its port."""
    nics = named(node, "nic")
    return node.nodes[nics[0]].get(number, default) if nics else default


def sockets_of(node: nx.MultiDiGraph[str]) -> Sockets:
    """Limits of TCP: those of the node, and what its first port says."""
    limits = Sockets(**node.graph.get("sockets", {}))
    flow_Bps = first_port(node, "flow_bandwidth", None)
    if flow_Bps is not None:
        flow_Bps *= first_port(node, "port_efficiency", 1.0)
    return replace(limits, flow_Bps=flow_Bps, adapter=first_port(node, "adapter", None))


def channel_graphs_of(node: nx.MultiDiGraph[str]) -> tuple[ChannelGraph, ...]:
    """Dumped channels by the numbers of GPUs and NICs."""
    gpu = {name: at for at, name in enumerate(named(node, "gpu"))}
    nic = {name: at for at, name in enumerate(named(node, "nic"))}
    return tuple(
        ChannelGraph(
            **{
                **dumped,
                "paths": tuple(
                    ChannelPath(
                        tuple(gpu[name] for name in path["gpus"]),
                        nic.get(path["enter"]),
                        nic.get(path["leave"]),
                    )
                    for path in dumped["paths"]
                ),
            }
        )
        for dumped in node.graph.get("channels", ())
    )

"""Arrays of a machine, compiled from its graphs: the only module that knows both.

A machine is a graph of graphs: one node of many that are alike (`node_graph`), and a fabric whose
nodes are these hosts and the switches between them. Routing, the choice of NICs, NCCL's search and
the rates of links read arrays (`Arcs`) instead, in which each host owns a block of equal length.

What the graph of a node says of it as a whole: its GPU, its ports, sockets, dumped channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import IntArray
from perfmodel.errors import Fault, raise_faults, refuse_if
from perfmodel.topology.arcs import ArcEnd, ArcEnds, Arcs, Cables, LikeHosts, LinkKinds
from perfmodel.topology.expanded_graph import SWITCH
from perfmodel.topology.model import (
    ChannelGraph,
    ChannelPath,
    Drives,
    Gpu,
    Reach,
    Sockets,
    Topology,
)
from perfmodel.topology.routing.clos import Tiers, places
from perfmodel.topology.templates.gpus import gpu_sources, limit_power, load_gpu

if TYPE_CHECKING:
    import networkx as nx


def compile_topology(
    node: nx.MultiDiGraph[str],
    *,
    hosts: int = 1,
    fabric: nx.Graph[int | str] | None = None,
    gpus_per_host: int | None = None,
) -> Topology:
    """Compile a node, many times over, and the fabric that joins them.

    Parameters
    ----------
    node : networkx.MultiDiGraph
        As `perfmodel.topology.templates.build.node_graph` makes it.
    hosts : int
    fabric : networkx.Graph, optional
        As `perfmodel.topology.fabric.fabric_graph.fabric_graph` makes it, or directed with every
        link and its numbers (`perfmodel.topology.own_graph`).
    gpus_per_host : int, optional
        Use only the first GPUs of each host as ranks. All hardware stays in the graph.

    Raises
    ------
    InputError
        No GPU, one of no known model, a power limit out of its range, a NIC with no cable or two.
    """
    facts, gpus = node.graph, named(node, "gpu")
    refuse_if(not gpus, "ranks", "no GPU", "at least one GPU")
    gpu = gpu_of(node, gpus[0])
    block = _arcs_of(rows(node))
    switches, links, tiers = _cabling(fabric, node, hosts, hosts * len(block))
    local = [(name, data["kind"]) for name, data in node.nodes(data=True)]
    wider = {} if fabric is None else fabric.graph
    sources = {
        **{f"gpu {field}": text for field, text in gpu_sources(gpu.name).items()},
        **facts.get("sources", {}),
        **{f"fabric {field}": text for field, text in wider.get("sources", {}).items()},
        **(
            {
                "gpu power_limit": (
                    f"assumption: matrix products at {100 * gpu.limited_rate:.0f} % of their rate "
                    f"at full power under {gpu.power_W:g} W, fitted to published measurements of "
                    "limited boards"
                )
            }
            if gpu.limited_rate < 1
            else {}
        ),
    }
    name = facts.get("name", "")
    return Topology(
        name=f"{name} x {hosts}" if hosts > 1 else name,
        node_graph=node,
        fabric_graph=fabric,
        devices=LikeHosts(local, hosts, switches),
        built=_joined(block, hosts, links),
        ranks=tuple(f"n{host}/{local}" for host in range(hosts) for local in gpus[:gpus_per_host]),
        gpu=gpu,
        hosts=hosts,
        host_arcs=len(block),
        gpu_p2p=facts.get("gpu_p2p", True),
        gpudirect_rdma=facts.get("gpudirect_rdma", True),
        staging_Bps=facts.get("staging_Bps"),
        cpu=facts.get("cpu"),
        sources=sources,
        template=name,
        fabric=wider.get("kind", "none"),
        tiers=tiers,
        assumptions=(
            *(f"{name}: {note}" for note in facts.get("assumptions", ())),
            *(
                f"{number}: {text}"
                for number, text in sources.items()
                if text.startswith("assumption")
            ),
            *wider.get("assumptions", ()),
        ),
        network=first_port(node, "network", "none"),
        reach=Reach(**facts.get("reach", {})),
        channel_graphs=channel_graphs_of(node),
        sockets=sockets_of(node),
        host_memory_bytes=facts.get("host_memory_bytes"),
        drives=Drives(**facts["drives"]) if "drives" in facts else None,
    )


# ---------------------------------------------------------------- links of a host


Edge = tuple[Any, Any, dict[str, Any]]


def ordered(edges: Iterable[Edge]) -> list[Edge]:
    """Edges by their ``index`` where they have one, else as they were added."""
    return sorted(edges, key=lambda edge: edge[2].get("index", 0))


def rows(graph: nx.Graph[Any]) -> list[Edge]:
    """Edges of a graph with their attributes, in order."""
    return ordered(graph.edges(data=True))


def _arcs_of(links: Sequence[Edge], names: Sequence[ArcEnd] | None = None) -> Arcs:
    """Return links as arrays.

    `names`: their ends; default: those of the edges.
    """
    return Arcs(
        names=tuple((src, dst) for src, dst, _ in links) if names is None else names,
        kinds=LinkKinds.of(data["kind"] for _, _, data in links),
        bandwidth_Bps=np.array([data["bandwidth"] for _, _, data in links], dtype=float),
        latency_s=np.array([data["latency"] for _, _, data in links], dtype=float),
        lanes=np.array([data.get("lanes", 1) for _, _, data in links], dtype=np.int32),
    )


def _joined(block: Arcs, hosts: int, links: Arcs | None) -> Arcs:
    """Each host's block in turn, then the fabric's links."""
    ends = None if links is None else links.names
    names: Sequence[ArcEnd] = ArcEnds(
        block.names, hosts, ends if isinstance(ends, Cables) else None
    )
    own = Arcs(
        names=(*names, *ends) if isinstance(ends, tuple) else names,
        kinds=LinkKinds(block.kinds.names, np.tile(block.kinds.codes, hosts)),
        bandwidth_Bps=np.tile(block.bandwidth_Bps, hosts),
        latency_s=np.tile(block.latency_s, hosts),
        lanes=np.tile(block.lanes, hosts),
    )
    if links is None:
        return own
    return replace(
        own,
        kinds=own.kinds.followed_by(links.kinds),
        bandwidth_Bps=np.concatenate([own.bandwidth_Bps, links.bandwidth_Bps]),
        latency_s=np.concatenate([own.latency_s, links.latency_s]),
        lanes=np.concatenate([own.lanes, links.lanes]),
    )


# ---------------------------------------------------------------- links between hosts

Cabling = tuple[tuple[str, ...], Arcs | None, Tiers | None]
"""Switches of a fabric; its links (each NIC and its leaf, both directions, then the trunks, both
directions; or any links); and the structure by which routes are found, None: they are searched."""


def _cabling(
    fabric: nx.Graph[int | str] | None, node: nx.MultiDiGraph[str], hosts: int, first: int
) -> Cabling:
    """Links of a fabric as arrays; `first` is the number of its first arc."""
    if fabric is None:
        return (), None, None
    if fabric.is_directed():
        return _stated_links(fabric, node, hosts, first)
    nics = named(node, "nic")
    ports = [node.nodes[nic] for nic in nics]
    rates_Bps = [port["port_bandwidth"] * port["port_efficiency"] for port in ports]
    fastest = ports[rates_Bps.index(max(rates_Bps))]
    cable_s = fabric.graph.get("cable_latency", 0.0)
    switch_s = fabric.graph.get("switch_latency", 0.0)
    into_s = [port["port_latency"] + cable_s for port in ports]
    out_s = [delay_s + switch_s for delay_s in into_s]  # a switch delays what leaves it
    names = named(fabric, "switch")
    leaf_of = _leaf_of(fabric, names, hosts, len(nics))
    devices = {name: f"{SWITCH}{name}" for name in names}
    trunks = _trunks(fabric, devices, fastest)
    ends, switches = trunks.names, tuple(devices.values())
    own = LinkKinds.of(port["port_kind"] for port in ports)
    latencies_s = np.stack([into_s, out_s], axis=1).ravel()
    links = Arcs(
        names=Cables(tuple(nics), switches, leaf_of, tuple(ends)),
        kinds=LinkKinds(own.names, np.tile(np.repeat(own.codes, 2), hosts)).followed_by(
            LinkKinds((fastest["port_kind"],), np.zeros(2 * len(ends), dtype=np.uint8))
        ),
        bandwidth_Bps=np.concatenate(
            [np.tile(np.repeat(rates_Bps, 2), hosts), np.repeat(trunks.bandwidth_Bps, 2)]
        ),
        latency_s=np.concatenate([np.tile(latencies_s, hosts), np.repeat(trunks.latency_s, 2)]),
        lanes=np.concatenate(
            [np.ones(2 * len(leaf_of), dtype=np.int32), np.repeat(trunks.lanes, 2)]
        ),
    )
    return switches, links, _tiers(fabric, leaf_of, len(nics), first)


def _tiers(fabric: nx.Graph[int | str], leaf_of: IntArray, nics: int, first: int) -> Tiers | None:
    """The structure of a fabric of levels; None where there is none.

    `leaf_of`: leaf of each port, as a position among the switches; empty in an irregular fabric.
    """
    levels = fabric.graph.get("tiers")
    if levels is None or not len(leaf_of):
        return None
    return Tiers(
        leaf_of=leaf_of,
        place_of=places(leaf_of),
        nics=nics,
        first=first,
        **{"above": 0, "cables": 0, "cores": 0, **levels},
        by_place=fabric.graph.get("routing") == "rail",
    )


def _leaf_of(
    fabric: nx.Graph[int | str], switches: Sequence[str | int], hosts: int, nics: int
) -> IntArray:
    """Position of the leaf of each port; shape (ports,).

    Raises `InputError`: a NIC that no edge plugs in, or two.
    """
    place = {name: at for at, name in enumerate(switches)}
    leaf_of = np.full((hosts, nics), -1, dtype=np.int64)
    faults = []
    for host in range(hosts):
        edges = list(fabric.edges(host, data=True))
        for at, (_, switch, data) in enumerate(edges):
            for nic in data.get("nics", range(nics) if len(edges) == 1 else (at,)):
                if not 0 <= nic < nics or leaf_of[host, nic] >= 0:
                    faults.append(
                        Fault(
                            f"fabric.{host} -- {switch}",
                            f"NIC {nic}",
                            f"each of the NICs 0 to {nics - 1} of a host, once",
                        )
                    )
                else:
                    leaf_of[host, nic] = place[switch]
    faults += [
        Fault(f"fabric.{host}", f"no cable at NIC {nic}", "an edge to a switch for every NIC")
        for host, nic in np.argwhere(leaf_of < 0).tolist()
    ]
    raise_faults(faults)
    return leaf_of.ravel()


def _trunks(
    fabric: nx.Graph[int | str], switches: Mapping[str | int, str], port: Mapping[str, Any]
) -> Arcs:
    """Cables between switches, parallel ones apart; their usable part is that of a port.

    `switches`: name of each switch among the devices, by its name in the fabric.
    """
    facts = fabric.graph
    switch_s = facts.get("switch_latency", 0.0)
    bundles = ordered(
        edge for edge in fabric.edges(data=True) if edge[0] in switches and edge[1] in switches
    )
    usual = (
        ("cables", 1, np.int64),
        ("lanes", 1, np.int32),
        ("bandwidth", facts.get("uplink_bandwidth", port["port_bandwidth"]), np.float64),
        ("latency", facts.get("cable_latency", 0.0), np.float64),
    )
    columns: list[NDArray[Any]] = [
        np.array([data.get(fact, value) for *_, data in bundles], dtype=dtype)
        for fact, value, dtype in usual
    ]
    count, lanes, raw_Bps, hop_s = columns
    ends = [(switches[low], switches[high]) for low, high, _ in bundles]
    return Arcs(
        names=tuple(chain.from_iterable(map(repeat, ends, count.tolist()))),
        kinds=LinkKinds((port["port_kind"],), np.zeros(count.sum(), dtype=np.uint8)),
        bandwidth_Bps=np.repeat(raw_Bps * port["port_efficiency"] * lanes, count),
        latency_s=np.repeat(switch_s + hop_s, count),
        lanes=np.repeat(lanes, count),
    )


def _stated_links(
    fabric: nx.Graph[int | str], node: nx.MultiDiGraph[str], hosts: int, first: int
) -> Cabling:
    """Links of a directed fabric, each with its numbers, in the order of their ``index``.

    The end of a link at a host has the name of the device there (``src_device``, ``dst_device``).
    """
    links = rows(fabric)
    switches = tuple(f"{SWITCH}{name}" for name in named(fabric, "switch"))

    def end(place: int | str, device: str | None) -> str:
        return f"{SWITCH}{place}" if device is None else f"n{place}/{device}"

    names = tuple(
        (end(src, data.get("src_device")), end(dst, data.get("dst_device")))
        for src, dst, data in links
    )
    nics = named(node, "nic")
    leaf_of = _stated_leaves(names, switches, [f"n{h}/{n}" for h in range(hosts) for n in nics])
    return switches, _arcs_of(links, names), _tiers(fabric, leaf_of, len(nics), first)


def _stated_leaves(
    names: Sequence[ArcEnd], switches: Sequence[str], ports: Sequence[str]
) -> IntArray:
    """Leaf of each port where its cable stands as in a regular fabric; else empty."""
    place = {name: at for at, name in enumerate(switches)}
    ups, downs = names[: 2 * len(ports) : 2], names[1 : 2 * len(ports) : 2]
    leaves = [place.get(leaf, -1) for _, leaf in ups]
    paired = all((leaf, port) == down for (port, leaf), down in zip(ups, downs, strict=False))
    if [port for port, _ in ups] != list(ports) or not paired or -1 in leaves:
        return np.empty(0, dtype=np.int64)
    return np.array(leaves, dtype=np.int64)


def named(graph: nx.Graph[Any], kind: str) -> list[Any]:
    """Names of the devices, or of the switches of a fabric, of a kind; in order."""
    return [name for name, data in graph.nodes(data=True) if data["kind"] == kind]


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

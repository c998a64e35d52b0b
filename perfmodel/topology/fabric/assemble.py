"""Hosts and fabric as rows of devices and arcs, and the nodes and arcs of a graph made of them."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np

from perfmodel.topology.fabric.cabling import Wiring, wire, wire_listed
from perfmodel.topology.fabric.fabric import Fabric
from perfmodel.topology.graph import Arcs, Device, NodeKind
from perfmodel.topology.model import ChannelGraph, ChannelPath
from perfmodel.topology.routing.clos import Tiers, places
from perfmodel.topology.templates.name_ranges import expand_pattern
from perfmodel.topology.templates.spec import LinkSpec, NodeSpec, pairs


@contextmanager
def collector_off() -> Iterator[None]:
    """Switch the garbage collector off while a topology is built: nothing is garbage then.

    A cluster of 16,384 GPUs is a million objects; collecting while they are made doubles the time.
    What was made then counts as old, so that the next collections leave it alone.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():  # moves all objects to the oldest generation at once
                gc.freeze()
                gc.unfreeze()
            gc.enable()


Arc = tuple[str, str, str, float, float, int]
"""Source, destination, kind, usable bytes per second, seconds, lanes."""


# ---------------------------------------------------------------- one host


@dataclass(frozen=True, slots=True)
class Host:
    """One host, its patterns expanded."""

    devices: tuple[tuple[str, NodeKind], ...]
    arcs: tuple[Arc, ...]
    """Both directions of every edge, in file order."""
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    ports: tuple[LinkSpec, ...]
    """The link that leaves each NIC."""
    rails: tuple[int, ...]
    """Rail of each NIC."""


def expand_host(spec: NodeSpec) -> Host:
    """Expand a template."""
    devices = tuple((name, d.kind) for d in spec.nodes for name in expand_pattern(d.id))
    nics = [(name, i, d) for d in spec.nodes if d.kind == "nic"
            for i, name in enumerate(expand_pattern(d.id))]  # fmt: skip
    return Host(
        devices=devices,
        arcs=tuple(_host_arcs(spec)),
        gpus=tuple(name for name, kind in devices if kind == "gpu"),
        nics=tuple(name for name, _, _ in nics),
        ports=tuple(spec.links[d.port or ""] for _, _, d in nics),
        rails=tuple(i % d.rails if d.rails else at for at, (_, i, d) in enumerate(nics)),
    )


def channel_graphs(spec: NodeSpec, host: Host) -> tuple[ChannelGraph, ...]:
    """Dumped channels by the numbers of GPUs and NICs."""
    gpu = {name: at for at, name in enumerate(host.gpus)}
    nic = {name: at for at, name in enumerate(host.nics)}
    return tuple(
        ChannelGraph(
            pattern=graph.pattern,
            paths=tuple(
                ChannelPath(
                    tuple(gpu[name] for name in channel.gpus),
                    None if channel.enter is None else nic[channel.enter],
                    None if channel.leave is None else nic[channel.leave],
                )
                for channel in graph.channels
            ),
            intra_Bps=graph.intra,
            inter_Bps=graph.inter,
            type_intra=graph.type_intra,
            type_inter=graph.type_inter,
            same_channels=graph.same_channels,
        )
        for graph in spec.graphs
    )


def _host_arcs(spec: NodeSpec) -> Iterator[Arc]:
    for edge in spec.edges:
        link = spec.links[edge.link]
        rate_Bps = link.usable_Bps * edge.lanes
        for a, b in pairs(edge):
            yield a, b, link.kind, rate_Bps, link.latency, edge.lanes
            yield b, a, link.kind, rate_Bps, link.latency, edge.lanes


# ---------------------------------------------------------------- the network

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Network:
    """The fabric of a cluster.

    Parameters
    ----------
    fabric : Fabric
    wiring : Wiring
    nics : int
        Ports of one host.
    arcs : Arcs
        The cables: each NIC and its leaf, both directions, then the trunks, both directions.
    """

    fabric: Fabric
    wiring: Wiring
    nics: int
    arcs: Arcs

    def tiers(self, first: int) -> Tiers | None:
        """The structure by which routes are found; `first` is the number of the first arc.

        None where there is none: then they are searched.
        """
        wiring = self.wiring
        if self.fabric.kind == "listed":
            return None
        return Tiers(
            leaf_of=wiring.leaf_of,
            place_of=places(wiring.leaf_of),
            nics=self.nics,
            first=first,
            leaves=wiring.leaves,
            pod=wiring.pod,
            above=wiring.above,
            cables=wiring.cables,
            cores=wiring.cores,
            by_place=self.fabric.routing == "rail",
        )


def build_network(host: Host, hosts: int, fabric: Fabric) -> Network:
    """Plug all hosts into a fabric."""
    plug = wire_listed if fabric.kind == "listed" else wire
    wiring = plug(fabric, host.rails, hosts)
    nics = [f"n{h}/{nic}" for h in range(hosts) for nic in host.nics]
    leaves = [wiring.switches[leaf] for leaf in wiring.leaf_of.tolist()]
    plugs = list(zip(nics, leaves, strict=True))
    trunks = [(t.lower, t.upper) for t in wiring.trunks for _ in range(t.cables)]
    lanes = [t.lanes for t in wiring.trunks for _ in range(t.cables)]
    port = max(host.ports, key=lambda link: link.usable_Bps)
    usual_Bps = fabric.uplink_Bps or port.bandwidth
    rates_Bps = [(t.raw_Bps or usual_Bps) * port.efficiency for t in wiring.trunks
                 for _ in range(t.cables)]  # fmt: skip
    hop_s = fabric.switch_latency_s + fabric.cable_latency_s
    into_s = [link.latency + fabric.cable_latency_s for link in host.ports]
    out_s = [delay_s + fabric.switch_latency_s for delay_s in into_s]  # a switch delays what leaves
    both = len(trunks) * 2
    arcs = Arcs(
        names=(
            *_both_directions(plugs),
            *_both_directions(trunks),
        ),
        kinds=(*_repeat_each([link.kind for link in host.ports]) * hosts, *(port.kind,) * both),
        bandwidth_Bps=np.concatenate([
            np.tile(np.repeat([link.usable_Bps for link in host.ports], 2), hosts),
            np.repeat(np.array(rates_Bps) * np.array(lanes, dtype=float), 2),
        ]),
        latency_s=np.concatenate([
            np.tile(np.stack([into_s, out_s], axis=1).ravel(), hosts), np.full(both, hop_s)
        ]),
        lanes=(1,) * (2 * len(plugs)) + _repeat_each(lanes),
    )  # fmt: skip
    return Network(
        fabric=fabric,
        wiring=wiring,
        nics=len(host.nics),
        arcs=arcs,
    )


def _both_directions(ends: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    return chain.from_iterable((pair, (pair[1], pair[0])) for pair in ends)


def _repeat_each(items: Sequence[_T]) -> tuple[_T, ...]:
    return tuple(item for item in items for _ in range(2))


# ---------------------------------------------------------------- the graph


def name_devices(host: Host, hosts: int) -> list[list[str]]:
    """Names of all devices, host by host; made once, because a cluster has a million of them."""
    return [[f"n{h}/{local}" for local, _ in host.devices] for h in range(hosts)]


def build_arcs(host: Host, names: list[list[str]], network: Network | None) -> Arcs:
    """All arcs as arrays: each host's block in turn, then the fabric's."""
    hosts = len(names)
    ends = _arc_ends(host)
    inside = [(own[a], own[b]) for own in names for a, b in ends]
    own = Arcs(
        names=tuple(inside),
        kinds=tuple(arc[2] for arc in host.arcs) * hosts,
        bandwidth_Bps=np.tile(np.array([arc[3] for arc in host.arcs], dtype=float), hosts),
        latency_s=np.tile(np.array([arc[4] for arc in host.arcs], dtype=float), hosts),
        lanes=tuple(arc[5] for arc in host.arcs) * hosts,
    )
    if network is None:
        return own
    return Arcs(
        names=own.names + network.arcs.names,
        kinds=own.kinds + network.arcs.kinds,
        bandwidth_Bps=np.concatenate([own.bandwidth_Bps, network.arcs.bandwidth_Bps]),
        latency_s=np.concatenate([own.latency_s, network.arcs.latency_s]),
        lanes=own.lanes + network.arcs.lanes,
    )


def _arc_ends(host: Host) -> list[tuple[int, int]]:
    """Ends of a host's arcs as positions among its devices."""
    place = {local: at for at, (local, _) in enumerate(host.devices)}
    return [(place[arc[0]], place[arc[1]]) for arc in host.arcs]


def build_devices(host: Host, names: list[list[str]], network: Network | None) -> dict[str, Device]:
    """All devices by name: those of each host in turn, then the switches of the fabric."""
    devices = {
        name: Device(kind, h, local)
        for h, own in enumerate(names)
        for name, (local, kind) in zip(own, host.devices, strict=True)
    }
    if network is not None:
        devices |= {name: Device("switch", -1, name) for name in network.wiring.switches}
    return devices

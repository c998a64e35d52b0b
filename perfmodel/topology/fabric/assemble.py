"""Hosts and fabric as rows of devices and arcs, and the nodes and arcs of a graph made of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray
from perfmodel.topology.fabric.cabling import Wiring, wire, wire_listed
from perfmodel.topology.fabric.fabric import Fabric
from perfmodel.topology.fabric.like_hosts import ArcEnds, Cables, LikeHosts
from perfmodel.topology.graph import Arcs, LinkKinds, NodeKind
from perfmodel.topology.model import ChannelGraph, ChannelPath
from perfmodel.topology.routing.clos import Tiers, places
from perfmodel.topology.templates.name_ranges import expand_pattern
from perfmodel.topology.templates.spec import LinkSpec, NodeSpec, pairs


@contextmanager
def collector_off() -> Iterator[None]:
    """Switch the garbage collector off while a topology is built: nothing is garbage then.

    Cables between switches are hundreds of thousands of objects in a large fabric that hashes its
    flows; collecting while they are made doubles the time.
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


@dataclass(frozen=True, slots=True)
class Network:
    """The fabric of a cluster.

    Parameters
    ----------
    fabric : Fabric
    wiring : Wiring
    cables : Cables
        Each NIC and its leaf, both directions, then the trunks, both directions.
    kinds, bandwidth_Bps, latency_s, lanes
        Of their arcs, as in `Arcs`.
    """

    fabric: Fabric
    wiring: Wiring
    cables: Cables
    kinds: LinkKinds
    bandwidth_Bps: FloatArray
    latency_s: FloatArray
    lanes: NDArray[np.int32]

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
            nics=len(self.cables.nics),
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
    trunks = [(t.lower, t.upper) for t in wiring.trunks for _ in range(t.cables)]
    lanes = np.array([t.lanes for t in wiring.trunks for _ in range(t.cables)], dtype=np.int32)
    port = max(host.ports, key=lambda link: link.usable_Bps)
    usual_Bps = fabric.uplink_Bps or port.bandwidth
    rates_Bps = [(t.raw_Bps or usual_Bps) * port.efficiency for t in wiring.trunks
                 for _ in range(t.cables)]  # fmt: skip
    hop_s = fabric.switch_latency_s + fabric.cable_latency_s
    into_s = [link.latency + fabric.cable_latency_s for link in host.ports]
    out_s = [delay_s + fabric.switch_latency_s for delay_s in into_s]  # a switch delays what leaves
    kinds = LinkKinds.of([*(link.kind for link in host.ports), port.kind])
    both = len(trunks) * 2
    return Network(
        fabric=fabric,
        wiring=wiring,
        cables=Cables(host.nics, wiring.switches, wiring.leaf_of, tuple(trunks)),
        kinds=LinkKinds(kinds.names, np.concatenate([
            np.tile(np.repeat(kinds.codes[:-1], 2), hosts), np.full(both, kinds.codes[-1])
        ])),
        bandwidth_Bps=np.concatenate([
            np.tile(np.repeat([link.usable_Bps for link in host.ports], 2), hosts),
            np.repeat(np.array(rates_Bps, dtype=float) * lanes, 2),
        ]),
        latency_s=np.concatenate([
            np.tile(np.stack([into_s, out_s], axis=1).ravel(), hosts), np.full(both, hop_s)
        ]),
        lanes=np.concatenate([
            np.ones(2 * len(wiring.leaf_of), dtype=np.int32), np.repeat(lanes, 2)
        ]),
    )  # fmt: skip


# ---------------------------------------------------------------- the graph


def build_arcs(host: Host, hosts: int, network: Network | None) -> Arcs:
    """All arcs as arrays: each host's block in turn, then the fabric's."""
    ends = [(src, dst) for src, dst, *_ in host.arcs]
    kinds = LinkKinds.of(arc[2] for arc in host.arcs)
    own = Arcs(
        names=ArcEnds(ends, hosts, network.cables if network else None),
        kinds=LinkKinds(kinds.names, np.tile(kinds.codes, hosts)),
        bandwidth_Bps=np.tile(np.array([arc[3] for arc in host.arcs], dtype=float), hosts),
        latency_s=np.tile(np.array([arc[4] for arc in host.arcs], dtype=float), hosts),
        lanes=np.tile(np.array([arc[5] for arc in host.arcs], dtype=np.int32), hosts),
    )
    if network is None:
        return own
    return Arcs(
        names=own.names,
        kinds=own.kinds.followed_by(network.kinds),
        bandwidth_Bps=np.concatenate([own.bandwidth_Bps, network.bandwidth_Bps]),
        latency_s=np.concatenate([own.latency_s, network.latency_s]),
        lanes=np.concatenate([own.lanes, network.lanes]),
    )


def build_devices(host: Host, hosts: int, network: Network | None) -> LikeHosts:
    """All devices by name: those of each host in turn, then the switches of the fabric."""
    return LikeHosts(host.devices, hosts, network.wiring.switches if network else ())

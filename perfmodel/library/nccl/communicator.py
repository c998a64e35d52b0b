"""The communicator of a group of ranks: channels, speeds and hardware that NCCL's tuner uses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.library.nccl.graphs import (
    Graph,
    collnet_graph,
    nvls_graph,
    ring_graph,
    tree_graph,
)
from perfmodel.library.nccl.host_graph import RANK, hardware, host_of
from perfmodel.library.settings import MOST_CHANNELS, LibrarySettings
from perfmodel.library.transport import Vendor
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router

MOST_OF_ONE_HOST = 16
"""GPUs that one operating system has (NVIDIA DGX-2, HGX with two boards); more are a rack."""


@dataclass(frozen=True, slots=True)
class System:
    """A group of ranks as NCCL's tuner sees it."""

    nodes: int
    ranks: int
    capability: int
    """Compute capability, 90 for sm90."""
    cpu: Vendor
    ring: Graph
    tree: Graph
    nvls: Graph | None
    """None without an NVSwitch that reduces."""
    collnet: Graph | None
    """Chain and direct alike; None on one host."""
    gpus: int
    """Ranks on the host that was looked at."""
    net_latency_us: float = 0.0
    """Latency of a hop between hosts, as the network's plugin states it."""
    ordered: bool = True
    """Whether the network keeps 128-byte writes whole and in order."""
    rack: bool = False
    """Whether a node here is an NVLink domain of several hosts."""
    generation: str = ""
    """Of the GPUs, such as "hopper" or "cdna3"."""

    @property
    def per_node(self) -> float:
        """Ranks per node, on average."""
        return self.ranks / self.nodes


def system_of(
    topology: Topology, router: Router, group: range | tuple[int, ...], settings: LibrarySettings
) -> System:
    """Look at one host of a group and search its channels.

    `topology`: as the settings let it be used (`perfmodel.library.transport.apply_settings`).
    `group`: ranks of the topology, at least two. `settings`: version and environment.
    """
    release, (local, nodes) = settings.release, _smallest_host(topology, group)
    gpus = [topology.ranks[rank] for rank in local]
    host = host_of(
        topology,
        router.healthy,
        gpus,
        between_hosts=nodes > 1,
        release=release,
        merging=release >= (2, 20) and settings.is_on("NCCL_IB_MERGE_NICS", default=True),
    )
    crossing = settings.count("NCCL_CROSS_NIC")
    ring = _read_dump(topology, "ring", local) or ring_graph(
        host,
        cross_nic=2 if crossing is None else crossing,
        most=_most_channels(settings) // 2,
    )
    switched = release >= (2, 17) and settings.is_on("NCCL_NVLS_ENABLE", default=True)
    plugin = hardware().plugins.get(topology.network) if nodes > 1 else None
    return System(
        nodes=nodes,
        ranks=len(group),
        capability=host.capability,
        cpu=host.cpu,
        ring=ring,
        tree=_read_dump(topology, "tree", local) or tree_graph(host, ring),
        nvls=nvls_graph(host, raise_inter=release >= (2, 23)) if switched else None,
        collnet=collnet_graph(host, ring),
        gpus=len(gpus),
        net_latency_us=plugin.stated_us(host.capability, release) if plugin else 0.0,
        ordered=plugin is None or plugin.keeps_order(host.capability, release),
        rack=topology.gpus_per_host > MOST_OF_ONE_HOST,
        generation=topology.gpu.generation,
    )


def channels_of(system: System, algorithm: str, settings: LibrarySettings) -> int:
    """Channels (thread blocks of a GPU) that an algorithm runs on for large messages.

    Each channel of a search becomes two, four between hosts where few of Hopper or later are fast
    (ncclTopoPostset); then the user's bounds hold. NVLS takes its own count (facts of
    ``src/transport/nvls.cc``: 16 on Hopper; on Blackwell 24, between hosts 32).
    """
    if algorithm in {"nvls", "nvls_tree"}:
        return (24 if system.nodes == 1 else 32) if system.capability >= 100 else 16
    graph = system.ring
    most = _most_channels(settings)
    count = min(2 * graph.channels, most)
    if system.capability >= 90 and system.nodes > 1 and graph.intra_GBps > 45 and count < 16:
        count = 2 * count
    least = settings.count("NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS") or 1
    return max(min(count, settings.count(*MOST_CHANNELS) or most), min(least, most))


def _read_dump(topology: Topology, pattern: str, local: list[int]) -> Graph | None:
    """Channels of a dump of NCCL's own, where the topology has one for just these GPUs."""
    dump = topology.graph_of(pattern, [rank % topology.gpus_per_host for rank in local])
    if dump is None:
        return None
    speeds = dump.intra_Bps / 1e9, dump.inter_Bps / 1e9
    return Graph(len(dump.paths), *speeds, dump.type_intra, dump.type_inter, dump.same_channels)


def _most_channels(settings: LibrarySettings) -> int:
    of_older = (
        most
        for version, most in hardware().most_channels_before.items()
        if settings.release < tuple(map(int, version.split(".")))
    )
    return next(of_older, hardware().most_channels)


def _smallest_host(topology: Topology, group: range | tuple[int, ...]) -> tuple[list[int], int]:
    """Ranks of the host with the fewest of the group, and how many hosts there are."""
    ranks = np.asarray(group, dtype=np.int64)
    hosts, counts = np.unique(ranks // topology.gpus_per_host, return_counts=True)
    chosen = hosts[int(counts.argmin())]
    return ranks[ranks // topology.gpus_per_host == chosen].tolist(), len(hosts)


def tree_threshold(
    system: System, settings: LibrarySettings, by_size: Mapping[str, float]
) -> float:
    """Largest all-reduce that NCCL 2.4 runs as trees, by a size and not estimates of time; bytes.

    Source: NVIDIA/nccl 2.4.8 ``src/init.cc``, ncclTreeThreshold. `by_size`: its numbers, bytes that
    a channel over NVLink moves in a microsecond, or all without it, and times of steps.
    """
    nvlink = system.gpus > 1 and RANK[system.tree.type_intra] <= RANK["NVB"]
    ring = by_size["bytes_per_us"] * (channels_of(system, "ring", settings) if nvlink else 1)
    tree = ring * 3 / 4 * (2 if system.nodes == 2 else 1) if nvlink else ring * 2 / 3
    ring_us = by_size["ring_us"] * (system.ranks - 1)
    tree_us = by_size["between_us"] * int(math.log2(system.nodes)) + by_size["tree_us"] * (
        system.ranks // system.nodes - 1
    )
    if system.nodes < 2 or ring_us <= tree_us:
        return 0.0
    return math.inf if tree > ring else ring * tree / (ring - tree) * (ring_us - tree_us)

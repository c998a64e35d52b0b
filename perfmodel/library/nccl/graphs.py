"""NCCL's search of channels: how many paths of what speed a host's links carry at once.

Written from the rules of NVIDIA/nccl 2.30.7 ``src/graph/search.cc`` (ncclTopoCompute): speeds from
a list are tried from fast to slow, each with near path types first; the one that carries most
is taken; a second pass then doubles channels or raises their speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile

from perfmodel.library.nccl.host_graph import RANK, Host, HostPath, hardware, of_capability
from perfmodel.library.nccl.packing import Demand, channel_bound, pack_channels
from perfmodel.library.settings import LEVELS


@dataclass(frozen=True, slots=True)
class Graph:
    """Result of a search."""

    channels: int
    """As the tuner counts them; a ring or tree runs on twice as many."""
    intra_GBps: float
    inter_GBps: float
    """`intra_GBps` and `inter_GBps`: speed of one channel inside the host and between hosts."""
    type_intra: str
    type_inter: str = "LOC"
    """`type_intra` and `type_inter`: farthest path types used; "LOC" where there is no path of that
    kind."""
    same_channels: bool = True
    """Whether all channels pass the GPUs in one order."""
    plain: bool = False
    """Of a tree: parent and children all hang on one GPU."""


FALLBACK = Graph(1, 0.1, 0.1, "SYS", "SYS")
"""Where no search succeeds: one channel in simple order (search.cc)."""


@lru_cache(maxsize=64)
def ring_graph(host: Host, *, cross_nic: int, most: int) -> Graph:
    """Search rings.

    `cross_nic`: ``NCCL_CROSS_NIC``: whether a ring may leave by another NIC than it entered by; 2
    if need be. `most`: channels at most.
    """
    best: Graph | None = None
    crossed = 0
    for speed in _speeds(host):
        if best is not None and speed / best.inter_GBps <= 0.49:
            break
        for cross in (0, 2) if cross_nic == 2 else (cross_nic,):
            better, done = _search_speed(host, speed, cross, most, best, crossed)
            if better is not best:
                best, crossed = better, cross
            if done:
                break
        if best is not None and best.channels * best.inter_GBps >= _total(host):
            break
    return _raise_speed(host, _double_channels(host, best, most), crossed) if best else FALLBACK


def _search_speed(
    host: Host, speed: float, cross: int, most: int, best: Graph | None, crossed: int
) -> tuple[Graph | None, bool]:
    """Best graph after one speed, and whether nothing more can be won."""
    for inter in _path_types(host, between=True):
        if best is not None and RANK[inter] > max(RANK[best.type_inter], RANK["PXN"]):
            break
        for intra in _path_types(host, between=False):
            if host.nic_GBps and RANK[intra] > RANK[inter] and intra != "LOC":
                break
            if best is not None and RANK[intra] > RANK[best.type_intra]:
                break
            for same in _order_options(host, intra):
                demand = Demand(speed, speed, intra, inter, cross, same)
                better = _search_better(host, demand, most, best, cross - crossed)
                if better is not None:
                    best, crossed = better, cross
                if best is not None and best.channels * speed >= _total(host):
                    return best, True
    return best, False


def _search_better(
    host: Host, demand: Demand, most: int, best: Graph | None, crossing: int
) -> Graph | None:
    """Graph of a demand if it is better, which is not searched where no packing could be."""

    def graph(channels: int) -> Graph:
        speeds = demand.intra_GBps, demand.inter_GBps
        inter = demand.type_inter if host.nic_GBps else None
        return Graph(channels, *speeds, demand.type_intra, inter or "LOC", demand.same)

    if not _is_better(graph(channel_bound(host, demand, most=most)), best, crossing):
        return None
    packed_graph = graph(pack_channels(host, demand, most=most))
    return (
        packed_graph if packed_graph.channels and _is_better(packed_graph, best, crossing) else None
    )


def _is_better(graph: Graph, best: Graph | None, crossing: int) -> bool:
    """More bandwidth; a graph that crosses NICs must gain 15 % per step (ncclTopoCompareGraphs)."""
    if best is None:
        return True
    bar = best.channels * best.intra_GBps * (1 + 0.15 * crossing)
    return graph.channels * graph.intra_GBps > bar


def _order_options(host: Host, intra: str) -> tuple[bool, ...]:
    """The same order for all channels first, then different ones.

    Not where GPUs meet across AMD's NUMA domains (as in search.cc), nor behind a switch inside one
    host, where no order is better than another.
    """
    one_order = (host.cpu == "amd" and intra == "SYS") or (host.switched and not host.nic_GBps)
    return (True,) if one_order else (True, False)


def _path_types(host: Host, *, between: bool) -> list[str]:
    paths: Sequence[HostPath]
    paths = [*host.outward.values(), *host.inward.values()] if between else [*host.peers.values()]
    return sorted({path.type for path in paths} - {"DIS"}, key=LEVELS.index) or ["LOC"]


def _listed_speeds(host: Host) -> tuple[float, ...]:
    """Speeds that NCCL tries, from fast to slow: between hosts where NICs matter."""
    table = hardware()
    listed = table.speeds_between_hosts_GBps if host.nic_GBps else table.speeds_within_host_GBps
    return of_capability(listed, host.capability)


def _speeds(host: Host) -> tuple[float, ...]:
    listed = _listed_speeds(host)
    bound = min(_widest(host), _total(host))
    return tuple(speed for speed in listed if speed <= bound) or listed[-1:]


def _widest(host: Host) -> float:
    """Speed of the widest single path."""
    paths = host.inward.items() if host.nic_GBps else host.peers.items()
    return max(
        (
            min(
                [host.arc_GBps[arc] for arc in path.arcs]
                + ([host.nic_GBps[end[1]]] if host.nic_GBps else [])
            )
            for end, path in paths
            if path.arcs
        ),
        default=0.0,
    )


def _total(host: Host) -> float:
    """Most that one GPU can send: its NVLinks, or its PCIe link."""
    if host.nvlink_GBps:
        return host.nvlink_GBps
    paths = (*host.peers.values(), *host.outward.values())
    return max((host.arc_GBps[path.arcs[0]] for path in paths if path.arcs), default=0.0)


def _double_channels(host: Host, graph: Graph, most: int) -> Graph:
    """Two channels of half the speed where one is fast (ncclTopoDupChannels)."""
    fast_enough = host.capability > 80 and graph.intra_GBps < 50 and graph.channels > 4
    count = min(2 * graph.channels, most)
    if graph.intra_GBps < 25 or fast_enough or count == graph.channels:
        return graph
    parts = -(-count // graph.channels)
    return replace(
        graph,
        channels=count,
        intra_GBps=graph.intra_GBps / parts,
        inter_GBps=graph.inter_GBps / parts,
    )


def _faster_speeds(host: Host, speed: float) -> Iterator[float]:
    """Listed speeds above one, from slow to fast."""
    return (other for other in reversed(_listed_speeds(host)) if other > speed)


def _raise_speed(host: Host, graph: Graph, cross: int) -> Graph:
    """As many channels at a higher speed, if that fits (second pass)."""

    def fits(speed: float) -> bool:
        kinds = graph.type_intra, graph.type_inter
        return _fits(host, Demand(speed, speed, *kinds, cross, graph.same_channels), graph.channels)

    speed = max(takewhile(fits, _faster_speeds(host, graph.inter_GBps)), default=graph.inter_GBps)
    return replace(graph, intra_GBps=speed, inter_GBps=speed)


def _fits(host: Host, demand: Demand, channels: int) -> bool:
    """Whether so many channels can be packed."""
    return (
        channel_bound(host, demand, most=channels) == channels
        and pack_channels(host, demand, most=channels) == channels
    )


@lru_cache(maxsize=64)
def tree_graph(host: Host, ring: Graph) -> Graph:
    """As many chains through the host as there are rings, faster inside it if that fits."""
    graph = replace(ring, plain=host.gpus == 1)
    for speed in _faster_speeds(host, graph.intra_GBps):
        if host.gpus < 2 or graph.intra_GBps >= 2 * graph.inter_GBps:
            break
        demand = Demand(speed, 0.0, graph.type_intra, None, 0, graph.same_channels)
        if not _fits(host, demand, graph.channels):
            break
        graph = replace(graph, intra_GBps=speed)
    return graph


def nvls_graph(host: Host, *, raise_inter: bool) -> Graph | None:
    """Channels through the switch's own reduction: one per GPU; None without such a switch.

    Each head costs two units on its own GPU's links and one on all others, so a channel is at most
    the GPU's NVLink over heads + 1.

    `raise_inter`: whether the speed between hosts is raised after packing (2.23 and later).
    """
    heads = min(host.gpus, hardware().most_heads)
    if not host.switched or host.capability < 90 or heads < 2:
        return None
    bound = host.nvlink_GBps / (heads + 1)
    between = _head_GBps(host, heads) if host.nic_GBps else float("inf")
    listed = [s for s in _listed_speeds(host) if s <= min(bound, between)]
    if not listed:
        return None
    speed = inter = listed[0]
    for faster in _faster_speeds(host, inter) if raise_inter else ():
        if inter >= 2 * speed or faster > between:
            break
        inter = faster
    type_inter = max(
        (path.type for path in _nearest_nic_paths(host)), key=LEVELS.index, default="LOC"
    )
    return Graph(heads, speed, inter, "NVL", type_inter, same_channels=False)


def _nearest_nic_paths(host: Host) -> list[HostPath]:
    """Each GPU's best path from a NIC."""
    return [
        min(
            (host.inward[g, n] for n in range(len(host.nic_GBps))), key=lambda path: RANK[path.type]
        )
        for g in range(host.gpus)
        if host.nic_GBps
    ]


def _head_GBps(host: Host, heads: int) -> float:
    """What the NICs give each head, if they are spread evenly."""
    shared = -(-heads // len(host.nic_GBps))
    links = min(
        (
            min((host.arc_GBps[arc] for arc in path.arcs), default=0.0)
            for path in _nearest_nic_paths(host)
        ),
        default=0.0,
    )
    return min(min(host.nic_GBps) / shared, links)


def collnet_graph(host: Host, ring: Graph) -> Graph | None:
    """One head per NIC, its channel as fast as the NIC and its GPU's NVLink allow."""
    if not host.nic_GBps:
        return None
    heads = min(len(host.nic_GBps), host.gpus)
    bound = min(_head_GBps(host, heads), (host.nvlink_GBps or _total(host)) / max(1, heads - 1))
    listed = [s for s in _listed_speeds(host) if s <= bound]
    if not listed:
        return None
    type_inter = max(Counter(path.type for path in _nearest_nic_paths(host)), key=LEVELS.index)
    return replace(
        ring, channels=heads, intra_GBps=listed[0], inter_GBps=listed[0], type_inter=type_inter
    )

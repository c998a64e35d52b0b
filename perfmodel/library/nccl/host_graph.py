"""One host as NCCL sees it: paths between GPUs and to NICs, at the speeds that NCCL assumes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from perfmodel.errors import Fault, InputError, TopologyError
from perfmodel.files import FileModel, shipped
from perfmodel.files.spec import ShippedTable
from perfmodel.library.compute_capability import capability_of
from perfmodel.library.ring_search import direct_nvlinks
from perfmodel.library.settings import LEVELS
from perfmodel.library.transport import (
    NVLINK_PATHS,
    Vendor,
    gdr_paths,
    path_type_between,
    peer_paths,
    vendor_of,
)
from perfmodel.memo import grouped
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router

Of = TypeVar("Of")


def of_capability(table: Mapping[int, Of], capability: int) -> Of:
    """Entry of the nearest compute capability that is not above one; the first below all."""
    return table[max((listed for listed in table if listed <= capability), default=min(table))]


class Plugin(FileModel):
    """A network plugin: latency of a hop, and on which GPUs writes are ordered.

    Where 128-byte writes are not kept in order, only the Simple protocol is safe.
    """

    latency_us: dict[int, float]
    since: str
    ordered_from: int
    source: str

    def keeps_order(self, capability: int, release: tuple[float, ...]) -> bool:
        """Whether a release may use LL and LL128 between hosts."""
        return capability >= self.ordered_from or self._is_newer_than(release)

    def _is_newer_than(self, release: tuple[float, ...]) -> bool:
        return release < tuple(int(part) for part in self.since.split("."))

    def stated_us(self, capability: int, release: tuple[float, ...]) -> float:
        """Latency of a hop that a release reports for a GPU; microseconds."""
        return 0.0 if self._is_newer_than(release) else of_capability(self.latency_us, capability)


class Hardware(ShippedTable):
    """What NCCL takes hardware to be capable of (``hardware.yaml``)."""

    sources: dict[str, str]
    nvlink_lane_GBps: dict[int, float]
    pcie_GBps: tuple[float, ...]
    intel_peer_overhead: float
    between_amd_numa_GBps: float
    port_Gbps: tuple[float, ...]
    plugins: dict[str, Plugin]
    most_channels: int
    most_channels_before: dict[str, int]
    most_heads: int
    speeds_within_host_GBps: dict[int, tuple[float, ...]]
    speeds_between_hosts_GBps: dict[int, tuple[float, ...]]


hardware = shipped(Hardware, __file__, "hardware.yaml")
"""Reads NCCL's table of hardware."""


Pair = tuple[int, int]

RANK = {name: rank for rank, name in enumerate((*LEVELS, "NET", "DIS"))}
"""How far path types reach, near to far."""


@dataclass(frozen=True, slots=True)
class HostPath:
    """A path inside the host."""

    type: str
    """One of `perfmodel.library.settings.LEVELS`; the farther one where bytes are staged."""
    arcs: tuple[int, ...]
    """Links crossed."""
    cost: float = 1.0
    """What a byte is charged on each of them."""


@dataclass(frozen=True, slots=True)
class Host:
    """What NCCL knows of one host of a group of ranks.

    GPUs and NICs are numbered from 0, in the order of ranks and of NICs.
    """

    capability: int
    """Compute capability, 90 for sm90."""
    cpu: Vendor
    gpus: int
    peers: Mapping[Pair, HostPath]
    """Between two GPUs."""
    outward: Mapping[Pair, HostPath]
    inward: Mapping[Pair, HostPath]
    """`outward` and `inward`: (GPU, NIC) and back; empty for a group on one host."""
    nic_GBps: tuple[float, ...]
    arc_GBps: Mapping[int, float]
    """Capacity of each link that a path crosses."""
    mesh: Mapping[Pair, float] | None
    """GB/s of direct NVLinks; None behind an NVSwitch or without NVLink."""
    nvlink_GBps: float
    """Of one GPU."""
    switched: bool
    """Whether an NVSwitch joins the GPUs."""

    def __hash__(self) -> int:
        """By what costs little to compare: searches of equal hosts are looked up."""
        return hash((self.capability, self.gpus, self.nic_GBps, frozenset(self.arc_GBps.items())))


def host_of(
    topology: Topology,
    router: Router,
    gpus: Sequence[str],
    *,
    between_hosts: bool,
    release: tuple[float, float],
    merging: bool = True,
) -> Host:
    """Look at one host.

    `gpus`: the group's GPUs on that host. `between_hosts`: whether the group has ranks on other
    hosts too, so that NICs matter. `release`: NCCL's version; NVLink of sm90 counts 20 GB/s a lane
    before 2.23. `merging`: whether the ports of one adapter count as one NIC.
    """
    capability, cpu = capability_of(topology), vendor_of(topology)
    ports = dict(_adapters(topology, _nics(router, gpus), merging)) if between_hosts else {}
    peers = dict(_peer_paths(topology, router, gpus, cpu))
    outward, inward = (
        dict(_nic_paths(topology, router, gpus, tuple(ports), outward=out)) for out in (True, False)
    )
    lane = _lane_GBps(capability, release)
    crossed = {
        arc for paths in (peers, outward, inward) for path in paths.values() for arc in path.arcs
    }
    arcs = {arc: _arc_GBps(topology, arc, lane, cpu) for arc in crossed}
    mesh = _mesh(topology, gpus, peers, arcs)
    return Host(
        capability=capability,
        cpu=cpu,
        gpus=len(gpus),
        peers=peers,
        outward=outward,
        inward=inward,
        nic_GBps=tuple(_port_GBps(topology, nic) * count for nic, count in ports.items()),
        arc_GBps=arcs,
        mesh=mesh,
        nvlink_GBps=_nvlink_GBps(len(gpus), peers, arcs),
        switched=mesh is None
        and bool(peers)
        and all(path.type == "NVL" for path in peers.values()),
    )


def _mesh(
    topology: Topology,
    gpus: Sequence[str],
    peers: Mapping[Pair, HostPath],
    arcs: Mapping[int, float],
) -> Mapping[Pair, float] | None:
    """Direct NVLinks between GPUs; None behind an NVSwitch, without NVLink or without P2P."""
    lanes = direct_nvlinks(topology, gpus)
    if lanes is None or topology.reach.peer == "LOC":
        return None
    paths = ((pair, peers[pair]) for pair in lanes)
    return {
        pair: arcs[path.arcs[0]]
        for pair, path in paths
        if path.type == "NVL" and len(path.arcs) == 1
    }


def _nvlink_GBps(gpus: int, peers: Mapping[Pair, HostPath], arcs: Mapping[int, float]) -> float:
    """NVLinks of the GPU that has most."""
    firsts = [
        {path.arcs[0] for (a, _), path in peers.items() if a == g and path.type == "NVL"}
        for g in range(gpus)
    ]
    return max((sum(arcs[arc] for arc in first) for first in firsts), default=0.0)


def _nics(router: Router, gpus: Sequence[str]) -> list[str]:
    """NICs that the GPUs reach: each GPU's nearest first, in the order of their numbers."""
    nearest = {router.nearest_nics(gpu)[0] for gpu in gpus if router.nearest_nics(gpu)}
    every = {nic for gpu in gpus for nic in router.nearest_nics(gpu)}
    return sorted(nearest, key=router.nic_number) + sorted(every - nearest, key=router.nic_number)


def _adapters(topology: Topology, nics: Sequence[str], merging: bool) -> Iterator[tuple[str, int]]:
    """One NIC of each adapter, and how many ports it has.

    A PCIe switch with several NICs for each of its GPUs has adapters of several ports: an
    assumption, since a topology does not say which NICs share a card. Source of the merging:
    NVIDIA/nccl ``src/transport/net_ib`` (NCCL_IB_MERGE_NICS) and, for EFA, aws-ofi-nccl.
    """
    links, devices = topology.links, topology.devices
    nics_below = grouped(
        (next((p for p in links[nic] if devices[p].host >= 0), nic), nic) for nic in nics
    )
    for parent, siblings in nics_below.items():
        gpus = sum(devices[end].kind == "gpu" for end in links[parent])
        even = merging and 0 < gpus < len(siblings) and len(siblings) % gpus == 0
        ports = len(siblings) // gpus if even else 1
        yield from ((nic, ports) for nic in siblings[::ports])


def _peer_paths(
    topology: Topology, router: Router, gpus: Sequence[str], cpu: Vendor
) -> Iterator[tuple[Pair, HostPath]]:
    direct = peer_paths(topology)
    overhead = hardware().intel_peer_overhead
    for a, src in enumerate(gpus):
        for b, dst in enumerate(gpus):
            if a == b:
                continue
            path_type = router.path_type(src, dst)
            if path_type in direct or not topology.reach.memory:
                arcs = router.route(src, dst)
            else:  # through the host's memory
                arcs = _over_memory(router, src, router.nearest_cpu(src), dst, PEER_VARIABLES)
                path_type = path_type if RANK[path_type] >= RANK["PHB"] else "PHB"
            taxed = path_type == "PHB" and cpu == "intel"
            yield (a, b), HostPath(path_type, arcs, overhead if taxed else 1.0)


def _nic_paths(
    topology: Topology, router: Router, gpus: Sequence[str], nics: Sequence[str], *, outward: bool
) -> Iterator[tuple[Pair, HostPath]]:
    """Paths between GPUs and NICs: direct, through another GPU (PXN), or by the host's memory."""
    direct = gdr_paths(topology)
    relaying = outward and topology.reach.relay
    for n, nic in enumerate(nics):
        types = [path_type_between(router, gpu, nic) for gpu in gpus]
        relays = [gpu for gpu, path_type in zip(gpus, types, strict=True) if path_type in direct]
        for g, (gpu, path_type) in enumerate(zip(gpus, types, strict=True)):
            ends = (gpu, nic) if outward else (nic, gpu)
            if path_type in direct:
                yield (g, n), HostPath(path_type, router.route(*ends))
                continue
            relay = _relay_gpu(router, gpu, relays) if relaying else None
            if relay is not None:
                yield (g, n), HostPath("PXN", router.route(gpu, relay) + router.route(relay, nic))
            else:
                yield (g, n), _path_by_memory(router, gpu, ends, path_type)


def _relay_gpu(router: Router, gpu: str, relays: Sequence[str]) -> str | None:
    """First of the GPUs beside a NIC that this one reaches over NVLink."""
    return next((peer for peer in relays if router.path_type(gpu, peer) in NVLINK_PATHS), None)


def _path_by_memory(router: Router, gpu: str, ends: tuple[str, str], path_type: str) -> HostPath:
    if path_type == "DIS":
        return HostPath("DIS", ())
    try:
        cpu = router.nearest_cpu(gpu)
    except TopologyError:
        return HostPath(path_type, router.route(*ends))
    arcs = _over_memory(router, ends[0], cpu, ends[1], "NCCL_NET_GDR_LEVEL")
    return HostPath(path_type if RANK[path_type] >= RANK["PHB"] else "PHB", arcs)


PEER_VARIABLES = "NCCL_P2P_DISABLE or NCCL_P2P_LEVEL"


def _over_memory(router: Router, src: str, cpu: str, dst: str, variables: str) -> tuple[int, ...]:
    """Arcs from a device through the memory of a CPU to another.

    Raises `InputError`: nothing leads there, as between trays of an NVLink rack; names what lets
    bytes go directly.
    """
    try:
        return router.route(src, cpu) + router.route(cpu, dst)
    except TopologyError as error:
        allowed = f"direct copies: {error}"
        raise InputError(Fault(variables, "copies through host memory", allowed)) from error


def _lane_GBps(capability: int, release: tuple[float, float]) -> float:
    """NVLink of one lane; NVIDIA/nccl: 20.6 for sm90 since 2.23, 20 before."""
    is_older = capability == 90 and release < (2, 23)
    return of_capability(hardware().nvlink_lane_GBps, 80 if is_older else capability)


def _arc_GBps(topology: Topology, arc: int, lane_GBps: float, cpu: Vendor) -> float:
    """Capacity that NCCL takes a link to have, by its kind; the link's own where it has no idea.

    Of a link that became slower or was lost: what it had. NCCL reads what links can do when it
    starts (of PCIe ``max_link_width``, ``src/graph/xml.cc``), and keeps its choices.
    """
    arcs = topology.built
    own, kind = float(arcs.bandwidth_Bps[arc]) / 1e9, arcs.kinds[arc]
    if kind == "nvlink":
        src, dst = arcs.names[arc]
        nominal = sum(arcs.lanes[cable] for cable in topology.links[src][dst]) * lane_GBps
        return nominal if 0.7 < nominal / own < 1.4 else own
    if kind == "pcie":
        return min(hardware().pcie_GBps, key=lambda rate: max(rate / own, own / rate))
    if kind == "upi":
        return hardware().between_amd_numa_GBps if cpu == "amd" else own
    return float("inf") if kind == "memory" else own


def _port_GBps(topology: Topology, nic: str) -> float:
    """Nominal rate of a NIC's cables: the next usual one above what they carry."""
    built = topology.built
    own = (
        sum(
            float(built.bandwidth_Bps[cable])
            for cables in topology.links[nic].values()
            for cable in cables
            if built.kinds[cable] in {"ethernet", "infiniband"}
        )
        / 1e9
    )
    above = next((rate / 8 for rate in hardware().port_Gbps if rate / 8 >= own * 0.999), own)
    return above if own > 0.6 * above else own

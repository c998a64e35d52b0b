"""How bytes get from one GPU to another: peer to peer, through host memory, or through NICs.

Source of the rules: NVIDIA/nccl 2.30.7 ``src/graph/paths.cc`` (ncclTopoCheckP2p and
ncclTopoCheckGdr): peers talk directly over NVLink, or over PCIe where the platform allows it; a NIC
reads and writes GPU memory when no host bridge stands between them, else bytes pass host memory,
which they cross twice, written and read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from types import MappingProxyType
from typing import Literal

from perfmodel.errors import TopologyError
from perfmodel.library.model import CommLibrary, Protocol, SocketCosts
from perfmodel.library.settings import LEAST_CHANNELS, LEVELS, MOST_CHANNELS, LibrarySettings
from perfmodel.topology.model import Reach, Sockets, Topology
from perfmodel.topology.routing.router import Router

GDR_PATHS = frozenset({"LOC", "PIX", "PXB", "P2C"})
"""Path types over which NCCL lets a NIC reach GPU memory (ncclTopoCheckGdr, NCCL_NET_GDR_C2C=1)."""

ACROSS_SOCKETS_BPS = 6.45e9
"""Most that a NIC moves to or from the memory of a GPU on another socket. Fitted: nccl-tests
all_reduce between two hosts with an A100 PCIe each and an adapter of 200 Gbit/s on the other
socket, GPUDirect forced: 6.4 GB/s from 4 MiB on (NVIDIA/nccl-tests issue 293)."""

NVLINK_PATHS = frozenset({"NVL", "NVB", "C2C"})


@dataclass(frozen=True, slots=True)
class Path:
    """Path of bytes through the machine."""

    arcs: tuple[int, ...]
    """Directed links crossed (twice if crossed twice)."""
    hop: Literal["nvlink", "pcie", "network", "memory"]
    """Decides the library's step latency."""
    cap_Bps: float = float("inf")
    """Most that this path can carry whatever its links allow."""
    staged: bool = False
    """Whether the bytes pass through host memory."""
    together_Bps: float = float("inf")
    """Most that all copies through the memory of one domain carry together."""
    domain: int = -1
    """First arc out of the CPU in whose memory such copies meet; -1 for other paths."""


def path_type_between(router: Router, src: str, dst: str) -> str:
    """Path type between two devices; "DIS" where nothing connects them, as NCCL calls it."""
    try:
        return router.path_type(src, dst)
    except TopologyError:  # a GPU of another tray of an NVLink rack reaches no NIC but its own
        return "DIS"


def apply_settings(topology: Topology, settings: LibrarySettings) -> Topology:
    """Return the machine as the library's settings let it be used; the same one by default.

    ``NCCL_P2P_LEVEL`` and ``NCCL_P2P_DISABLE`` say how far GPUs copy to each other (by default as
    `usual_peer_level` has it),
    ``NCCL_NET_GDR_LEVEL`` how far a NIC reaches, ``NCCL_SHM_DISABLE`` sends what may not go
    directly by a NIC, ``NCCL_PXN_DISABLE`` (or a version before 2.12) keeps each GPU to its own
    NICs, and ``NCCL_IB_DISABLE`` or ``NCCL_NET=Socket`` turn RDMA into TCP.
    """
    peer = settings.level("NCCL_P2P_LEVEL") or topology.reach.peer
    reach = Reach(
        peer="LOC" if settings.is_on("NCCL_P2P_DISABLE") else peer,
        nic=settings.level("NCCL_NET_GDR_LEVEL"),
        memory=not settings.is_on("NCCL_SHM_DISABLE"),
        relay=not settings.is_on("NCCL_PXN_DISABLE") and settings.release >= (2, 12),
    )
    verbs = topology.network in {"infiniband", "roce", "omni-path"}
    sockets = (
        settings.env.get("NCCL_NET", "").lower() == "socket" and topology.network != "none"
    ) or (verbs and settings.is_on("NCCL_IB_DISABLE"))
    if sockets and topology.network != "tcp":
        topology = replace(topology, network="tcp", gpudirect_rdma=False)
    return topology if reach == topology.reach else replace(topology, reach=reach)


_GEFORCE = re.compile(r"(?:rtx-\d{4}(?:-ti)?|titan|gtx)\b")


def usual_peer_level(topology: Topology) -> str | None:
    """How far GPUs copy to each other where no user says: not through a CPU.

    Except for two GPUs of an AMD host. GeForce cards copy to each other with a patched driver only,
    whose users set the level too. Source: NVIDIA/nccl ``src/graph/paths.cc``, ncclTopoCheckP2p.
    """
    if not topology.gpu_p2p or _GEFORCE.match(topology.gpu.name):
        return None
    few = topology.gpus_per_host <= MOST_THROUGH_AMD
    return "SYS" if few and vendor_of(topology) == "amd" else "PXB"


MOST_THROUGH_AMD = 2
"""GPUs of an AMD host up to which they copy to each other through its CPUs."""

Vendor = Literal["intel", "amd", "arm", "power"]


_MAKERS: Mapping[str | None, Vendor] = MappingProxyType(
    {"epyc": "amd", "genoa": "amd", "grace": "arm", "power9": "power"}
)


def vendor_of(topology: Topology) -> Vendor:
    """Who made the CPUs; Intel where the machine does not say of what kind they are."""
    return _MAKERS.get(topology.cpu, "intel")


AT_MEMORY_RATE = frozenset({"genoa", "sapphire", "emerald", "grace"})
"""CPUs through whose memory all GPUs copy at once as fast as their links and that memory allow:
those with PCIe 5. All-reduces without P2P: four RTX 5090 on one Genoa move 27 GB/s each, 109 out of
and into its memory, where one link carries 48 (NVIDIA/nccl-tests issue 287), eight of them on two
Xeon 8480+ 28 each, four 35 (NVIDIA/nccl issue 1639, where S. Jeaugey says that CPU and memory limit
them)."""


def peer_paths(topology: Topology) -> frozenset[str]:
    """Path types over which two GPUs of a host copy to each other directly.

    NVLink always and PCIe where the template allows it (`Topology.gpu_p2p`), as far as the level
    allows that the user sets, or the usual one.
    """
    possible = frozenset(LEVELS) if topology.gpu_p2p else NVLINK_PATHS
    return possible & _types_up_to(topology.reach.peer or usual_peer_level(topology))


def gdr_paths(topology: Topology) -> frozenset[str]:
    """Path types over which a NIC reads and writes GPU memory."""
    if not topology.gpudirect_rdma:
        return frozenset()
    return GDR_PATHS if topology.reach.nic is None else _types_up_to(topology.reach.nic)


def _types_up_to(level: str | None) -> frozenset[str]:
    return frozenset(LEVELS if level is None else LEVELS[: LEVELS.index(level) + 1])


def local_path(topology: Topology, router: Router, src: str, dst: str) -> Path:
    """Path between two GPUs of one host.

    Copies through the memory of one NUMA domain carry together as much as the link of one GPU,
    unless the CPU is one of `AT_MEMORY_RATE`: they cross one interconnect, which degrades with
    traffic from all of them (S. Jeaugey in NVIDIA/nccl issue 1285, where, as in nccl-tests issue
    74, a domain for each GPU of two EPYC helps). Assumption, near what is known of one domain: four
    L40S move 20 GB/s where a link carries 24 (ai-dynamo/aiconfigurator), four RTX 2080 Ti about 16
    of 12, by the scaling of BERT-Base (HKBU-HPML/ddl-benchmarks), four RTX 4090 10 of 12; of two
    and of eight domains: recorded sweeps of four V100 and four A100 on PCIe, and of eight RTX 4090.
    Eight L40S, in two domains, move 10 to 17 GB/s where two links are said.

    Raises `TopologyError`: neither directly nor through the host's memory, and no NIC is left.
    """
    path_type = router.path_type(src, dst)
    if path_type in peer_paths(topology):
        return Path(router.route(src, dst), "nvlink" if path_type in NVLINK_PATHS else "pcie")
    if not topology.reach.memory:
        return _path_by_nic(topology, router, src, dst)
    cpu = router.nearest_cpu(src)
    up, across = router.route(src, cpu), router.route(cpu, dst)
    cap = topology.staging_Bps or float("inf")
    kinds = {topology.arcs.kinds[arc] for arc in up + across}
    if kinds == {"memory"}:  # processes of one machine: the copy is the link
        return Path(up + across, "memory", cap, staged=True)
    arcs = up + _memory_arcs(router, cpu) + across
    link_Bps = float(topology.arcs.bandwidth_Bps[up[0]])
    together_Bps = float("inf") if topology.cpu in AT_MEMORY_RATE else link_Bps
    domain = min(min(arcs) for arcs in topology.links[cpu].values())
    return Path(arcs, "pcie", cap, staged=True, together_Bps=together_Bps, domain=domain)


def _path_by_nic(topology: Topology, router: Router, src: str, dst: str) -> Path:
    """Out to a NIC of the host and back in: what is left without SHM."""
    nics = router.nearest_nics(src)
    if not nics:
        raise TopologyError(
            f"{topology.name}: nothing carries bytes from {src} to {dst} with NCCL_SHM_DISABLE=1: "
            "they may not copy to each other and there is no NIC"
        )
    out = nic_path(topology, router, src, nics[0], outward=True)
    into = nic_path(topology, router, dst, nics[0], outward=False)
    return Path(out.arcs + into.arcs, "network", staged=out.staged or into.staged)


def nic_path(topology: Topology, router: Router, gpu: str, nic: str, *, outward: bool) -> Path:
    """Path between a GPU and a NIC of the same host.

    On the way out, a GPU hands bytes for a NIC that does not reach its memory over NVLink to the
    GPU beside that NIC (NCCL's PXN, 2.12 and later).
    """
    ends = (gpu, nic) if outward else (nic, gpu)
    path_type = path_type_between(router, gpu, nic)
    direct = gdr_paths(topology)
    if path_type in direct:
        cap_Bps = ACROSS_SOCKETS_BPS if path_type == "SYS" else float("inf")
        return Path(router.route(*ends), "network", cap_Bps)
    if outward and direct and topology.reach.relay:
        relay = _relay_gpu(topology, router, gpu, nic)
        if relay is not None:
            return Path(router.route(gpu, relay) + router.route(relay, nic), "network")
    cpu = router.nearest_cpu(gpu)
    arcs = router.route(ends[0], cpu) + _memory_arcs(router, cpu) + router.route(cpu, ends[1])
    return Path(arcs, "network", staged=True)


def hands_over(topology: Topology, router: Router, gpu: str, nic: str) -> bool:
    """Whether a NIC of the host sends what a GPU has: itself, or from the GPU beside it (PXN)."""
    direct = gdr_paths(topology)
    if path_type_between(router, gpu, nic) in direct:
        return True
    relays = bool(direct) and topology.reach.relay
    return relays and _relay_gpu(topology, router, gpu, nic) is not None


def _memory_arcs(router: Router, cpu: str) -> tuple[int, ...]:
    """Into the memory beside a CPU and out of it: bytes that rest there are written and read."""
    memory = router.memory_of(cpu)
    return () if memory is None else router.route(cpu, memory) + router.route(memory, cpu)


def _relay_gpu(topology: Topology, router: Router, gpu: str, nic: str) -> str | None:
    """GPU from which a NIC reads directly and which this one reaches over NVLink."""
    first = int(topology.devices[gpu].host) * topology.gpus_per_host
    return next(
        (
            peer
            for peer in topology.ranks[first : first + topology.gpus_per_host]
            if path_type_between(router, gpu, peer) in NVLINK_PATHS
            and path_type_between(router, peer, nic) in gdr_paths(topology)
            and router.nearest_nics(peer)[0] == nic
        ),
        None,
    )


# ---------------------------------------------------------------- TCP

CHANNELS_OF_A_RING = 2
"""NCCL runs each ring that it finds on two channels (NVIDIA/nccl ``src/graph/connect.cc``)."""

_SHARED_BY_TWO = {"tree", "nvls_tree"}
"""Algorithms with two trees, each on half of the channels."""


def with_socket_rates(
    library: CommLibrary, topology: Topology, settings: LibrarySettings
) -> CommLibrary:
    """Return the library with what its connections carry where a machine's network is TCP.

    NCCL opens ``NCCL_SOCKET_NTHREADS`` x ``NCCL_NSOCKS_PERTHREAD`` connections for each channel and
    peer, and cuts a message into equal parts for them (NVIDIA/nccl ``src/transport/net_socket.cc``;
    parts are of 64 KiB at least, and eight messages are under way, so that all connections are
    busy). A channel is as fast as its connections together, each limited by the cloud, and as the
    threads that copy for them. Without a device file of a known adapter, as in pods, there is one
    of each.
    """
    if library.sockets is None or topology.network != "tcp" or topology.hosts == 1:
        return library
    ring_Bps = ring_rate_Bps(library.sockets, topology, settings)
    return library.model_copy(
        update={
            "protocols": _with_rate(library.protocols, ring_Bps),
            "by_algorithm": {
                name: _with_rate(protocols, ring_Bps / (2 if name in _SHARED_BY_TWO else 1))
                for name, protocols in library.by_algorithm.items()
            },
        }
    )


def _with_rate(protocols: Mapping[str, Protocol], rate_Bps: float) -> dict[str, Protocol]:
    return {
        name: protocol.model_copy(update={"network_rate": rate_Bps})
        for name, protocol in protocols.items()
    }


def ring_rate_Bps(costs: SocketCosts, topology: Topology, settings: LibrarySettings) -> float:
    """Most that all connections of a ring carry from one host to the next; payload per second.

    What a cloud wraps before it counts (an overlay network of pods) is a single flow between two
    hosts, however many connections are in it: EC2 counts wrapped protocols by their addresses (EC2
    User Guide, instance network bandwidth). Assumption: so do pods' networks in general; steps of
    ResNet-50 that Pollux measured imply 0.4 to 0.6 GB/s, where two flows would carry 1.2.
    """
    sockets = topology.sockets
    threads, each = socket_counts(costs, sockets, settings)
    channel_Bps = threads * costs.copies
    if sockets.flow_Bps is not None:
        channel_Bps = min(channel_Bps, threads * each * sockets.flow_Bps)
    rate_Bps = _channels_per_ring(topology, settings) * channel_Bps
    if sockets.pods and sockets.flow_Bps is not None:
        rate_Bps = min(rate_Bps, sockets.flow_Bps)
    return rate_Bps * _slowest_share(topology.hosts, costs.uneven)


def _slowest_share(hosts: int, spread: float) -> float:
    """Rate of the slowest of a ring's connections, over that of the slowest of two.

    Expected extreme of normal variates by Blom's formula (Statistical Estimates and Transformed
    Beta-Variables, 1958).
    """

    def extreme(count: int) -> float:
        return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))

    return math.exp(-spread * (extreme(hosts) - extreme(2)))


def socket_counts(
    costs: SocketCosts, sockets: Sockets, settings: LibrarySettings
) -> tuple[int, int]:
    """Threads of a channel and peer, and connections of each."""
    adapter = None if sockets.pods else sockets.adapter
    usual = costs.by_adapter.get(adapter or "other", costs.by_adapter["other"])
    threads = settings.count("NCCL_SOCKET_NTHREADS") or usual.threads
    each = settings.count("NCCL_NSOCKS_PERTHREAD") or usual.each
    threads = min(threads, costs.most_threads)
    return threads, max(min(each, costs.most // threads), 1)


def _channels_per_ring(topology: Topology, settings: LibrarySettings) -> float:
    """Channels on each ring; a ring leaves a host by each of its NICs."""
    nics = sum(device.kind == "nic" for device in topology.devices.of_host(0)) or 1
    most = settings.count(*MOST_CHANNELS)
    channels = max(CHANNELS_OF_A_RING, (settings.count(*LEAST_CHANNELS) or 0) / nics)
    return channels if most is None else min(channels, max(most / nics, 1.0))

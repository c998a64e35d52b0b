"""How bytes get from one GPU to another: peer to peer, through host memory, or through NICs.

Source of the rules: NVIDIA/nccl 2.30.7 ``src/graph/paths.cc`` (ncclTopoCheckP2p and
ncclTopoCheckGdr): peers talk directly over NVLink, or over PCIe where the platform allows it; a NIC
reads and writes GPU memory when no host bridge stands between them, else bytes pass host memory,
which they cross twice, written and read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfmodel.errors import TopologyError
from perfmodel.topology.model import Topology
from perfmodel.topology.routes import Router

Hop = Literal["nvlink", "pcie", "network", "memory"]

GDR_PATHS = frozenset({"LOC", "PIX", "PXB", "P2C"})
"""Path types over which NCCL lets a NIC reach GPU memory (ncclTopoCheckGdr, NCCL_NET_GDR_C2C=1)."""

NVLINK_PATHS = frozenset({"NVL", "NVB", "C2C"})


@dataclass(frozen=True, slots=True)
class Path:
    """One way through the machine.

    Parameters
    ----------
    arcs : tuple of int
        Directed links crossed (an arc crossed twice stands twice).
    hop : {"nvlink", "pcie", "network", "memory"}
        Decides the library's step latency.
    cap_Bps : float
        Most that this path can carry whatever its links allow.
    staged : bool
        Whether the bytes rest in host memory on the way.
    """

    arcs: tuple[int, ...]
    hop: Hop
    cap_Bps: float = float("inf")
    staged: bool = False


def way_between(router: Router, src: str, dst: str) -> str:
    """Path type between two devices; "DIS" where nothing connects them, as NCCL calls it."""
    try:
        return router.path_type(src, dst)
    except TopologyError:  # a GPU of another tray of an NVLink rack reaches no NIC but its own
        return "DIS"


def local_path(topology: Topology, router: Router, src: str, dst: str) -> Path:
    """Path between two GPUs of one host."""
    if router.path_type(src, dst) in NVLINK_PATHS:
        return Path(router.route(src, dst), "nvlink")
    if topology.gpu_p2p:
        return Path(router.route(src, dst), "pcie")
    cpu = router.nearest_cpu(src)
    up, across = router.route(src, cpu), router.route(cpu, dst)
    cap = topology.staging_Bps or float("inf")
    kinds = {topology.arcs.kinds[arc] for arc in up + across}
    if kinds == {"memory"}:  # processes of one machine: the copy is the link
        return Path(up + across, "memory", cap, staged=True)
    return Path(up + _rest(router, cpu) + across, "pcie", cap, staged=True)


def nic_path(topology: Topology, router: Router, gpu: str, nic: str, *, outward: bool) -> Path:
    """Path between a GPU and a NIC of the same host.

    Where the fabric is routed by rails, a GPU hands its bytes over NVLink to the one beside the
    NIC (NCCL's PXN, 2.12 and later), on the way out.
    """
    ends = (gpu, nic) if outward else (nic, gpu)
    way = way_between(router, gpu, nic)
    if topology.gpudirect_rdma and way in GDR_PATHS:
        return Path(router.route(*ends), "network")
    if outward and router.by_rails and topology.gpudirect_rdma:
        beside = _beside(topology, router, gpu, nic)
        if beside is not None:
            return Path(router.route(gpu, beside) + router.route(beside, nic), "network")
    cpu = router.nearest_cpu(gpu)
    arcs = router.route(ends[0], cpu) + _rest(router, cpu) + router.route(cpu, ends[1])
    return Path(arcs, "network", staged=True)


def _rest(router: Router, cpu: str) -> tuple[int, ...]:
    """Into the memory beside a CPU and out of it: bytes that rest there are written and read."""
    memory = router.memory_of(cpu)
    if memory is None:
        return ()
    return router.route(cpu, memory) + router.route(memory, cpu)


def _beside(topology: Topology, router: Router, gpu: str, nic: str) -> str | None:
    """GPU from which a NIC reads directly and which this one reaches over NVLink."""
    first = int(topology.graph.nodes[gpu]["host"]) * topology.gpus_per_host
    return next(
        (
            peer
            for peer in topology.ranks[first : first + topology.gpus_per_host]
            if way_between(router, gpu, peer) in NVLINK_PATHS
            and way_between(router, peer, nic) in GDR_PATHS
            and router.nearest_nics(peer)[0] == nic
        ),
        None,
    )

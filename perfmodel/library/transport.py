"""How bytes get from one GPU to another: peer to peer, through host memory, or through NICs.

Source of the rules: NVIDIA/nccl 2.30.7 ``src/graph/paths.cc`` (ncclTopoCheckP2p and
ncclTopoCheckGdr): peers talk directly over NVLink, or over PCIe where the platform allows it; a NIC
reads and writes GPU memory when no host bridge stands between them, else bytes pass host memory,
which they cross twice, written and read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from perfmodel.errors import TopologyError
from perfmodel.library.settings import LEVELS, LibrarySettings
from perfmodel.topology.model import Reach, Topology
from perfmodel.topology.routing.router import Router

Hop = Literal["nvlink", "pcie", "network", "memory"]

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
    hop: Hop
    """Decides the library's step latency."""
    cap_Bps: float = float("inf")
    """Most that this path can carry whatever its links allow."""
    staged: bool = False
    """Whether the bytes pass through host memory."""


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
    peer = settings.level("NCCL_P2P_LEVEL")
    reach = Reach(
        peer="LOC" if settings.is_on("NCCL_P2P_DISABLE") else peer,
        nic=settings.level("NCCL_NET_GDR_LEVEL"),
        memory=not settings.is_on("NCCL_SHM_DISABLE"),
        relay=not settings.is_on("NCCL_PXN_DISABLE") and settings.release >= (2, 12),
    )
    verbs = topology.network in {"infiniband", "roce", "omni-path"}
    named = settings.env.get("NCCL_NET", "").lower() == "socket"
    sockets = (named and topology.network != "none") or (
        verbs and settings.is_on("NCCL_IB_DISABLE")
    )
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


def vendor_of(topology: Topology) -> Vendor:
    """Who made the CPUs, as far as the template's sources say; Intel where they do not."""
    text = " ".join(
        f"{key} {sentence}" for key, sentence in topology.sources.items()
        if not key.startswith(("gpu ", "fabric "))
    )  # fmt: skip
    if re.search(r"\bAMD\b|epyc|genoa|infinity-fabric", text, re.IGNORECASE):
        return "amd"
    if "Arm CPU" in text or "Grace" in text:
        return "arm"
    return "power" if "POWER" in text else "intel"


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
    return Path(up + _memory_arcs(router, cpu) + across, "pcie", cap, staged=True)


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


def _memory_arcs(router: Router, cpu: str) -> tuple[int, ...]:
    """Into the memory beside a CPU and out of it: bytes that rest there are written and read."""
    memory = router.memory_of(cpu)
    if memory is None:
        return ()
    return router.route(cpu, memory) + router.route(memory, cpu)


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

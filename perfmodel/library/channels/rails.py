"""A group of ranks host by host, and the paths of NCCL's channels through its hosts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import IntArray
from perfmodel.library.channels.channels import by_host, serving_nics
from perfmodel.library.channels.ring_search import direct_nvlinks, local_rings, rail_rings
from perfmodel.library.lowering.edge_routing import NEAREST
from perfmodel.library.transport import GDR_PATHS, path_type_between
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router

BY_ONE_GPU = frozenset({"hopper", "blackwell"})
"""Generations whose trees meet the network at one GPU of a node where no two share a NIC: NCCL
tries its plain tree there (``src/graph/search.cc``, compute capability 9 and later)."""


@dataclass(frozen=True, slots=True)
class Rails:
    """Channels of a regular group: every host has the same GPUs in it."""

    hosts: IntArray
    """Ranks of the topology. Shape (hosts, size)."""
    chains: IntArray
    """Positions in a host, from the GPU that sends to the network on. Shape (channels, size)."""
    nics: IntArray
    """Numbers of the NICs in their host; `NEAREST` within one host. Shape (channels,)."""
    spread: NDArray[np.bool_]
    """Whether the second GPU of a chain sends to the network too. Shape (channels,)."""

    @property
    def places(self) -> IntArray:
        """Positions of the ranks in their group, host by host; shape (hosts, size)."""
        return np.arange(self.hosts.size).reshape(self.hosts.shape)

    @property
    def trees(self) -> int:
        """Trees that each channel has: two between hosts."""
        return 1 if len(self.hosts) == 1 else 2


def rails_over(
    topology: Topology, router: Router, ranks: IntArray, *, at_most: int | None = None
) -> Rails:
    """Find the channels of a group, `at_most` so many.

    Of an irregular group, in which hosts differ in which GPUs take part, every rank is a host of
    its own: its trees know nothing of nodes.
    """
    hosts = by_host(ranks, topology.gpus_per_host)
    if hosts is None:
        alone = np.zeros((1, 1), dtype=np.int64)
        return Rails(ranks[:, None], alone, np.array([NEAREST]), np.zeros(1, dtype=np.bool_))
    gpus = [topology.ranks[rank] for rank in hosts[0].tolist()]
    router = router.healthy
    if len(hosts) == 1:
        chains = np.array(local_rings(router, gpus)[:at_most], dtype=np.int64)
        nics = np.full(len(chains), NEAREST)
        return Rails(hosts, chains, nics, np.zeros(len(chains), dtype=np.bool_))
    names = serving_nics(router, gpus)
    rings = [even for even, _ in rail_rings(router, gpus, names)[:at_most]]
    routes = [_chain(router, gpus, ring.order, names[ring.nic_in or 0]) for ring in rings]
    return Rails(
        hosts,
        np.array([chain for chain, _ in routes], dtype=np.int64),
        np.array([router.nic_number(names[ring.nic_in or 0]) for ring in rings]),
        np.array([spread for _, spread in routes]),
    )


def _chain(
    router: Router, gpus: list[str], order: tuple[int, ...], nic: str
) -> tuple[tuple[int, ...], bool]:
    """Chain of a tree through a host, and whether its second GPU shares the NIC's traffic."""
    if len(order) == 1:
        return order, False
    first, *others = order
    near = [gpu for gpu in others if path_type_between(router, gpus[gpu], nic) in GDR_PATHS]
    if near and direct_nvlinks(router.topology, gpus) is None:
        others = [near[0], *(gpu for gpu in others if gpu != near[0])]
    shares = bool(near) and others[0] == near[0]
    reached = path_type_between(router, gpus[others[0]], nic) != "DIS"
    spread = shares or (router.topology.gpu.generation not in BY_ONE_GPU and reached)
    return (first, *others), spread

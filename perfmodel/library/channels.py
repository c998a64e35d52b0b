"""Parallel rings over a group of ranks: in which order each visits them, on which links."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import IntArray, distinct
from perfmodel.library.compute_capability import capability_of
from perfmodel.library.lowering.edge_routing import NEAREST, route_edges
from perfmodel.library.lowering.lowered import Edges
from perfmodel.library.ring_search import direct_nvlinks, local_rings, rail_rings
from perfmodel.library.transport import GDR_PATHS, path_type_between
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router


@dataclass(frozen=True, slots=True)
class Rings:
    """Parallel rings over a group of ranks."""

    orders: IntArray
    """Ranks of the topology, each ring in its own order. Shape (rings, ranks)."""
    edges: Edges
    """Ring after ring: edge (ring, position) goes from that position to the next."""


def rings_over(
    topology: Topology,
    router: Router,
    ranks: range | tuple[int, ...],
    *,
    at_most: int | None = None,
) -> Rings:
    """Lay rings over a group of ranks, `at_most` so many.

    Every host must contribute the same local GPUs for several rings (rails) to be used; an
    irregular group gets a single ring in rank order. Where the machine has lost links or NICs the
    rings are those of the machine before; their edges are routed around the lost parts.
    """
    hosts = by_host(np.asarray(ranks, dtype=np.int64), topology.gpus_per_host)
    if hosts is None:
        members = np.asarray(ranks, dtype=np.int64)
        orders = members[np.concatenate(group_by_host(members // topology.gpus_per_host))][None, :]
        out = into = np.full(orders.shape, NEAREST)
    else:
        orders, out, into = _ring_orders(topology, router.healthy, hosts, at_most)
    after = np.roll(orders, -1, axis=1)
    ends = (orders.ravel(), after.ravel(), out.ravel(), np.roll(into, -1, axis=1).ravel())
    return Rings(orders, route_edges(topology, router, *ends))


def by_host(ranks: IntArray, size: int) -> IntArray | None:
    """Ranks as one row per host, in order; None where hosts differ in which GPUs take part."""
    per_host = int(np.count_nonzero(ranks // size == ranks[0] // size))
    if len(ranks) % per_host:
        return None
    rows = ranks.reshape(-1, per_host)
    own = rows // size == (rows // size)[:, :1]
    same_gpus = rows % size == rows[0] % size
    different = len(distinct(rows[:, 0] // size)) == len(rows)
    return rows if own.all() and same_gpus.all() and different else None


def group_by_host(hosts: IntArray) -> list[IntArray]:
    """Positions of the ranks of each host, in the order in which the hosts come."""
    order = np.argsort(hosts, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(hosts[order], prepend=-1))[1:])
    return sorted(groups, key=lambda group: int(group[0]))


def _ring_orders(
    topology: Topology, router: Router, hosts: IntArray, at_most: int | None
) -> tuple[IntArray, IntArray, IntArray]:
    """Orders of the rings, and the NICs by which they leave and enter; shape (rings, ranks).

    Even and odd hosts may be passed in opposite directions.
    """
    gpus = [topology.ranks[rank] for rank in hosts[0].tolist()]
    if len(hosts) == 1:
        orders = np.array(local_rings(router, gpus)[:at_most], dtype=np.int64)
        return hosts[0][orders], np.full(orders.shape, NEAREST), np.full(orders.shape, NEAREST)
    nics = serving_nics(router, gpus)
    rings = rail_rings(router, gpus, nics)[:at_most]
    orders, out, into = (np.full((len(rings), *hosts.shape), NEAREST) for _ in range(3))
    numbers = [router.nic_number(nic) for nic in nics]
    for ring, host_rings in enumerate(rings):
        for odd, host_ring in enumerate(host_rings):
            orders[ring, odd::2] = hosts[odd::2][:, host_ring.order]
            into[ring, odd::2, 0] = numbers[host_ring.nic_in or 0]
            out[ring, odd::2, -1] = numbers[host_ring.nic_out or 0]
    flat = (len(rings), hosts.size)
    return orders.reshape(flat), out.reshape(flat), into.reshape(flat)


def serving_nics(router: Router, gpus: list[str]) -> list[str]:
    """NICs of one host that serve these GPUs, by their number.

    Each GPU uses its nearest one. Where more NICs are equally near than GPUs that share them, its
    channels take turns over several (NVIDIA/nccl 2.30.7 ``src/graph/topo.cc``,
    ncclTopoGetLocalNet).
    """
    near = {gpu: _equally_near(router, gpu) for gpu in gpus}
    sharing = Counter(near.values())
    serving: set[str] = set()
    for nics, gpu in ((near[gpu], gpu) for gpu in gpus):
        each = -(-len(nics) // sharing[nics])
        serving |= {router.nearest_nics(gpu)[0]} if each == 1 else set(nics)
    return sorted(serving, key=router.nic_number)


def _equally_near(router: Router, gpu: str) -> tuple[str, ...]:
    """NICs that are as near to a GPU as its nearest one; only those behind its own switch."""
    nics = router.nearest_nics(gpu)
    best = path_type_between(router, gpu, nics[0])
    if best not in GDR_PATHS:
        return (nics[0],)
    return tuple(sorted(nic for nic in nics if path_type_between(router, gpu, nic) == best))


BY_ONE_GPU_FROM = 90
"""Compute capability from which on trees meet the network at one GPU of a node where no two share a
NIC: NCCL tries its plain tree there (``src/graph/search.cc``)."""


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
    spread = shares or (capability_of(router.topology) < BY_ONE_GPU_FROM and reached)
    return (first, *others), spread

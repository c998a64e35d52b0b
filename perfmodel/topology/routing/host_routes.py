"""Best paths inside a host: searched once for all healthy hosts, and for each faulty one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from perfmodel.topology.fabric.like_hosts import devices_of
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.clos import Ints
from perfmodel.topology.routing.shortest_paths import (
    PATH_TYPES,
    HostArc,
    Path,
    best_paths,
    shortest_paths,
)

_RANK = {name: rank for rank, name in enumerate(PATH_TYPES)}
_WHOLE = -1


class HostRoutes:
    """Best paths between the devices of one host, by their local names.

    Preferences are those of the machine as it was built (`Topology.healthy`): a link that got
    slower keeps its traffic. No path uses a dead link, and no route a NIC without a cable.
    """

    def __init__(self, topology: Topology) -> None:
        built = topology.healthy or topology
        self.kinds: Mapping[str, str] = {
            device.local: device.kind for device in devices_of(topology.devices, 0)
        }
        nccl = topology.node_graph.graph.get("routing", "nccl") == "nccl"
        self._find = best_paths if nccl else shortest_paths
        self._arcs: dict[str, list[HostArc]] = {}
        arcs = built.arcs
        for index in range(topology.host_arcs):
            src, dst = (topology.devices[name].local for name in arcs.names[index])
            arc = HostArc(index, dst, arcs.kinds[index], float(arcs.bandwidth_Bps[index]))
            self._arcs.setdefault(src, []).append(arc)
        self._dead = _dead_arcs_by_host(topology)
        self._cut = _cut_nics_by_host(topology)
        self._paths: dict[tuple[int, str], dict[str, Path]] = {}
        self._nics: dict[int, dict[str, tuple[str, ...]]] = {}

    def variants(self, hosts: int) -> Ints:
        """Variant of each host: those of one have the same paths; -1 for healthy hosts."""
        variant_of = np.full(hosts, _WHOLE, dtype=np.int64)
        odd = sorted(self._dead.keys() | self._cut.keys())
        variant_of[odd] = odd
        return variant_of

    def memory_of(self, cpu: str) -> str | None:
        """Memory beside a CPU, if there is one."""
        neighbours = (arc.dst for arc in self._arcs.get(cpu, ()))
        return next((name for name in neighbours if self.kinds[name] == "memory"), None)

    def paths(self, local: str, host: int) -> Mapping[str, Path]:
        """Best path to each device that this one reaches."""
        key = (host if host in self._dead else _WHOLE, local)
        if key not in self._paths:
            dead = self._dead.get(key[0], ())
            self._paths[key] = self._find(local, self.kinds, _living_arcs(self._arcs, dead))
        return self._paths[key]

    def nics(self, local: str, host: int) -> tuple[str, ...]:
        """NICs with a cable that a device reaches, best first; GPUs that share them use all."""
        ranking = self._nics.get(host if host in self._dead else _WHOLE)
        if ranking is None:
            ranking = self._rank_nics(host)
            self._nics[host if host in self._dead else _WHOLE] = ranking
        ranked = ranking.get(local)
        if ranked is None:
            ranked = tuple(name for group in self._nic_groups(local, host) for name in group)
        cut = self._cut.get(host, ())
        return tuple(name for name in ranked if name not in cut)

    def nearest_cpu(self, local: str, host: int) -> str | None:
        """CPU (NUMA domain) with the best path to a device, if any."""
        reached = self.paths(local, host)
        cpus = [name for name, kind in self.kinds.items() if kind == "cpu" and name in reached]
        return min(cpus, key=lambda name: _cost(reached[name])) if cpus else None

    def _nic_groups(self, local: str, host: int) -> list[list[str]]:
        """NICs that a device reaches, best first, equally good ones together."""
        reached = self.paths(local, host)
        groups: dict[tuple[int, float], list[str]] = {}
        for name, kind in self.kinds.items():
            if kind == "nic" and name in reached:
                path = reached[name]
                groups.setdefault((_RANK[path.type], -path.bandwidth_Bps), []).append(name)
        return [groups[key] for key in sorted(groups)]

    def _rank_nics(self, host: int) -> dict[str, tuple[str, ...]]:
        gpus = [name for name, kind in self.kinds.items() if kind == "gpu"]
        grouped = {gpu: self._nic_groups(gpu, host) for gpu in gpus}
        sharers: dict[tuple[str, ...], list[str]] = {}
        for gpu, groups in grouped.items():
            if groups:
                sharers.setdefault(tuple(groups[0]), []).append(gpu)
        ranked: dict[str, tuple[str, ...]] = {}
        for nics, users in sharers.items():
            for position, gpu in enumerate(users):
                start = position * max(1, len(nics) // len(users)) % len(nics)
                rest = [name for group in grouped[gpu][1:] for name in group]
                ranked[gpu] = (*nics[start:], *nics[:start], *rest)
        return ranked


def _cost(path: Path) -> tuple[int, float, int]:
    return _RANK[path.type], -path.bandwidth_Bps, len(path.arcs)


def _living_arcs(
    arcs: Mapping[str, list[HostArc]], dead: Collection[int]
) -> Mapping[str, list[HostArc]]:
    if not dead:
        return arcs
    return {src: [arc for arc in out if arc.index not in dead] for src, out in arcs.items()}


def _dead_arcs_by_host(topology: Topology) -> dict[int, set[int]]:
    """Dead arcs of each host that has any, numbered as in the first host."""
    by_host: dict[int, set[int]] = {}
    for arc in topology.dead:
        if arc < topology.first_cable:
            host, local = divmod(arc, topology.host_arcs)
            by_host.setdefault(host, set()).add(local)
    return by_host


def _cut_nics_by_host(topology: Topology) -> dict[int, set[str]]:
    """NICs of each host that cannot send to the fabric any more, or not receive from it."""
    by_host: dict[int, set[str]] = {}
    first = topology.first_cable
    ends = {end for arc in topology.dead if arc >= first for end in topology.arcs.names[arc]}
    for name in ends:
        device = topology.devices[name]
        if device.host < 0:
            continue
        directions = [
            {arc for cables in adjacency[name].values() for arc in cables}
            for adjacency in (topology.links, topology.links_into)
        ]
        if any({arc for arc in arcs if arc >= first} <= topology.dead for arcs in directions):
            by_host.setdefault(device.host, set()).add(device.local)
    return by_host

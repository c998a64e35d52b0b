"""Routes through a topology: inside a host as NCCL would choose, between hosts by the fabric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import chain

import numpy as np

from perfmodel.errors import TopologyError, allowed_names
from perfmodel.memo import grouped, once
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.clos import Ints
from perfmodel.topology.routing.fabric_routes import FabricRoutes
from perfmodel.topology.routing.shortest_paths import (
    PATH_TYPES,
    HostArc,
    Path,
    best_paths,
)

_WHOLE = -1
"""In place of the number of a host that no fault is in."""


class HostRoutes:
    """Best paths between the devices of one host, by their local names.

    Preferences are those of the machine as it was built (`Topology.healthy`): a link that got
    slower keeps its traffic. No path uses a dead link, and no route a NIC without a cable.
    """

    def __init__(self, topology: Topology) -> None:
        built = topology.healthy or topology
        self.kinds: Mapping[str, str] = {
            device.local: device.kind for device in topology.devices.of_host(0)
        }
        self._forwarding = topology.node_graph.graph.get("routing", "nccl") != "nccl"
        arcs, devices = built.arcs, topology.devices
        self._arcs = grouped(
            (
                devices[src].local,
                HostArc(at, devices[dst].local, arcs.kinds[at], float(arcs.bandwidth_Bps[at])),
            )
            for at, (src, dst) in enumerate(arcs.names[: topology.host_arcs])
        )
        dead = (arc for arc in topology.dead if arc < topology.first_cable)
        self._dead = grouped(divmod(arc, topology.host_arcs) for arc in dead)
        """Dead arcs of each host that has any, numbered as in the first host."""
        self._cut = _cut_nics_by_host(topology)
        self._paths: dict[tuple[int, str], dict[str, Path]] = {}
        self._nics: dict[int, dict[str, tuple[str, ...]]] = {}
        self.variants = np.full(topology.hosts, _WHOLE, dtype=np.int64)
        """Variant of each host: those of one have the same paths; -1 for healthy hosts."""
        odd = sorted(self._dead.keys() | self._cut.keys())
        self.variants[odd] = odd

    def _like(self, host: int) -> int:
        """The host whose paths inside are those of this one."""
        return host if host in self._dead else _WHOLE

    def memory_of(self, cpu: str) -> str | None:
        """Memory beside a CPU, if there is one."""
        neighbours = (arc.dst for arc in self._arcs.get(cpu, ()))
        return next((name for name in neighbours if self.kinds[name] == "memory"), None)

    def paths(self, local: str, host: int) -> Mapping[str, Path]:
        """Best path to each device that this one reaches."""
        key = (self._like(host), local)
        if key not in self._paths:
            dead = self._dead.get(host, ())
            living = {
                src: [arc for arc in out if arc.index not in dead] if dead else out
                for src, out in self._arcs.items()
            }
            self._paths[key] = best_paths(local, self.kinds, living, forwarding=self._forwarding)
        return self._paths[key]

    def nics(self, local: str, host: int) -> tuple[str, ...]:
        """NICs with a cable that a device reaches, best first; GPUs that share them use all."""
        ranks = once(self._nics, self._like(host), lambda: self._rank_nics(host))
        ranked: Iterable[str] = ranks.get(local) or chain.from_iterable(
            self._nic_groups(local, host)
        )
        cut = self._cut.get(host, ())
        return tuple(name for name in ranked if name not in cut)

    def nearest_cpu(self, local: str, host: int) -> str | None:
        """CPU (NUMA domain) with the best path to a device, if any."""
        reached = self.paths(local, host)
        cpus = [name for name, kind in self.kinds.items() if kind == "cpu" and name in reached]
        return min(cpus, key=lambda name: reached[name].cost, default=None)

    def _nic_groups(self, local: str, host: int) -> list[list[str]]:
        """NICs that a device reaches, best first, equally good ones together."""
        reached = self.paths(local, host)
        nics = (name for name, kind in self.kinds.items() if kind == "nic" and name in reached)
        groups = grouped((reached[name].cost[:2], name) for name in nics)
        return [groups[key] for key in sorted(groups)]

    def _rank_nics(self, host: int) -> dict[str, tuple[str, ...]]:
        near = {
            name: self._nic_groups(name, host) for name, kind in self.kinds.items() if kind == "gpu"
        }
        sharers = grouped((tuple(groups[0]), gpu) for gpu, groups in near.items() if groups)
        ranked: dict[str, tuple[str, ...]] = {}
        for nics, users in sharers.items():
            for position, gpu in enumerate(users):
                start = position * max(1, len(nics) // len(users)) % len(nics)
                ranked[gpu] = (*nics[start:], *nics[:start], *chain.from_iterable(near[gpu][1:]))
        return ranked


def _cut_nics_by_host(topology: Topology) -> dict[int, set[str]]:
    """NICs of each host that cannot send to the fabric any more, or not receive from it."""
    by_host: dict[int, set[str]] = {}
    first = topology.first_cable
    for name in {end for arc in topology.dead if arc >= first for end in topology.arcs.names[arc]}:
        device = topology.devices[name]
        directions = [
            {arc for cables in adjacency[name].values() for arc in cables if arc >= first}
            for adjacency in (topology.links, topology.links_into)
        ]
        if device.host >= 0 and any(cables <= topology.dead for cables in directions):
            by_host.setdefault(device.host, set()).add(device.local)
    return by_host


class Router(FabricRoutes):
    """Finds routes and caches them.

    A route inside one host is the same in all of them, shifted by ``host_arcs``; it is searched
    once. Between hosts, equal-cost paths and parallel cables are chosen by a stable hash of source,
    destination and flow number, so that a flow always takes the same path and flows spread. Nothing
    is routed over what the topology has lost.
    """

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology)
        self._host_routes = HostRoutes(topology)
        self._routes: dict[tuple[str, str, int], tuple[int, ...]] = {}

    @cached_property
    def healthy(self) -> Router:
        """Router of the machine before any change; itself where there was none."""
        before = self.topology.healthy
        return self if before is None else Router(before)

    # ------------------------------------------------------------ one flow

    def route(self, src: str, dst: str, flow: int = 0) -> tuple[int, ...]:
        """Return the indices of the arcs from one device to another, in order.

        `src` and `dst`: node names; between hosts, devices other than NICs go by their nearest
        NICs. `flow`: number of the flow between the two; different flows may take different paths.

        Raises `TopologyError`: nothing connects them (any more; the message says what was lost), or
        no such device.
        """
        key = (src, dst, flow)
        if key not in self._routes:
            self._routes[key] = self._find(src, dst, flow)
        return self._routes[key]

    def path_type(self, src: str, dst: str) -> str:
        """Path type between two devices, one of `shortest_paths.PATH_TYPES`.

        Raises `TopologyError`: both stand in one host and nothing connects them, or no such device.
        """
        host, local = self._locate(src)
        other_host, other = self._locate(dst)
        if host != other_host or host < 0:
            return "LOC" if src == dst else "NET"
        return self._host_path(local, other, host).type

    def nearest_nics(self, gpu: str) -> tuple[str, ...]:
        """NICs of the GPU's host, the best path first.

        Among equally good ones the first is chosen so that GPUs that share them use all of them.
        Empty when the host has none (left) that this device reaches.
        """
        host, local = self._locate(gpu)
        return tuple(f"n{host}/{name}" for name in self._host_routes.nics(local, host))

    def nearest_cpu(self, device: str) -> str:
        """CPU (NUMA domain) of the same host with the best path to a device.

        Raises `TopologyError`: no CPU is connected to it.
        """
        host, local = self._locate(device)
        cpu = self._host_routes.nearest_cpu(local, host)
        if cpu is None:
            raise TopologyError(f"{device}: no CPU is connected to it")
        return f"n{host}/{cpu}"

    def memory_of(self, cpu: str) -> str | None:
        """Memory beside a CPU, if the template has it."""
        host, local = self._locate(cpu)
        memory = self._host_routes.memory_of(local)
        return None if memory is None else f"n{host}/{memory}"

    # ------------------------------------------------------------ many at once

    @property
    def variants(self) -> Ints:
        """Variant of each host: hosts of one have the same paths; -1 for those without faults."""
        return self._host_routes.variants

    @property
    def by_rails(self) -> bool:
        """Whether the fabric is routed by rails."""
        tiers = self.topology.tiers
        return tiers is not None and tiers.by_place

    def nic_name(self, host: int, number: int) -> str:
        """Name of a NIC by its number in its host."""
        return self.name_of(int(self.ports(np.array(host), np.array(number))))

    def unreachable(self, src: str, dst: str, why: str) -> TopologyError:
        """What to raise where two devices cannot reach each other; names what was lost."""
        name, lost = self.topology.name, _nearest_first(self.topology.lost, src, dst)
        if not lost:
            return TopologyError(f"{name}: {why}")
        names = ", ".join(lost[:4]) + (f" and {len(lost) - 4} more" if len(lost) > 4 else "")
        loss = f"{names} {'was' if len(lost) == 1 else 'were'} lost"
        return TopologyError(f"{name}: {dst} is unreachable from {src} since {loss}: {why}")

    # ------------------------------------------------------------ search

    def _host_path(self, src: str, dst: str, host: int) -> Path:
        path = self._host_routes.paths(src, host).get(dst)
        if path is None:
            ends = f"n{host}/{src}", f"n{host}/{dst}"
            raise self.unreachable(*ends, "nothing connects {} to {}".format(*ends))
        return path

    def _find(self, src: str, dst: str, flow: int) -> tuple[int, ...]:
        host, local = self._locate(src)
        other_host, other = self._locate(dst)
        if src == dst:
            return ()
        if host == other_host and host >= 0:
            offset = host * self.topology.host_arcs
            return tuple(offset + arc for arc in self._host_path(local, other, host).arcs)
        into = self._fabric_end(dst, src, dst)
        out = self._fabric_end(src, src, dst, into)
        head = self._way_out(src, out) if out != src else ()
        tail = self.route(into, dst) if into != dst else ()
        try:
            across = self.route_between(out, into, flow)
        except TopologyError as error:
            raise self.unreachable(src, dst, str(error)) from None
        return head + across + tail

    def _fabric_end(self, name: str, src: str, dst: str, other: str | None = None) -> str:
        """Device by which another reaches the fabric: itself, or its nearest NIC.

        `other`: the NIC that it sends to, to which cables lead from some NICs only.
        """
        if self.has_cable(name):
            return name
        nics = self.nearest_nics(name)
        if not nics:
            raise self.unreachable(src, dst, f"{name} reaches no NIC")
        if other is None or self.parts is None:
            return nics[0]
        joined = [nic for nic in nics if self.joined(nic, other)]
        rail = next((nic for nic in joined if self._hands_over(name, nic)), None)
        if rail is None:
            raise self.unreachable(src, dst, no_rail(name, nics[0], other))
        return rail

    def _hands_over(self, name: str, nic: str) -> bool:
        """Whether a device's bytes leave by a NIC: of GPUs by near ones, or over NVLink."""
        is_gpu = self.topology.devices[name].kind == "gpu"
        return (
            not is_gpu or self.path_type(name, nic) in _NEAR or self._relay(name, nic) is not None
        )

    def _way_out(self, src: str, nic: str) -> tuple[int, ...]:
        """Route from a device to a NIC; to one of another rail over the GPU beside it."""
        own = self.parts is None or nic == self.nearest_nics(src)[0]
        relay = None if own else self._relay(src, nic)
        return (() if relay is None else self.route(src, relay)) + self.route(relay or src, nic)

    def _relay(self, gpu: str, nic: str) -> str | None:
        """GPU beside a NIC, to which NVLinks lead from another one."""
        first = int(self.topology.devices[gpu].host) * self.topology.gpus_per_host
        peers = self.topology.ranks[first : first + self.topology.gpus_per_host]
        beside = (peer for peer in peers if self.nearest_nics(peer)[:1] == (nic,))
        return next((peer for peer in beside if self.path_type(gpu, peer) in _NVLINK), None)

    # ------------------------------------------------------------ names

    def _locate(self, name: str) -> tuple[int, str]:
        try:
            device = self.topology.devices[name]
        except KeyError:
            candidates = (
                node for node in self.topology.devices if node.startswith(("n0/", "fabric/"))
            )
            allowed = allowed_names(candidates, name, limit=12)
            raise TopologyError(f"{self.topology.name}: no device {name!r}; {allowed}") from None
        return device.host, device.local


def no_rail(src: str, nic: str, other: str) -> str:
    """Say that two devices on different rails have no way to each other."""
    return (
        f"no cable leads from {nic} to {other}, and no NVLink from {src} to a GPU beside a NIC"
        " from which one does (NCCL's PXN): rails are joined inside hosts only"
    )


_NVLINK = ("LOC", "NVL", "NVB")
_NEAR = PATH_TYPES[: PATH_TYPES.index("PXB") + 1]


def _nearest_first(lost: tuple[str, ...], src: str, dst: str) -> list[str]:
    """What was lost, that of the two ends' own hosts first."""
    heads = tuple(f"{name.partition('/')[0]}/" for name in (src, dst))
    return sorted(lost, key=lambda name: not name.startswith(heads))

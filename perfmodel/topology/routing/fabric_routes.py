"""Routes between hosts: by arithmetic where the fabric is regular, by search where it is not.

A fabric of levels is routed by `clos`, one whose routing says which switches a flow passes by
`switch_paths`, and any other by `ecmp`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import TypeVar

import numpy as np

from perfmodel.arrays import each_of
from perfmodel.errors import TopologyError
from perfmodel.garbage import no_collections
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.clos import Ints, Tiers
from perfmodel.topology.routing.switch_paths import NO_CABLE, NO_HOP, CableRoutes, switch_paths

_T = TypeVar("_T")
_Neighbours = dict[str, dict[str, list[int]]]
"""Arcs by device and by neighbour; parallel cables stand in one list."""
_Levels = list[dict[str, None]]
"""Switches by their distance from a start; dicts keep a stable order."""


class SearchedRoutes:
    """Routes from NIC to NIC (or switch) over the fabric of a topology.

    A breadth-first search from both ends, level by level, until they meet: in a leaf-spine network
    it visits the spines of two leaves only, however many leaves there are. Levels are cached per
    leaf. Of all switches where the searches meet, and of all cables to them, a hash of source,
    destination and flow picks one.
    """

    def __init__(self, topology: Topology) -> None:
        self._ends = topology.arcs.names
        self._leaving: _Neighbours = {}
        self._entering: _Neighbours = {}
        with no_collections(all_stays=True):
            for index in range(topology.first_cable, len(self._ends)):
                if index in topology.dead:
                    continue
                src, dst = self._ends[index]
                self._leaving.setdefault(src, {}).setdefault(dst, []).append(index)
                self._entering.setdefault(dst, {}).setdefault(src, []).append(index)
        devices = topology.devices
        self._switches = {
            name for name in self._leaving.keys() | self._entering.keys() if devices[name].host < 0
        }
        self._forward: dict[tuple[str, ...], _Levels] = {}
        self._backward: dict[tuple[str, ...], _Levels] = {}

    def __contains__(self, name: str) -> bool:
        """Whether a cable of the fabric ends at this device."""
        return name in self._leaving or name in self._entering

    def parts(self) -> dict[str, int]:
        """Number of the part of the fabric to which each device belongs that a cable reaches."""
        import networkx as nx

        joined = nx.connected_components(
            nx.Graph((src, dst) for src, others in self._leaving.items() for dst in others)
        )
        return {name: part for part, names in enumerate(joined) for name in names}

    def route(self, src: str, dst: str, flow: int) -> tuple[int, ...]:
        """Return the indices of the arcs from one device of the fabric to another.

        Raises `TopologyError`: nothing connects them.
        """
        if dst in self._leaving.get(src, {}):
            return (_pick(self._leaving[src][dst], _hash(src, dst, flow))[0],)
        starts, targets = (
            self._switches_at(src, self._leaving),
            self._switches_at(dst, self._entering),
        )
        forward = self._forward.setdefault(starts, [dict.fromkeys(starts)])
        backward = self._backward.setdefault(targets, [dict.fromkeys(targets)])
        meeting, ahead, behind = self._meet(forward, backward, src, dst)
        turn, choice = _pick(meeting, _hash(src, dst, flow))
        nodes = [dict.fromkeys([src])] if src not in self._switches else []
        up, choice = self._arcs_to_end(turn, [*nodes, *forward[:ahead]], self._entering, choice)
        nodes = [dict.fromkeys([dst])] if dst not in self._switches else []
        down, _ = self._arcs_to_end(turn, [*nodes, *backward[:behind]], self._leaving, choice)
        return (*reversed(up), *down)

    def _switches_at(self, name: str, neighbours: _Neighbours) -> tuple[str, ...]:
        if name in self._switches:
            return (name,)
        return tuple(n for n in neighbours.get(name, ()) if n in self._switches)

    def _meet(
        self, forward: _Levels, backward: _Levels, src: str, dst: str
    ) -> tuple[list[str], int, int]:
        """Switches halfway on the shortest paths, and their distances from the two ends."""
        ahead = behind = 0
        while True:
            meeting = _common(forward[ahead], backward[behind])
            if meeting:
                return meeting, ahead, behind
            if not forward[ahead] or not backward[behind]:
                raise TopologyError(f"no cable leads from {src} to {dst}")
            if len(forward[ahead]) <= len(backward[behind]):
                ahead += 1
                self._extend(forward, ahead, self._leaving)
            else:
                behind += 1
                self._extend(backward, behind, self._entering)

    def _extend(self, levels: _Levels, depth: int, neighbours: _Neighbours) -> None:
        if depth < len(levels):
            return
        reached = set().union(*levels)
        levels.append(
            {
                name: None
                for switch in levels[-1]
                for name in neighbours.get(switch, ())
                if name in self._switches and name not in reached
            }
        )

    @staticmethod
    def _arcs_to_end(
        turn: str, levels: Iterable[dict[str, None]], neighbours: _Neighbours, choice: int
    ) -> tuple[list[int], int]:
        """Arcs from the meeting switch back to an end, one level at a time, nearest arc first."""
        arcs: list[int] = []
        switch = turn
        for level in reversed(list(levels)):
            cables = neighbours[switch]
            (switch, arc), choice = _pick(
                [(name, arc) for name in _common(level, cables) for arc in cables[name]], choice
            )
            arcs.append(arc)
        return arcs, choice


def _common(some: Collection[str], others: Collection[str]) -> list[str]:
    near, far = (some, others) if len(some) <= len(others) else (others, some)
    return [name for name in near if name in far]


def _hash(src: str, dst: str, flow: int) -> int:
    """128 bits; each choice along the route uses up some, so that levels choose independently."""
    return int.from_bytes(blake2b(f"{src}>{dst}#{flow}".encode(), digest_size=16).digest(), "big")


def _pick(options: Sequence[_T], choice: int) -> tuple[_T, int]:
    choice, position = divmod(choice, len(options))
    return options[position], choice


_KINDS = (0, 1, 2)


class NoRoute(TopologyError):
    """Nothing connects two NICs; `flow` is the position of the flow among those asked for."""

    def __init__(self, message: str, flow: int) -> None:
        super().__init__(message)
        self.flow = flow


class FabricRoutes:
    """Routes from NIC to NIC (or switch) over the fabric of a topology.

    A hash of source, destination and flow picks one of all shortest paths (equal-cost multi-path
    routing), or the source's port does where the fabric is routed by rails, or those that the
    fabric's routing names. A flow whose path has failed is hashed over the shortest paths that
    remain; all others keep theirs.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        tiers = topology.tiers
        fits = tiers is not None and topology.first_cable + tiers.arcs == len(topology.arcs)
        self._tiers = tiers if fits else None
        self._names = [d.local for d in topology.devices.of_host(0) if d.kind == "nic"]
        self._port = {local: at for at, local in enumerate(self._names)}
        self._dead = np.zeros(len(topology.arcs), dtype=np.bool_)
        self._dead[list(topology.dead)] = True

    def has_cable(self, name: str) -> bool:
        """Whether a cable of the fabric ends at this device."""
        if self._tiers is None and self._over_cables is None:
            return name in self._search
        device = self.topology.devices[name]
        return device.host < 0 or device.local in self._port

    def route_between(self, src: str, dst: str, flow: int) -> tuple[int, ...]:
        """Return the indices of the arcs from one device of the fabric to another.

        Raises `TopologyError`: nothing connects them.
        """
        ports = [self._port_of(name) for name in (src, dst)]
        if None in ports or (self._tiers is None and self._over_cables is None):
            return self._search.route(src, dst, flow)
        a, b = (np.array([port]) for port in ports)
        _, arcs = self.across(a, b, np.array([flow % (1 << 62)]))
        return tuple(arcs.tolist())

    def joined(self, src: str, dst: str) -> bool:
        """Whether cables lead from one NIC to another."""
        parts, out, into = self.parts, self._port_of(src), self._port_of(dst)
        return parts is None or out is None or into is None or bool(parts[out] == parts[into])

    def across(self, src: Ints, dst: Ints, flow: Ints) -> tuple[Ints, Ints]:
        """Routes of many flows between ports at once; arrays of shape (flows,).

        A port is the host times the NICs of a host plus the NIC's number in its host. Returns the
        number of arcs of each route, and the arcs, one route after the other.

        Raises `NoRoute`: nothing connects two of them.
        """
        tiers = self._tiers
        if tiers is None:
            return self._by_switches(src, dst, flow)
        kinds = tiers.kinds(src, dst)
        if tiers.pods_apart and (kinds == 2).any():
            at = int(np.argmax(kinds == 2))
            ends = self.name_of(int(src[at])), self.name_of(int(dst[at]))
            raise NoRoute("no cable leads from {} to {}".format(*ends), at)
        lengths = 2 * kinds + 2
        pointers = np.cumsum(lengths) - lengths
        arcs = np.empty(int(lengths.sum()), dtype=np.int64)
        for kind in _KINDS:
            members = np.flatnonzero(kinds == kind)
            if not len(members):
                continue
            a, b, f = src[members], dst[members], flow[members]
            rows = tiers.arcs_of(a, b, tiers.choose(a, b, f, kind), kind)
            for at in np.flatnonzero(self._dead[rows].any(axis=1)).tolist():
                row = slice(at, at + 1)
                detour = self._detour(tiers, a[row], b[row], f[row], kind)
                if detour is None:
                    ends = self.name_of(int(a[at])), self.name_of(int(b[at]))
                    raise NoRoute("no way is left from {} to {}".format(*ends), int(members[at]))
                rows[at] = detour
            arcs[pointers[members][:, None] + np.arange(rows.shape[1])] = rows
        return lengths, arcs

    def _detour(self, tiers: Tiers, src: Ints, dst: Ints, flow: Ints, kind: int) -> Ints | None:
        """One of the shortest paths that remain; None if all have failed."""
        every = tiers.arcs_of(src, dst, np.arange(tiers.paths(kind)), kind)
        living = every[~self._dead[every].any(axis=1)]
        if not len(living):
            return None
        chosen: Ints = living[int(tiers.choose(src, dst, flow, kind)[0]) % len(living)]
        return chosen

    # ------------------------------------------------------------ names and search

    @cached_property
    def _over_cables(self) -> CableRoutes | None:
        """Routes along the switches that the fabric's routing names; None where it names none."""
        fabric, first = self.topology.fabric_graph, self.topology.first_cable
        paths = None if fabric is None or self._tiers is not None else switch_paths(fabric)
        if paths is None:
            return None
        switches = [name for name, device in self.topology.devices.items() if device.host < 0]
        return CableRoutes(
            paths,
            {name: at for at, name in enumerate(switches)},
            {self.name_of(port): port for port in range(self.topology.hosts * len(self._port))},
            self.topology.arcs.names[first:],
            first,
        )

    @cached_property
    def parts(self) -> Ints | None:
        """Part of the fabric into which each port is plugged; None where cables join them all."""
        if self._tiers is not None:
            return self._tiers.leaf_of // self._tiers.pod if self._tiers.pods_apart else None
        if self.topology.hosts == 1 or not self._port or self._over_cables is not None:
            return None
        part_of = self._search.parts()
        ports = range(self.topology.hosts * len(self._port))
        parts = np.array([part_of.get(self.name_of(port), -1 - port) for port in ports], np.int64)
        return parts if (parts != parts[0]).any() else None

    @cached_property
    def _search(self) -> SearchedRoutes:
        return SearchedRoutes(self.topology)

    def nic_number(self, nic: str) -> int:
        """Number of a NIC in its host."""
        return self._port[self.topology.devices[nic].local]

    def nic_numbers(self, cables: Ints, end: int) -> Ints:
        """Numbers of the NICs that arcs of the fabric leave, with `end` 0, or enter, with 1."""
        if self._tiers is not None:
            return (cables - self._tiers.first) // 2 % self._tiers.nics
        names = self.topology.arcs.names
        return np.array([self.nic_number(names[arc][end]) for arc in cables.tolist()], np.int64)

    def name_of(self, port: int) -> str:
        """Name of the NIC with a port."""
        host, nic = divmod(port, len(self._port))
        return f"n{host}/{self._names[nic]}"

    def ports(self, host: Ints, nic: Ints) -> Ints:
        """Ports of NICs, given by their hosts and their numbers in their hosts."""
        return host * len(self._port) + nic

    def _port_of(self, name: str) -> int | None:
        device = self.topology.devices[name]
        if device.host < 0 or device.local not in self._port:
            return None
        return device.host * len(self._port) + self._port[device.local]

    def _by_switches(self, src: Ints, dst: Ints, flow: Ints) -> tuple[Ints, Ints]:
        """Along the switches that the routing names; flows that lost a cable are searched."""
        if self._over_cables is None:
            return self._by_search(src, dst, flow)
        rows = self._over_cables.rows(src, dst, flow)
        lost = np.flatnonzero(((rows == NO_CABLE) | (self._dead[rows] & (rows >= 0))).any(axis=1))
        if len(lost):
            try:
                lengths, arcs = self._by_search(src[lost], dst[lost], flow[lost])
            except NoRoute as none:
                raise NoRoute(str(none), int(lost[none.flow])) from None
            more = max(0, int(lengths.max()) - rows.shape[1])
            rows = np.pad(rows, ((0, 0), (0, more)), constant_values=NO_HOP)
            rows[lost] = NO_HOP
            row, place = each_of(lengths)
            rows[lost[row], place] = arcs
        return (rows != NO_HOP).sum(axis=1), rows[rows != NO_HOP]

    def _by_search(self, src: Ints, dst: Ints, flow: Ints) -> tuple[Ints, Ints]:
        routes = []
        for at, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
            try:
                route = self._search.route(self.name_of(a), self.name_of(b), int(flow[at]))
            except TopologyError as error:
                raise NoRoute(str(error), at) from None
            routes.append(route)
        lengths = np.array([len(route) for route in routes], dtype=np.int64)
        return lengths, np.array([arc for route in routes for arc in route], dtype=np.int64)

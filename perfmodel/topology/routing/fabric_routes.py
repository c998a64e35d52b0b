"""Routes between hosts: by arithmetic where the fabric is regular, by search where it is not."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from perfmodel.errors import TopologyError
from perfmodel.topology.fabric.like_hosts import devices_of
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.clos import Ints, Tiers
from perfmodel.topology.routing.ecmp import SearchedRoutes

_KINDS = (0, 1, 2)


class NoRoute(TopologyError):
    """Nothing connects two NICs; `flow` is the position of the flow among those asked for."""

    def __init__(self, message: str, flow: int) -> None:
        super().__init__(message)
        self.flow = flow


class FabricRoutes:
    """Routes from NIC to NIC (or switch) over the fabric of a topology.

    A hash of source, destination and flow picks one of all shortest paths (equal-cost multi-path
    routing), or the source's port does where the fabric is routed by rails. A flow whose path has
    failed is hashed over the paths that remain; all others keep theirs.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        tiers = topology.tiers
        fits = tiers is not None and topology.first_cable + tiers.arcs == len(topology.arcs)
        self._tiers = tiers if fits else None
        nics = [d.local for d in devices_of(topology.devices, 0) if d.kind == "nic"]
        self._port = {local: at for at, local in enumerate(nics)}
        self._dead = np.zeros(len(topology.arcs), dtype=np.bool_)
        self._dead[list(topology.dead)] = True

    def __contains__(self, name: str) -> bool:
        """Whether a cable of the fabric ends at this device."""
        if self._tiers is None:
            return name in self._search
        device = self._topology.devices[name]
        return device.host < 0 or device.local in self._port

    def route(self, src: str, dst: str, flow: int) -> tuple[int, ...]:
        """Return the indices of the arcs from one device of the fabric to another.

        Raises `TopologyError`: nothing connects them.
        """
        ports = [self._port_of(name) for name in (src, dst)]
        if self._tiers is None or None in ports:
            return self._search.route(src, dst, flow)
        a, b = (np.array([port]) for port in ports)
        _, arcs = self.routes(a, b, np.array([flow % (1 << 62)]))
        return tuple(arcs.tolist())

    def routes(self, src: Ints, dst: Ints, flow: Ints) -> tuple[Ints, Ints]:
        """Routes of many flows between ports at once; arrays of shape (flows,).

        A port is the host times the NICs of a host plus the NIC's number in its host. Returns the
        number of arcs of each route, and the arcs, one route after the other.

        Raises `NoRoute`: nothing connects two of them.
        """
        tiers = self._tiers
        if tiers is None:
            return self._by_search(src, dst, flow)
        kinds = tiers.kinds(src, dst)
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
    def _search(self) -> SearchedRoutes:
        return SearchedRoutes(self._topology)

    @cached_property
    def _names(self) -> list[str]:
        """Local names of a host's NICs, by number."""
        return list(self._port)

    def number_of(self, nic: str) -> int:
        """Number of a NIC in its host."""
        return self._port[self._topology.devices[nic].local]

    def numbers_at(self, cables: Ints, end: int) -> Ints:
        """Numbers of the NICs at an end of their cables: 0 where arcs begin, 1 where they lead."""
        if self._tiers is not None:
            return (cables - self._tiers.first) // 2 % self._tiers.nics
        names = self._topology.arcs.names
        return np.array([self.number_of(names[arc][end]) for arc in cables.tolist()], np.int64)

    def name_of(self, port: int) -> str:
        """Name of the NIC with a port."""
        host, nic = divmod(port, len(self._port))
        return f"n{host}/{self._names[nic]}"

    def ports(self, host: Ints, nic: Ints) -> Ints:
        """Ports of NICs by host and number."""
        return host * len(self._port) + nic

    def _port_of(self, name: str) -> int | None:
        device = self._topology.devices[name]
        if device.host < 0 or device.local not in self._port:
            return None
        return device.host * len(self._port) + self._port[device.local]

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

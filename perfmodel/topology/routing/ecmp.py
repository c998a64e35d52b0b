"""Equal-cost multi-path routing (RFC 2992) over any fabric, by search and a stable hash."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from typing import TypeVar

from perfmodel.errors import TopologyError
from perfmodel.garbage import no_collections
from perfmodel.topology.model import Topology

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

        pairs = ((src, dst) for src, others in self._leaving.items() for dst in others)
        joined = nx.connected_components(nx.Graph(pairs))
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
            options = [(name, arc) for name in _common(level, cables) for arc in cables[name]]
            (switch, arc), choice = _pick(options, choice)
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

"""Neighbours of the devices of a machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from perfmodel.topology.fabric.like_hosts import ArcEnds
from perfmodel.topology.graph import Device


class Adjacency(Mapping[str, dict[str, list[int]]]):
    """Numbers of the arcs between each two neighbours: ``[src][dst]``.

    Neighbours of a device are listed when they are asked for, as few of a cluster's million are.

    Parameters
    ----------
    devices : mapping of str to Device
    ends : sequence of (str, str)
        Of each arc; those of each host stand in a block, and the fabric's after them all.
    hosts, host_arcs : int
        Number of blocks, and arcs in each.
    backwards : bool
        Whether arcs lead from their second end to their first.
    """

    def __init__(
        self,
        devices: Mapping[str, Device],
        ends: Sequence[tuple[str, str]],
        hosts: int,
        host_arcs: int,
        *,
        backwards: bool = False,
    ) -> None:
        self._devices, self._ends = devices, ends
        self._first_cable, self._host_arcs = hosts * host_arcs, host_arcs
        self._src, self._dst = (1, 0) if backwards else (0, 1)
        self._listed: dict[str, dict[str, list[int]]] = {}

    def __getitem__(self, name: str) -> dict[str, list[int]]:
        if name not in self._listed:
            host = self._devices[name].host
            begin = max(host, 0) * self._host_arcs
            block = range(begin, begin + self._host_arcs if host >= 0 else begin)
            arcs = [arc for arc in block if self._ends[arc][self._src] == name]
            neighbours: dict[str, list[int]] = {}
            for arc in (*arcs, *self._cables_from(name)):
                neighbours.setdefault(self._ends[arc][self._dst], []).append(arc)
            self._listed[name] = neighbours
        return self._listed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    def _cables_from(self, name: str) -> Sequence[int]:
        """Arcs of the fabric that leave a device."""
        if isinstance(self._ends, ArcEnds):
            return self._ends.cables_from(name, backwards=self._src == 1)
        return self._cables.get(name, ())

    @cached_property
    def _cables(self) -> dict[str, list[int]]:
        """Arcs of the fabric that leave each device."""
        leaving: dict[str, list[int]] = {}
        for arc in range(self._first_cable, len(self._ends)):
            leaving.setdefault(self._ends[arc][self._src], []).append(arc)
        return leaving

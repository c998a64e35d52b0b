"""Devices and directed links of a machine, and the NetworkX graph of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import Fault, InputError

if TYPE_CHECKING:
    import networkx as nx

NodeKind = Literal["gpu", "nvswitch", "pcie_switch", "cpu", "memory", "nic", "switch"]
LinkKind = Literal["nvlink", "c2c", "pcie", "upi", "memory", "ethernet", "infiniband"]


class Device(NamedTuple):
    """A node of the graph.

    Parameters
    ----------
    kind : str
        One of `NodeKind`.
    host : int
        Number of its host; -1 for a switch of the fabric.
    local : str
        Its name inside the template of its host.
    """

    kind: NodeKind
    host: int
    local: str


@dataclass(frozen=True, slots=True)
class Arcs:
    """Directed links as arrays; an arc's number is its position.

    Parameters
    ----------
    names : tuple of (str, str)
        Devices that the arc leaves and enters.
    kinds : tuple of str
        `LinkKind` of each.
    bandwidth_Bps : array
        Usable bytes per second, in its one direction.
    latency_s : array
    lanes : tuple of int
        Links bonded in each.
    """

    names: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...]
    bandwidth_Bps: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    lanes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.names)

    def label(self, index: int) -> str:
        """Readable name of one arc: ``"n0/gpu3 -> n0/nvs (nvlink)"``."""
        src, dst = self.names[index]
        return f"{src} -> {dst} ({self.kinds[index]})"


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
            for arc in (*arcs, *self._cables.get(name, ())):
                neighbours.setdefault(self._ends[arc][self._dst], []).append(arc)
            self._listed[name] = neighbours
        return self._listed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    @cached_property
    def _cables(self) -> dict[str, list[int]]:
        """Arcs of the fabric that leave each device."""
        leaving: dict[str, list[int]] = {}
        for arc in range(self._first_cable, len(self._ends)):
            leaving.setdefault(self._ends[arc][self._src], []).append(arc)
        return leaving


def to_networkx(devices: Mapping[str, Device], arcs: Arcs) -> nx.MultiDiGraph[str]:
    """Make the graph of a machine.

    Parameters
    ----------
    devices : mapping of str to Device
    arcs : Arcs

    Returns
    -------
    networkx.MultiDiGraph
        Node attributes: ``kind``, ``host``, ``local`` (see `Device`). Arc attributes: ``kind``,
        ``bandwidth_Bps``, ``latency_s``, ``lanes`` (see `Arcs`) and ``index``, the arc's number.
    """
    import networkx as nx  # takes longer than a small simulation

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    graph.add_nodes_from((name, device._asdict()) for name, device in devices.items())
    rows = zip(
        arcs.names, arcs.kinds, arcs.bandwidth_Bps.tolist(), arcs.latency_s.tolist(), arcs.lanes,
        strict=True,
    )  # fmt: skip
    graph.add_edges_from(
        (src, dst, {"kind": kind, "bandwidth_Bps": rate_Bps, "latency_s": latency_s,
                    "lanes": lanes, "index": index})
        for index, ((src, dst), kind, rate_Bps, latency_s, lanes) in enumerate(rows)
    )  # fmt: skip
    return graph


def from_networkx(graph: nx.MultiDiGraph[str]) -> tuple[dict[str, Device], Arcs]:
    """Return devices and arcs of a graph with the attributes that `to_networkx` writes.

    Parameters
    ----------
    graph : networkx.MultiDiGraph

    Returns
    -------
    dict of str to Device, Arcs
        The values of `Topology.devices` and `Topology.built`.

    Raises
    ------
    InputError
        Attributes that are missing, numbers of arcs with gaps; every fault.
    """
    faults = list(_attribute_faults(graph))
    if faults:
        raise InputError(faults)
    devices = {
        name: Device(data["kind"], data["host"], data["local"])
        for name, data in graph.nodes(data=True)
    }
    rows = sorted(graph.edges(data=True), key=lambda arc: arc[2]["index"])
    return devices, Arcs(
        names=tuple((src, dst) for src, dst, _ in rows),
        kinds=tuple(data["kind"] for _, _, data in rows),
        bandwidth_Bps=np.array([data["bandwidth_Bps"] for _, _, data in rows], dtype=float),
        latency_s=np.array([data["latency_s"] for _, _, data in rows], dtype=float),
        lanes=tuple(data.get("lanes", 1) for _, _, data in rows),
    )


def _attribute_faults(graph: nx.MultiDiGraph[str]) -> Iterator[Fault]:
    for name, data in graph.nodes(data=True):
        lacking = _lacking(data, ("kind", "host", "local"))
        if lacking:
            yield Fault(
                f"nodes.{name}", f"no {lacking} (only the end of a link?)",
                "a node that is declared before a link names it",
            )  # fmt: skip
    for src, dst, data in graph.edges(data=True):
        lacking = _lacking(data, ("kind", "bandwidth_Bps", "latency_s", "index"))
        if lacking:
            yield Fault(f"links.{src} -> {dst}", f"no {lacking}", "these attributes of every link")
    indices = [data.get("index") for _, _, data in graph.edges(data=True)]
    if sorted(i for i in indices if isinstance(i, int)) != list(range(len(indices))):
        yield Fault("links", "indices with gaps or repeats", f"0 to {len(indices) - 1}, each once")


def _lacking(attributes: Mapping[str, Any], required: tuple[str, ...]) -> str:
    return ", ".join(name for name in required if name not in attributes)

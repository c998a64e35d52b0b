"""Devices and directed links of a machine as arrays; `compilation` makes them of its graphs.

Names of a cluster's devices and of the ends of its links, and who is whose neighbour, are made on
demand. All hosts are alike, and a fabric has a cable for each NIC: a template, the number of hosts
and the leaf of each port say all. Kept one by one, the names of 100,000 GPUs and of what joins them
take more memory than their numbers, and more time than a simulation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import IntArray
from perfmodel.memo import grouped

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


class LinkKinds(Sequence[str]):
    """Kind of each link, a byte each: a cluster has a million of a few kinds.

    Parameters
    ----------
    names : sequence of str
    codes : ndarray of int, shape (links,)
        Position in `names` of the kind of each link.
    """

    __slots__ = ("codes", "names")

    def __init__(self, names: Sequence[str], codes: NDArray[np.integer[Any]]) -> None:
        self.names, self.codes = tuple(names), codes.astype(np.uint8)

    @classmethod
    def of(cls, kinds: Iterable[str]) -> LinkKinds:
        """Kinds that are listed one by one."""
        code: dict[str, int] = {}
        codes = [code.setdefault(kind, len(code)) for kind in kinds]
        return cls(tuple(code), np.array(codes, dtype=np.uint8))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: Any) -> Any:
        """Kind of one link, or the kinds of several."""
        codes = self.codes[index]
        return LinkKinds(self.names, codes) if isinstance(index, slice) else self.names[codes]

    def __iter__(self) -> Iterator[str]:
        return map(self.names.__getitem__, self.codes.tolist())

    def followed_by(self, others: LinkKinds) -> LinkKinds:
        """These kinds and then others."""
        names = tuple(dict.fromkeys((*self.names, *others.names)))
        code = np.array([names.index(name) for name in others.names], dtype=np.uint8)
        return LinkKinds(names, np.concatenate([self.codes, code[others.codes]]))

    def present(self, selection: NDArray[Any] | None = None) -> frozenset[str]:
        """Kinds that there are, or that some of the links are of."""
        codes = self.codes if selection is None else self.codes[selection]
        counts = np.bincount(codes, minlength=len(self.names)).tolist()
        return frozenset(name for name, count in zip(self.names, counts, strict=True) if count)

    def among(self, kinds: Collection[str]) -> NDArray[np.bool_]:
        """Which links are of one of some kinds; shape (links,)."""
        return np.array([name in kinds for name in self.names], dtype=np.bool_)[self.codes]

    def values(self, of_kind: Mapping[str, float], default: float) -> NDArray[np.float64]:
        """Value of each link by its kind; shape (links,)."""
        return np.array([of_kind.get(name, default) for name in self.names], dtype=float)[
            self.codes
        ]


@dataclass(frozen=True, slots=True)
class Arcs:
    """Directed links as arrays; an arc's number is its position.

    Parameters
    ----------
    names : sequence of (str, str)
        Devices that the arc leaves and enters.
    kinds : LinkKinds
    bandwidth_Bps : array
        Usable bytes per second, in its one direction.
    latency_s : array
    lanes : ndarray of int
        Links bonded in each.
    """

    names: Sequence[tuple[str, str]]
    kinds: LinkKinds
    bandwidth_Bps: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    lanes: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.names)

    def label(self, index: int) -> str:
        """Readable name of one arc: ``"n0/gpu3 -> n0/nvs (nvlink)"``."""
        src, dst = self.names[index]
        return f"{src} -> {dst} ({self.kinds[index]})"


ArcEnd = tuple[str, str]
"""Devices that an arc leaves and enters."""


class LikeHosts(Mapping[str, Device]):
    """Devices by name: those of each host in turn, then the switches of the fabric.

    Parameters
    ----------
    local : sequence of (str, str)
        Name and kind of each device of a host.
    hosts : int
    switches : sequence of str
    """

    def __init__(
        self, local: Sequence[tuple[str, NodeKind]], hosts: int, switches: Sequence[str]
    ) -> None:
        self._kinds, self._hosts = dict(local), hosts
        self._switches = dict.fromkeys(switches)

    def __getitem__(self, name: str) -> Device:
        if name in self._switches:
            return Device("switch", -1, name)
        head, _, local = name.partition("/")
        number = head[1:]
        host = int(number) if head[:1] == "n" and number.isdecimal() else self._hosts
        if host >= self._hosts or str(host) != number or local not in self._kinds:
            raise KeyError(name)
        return Device(self._kinds[local], host, local)

    def __iter__(self) -> Iterator[str]:
        for host in range(self._hosts):
            yield from (f"n{host}/{local}" for local in self._kinds)
        yield from self._switches

    def __len__(self) -> int:
        return self._hosts * len(self._kinds) + len(self._switches)

    def of_host(self, host: int) -> Iterator[Device]:
        """Devices of one host, in order."""
        return (Device(kind, host, local) for local, kind in self._kinds.items())


@dataclass(frozen=True)
class Cables(Sequence[ArcEnd]):
    """Where the cables of a fabric end: each NIC's at its leaf, then those between switches.

    Every cable is two arcs, up and down.

    Parameters
    ----------
    nics : tuple of str
        Of one host.
    switches : tuple of str
    leaf_of : ndarray of int, shape (ports,)
        Leaf of each port, as a position in `switches`; ports stand host by host.
    trunks : tuple of (str, str)
        Lower and upper switch of each cable.
    """

    nics: tuple[str, ...]
    switches: tuple[str, ...]
    leaf_of: IntArray
    trunks: tuple[ArcEnd, ...]

    def __len__(self) -> int:
        return 2 * (len(self.leaf_of) + len(self.trunks))

    def at(self, device: str) -> tuple[Sequence[int], Sequence[int]]:
        """Cables whose lower end a device is, and those whose upper end it is."""
        if device in self._place:
            lower, upper = self._trunks_at.get(device, ((), ()))
            return lower, [*np.flatnonzero(self.leaf_of == self._place[device]).tolist(), *upper]
        host, _, nic = device.partition("/")
        if nic not in self.nics:
            return (), ()
        return (int(host[1:]) * len(self.nics) + self.nics.index(nic),), ()

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: at for at, name in enumerate(self.switches)}

    @cached_property
    def _trunks_at(self) -> dict[str, tuple[list[int], list[int]]]:
        cables: dict[str, tuple[list[int], list[int]]] = {}
        for cable, ends in enumerate(self.trunks, start=len(self.leaf_of)):
            for side, name in enumerate(ends):
                cables.setdefault(name, ([], []))[side].append(cable)
        return cables

    def __getitem__(self, arc: Any) -> Any:
        """Names of the two ends of an arc; arcs are counted from the first one of the fabric."""
        cable, down = divmod(arc, 2)
        ports = len(self.leaf_of)
        if cable < ports:
            host, nic = divmod(cable, len(self.nics))
            low, high = f"n{host}/{self.nics[nic]}", self.switches[self.leaf_of[cable]]
        else:
            low, high = self.trunks[cable - ports]
        return (high, low) if down else (low, high)


class ArcEnds(Sequence[ArcEnd]):
    """Ends of all arcs by name: each host's block in turn, then the fabric's.

    Parameters
    ----------
    local : sequence of (str, str)
        Ends of each arc of a host.
    hosts : int
    cables : Cables, optional
    """

    def __init__(self, local: Sequence[ArcEnd], hosts: int, cables: Cables | None = None) -> None:
        self._local, self._cables = tuple(local), cables
        self._first_cable = hosts * len(self._local)
        self._count = self._first_cable + (0 if cables is None else len(cables))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        """Ends of an arc, or a tuple of those of several."""
        arcs = range(self._count)[index]
        return self._ends(arcs) if isinstance(arcs, int) else tuple(map(self._ends, arcs))

    def __iter__(self) -> Iterator[ArcEnd]:
        return map(self._ends, range(self._count))

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has the same ends, however it keeps them."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def _ends(self, arc: int) -> ArcEnd:
        if arc >= self._first_cable and self._cables is not None:
            ends: ArcEnd = self._cables[arc - self._first_cable]
            return ends
        host, local = divmod(arc, len(self._local))
        src, dst = self._local[local]
        return f"n{host}/{src}", f"n{host}/{dst}"

    def cables_from(self, device: str, *, backwards: bool = False) -> list[int]:
        """Arcs of the fabric that leave a device, or those that enter it; ascending."""
        if self._cables is None:
            return []
        lower, upper = self._cables.at(device)
        up, down = (1, 0) if backwards else (0, 1)
        return [
            self._first_cable + arc
            for arc in sorted(
                [*(2 * cable + up for cable in lower), *(2 * cable + down for cable in upper)]
            )
        ]


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
            arcs += (
                self._ends.cables_from(name, backwards=self._src == 1)
                if isinstance(self._ends, ArcEnds)
                else self._cables.get(name, ())
            )
            self._listed[name] = grouped((self._ends[arc][self._dst], arc) for arc in arcs)
        return self._listed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    @cached_property
    def _cables(self) -> dict[str, list[int]]:
        """Arcs of the fabric that leave each device."""
        cables = range(self._first_cable, len(self._ends))
        return grouped((self._ends[arc][self._src], arc) for arc in cables)

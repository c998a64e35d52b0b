"""Devices and directed links of a machine as arrays; `compilation` makes them of its graphs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

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

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> LinkKinds: ...
    def __getitem__(self, index: int | slice) -> str | LinkKinds:
        if isinstance(index, slice):
            return LinkKinds(self.names, self.codes[index])
        return self.names[int(self.codes[index])]

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

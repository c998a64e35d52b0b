"""Best paths inside one host, in the order in which NCCL prefers them.

Source of the rules: NVIDIA/nccl 2.30.7 ``src/graph/paths.cc`` (ncclTopoSetPaths) and
``src/graph/topo.h``: a better path type wins, then more bandwidth (that of the narrowest link),
then fewer hops. Traffic passes through a NIC never, and through another GPU only over NVLink, at
most once. In a graph of one's own every device forwards, and paths are the shortest.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfmodel.memo import first_applying

PATH_TYPES = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PHB", "SYS", "NET")
"""Path types from best to worst, named as in NCCL.

LOC same device; NVL NVLink, direct or switched; NVB NVLink through one other GPU; C2C chip to chip;
PIX at most one PCIe switch; PXB several; P2C chip to chip and then PCIe; PHB through a CPU's host
bridge, or its memory; SYS between CPUs; NET between hosts.
"""

RANK = {name: rank for rank, name in enumerate(PATH_TYPES)}
_BY_HOST = frozenset({"pcie", "memory", "infiniband", "ethernet"})
"""Kinds of link whose paths have the types of PCIe's."""


@dataclass(frozen=True, slots=True)
class HostArc:
    """One directed link inside a host."""

    index: int
    dst: str
    kind: str
    bandwidth_Bps: float


@dataclass(frozen=True, slots=True)
class Path:
    """One path through a host."""

    type: str
    """One of `PATH_TYPES`."""
    bandwidth_Bps: float
    """Of the narrowest link."""
    arcs: tuple[int, ...]
    """Indices of the links, in order."""

    @property
    def cost(self) -> tuple[int, float, int]:
        """What paths are compared by: the best path has the smallest."""
        return RANK[self.type], -self.bandwidth_Bps, len(self.arcs)


@dataclass(frozen=True, slots=True)
class _Trail:
    """What decides the type of a path that is being extended."""

    nvlinks: int = 0
    c2c: int = 0
    pcie: int = 0
    relays: int = 0
    switches: int = 0
    cpu: bool = False
    between_cpus: bool = False

    def crossing(self, kind: str, src_kind: str, dst_kind: str) -> _Trail:
        return _Trail(
            nvlinks=self.nvlinks + (kind == "nvlink"),
            c2c=self.c2c + (kind == "c2c"),
            pcie=self.pcie + (kind in _BY_HOST),
            relays=self.relays + (src_kind == "gpu" and self.length > 0),
            switches=self.switches + (dst_kind == "pcie_switch"),
            cpu=self.cpu or kind == "memory" or (kind == "pcie" and "cpu" in {src_kind, dst_kind}),
            between_cpus=self.between_cpus or src_kind == dst_kind == "cpu",
        )

    @property
    def length(self) -> int:
        return self.nvlinks + self.c2c + self.pcie + self.between_cpus

    @property
    def type(self) -> str:
        return first_applying(
            (self.length == 0, "LOC"),
            (self.between_cpus, "SYS"),
            (self.nvlinks == self.length, "NVB" if self.relays else "NVL"),
            (self.c2c == self.length, "C2C"),
            (self.c2c > 0, "P2C"),
            (self.cpu, "PHB"),
            (self.switches <= 1, "PIX"),
            (True, "PXB"),
        )


def best_paths(
    src: str,
    kinds: Mapping[str, str],
    arcs: Mapping[str, Sequence[HostArc]],
    *,
    forwarding: bool = False,
) -> dict[str, Path]:
    """Best path from one device to every other that it reaches.

    `kinds`: kind of each device of the host. `arcs`: links that leave each device. `forwarding`:
    whether any device is passed; then those of the fewest links are best, and of these the widest.
    """
    done: dict[str, Path] = {}
    queue: list[tuple[int, float, int, tuple[int, ...], str, _Trail]] = [
        (0, -float("inf"), 0, (), src, _Trail())
    ]
    while queue:
        _, negative_Bps, hops, arcs_so_far, device, trail = heapq.heappop(queue)
        if device in done:
            continue
        done[device] = Path(trail.type, -negative_Bps, arcs_so_far)
        for arc in arcs.get(device, ()):
            if arc.dst in done or not (
                forwarding or _may_pass(device == src, kinds[device], arc, kinds, trail)
            ):
                continue
            longer = trail.crossing(arc.kind, kinds[device], kinds[arc.dst])
            rank = hops + 1 if forwarding else RANK[longer.type]
            narrowest = max(negative_Bps, -arc.bandwidth_Bps)
            path = (*arcs_so_far, arc.index)
            heapq.heappush(queue, (rank, narrowest, hops + 1, path, arc.dst, longer))
    return done


def _may_pass(
    at_start: bool, kind: str, arc: HostArc, kinds: Mapping[str, str], trail: _Trail
) -> bool:
    if kind == "gpu" and not at_start:  # a relay: over NVLink alone, to another GPU, once
        relayed = trail.nvlinks == trail.length and trail.relays == 0
        return relayed and arc.kind == "nvlink" and kinds[arc.dst] in {"gpu", "nvswitch"}
    return at_start or kind != "nic"

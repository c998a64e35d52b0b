"""A matrix of path types between the devices of a host, and the groups that it implies.

Groups are devices that share a NUMA domain, a switch, or a cluster of switches.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from perfmodel.topology.from_text.defaults import usual_domains
from perfmodel.topology.from_text.parts import GpuConnector


@dataclass(frozen=True, slots=True)
class Matrix:
    """Devices of one host and the path type between each two."""

    devices: tuple[str, ...]
    """As the tool names them, GPUs first."""
    cells: dict[tuple[str, str], str]
    """One of "NV2", "PIX", "PXB", "PHB", "NODE", "SYS"; both directions."""
    numa: dict[str, str] = field(default_factory=dict)
    """NUMA domain of a GPU, where the table says."""
    legend: dict[str, str] = field(default_factory=dict)
    """Names of NICs."""
    lines: dict[str, int] = field(default_factory=dict)
    """Line of a device's row."""
    gpu: str | None = None
    """Model, where the text says."""
    notes: tuple[str, ...] = ()
    """What was odd."""
    pcie: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Generation and lanes of a GPU's PCIe link, where they are known."""
    ports: dict[str, tuple[str, float, str]] = field(default_factory=dict)
    """Kind of network, rate in bytes per second and its source, where they are known."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs, in order."""
        return tuple(name for name in self.devices if re.fullmatch(r"GPU\d+", name))

    @property
    def nics(self) -> tuple[str, ...]:
        """All else: NICs."""
        return tuple(name for name in self.devices if name not in self.gpus)


_Name = TypeVar("_Name", bound=Hashable)
_ONE_DOMAIN = {"PIX", "PXB", "PHB", "NODE"}


def domains_of(matrix: Matrix, part: GpuConnector, notes: list[str]) -> list[list[str]]:
    """Devices of each NUMA domain; `notes` gets what was assumed."""
    pairs = [pair for pair, cell in matrix.cells.items() if cell in _ONE_DOMAIN]
    same = [
        (a, b)
        for a, own in matrix.numa.items()
        for b, other in matrix.numa.items()
        if a < b and own == other and matrix.cells.get((a, b)) not in {"DIS", "N/A"}
    ]
    if any(matrix.cells.get(pair) == "SYS" for pair in same):
        notes.append(
            "GPUs of one NUMA domain are joined there, though the table says SYS (a virtual"
            " machine hides how)"
        )
    stated = pairs or matrix.numa or "SYS" in matrix.cells.values()
    if stated or len(matrix.devices) == 1:
        domains = _components(matrix.devices, [*pairs, *same])
        merged = domains if matrix.numa else _merge_domains(domains, matrix)
        if len(merged) < len(domains):
            notes.append("as few NUMA domains as the table allows, where NVLink hides them")
        return merged
    gpus = list(matrix.gpus)
    count = len(gpus) if part.c2c else usual_domains(part, len(gpus), part.cpu)
    notes.append(f"{count} NUMA domains, usual for this GPU: NVLink hides the rest")
    edges = [round(i * len(gpus) / count) for i in range(count + 1)]
    domains = [gpus[a:b] for a, b in pairwise(edges)]
    domains[0] += matrix.nics
    return [domain for domain in domains if domain]


def _merge_domains(groups: Sequence[list[str]], matrix: Matrix) -> list[list[str]]:
    """Put groups that NVLink joins on one domain, unless SYS stands between any two devices."""
    domains: list[list[str]] = []
    for group in groups:
        for domain in domains:
            between = {matrix.cells.get((a, b), "") for a in domain for b in group}
            if "SYS" not in between and any(cell.startswith("NV") for cell in between):
                domain.extend(group)
                break
        else:
            domains.append(list(group))
    return domains


def clusters_of(matrix: Matrix, domain: Sequence[str]) -> list[list[list[str]]]:
    """Clusters of a domain: groups that one more switch joins; each a list of devices."""
    inside = set(domain)
    leaves = _components(
        domain, [p for p, cell in matrix.cells.items() if cell == "PIX" and set(p) <= inside]
    )
    leaf_of = {name: at for at, leaf in enumerate(leaves) for name in leaf}
    joined = [
        (leaf_of[a], leaf_of[b])
        for (a, b), cell in matrix.cells.items()
        if cell == "PXB" and {a, b} <= inside
    ]
    return [[leaves[at] for at in cluster] for cluster in _components(range(len(leaves)), joined)]


def _components(items: Iterable[_Name], pairs: Iterable[tuple[_Name, _Name]]) -> list[list[_Name]]:
    """Groups of items that pairs join, in the order of their first items."""
    group_of = {item: [item] for item in items}
    place = {item: at for at, item in enumerate(group_of)}
    for a, b in pairs:
        if group_of[a] is not group_of[b]:
            joined = sorted(group_of[a] + group_of[b], key=place.__getitem__)
            group_of |= dict.fromkeys(joined, joined)
    return list({id(group): group for group in group_of.values()}.values())

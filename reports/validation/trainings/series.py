"""Runs of a table beside the smallest one of the same kind: scaling efficiency, scaled compute."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from perfmodel.topology.model import Topology
from reports.validation.trainings.rows.parse import TrainingRow, samples_per_s

_LIKENESS = ("interconnect", "sync_mode", "bucket_cap_mb", "dataset", "source_path", "note")
"""Columns in which a run and the one that it is counted against should agree, if they can."""

_COUNT = re.compile(r"\b\d+\s*x\s*(?=[a-z])")
"""How many GPUs, before their name: "4x A100 SXM4" and "A100 SXM4" are of one series."""
_PROVIDERS = re.compile(r"\b(?:aws|amazon|ec2|azure|gcp|gce|google|oci|oracle|cloud\w*)\b")
_IN_A_CLOUD = {"efa", "tcpx", "tcpxo"}
_NETWORKS = {"infiniband": "InfiniBand", "roce": "RoCE", "tcp": "TCP", "omni-path": "Omni-Path"}
ONE_GPU, CLOUD = "one GPU", "cloud"
NETWORKS = ("NVLink", "PCIe", "InfiniBand", "RoCE", "Omni-Path", "TCP", CLOUD)
"""What gradients cross, in the order in which reports list it. "cloud": a provider's own network
(EFA, GPUDirect-TCPX), or sockets between a provider's machines."""


@dataclass(frozen=True)
class ParsedRow:
    """A row that can be expressed, with its cells."""

    cells: Mapping[str, str]
    row: TrainingRow

    @cached_property
    def series(self) -> tuple[object, ...]:
        """What runs of one scaling series share: all but the number of GPUs and their network."""
        row, framework, host = self.row, self.cells.get("framework"), self.cells.get("host")
        gpu = _COUNT.sub("", self.cells["gpu"].lower())
        return row.model, row.precision, row.batch, gpu, host, framework, row.channels_last

    @property
    def throughput(self) -> float:
        """Published samples per second of all GPUs together."""
        return samples_per_s(self.cells, self.row)


def base_of(rows: Sequence[ParsedRow], at: int) -> ParsedRow | None:
    """Return the run that a row is counted against: the smallest of its series.

    Of several, those that agree with it in most other columns; of these the last before it: tables
    list their series one after another.
    """
    own = rows[at]
    smaller = [
        (index, other)
        for index, other in enumerate(rows)
        if other.row.gpus < own.row.gpus and other.series == own.series
    ]
    if not smaller:
        return None
    fewest = min(other.row.gpus for _, other in smaller)

    def preference(item: tuple[int, ParsedRow]) -> tuple[int, bool, int]:
        index, other = item
        shared = sum(other.cells.get(key) == own.cells.get(key) for key in _LIKENESS)
        return shared, index < at, index if index < at else -index

    return max((item for item in smaller if item[1].row.gpus == fewest), key=preference)[1]


def network_of(topology: Topology, cells: Mapping[str, str], row: TrainingRow) -> str:
    """What the gradients of a run cross, as reports name it."""
    if row.gpus == 1:
        return ONE_GPU
    if len(row.shares) == 1:
        return "NVLink" if "nvlink" in topology.arcs.kinds[: topology.host_arcs] else "PCIe"
    text = f"{cells['gpu']}; {cells.get('interconnect', '')}".lower()
    kind = topology.network or ""
    if kind in _IN_A_CLOUD or (kind == "tcp" and _PROVIDERS.search(text)):
        return CLOUD
    return _NETWORKS.get(kind, kind)

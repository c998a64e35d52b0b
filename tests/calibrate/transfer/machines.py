"""DGX A100, and rows as a tool prints them."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import build_topology

SIZES = [2**n for n in range(10, 33, 2)]


@dataclass(frozen=True)
class Row:
    nbytes: int
    time_s: float


def dgx(hosts: int = 1, gpus: int = 8) -> Topology:
    fabric = "rail-optimised" if hosts > 1 else None
    return build_topology("dgx-a100", hosts=hosts, fabric=fabric, gpus_per_host=gpus)

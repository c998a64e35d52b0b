"""The same collective on another host: groups inside like hosts are laid on links once.

Hosts own equally many arcs, in the same order (`perfmodel.topology.model.Topology.host_arcs`), so
that a collective of GPUs of one host is that of another with its arcs and ranks shifted.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.arrays import RankGroup
from perfmodel.library.lowering.edges import Edges
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.topology.model import Topology


def only_host(topology: Topology, group: RankGroup) -> int | None:
    """Host of all ranks of a group; None: they are on several."""
    first, last = min(group) // topology.gpus_per_host, max(group) // topology.gpus_per_host
    return first if first == last else None


def translate(
    lowered: LoweredCollective, topology: Topology, source: int, target: int
) -> LoweredCollective | None:
    """Return a collective inside one host on another.

    None: it leaves its host, or links of the two hosts differ.
    """
    shift = (target - source) * topology.host_arcs
    rates, latencies = topology.arcs.bandwidth_Bps, topology.arcs.latency_s
    low, high = source * topology.host_arcs, (source + 1) * topology.host_arcs
    for stage in lowered.stages:
        arcs = stage.edges.arcs
        if len(arcs) and not (low <= arcs.min() and arcs.max() < high):
            return None
        same_rates = np.array_equal(rates[arcs], rates[arcs + shift])
        if not (same_rates and np.array_equal(latencies[arcs], latencies[arcs + shift])):
            return None
    ranks = (target - source) * topology.gpus_per_host
    moved: dict[int, Edges] = {}
    for stage in lowered.stages:
        if id(stage.edges) not in moved:
            moved[id(stage.edges)] = _shift(stage.edges, shift, ranks, target - source)
    return replace(
        lowered,
        stages=tuple(replace(stage, edges=moved[id(stage.edges)]) for stage in lowered.stages),
    )


def _shift(edges: Edges, arcs: int, ranks: int, hosts: int) -> Edges:
    copies = edges.copies
    if copies is not None:
        copies = replace(copies, host=np.where(copies.host < 0, -1, copies.host + hosts))
    return replace(
        edges, src=edges.src + ranks, dst=edges.dst + ranks, arcs=edges.arcs + arcs, copies=copies
    )

"""A collective over other links: of a machine that has changed, or of another host.

Hosts own equally many arcs, in the same order (`perfmodel.topology.model.Topology.host_arcs`), so
that a collective of GPUs of one host is that of another with its arcs and ranks shifted.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.arrays import RankGroup
from perfmodel.library.lowering.edge_routing import reroute_edges
from perfmodel.library.lowering.edges import Edges
from perfmodel.library.lowering.lowered import LoweredCollective, Stage
from perfmodel.library.lowering.protocol_costs import caps_Bps, step_latency_s
from perfmodel.library.lowering.protocols import protocol_parameters
from perfmodel.library.machine import Machine
from perfmodel.topology.model import Topology


def reroute(lowered: LoweredCollective, machine: Machine) -> LoweredCollective:
    """Return a collective as the changed machine carries it on.

    The schedule, the edges and their order stay, so edge i of the result continues the work of
    edge i. Edges that cross a dead arc take another route; latencies are those of the links as
    they are now. Where nothing changed for it, that is `lowered` itself. It was laid on a machine
    of the same ranks and arc numbers.

    Raises `TopologyError`: two ranks that an edge joins cannot reach each other any more.
    """
    stages = tuple(_reroute_stage(lowered, stage, machine) for stage in lowered.stages)
    if all(new is old for new, old in zip(stages, lowered.stages, strict=True)):
        return lowered
    return replace(lowered, stages=stages)


def _reroute_stage(lowered: LoweredCollective, stage: Stage, machine: Machine) -> Stage:
    edges = _update_latency(reroute_edges(machine.topology, machine.router, stage.edges), machine)
    if edges is stage.edges:
        return stage
    protocol = protocol_parameters(
        machine.library, lowered.schedule.collective, lowered.schedule.algorithm
    )[lowered.protocol]
    before_s = step_latency_s(protocol, stage.edges, lowered.schedule)
    after_s = step_latency_s(protocol, edges, lowered.schedule)
    rest_s = stage.latency_s - before_s  # of what was measured, and of how a pipeline fills
    return Stage(
        phases=stage.phases,
        edges=edges,
        latency_s=np.where(rest_s == 0, after_s, after_s + rest_s),
        cap_Bps=caps_Bps(protocol, edges, lowered.schedule, stage.phases, stage.load),
        load=stage.load,
    )


def _update_latency(edges: Edges, machine: Machine) -> Edges:
    """Edges with the latencies that their links have now."""
    latency_s = np.add.reduceat(machine.topology.arcs.latency_s[edges.arcs], edges.pointers[:-1])
    return (
        edges if np.array_equal(latency_s, edges.latency_s) else replace(edges, latency_s=latency_s)
    )


# ---------------------------------------------------------------- hosts


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

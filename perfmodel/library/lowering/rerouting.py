"""A collective in progress when the machine changes: new routes and latencies of its edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.library.lowering.edge_routing import reroute_edges
from perfmodel.library.lowering.edges import Edges
from perfmodel.library.lowering.lowered import LoweredCollective, Stage
from perfmodel.library.lowering.protocol_costs import caps_Bps, step_latency_s
from perfmodel.library.lowering.protocols import protocol_parameters
from perfmodel.library.machine import Machine


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

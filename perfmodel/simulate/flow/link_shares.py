"""Rates of streams and collectives that share links with each other, and with no other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.library.lowering.lowered import Stage
from perfmodel.library.machine import Machine
from perfmodel.simulate.flow.transfers import Collective, Flow, joined_stage
from perfmodel.simulate.sharing.between_collectives import (
    SHORTEST_S,
    Share,
    rates_in_turns,
    shared_rates,
)
from perfmodel.simulate.uncontended import UncontendedTimer

Shares = tuple[FloatArray, list[tuple[FloatArray, float]]]
"""Rate of each stream; for each collective the rate of each edge, and by how much it is slower."""


def solve_at_once(
    machine: Machine,
    _timer: UncontendedTimer,
    flows: Sequence[Flow],
    collectives: Sequence[Collective],
) -> Shares:
    """Solve jobs whose messages share links at the same time."""
    shares = [Share(job.stage, job.wire_bytes(), job.takes_s, job.key()) for job in collectives]
    if flows:  # streams send all the time, so that one share can stand for all of them
        sent_bytes = np.full(len(flows), np.inf)
        shares.append(Share(joined_stage(flows), sent_bytes, lambda _: 1.0, "streams"))
    rates = shared_rates(machine.topology.arcs.bandwidth_Bps, shares)
    of_flows = rates.pop() if flows else np.zeros(0)
    return of_flows, [(rate_Bps, 1.0) for rate_Bps in rates]


def solve_in_turns(
    machine: Machine,
    timer: UncontendedTimer,
    flows: Sequence[Flow],
    collectives: Sequence[Collective],
) -> Shares:
    """Solve jobs of libraries that send one message after another on a connection."""
    stages = [job.stage for job in collectives]
    needed_Bps = [job.wire_bytes() / max(job.alone_s(), SHORTEST_S) for job in collectives]
    if flows:
        stages.append(joined_stage(flows))
        needed_Bps.append(alone_Bps(machine, stages[-1]))
    shares = rates_in_turns(machine.topology.arcs.bandwidth_Bps, stages, needed_Bps)
    of_flows = shares.pop()[0] if flows else np.zeros(0)
    pairs = zip(collectives, shares, strict=True)
    return of_flows, [(timer.rates(job.stage), slower) for job, (_, slower) in pairs]


def alone_Bps(machine: Machine, stage: Stage) -> FloatArray:
    """Rate of each edge of streams without other traffic; bytes per second, shape (edges,)."""
    capacity_Bps = machine.topology.arcs.bandwidth_Bps[stage.edges.arcs]
    least_Bps = np.minimum.reduceat(capacity_Bps, stage.edges.pointers[:-1])
    return np.minimum(stage.cap_Bps, least_Bps)

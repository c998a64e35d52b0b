"""What a protocol adds to the steps of a schedule, given the size of its chunks."""

from __future__ import annotations

import numpy as np

from perfmodel.collectives.schedule import Floats, Schedule
from perfmodel.library.edges import HOPS, Edges
from perfmodel.library.model import Protocol

REDUCED_SHARE = {"all_reduce": 0.5, "reduce_scatter": 1.0, "reduce": 1.0}
"""Share of the bytes sent by a collective that their receiver adds to its own; others: none.

Half of what a bandwidth-optimal all-reduce sends is partial sums on their way, half is results.
"""


def chunk_bytes(schedule: Schedule) -> float:
    """Size of the sends of a schedule, weighted by their bytes (where all are alike: that size)."""
    sends = [(phase.nbytes, phase.active) for phase in schedule.phases]
    total = sum(float((nbytes * active).sum()) for nbytes, active in sends)
    return sum(float((nbytes**2 * active).sum()) for nbytes, active in sends) / (total or 1.0)


def wire_factor(protocol: Protocol, chunk: float) -> float:
    """Bytes on the wire per byte of a chunk of this size (bytes)."""
    if not protocol.wire_segments or chunk <= 0:
        return 1.0 / protocol.wire_efficiency
    starts = np.array([0.0, *(segment.beyond for segment in protocol.wire_segments)])
    efficiency = [protocol.wire_efficiency, *(s.efficiency for s in protocol.wire_segments)]
    parts = np.diff(np.minimum(np.append(starts, np.inf), chunk))
    return float((parts / efficiency).sum() / chunk)


def step_latency_s(protocol: Protocol, edges: Edges, schedule: Schedule) -> Floats:
    """Time of a step on each edge beyond its bytes on the wire; seconds, shape (edges,)."""
    library_s = np.array([getattr(protocol.step, hop) for hop in HOPS])[edges.hop]
    waits_s: Floats = edges.latency_s * protocol.latencies_per_step + library_s
    if protocol.reduce_rate is None:
        return waits_s
    reduced = REDUCED_SHARE.get(schedule.collective, 0.0) * chunk_bytes(schedule)
    return waits_s + reduced / protocol.reduce_rate

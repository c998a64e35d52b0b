"""What a protocol adds to the steps of a schedule, given the size of its chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.collectives.catalog import bus_factor
from perfmodel.collectives.schedule import Phase, Schedule
from perfmodel.library.lowering.edges import HOP_KINDS, Edges
from perfmodel.library.model import Protocol

MIB = 1 << 20

GROUPED = frozenset({"all_to_all", "scatter", "gather"})
"""Operations that are groups of sends, started together."""


def start_s(protocol: Protocol, schedule: Schedule) -> float:
    """Time before the first byte moves; seconds."""
    alone = schedule.collective not in GROUPED
    return protocol.launch + (0.0 if alone else protocol.each_peer * (schedule.ranks - 1))


def uneven_s(protocol: Protocol, schedule: Schedule, nbytes: float, channels: int) -> float:
    """Time that grows with the bytes and that no link sees; seconds.

    `channels`: those that work on the message. A ring ends with a copy within each GPU, and what an
    all-to-all leaves where it is takes the blocks that send.
    """
    carried = nbytes * bus_factor(schedule.collective, schedule.ranks)
    lost_s = protocol.unevenness * math.sqrt(carried / MIB)
    copies = schedule.algorithm == "ring" or schedule.collective == "all_to_all"
    if protocol.copy_rate is None or not copies:
        return lost_s
    return lost_s + nbytes / schedule.ranks / (channels * protocol.copy_rate)


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


def reduced_bytes(schedule: Schedule) -> float:
    """Bytes of a send that its receiver adds to its own, averaged over the schedule's bytes.

    Half of what a bandwidth-optimal all-reduce sends is partial sums, half is results;
    in recursive doubling all of it is added.
    """
    sent = added = 0.0
    for phase in schedule.phases:
        nbytes = phase.nbytes * phase.active
        sent += float(nbytes.sum())
        added += float((nbytes * phase.adds).sum())
    return chunk_bytes(schedule) * added / (sent or 1.0)


def step_latency_s(
    protocol: Protocol, edges: Edges, schedule: Schedule, *, reduced: float | None = None
) -> FloatArray:
    """Time of a step on each edge beyond its bytes on the wire; seconds, shape (edges,).

    `reduced`: `reduced_bytes` of the schedule, if known already.
    """
    in_turn = _in_turn(protocol, schedule)
    step = tuple(getattr(protocol.step, hop) for hop in HOP_KINDS)
    waits_s = edges.once(
        ("step", step, protocol.host_step, protocol.latencies_per_step, in_turn),
        lambda: _waits_s(protocol, edges, in_turn),
    )
    if protocol.reduce_rate is None:
        return waits_s
    added = reduced_bytes(schedule) if reduced is None else reduced
    return waits_s + added / protocol.reduce_rate


def _waits_s(protocol: Protocol, edges: Edges, in_turn: bool) -> FloatArray:
    """`step_latency_s` but for what receivers add."""
    library_s = np.array([getattr(protocol.step, hop) for hop in HOP_KINDS])[edges.hop]
    if protocol.host_step > 0:
        library_s = np.maximum(library_s, protocol.host_step * _sharing(edges))
    waits_s: FloatArray = edges.latency_s * protocol.latencies_per_step + library_s
    return waits_s / 2 if in_turn else waits_s


def credits_of(protocol: Protocol, schedule: Schedule) -> int:
    """Sends that an edge of a schedule may have in flight."""
    return 1 if _in_turn(protocol, schedule) else protocol.credits


def _in_turn(protocol: Protocol, schedule: Schedule) -> bool:
    """Whether segments that could be in flight together go one at a time (`two_in_turn`).

    k segments of b seconds then take k (b + L): the first ready message travels alone, and each of
    the others follows the segment before it the other way.
    """
    pipelined = any(phase.lag > 1 for phase in schedule.phases)
    return protocol.two_in_turn and schedule.ranks == 2 and pipelined


def rate_limit_Bps(protocol: Protocol, edges: Edges, schedule: Schedule) -> FloatArray:
    """Most that each edge may carry; bytes on the wire per second, shape (edges,)."""
    channels = 1 + max((int(phase.channel.max()) for phase in schedule.phases), default=0)
    return edges.once(
        ("rate", protocol.network_rate, protocol.max_rate, channels),
        lambda: _limit_Bps(protocol, edges, channels),
    )


def _limit_Bps(protocol: Protocol, edges: Edges, channels: int) -> FloatArray:
    cap_Bps = edges.cap_Bps
    if protocol.network_rate is not None:
        between = edges.hop == HOP_KINDS.index("network")
        cap_Bps = np.where(between, np.minimum(cap_Bps, protocol.network_rate), cap_Bps)
    if protocol.max_rate is None:
        return cap_Bps
    return np.minimum(cap_Bps, protocol.max_rate / channels)


def caps_Bps(
    protocol: Protocol,
    edges: Edges,
    schedule: Schedule,
    phases: Sequence[Phase],
    load: FloatArray,
) -> FloatArray:
    """Most that each edge may carry in these phases; bytes on the wire per second, shape (edges,).

    Copies through the memory of a host share what it carries; an edge that no phase uses takes no
    share. `load`: bytes on the links per byte of payload.
    """
    own_Bps = rate_limit_Bps(protocol, edges, schedule)
    if edges.copies is None:
        return own_Bps
    working = np.any([phase.active > 0 for phase in phases], axis=0)
    sharing = working & (edges.copies.host >= 0)
    hosts = edges.copies.host[sharing]
    share_Bps = np.full(len(edges), np.inf)
    if len(hosts):
        share_Bps[sharing] = edges.copies.together_Bps / np.bincount(hosts)[hosts]
    return np.minimum(own_Bps, share_Bps * load)


def _sharing(edges: Edges) -> FloatArray:
    """How many of the edges use the busiest link of each edge through host memory; 0 elsewhere."""
    users = np.bincount(edges.arcs)[edges.arcs].astype(float)
    busiest = np.maximum.reduceat(users, edges.pointers[:-1]) if len(edges) else users
    shared: FloatArray = np.where(edges.hop == HOP_KINDS.index("memory"), busiest, 0.0)
    return shared

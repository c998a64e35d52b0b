"""A collective as columns for the message kernel: its edges, sends and what each waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.collectives.message_arrays import FlatMessages
from perfmodel.errors import SimulationError
from perfmodel.library.lowering.lowered import LoweredCollective

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]
"""Columns of `records.State` ("edges.head" is the field `head` of its edges), numbered from 0."""

SIZED_BY = {
    "hops": "hops.arc", "edges": "edges.limit_Bps", "sends": "sends.nbytes",
    "followers": "followers", "gates": "gates.passing", "gate_edges": "gate_edges",
    "pending": "pending", "runs": "runs.sends_left",
}  # fmt: skip
"""What a collective brings along, and a column of it that is always given."""

POINTS_TO = {
    "hops.edge": "edges", "edges.route_start": "hops", "edges.route_end": "hops",
    "edges.head": "sends", "edges.tail": "sends", "edges.gate": "gates", "edges.gate_to": "gates",
    "edges.run": "runs", "sends.edge": "edges", "sends.follower_start": "followers",
    "sends.follower_end": "followers", "followers": "sends", "gates.pending_start": "pending",
    "gates.next_edge": "gate_edges", "gates.edge_end": "gate_edges", "gate_edges": "edges",
    "runs.edge_start": "edges", "runs.edge_end": "edges",
}  # fmt: skip
"""Columns that number something; -1 stands for nothing."""

REFILLED = (
    "edges.head", "sends.waiting", "gates.passing", "gates.next_edge", "pending", "runs.sends_left",
)  # fmt: skip
"""Columns that a run uses up; all others are as at first when it has ended."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The links of some edges: edge e crosses ``arcs[pointers[e]:pointers[e + 1]]``."""

    pointers: Ints
    arcs: Ints
    cap_Bps: Floats
    latency_s: Floats


def routes_of(way: LoweredCollective) -> Routes:
    """Links of the edges of a collective, stage after stage."""
    parts = [stage.edges for stage in way.stages]
    lengths = [np.diff(part.pointers) for part in parts]
    return Routes(
        np.concatenate([[0], np.cumsum(np.concatenate([*lengths, np.zeros(0, np.int64)]))]),
        np.concatenate([*(part.arcs for part in parts), np.zeros(0, np.int64)]),
        np.concatenate([*(stage.cap_Bps for stage in way.stages), np.zeros(0)]),
        np.concatenate([*(stage.latency_s for stage in way.stages), np.zeros(0)]),
    )


def limits_Bps(routes: Routes, capacity_Bps: Floats) -> Floats:
    """Most that each edge could send if it were alone on its links; shape (edges,).

    A link that an edge crosses twice can carry half of its bandwidth of it.
    """
    edges = len(routes.cap_Bps)
    owner = np.repeat(np.arange(edges), np.diff(routes.pointers))
    pairs = owner * (len(capacity_Bps) + 1) + routes.arcs
    _, which, times = np.unique(pairs, return_inverse=True, return_counts=True)
    limit_Bps = routes.cap_Bps.astype(float).copy()
    np.minimum.at(limit_Bps, owner, capacity_Bps[routes.arcs] / times[which])
    return limit_Bps


def columns_of(way: LoweredCollective, sends: FlatMessages, capacity_Bps: Floats) -> Columns:
    """Lay out a collective; all numbers count from zero.

    Raises
    ------
    SimulationError
        A send over an edge that no phase of the schedule has.
    """
    edge, stage_of_edge = _edges_and_stages(way, sends)
    order = np.argsort(edge, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    routes = routes_of(way)
    count = np.bincount(edge, minlength=len(stage_of_edge))
    tail = np.cumsum(count)
    return {
        **edge_columns(routes, limits_Bps(routes, capacity_Bps), way.credits),
        **_waiting(sends, place),
        **_gates(way, sends, edge, stage_of_edge),
        "edges.head": tail - count,
        "edges.tail": tail,
        "sends.edge": edge[order],
        "sends.nbytes": (sends.nbytes * wire_shares(way)[edge])[order],
        "runs.edge_end": np.full(1, len(stage_of_edge)),
        "runs.sends_left": np.full(1, len(sends)),
    }


def wire_shares(way: LoweredCollective) -> Floats:
    """Bytes on the wire per byte of payload on each edge, stage after stage; shape (edges,)."""
    return way.wire_factor * np.concatenate([np.ones(0), *(stage.load for stage in way.stages)])


def stream_routes(route: tuple[int, ...], cap_Bps: float) -> Routes:
    """Links of somebody else's bytes: one edge without a latency."""
    arcs = np.array(route, dtype=np.int64)
    return Routes(np.array([0, len(route)]), arcs, np.array([float(cap_Bps)]), np.zeros(1))


def stream_columns(route: tuple[int, ...], cap_Bps: float, capacity_Bps: Floats) -> Columns:
    """Lay out somebody else's bytes: one edge, one send."""
    routes = stream_routes(route, cap_Bps)
    none, one = np.zeros(0, np.int64), np.ones(1, np.int64)
    return {
        **edge_columns(routes, limits_Bps(routes, capacity_Bps), 1),
        "edges.tail": one, "edges.gate": -one, "edges.gate_to": -one, "sends.nbytes": np.zeros(1),
        "sends.waiting": 0 * one,
        "followers": none, "gates.passing": none, "gate_edges": none, "pending": none,
        "runs.edge_end": one, "runs.sends_left": one,
    }  # fmt: skip


def edge_columns(routes: Routes, limit_Bps: Floats, credits: int) -> Columns:
    """Columns of edges that send nothing yet, and of their hops."""
    edges = len(limit_Bps)
    return {
        "hops.arc": routes.arcs,
        "hops.edge": np.repeat(np.arange(edges), np.diff(routes.pointers)),
        "edges.route_start": routes.pointers[:-1],
        "edges.route_end": routes.pointers[1:],
        "edges.limit_Bps": limit_Bps,
        "edges.latency_s": routes.latency_s,
        "edges.credits": np.full(edges, credits),
        "edges.line": np.full(edges, -1),
    }


def _waiting(sends: FlatMessages, place: Ints) -> Columns:
    """What each send waits for, and who waits for it; sends numbered by their `place`."""
    waits, awaited = place[sends.waits], place[sends.awaited]
    end = np.cumsum(np.bincount(awaited, minlength=len(sends)))
    return {
        "sends.waiting": np.bincount(waits, minlength=len(sends)),
        "sends.follower_start": np.concatenate([[0], end[:-1]]) if len(end) else end,
        "sends.follower_end": end,
        "followers": waits[np.lexsort((waits, awaited))],
    }


def _gates(way: LoweredCollective, sends: FlatMessages, edge: Ints, stage: Ints) -> Columns:
    """A rank on a channel begins a stage when its sends and receives before it have landed."""
    stages = len(way.stages)
    gate, gate_to = np.full(len(stage), -1), np.full(len(stage), -1)
    if stages < 2:
        empty = np.zeros(0, np.int64)
        none = {"gates.passing": empty, "gate_edges": empty, "pending": empty}
        return {"edges.stage": stage, "edges.gate": gate, "edges.gate_to": gate_to, **none}
    ranks = 1 + int(max(sends.src.max(), sends.dst.max()))
    ends = np.stack([sends.channel * ranks + sends.src, sends.channel * ranks + sends.dst])
    known, which = np.unique(ends, return_inverse=True)
    which = which.reshape(2, -1)
    gate[edge], gate_to[edge] = which
    pending = np.bincount(
        (which * stages + stage[edge]).ravel(), minlength=len(known) * stages
    ).reshape(-1, stages)
    used = np.flatnonzero(gate >= 0)
    by_gate = used[np.lexsort((stage[used], gate[used]))]
    end = np.cumsum(np.bincount(gate[used], minlength=len(known)))
    return {
        "edges.stage": stage, "edges.gate": gate, "edges.gate_to": gate_to,
        "gates.passing": np.argmax(pending > 0, axis=1),
        "gates.stages": np.full(len(known), stages),
        "gates.pending_start": np.arange(len(known)) * stages,
        "gates.next_edge": np.concatenate([[0], end[:-1]]), "gates.edge_end": end,
        "gate_edges": by_gate, "pending": pending.ravel(),
    }  # fmt: skip


def _edges_and_stages(way: LoweredCollective, sends: FlatMessages) -> tuple[Ints, Ints]:
    """For each send its edge (numbered through all stages); for each edge its stage."""
    firsts = [part.phases[0] for part in way.stages]
    stage = np.repeat(np.arange(len(firsts)), [len(phase.src) for phase in firsts])
    repeats = [sum(phase.repeat for phase in part.phases) for part in way.stages]
    stage_of_round = np.repeat(np.arange(len(repeats)), repeats)

    def key(stage: Ints, *columns: Ints) -> Ints:
        for column in columns:
            stage = stage * limit + column
        return stage

    names = ("channel", "src", "dst")
    parts = [
        np.concatenate([*(getattr(p, name) for p in firsts), np.zeros(0, np.int64)])
        for name in names
    ]
    wanted = [getattr(sends, name) for name in names]
    limit = 1 + int(
        max((int(column.max()) for column in (*parts, *wanted) if len(column)), default=0)
    )
    edges = key(stage, *parts)
    asked = key(stage_of_round[sends.round], *wanted)
    order = np.argsort(edges, kind="stable")
    at = np.searchsorted(edges, asked, side="right", sorter=order) - 1
    if not len(asked):
        return np.zeros(0, np.int64), stage
    lost = np.flatnonzero((at < 0) | (edges[order[at]] != asked))
    if len(lost):
        missing = tuple(int(column[lost[0]]) for column in wanted)
        raise SimulationError(f"a send over {missing} that no phase of the schedule has")
    return order[at], stage

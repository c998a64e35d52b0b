"""Compile a collective for the message kernel: columns of its edges, sends and dependencies."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.collectives.dependencies import Messages
from perfmodel.collectives.timing.recurrence import edges_of_sends
from perfmodel.library.lowering.lowered import Edges, LoweredCollective, join_edges
from perfmodel.simulate.network import stream_edges

Columns = dict[str, NDArray[Any]]
"""Columns of `records.State` ("edges.head" is the field `head` of its edges), numbered from 0."""

SIZED_BY = {
    "hops": "hops.arc",
    "routes": "routes.limit_Bps",
    "edges": "edges.latency_s",
    "sends": "sends.nbytes",
    "followers": "followers",
    "runs": "runs.sends_left",
}
"""Lists to which a collective adds entries, and for each a column that is always given."""

POINTS_TO = {
    "hops.route": "routes",
    "routes.hop_start": "hops",
    "routes.hop_end": "hops",
    "edges.route": "routes",
    "edges.head": "sends",
    "edges.tail": "sends",
    "edges.run": "runs",
    "sends.edge": "edges",
    "sends.follower_start": "followers",
    "sends.follower_end": "followers",
    "followers": "sends",
    "runs.edge_start": "edges",
    "runs.edge_end": "edges",
}
"""Columns that hold indices into another list; -1: none."""

REFILLED = ("edges.head", "sends.waiting", "runs.sends_left")
"""Columns that a run changes for good; all others have their first values when it has ended."""


def routes_of(lowered: LoweredCollective) -> Edges:
    """Return the edges of a collective, stage after stage, with what their stages allow them."""
    own = [replace(s.edges, latency_s=s.latency_s, cap_Bps=s.cap_Bps) for s in lowered.stages]
    return join_edges([stream_edges((), ()), *own])


def limits_Bps(routes: Edges, capacity_Bps: FloatArray) -> FloatArray:
    """Return the rate of each edge alone on its links; bytes per second, shape (edges,).

    A link that an edge crosses twice gives it half of its bandwidth.
    """
    owner = np.repeat(np.arange(len(routes.cap_Bps)), np.diff(routes.pointers))
    pairs = owner * (len(capacity_Bps) + 1) + routes.arcs
    _, pair_of, times = np.unique(pairs, return_inverse=True, return_counts=True)
    limit_Bps = routes.cap_Bps.astype(float).copy()
    np.minimum.at(limit_Bps, owner, capacity_Bps[routes.arcs] / times[pair_of])
    return limit_Bps


def columns_of(lowered: LoweredCollective, sends: Messages, capacity_Bps: FloatArray) -> Columns:
    """Return the columns of a collective; all indices count from zero.

    Raises `SimulationError`: a send over an edge that no phase of the schedule has.
    """
    edge, stage_of_edge = _edges_and_stages(lowered, sends)
    waits, awaited, barriers = _with_barriers(sends, edge, stage_of_edge)
    order = np.argsort(edge, kind="stable")
    place = np.arange(len(sends) + barriers)
    place[order] = np.arange(len(order))
    routes = routes_of(lowered)
    count = np.bincount(edge, minlength=len(stage_of_edge))
    nbytes, tail = sends.nbytes * wire_shares(lowered)[edge], np.cumsum(count)
    return {
        **edge_columns(routes, limits_Bps(routes, capacity_Bps), lowered.credits),
        **_dependency_columns(place[waits], place[awaited], len(place)),
        "edges.head": tail - count,
        "edges.tail": tail,
        "sends.edge": np.append(edge[order], np.full(barriers, -1)),
        "sends.nbytes": np.append(nbytes[order], np.zeros(barriers)),
        "runs.edge_end": np.full(1, len(stage_of_edge)),
        "runs.sends_left": np.full(1, len(sends)),
    }


def wire_shares(lowered: LoweredCollective) -> FloatArray:
    """Bytes on the wire per byte of payload on each edge, stage after stage; shape (edges,)."""
    return lowered.wire_factor * np.concatenate(
        [np.ones(0), *(stage.load for stage in lowered.stages)]
    )


def stream_columns(route: tuple[int, ...], cap_Bps: float, capacity_Bps: FloatArray) -> Columns:
    """Return the columns of background traffic: one edge, one send."""
    routes = stream_edges([route], [cap_Bps])
    ones = np.ones(1, np.int64)
    return {
        **edge_columns(routes, limits_Bps(routes, capacity_Bps), 1),
        "edges.tail": ones,
        "sends.nbytes": np.zeros(1),
        "sends.waiting": 0 * ones,
        "followers": np.zeros(0, np.int64),
        "runs.edge_end": ones,
        "runs.sends_left": ones,
    }


def edge_columns(routes: Edges, limit_Bps: FloatArray, credits: int) -> Columns:
    """Return the columns of edges before their first send, and of their routes."""
    edges = len(limit_Bps)
    return {
        **route_columns(routes, limit_Bps),
        "edges.latency_s": routes.latency_s,
        "edges.credits": np.full(edges, credits),
        "edges.connection": np.full(edges, -1),
    }


def route_columns(routes: Edges, limit_Bps: FloatArray) -> Columns:
    """Return the columns of routes, one for all edges with the same links and the same limit."""
    arcs, ends = routes.arcs.tolist(), routes.pointers.tolist()
    numbers: dict[tuple[float, ...], int] = {}
    of_edge = [
        numbers.setdefault((limit, *arcs[a:b]), len(numbers))
        for (a, b), limit in zip(itertools.pairwise(ends), limit_Bps.tolist(), strict=True)
    ]
    hops = np.array([len(key) - 1 for key in numbers], dtype=np.int64)
    end = np.cumsum(hops)
    return {
        "hops.arc": np.array([arc for _, *links in numbers for arc in links], dtype=np.int64),
        "hops.route": np.repeat(np.arange(len(hops)), hops),
        "routes.hop_start": end - hops,
        "routes.hop_end": end,
        "routes.limit_Bps": np.array([limit for limit, *_ in numbers], dtype=float),
        "edges.route": np.array(of_edge, dtype=np.int64),
    }


def _dependency_columns(waits: IntArray, awaited: IntArray, sends: int) -> Columns:
    """Return the columns of what each of some sends waits for, and of what waits for it."""
    end = np.cumsum(np.bincount(awaited, minlength=sends))
    bits = sends.bit_length()
    pairs = np.sort(awaited << bits | waits, kind="stable")  # long runs are in order already
    return {
        "sends.waiting": np.bincount(waits, minlength=sends),
        "sends.follower_start": np.concatenate([[0], end[:-1]]) if len(end) else end,
        "sends.follower_end": end,
        "followers": pairs & ((1 << bits) - 1),
    }


def _with_barriers(
    sends: Messages, edge: IntArray, stage: IntArray
) -> tuple[IntArray, IntArray, int]:
    """Return which sends wait and which they wait for, with barriers behind them, and how many.

    A rank begins a stage when all sends from it and to it in its earlier stages have landed. So
    each of its stages but the first has a barrier, which waits for the sends of the stage before
    and for that one's barrier, and for which the first sends over the rank's edges wait.
    """
    count, stages = len(sends), 1 + int(stage.max(initial=0))
    if stages == 1:
        return sends.waits, sends.awaited, 0
    ranks = 1 + int(max(sends.src.max(), sends.dst.max()))
    rank = np.concatenate([sends.channel * ranks + sends.src, sends.channel * ranks + sends.dst])
    keys, of = np.unique(rank * stages + np.tile(stage[edge], 2), return_inverse=True)
    later = np.flatnonzero(np.diff(keys // stages) == 0) + 1
    barrier = np.full(len(keys) + 1, -1)
    barrier[later] = count + np.arange(len(later))
    _, first = np.unique(edge, return_index=True)
    pairs = (
        (sends.waits, sends.awaited),
        (barrier[of + 1], np.tile(np.arange(count), 2)),
        (barrier[later], barrier[later - 1]),
        (first, barrier[of[first]]),
    )
    waits, awaited = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    exist = (waits >= 0) & (awaited >= 0)
    return waits[exist], awaited[exist], len(later)


def _edges_and_stages(lowered: LoweredCollective, sends: Messages) -> tuple[IntArray, IntArray]:
    """For each send its edge (numbered through all stages); for each edge its stage."""
    firsts = [part.phases[0] for part in lowered.stages]
    stage = np.repeat(np.arange(len(firsts)), [len(phase.src) for phase in firsts])
    repeats = [sum(phase.repeat for phase in part.phases) for part in lowered.stages]
    stage_of_round = np.repeat(np.arange(len(repeats)), repeats)

    def key(stage: IntArray, *columns: IntArray) -> IntArray:
        for column in columns:
            stage = stage * limit + column
        return stage

    names = ("channel", "src", "dst")
    parts = [
        np.concatenate([*(getattr(p, name) for p in firsts), np.zeros(0, np.int64)])
        for name in names
    ]
    columns = [getattr(sends, name) for name in names]
    limit = 1 + int(
        max((int(column.max()) for column in (*parts, *columns) if len(column)), default=0)
    )
    edges = key(stage, *parts)
    keys = key(stage_of_round[sends.round], *columns)
    order = np.argsort(edges, kind="stable")
    return edges_of_sends(edges[order], order, keys, columns), stage

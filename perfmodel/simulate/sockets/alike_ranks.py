"""Which ranks of a collective do the same, so that some of them stand for all.

In a ring every rank sends to its neighbour in every round. If the hosts and their links are alike,
what happens on one host happens on each of them at the same time, and the first `period` ranks are
enough: what they send to others arrives at them from their likes. It is exact where no link carries
data of two ranks that stand for each other, or never makes what it carries wait, and where segments
are all as long (but for a few bytes: see `rank_loops.EVEN_BYTES`). Links on which nothing ever
waits are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.collectives.schedule import Phase
from perfmodel.library.lowering.edge_routing import edges_between
from perfmodel.library.lowering.lowered import Edges, LoweredCollective
from perfmodel.library.machine import Machine
from perfmodel.topology.model import Sockets, Topology
from perfmodel.topology.templates.spec import PORT_KINDS

RATE_TOLERANCE = 1e-9
SHORT_LAG = 2
"""Segments of a rank into which Gloo cuts a short buffer."""

Pair = tuple[int, int]
"""Sender and receiver; positions in the group."""


@dataclass(frozen=True, slots=True)
class Route:
    """What a connection between two ranks crosses."""

    arcs: tuple[int, ...]
    own: int
    """So many of the first arcs are the sender's host's."""
    latency_s: float


@dataclass(frozen=True, slots=True)
class Folding:
    """The ranks of a ring, of which the first `period` stand for all."""

    ranks: int
    period: int
    routes: Mapping[Pair, Route]
    """Of data and of ready messages that the first ranks send: the arcs that stand for their likes,
    without those on which nothing ever waits."""
    order: IntArray
    """Edges by sender and distance; shape (edges,)."""

    def pair(self, src: int, dst: int) -> Pair:
        """Return the pair with one of the first ranks as sender that stands for a pair."""
        return fold_pair(src, dst, self.ranks, self.period)

    def pairs(self, phase: Phase) -> list[Pair]:
        """Return who of the first ranks sends to whom, in the order of `likes`."""
        first = self.order[: len(self.order) * self.period // self.ranks]
        return list(zip(phase.src[first].tolist(), phase.dst[first].tolist(), strict=True))

    def likes(self, values: FloatArray) -> FloatArray:
        """Return values of edges in columns, one for each of `pairs`."""
        return values[self.order].reshape(self.ranks // self.period, -1)


def fold_pair(src: int, dst: int, ranks: int, period: int) -> Pair:
    """Shift a pair so that the sender is one of the first `period` ranks."""
    shift = src - src % period
    return src - shift, (dst - shift) % ranks


def fold(machine: Machine, lowered: LoweredCollective, tolerance: float) -> Folding | None:
    """Return how a collective folds; None if it is no ring over links that forget.

    Shared cores and shapers' buckets have a memory of what was sent before, by whomever.

    `tolerance`: part of a step's latency by which those of links may differ. The ring is as slow as
    if all were like the slowest, at whose pace it goes: its receiver says in each round that it is
    ready.
    """
    schedule, stages = lowered.schedule, lowered.stages
    phases = [phase for stage in stages for phase in stage.phases]
    is_ring = (
        not schedule.switches
        and bool(phases)
        and machine.topology.sockets == Sockets()
        and all(stage.edges is stages[0].edges for stage in stages)
        and all((p.first == 0).all() and (p.active == p.repeat).all() for p in phases)
        and all(np.array_equal(phases[0].src, phase.src) for phase in phases)
        and all(np.array_equal(phases[0].dst, phase.dst) for phase in phases)
        and _all_equal(np.bincount(phases[0].src, minlength=schedule.ranks))
    )
    if not is_ring:
        return None
    ends = stages[0].edges.src.tobytes(), stages[0].edges.dst.tobytes()
    key = "folding", machine, ends, lowered.protocol, tolerance  # links may be as measured
    return machine.cached(key, lambda: _Repetition.of(machine, lowered).fold(tolerance))


def messages_of(lowered: LoweredCollective, folding: Folding | None) -> float:
    """Return how many messages are simulated for a collective of a short buffer.

    A long one is cut into more segments, but its messages wait for nothing but the links.
    """
    messages = sum(
        float(phase.active.sum()) * min(1.0, SHORT_LAG / phase.lag)
        for stage in lowered.stages
        for phase in stage.phases
    )
    return messages if folding is None else messages * folding.period / folding.ranks


def arcs_that_queue(routes: Sequence[Sequence[int]], rates_Bps: FloatArray) -> set[int]:
    """Return the arcs on which messages may have to wait.

    On the others they never do: all that reaches them has passed narrower ones before, which
    together are no faster. What a route begins with is kept.
    """
    feeders: dict[int, set[int]] = {}
    for route in routes:
        narrowest = route[0]
        for arc in route[1:]:
            feeders.setdefault(arc, set()).add(narrowest)
            if rates_Bps[arc] < rates_Bps[narrowest]:
                narrowest = arc
    return {route[0] for route in routes} | {
        arc
        for arc, narrower in feeders.items()
        if rates_Bps[list(narrower)].sum() > rates_Bps[arc] * (1 + RATE_TOLERANCE)
    }


def own_links(topology: Topology, arcs: Sequence[int]) -> int:
    """Return how many of the links of a route lead out of its host; all if it stays inside."""
    kinds = topology.arcs.kinds
    return next((at for at, arc in enumerate(arcs, start=1) if kinds[arc] in PORT_KINDS), len(arcs))


@dataclass(frozen=True, slots=True)
class _Repetition:
    """The edges of a ring by sender and distance, and what repeats in them."""

    topology: Topology
    ranks: int
    pairs: list[Pair]
    order: IntArray
    routes: list[tuple[list[int], list[int]]]
    """Of data and of ready messages."""
    queues: set[int]
    latencies_s: FloatArray
    """Of a step, of data and of ready messages on links; shape (3, edges)."""

    @classmethod
    def of(cls, machine: Machine, lowered: LoweredCollective) -> _Repetition:
        stage, ranks = lowered.stages[0], lowered.schedule.ranks
        edges, src, dst = stage.edges, stage.phases[0].src, stage.phases[0].dst
        order = np.lexsort(((dst - src) % ranks, src))
        back = edges_between(machine.topology, machine.router, edges.dst[order], edges.src[order])
        data = [arcs_of(edges, edge) for edge in order.tolist()]
        return cls(
            machine.topology,
            ranks,
            list(zip(src[order].tolist(), dst[order].tolist(), strict=True)),
            order,
            list(zip(data, [arcs_of(back, edge) for edge in range(len(order))], strict=True)),
            arcs_that_queue(data, machine.topology.arcs.bandwidth_Bps),
            np.stack([stage.latency_s[order], edges.latency_s[order], back.latency_s]),
        )

    def fold(self, tolerance: float) -> Folding | None:
        """Find the smallest period with which links and latencies repeat."""
        for period in (p for p in range(1, self.ranks + 1) if self.ranks % p == 0):
            table = self._likes(period)
            if table is not None and self._is_free(table) and self._are_alike(period, tolerance):
                return Folding(self.ranks, period, self._folded_routes(period, table), self.order)
        return None

    def _likes(self, period: int) -> IntArray | None:
        """Return the arcs of the edges of each `period` ranks as a row; None if rows are unlike."""
        crossed = [self._kept(route) for both in self.routes for route in both]
        shape = (self.ranks // period, -1)
        distances = np.array([(dst - src) % self.ranks for src, dst in self.pairs])
        lengths = np.array([len(route) for route in crossed])
        if not (_all_equal(distances.reshape(shape)) and _all_equal(lengths.reshape(shape))):
            return None
        return np.array([arc for route in crossed for arc in route], np.int64).reshape(shape)

    def _kept(self, route: list[int]) -> list[int]:
        return [arc for arc in route if arc in self.queues]

    def _is_free(self, table: IntArray) -> bool:
        """Whether going on by a row leads from each arc to another of its rate, and never back."""
        rates_Bps = self.topology.arcs.bandwidth_Bps[table]
        if (rates_Bps != rates_Bps[0]).any() or not np.diff(np.sort(table, axis=0), axis=0).all():
            return False
        steps = np.stack([table.ravel(), np.roll(table, -1, axis=0).ravel()])
        arcs, images = np.unique(steps, axis=1)
        return len(np.unique(arcs)) == len(np.unique(images)) == len(arcs)

    def _are_alike(self, period: int, tolerance: float) -> bool:
        """Whether the latencies of edges that stand for each other are alike."""
        likes_s = self.latencies_s.reshape(3, self.ranks // period, -1)
        return bool((np.ptp(likes_s, axis=1) <= tolerance * self.latencies_s[0].mean()).all())

    def _folded_routes(self, period: int, table: IntArray) -> dict[Pair, Route]:
        stands_for = {arc: min(column) for column in table.T.tolist() for arc in column}
        slowest_s = self.latencies_s.reshape(3, self.ranks // period, -1).max(axis=1).tolist()
        routes: dict[Pair, Route] = {}
        for (src, dst), (data, ready), data_s, ready_s in zip(
            self.pairs, self.routes, *slowest_s[1:], strict=False
        ):
            for ends, arcs, link_s in (((dst, src), ready, ready_s), ((src, dst), data, data_s)):
                routes[fold_pair(*ends, self.ranks, period)] = Route(
                    tuple(stands_for[arc] for arc in self._kept(arcs)),
                    len(self._kept(arcs[: own_links(self.topology, arcs)])),
                    link_s,
                )
        return routes


def arcs_of(edges: Edges, edge: int) -> list[int]:
    """Return the links that an edge crosses."""
    return list(edges.arcs[edges.pointers[edge] : edges.pointers[edge + 1]].tolist())


def _all_equal(rows: IntArray) -> bool:
    return bool((rows == rows[0]).all())

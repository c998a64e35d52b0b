"""Rates of the edges of a collective alone on its links.

Edges that are active in all repeats share links max-min fairly. Those of chains and trees are
active in some repeats only, and share a link with those that are active in the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, sending_s
from perfmodel.collectives.schedule import Phase
from perfmodel.library.lowering.edges import Edges
from perfmodel.library.lowering.lowered import Stage
from perfmodel.simulate.sharing.max_min import max_min_rates

StageKey = tuple[int, ...]
"""Ids of the edges of a stage and of its phases."""


@dataclass
class StageRates:
    """Rates of stages without other traffic, with a cache; wire bytes per second.

    They follow from links, caps and bytes: stages that differ in latencies only have the same.
    Cache entries hold the objects whose ids are their keys, so that no id is used again.

    Parameters
    ----------
    capacity_Bps : ndarray of float, shape (links,)
    """

    capacity_Bps: FloatArray
    _max_min: dict[int, tuple[Edges, FloatArray]] = field(default_factory=dict)
    _duty_cycled: dict[StageKey, tuple[Stage, FloatArray]] = field(default_factory=dict)
    _fill_and_drain: dict[StageKey, tuple[Stage, FloatArray]] = field(default_factory=dict)

    def of(self, stage: Stage) -> FloatArray:
        """Return the rate of each edge; shape (edges,)."""
        if not is_steady(stage):
            key = _key(stage)
            if key not in self._duty_cycled:
                self._duty_cycled[key] = (stage, duty_cycle_rates(self.capacity_Bps, stage))
            return np.minimum(stage.cap_Bps, self._duty_cycled[key][1])
        edges, unlimited = stage.edges, bool(np.isinf(stage.cap_Bps).all())
        if unlimited and id(edges) in self._max_min:
            return self._max_min[id(edges)][1]
        rates = max_min_rates(self.capacity_Bps, edges.pointers, edges.arcs, stage.cap_Bps)
        if unlimited:
            self._max_min[id(edges)] = (edges, rates)
        return rates

    def fill_and_drain(self, stage: Stage) -> FloatArray:
        """Return the rate of each edge of a pipeline while it fills or drains; shape (edges,)."""
        key = _key(stage)
        if key not in self._fill_and_drain:
            self._fill_and_drain[key] = (stage, fill_and_drain_rates(self.capacity_Bps, stage))
        return np.minimum(stage.cap_Bps, self._fill_and_drain[key][1])


def _key(stage: Stage) -> StageKey:
    return id(stage.edges), *map(id, stage.phases)


def is_steady(stage: Stage) -> bool:
    """Whether all edges are active in all repeats."""
    return all(bool((phase.active == phase.repeat).all()) for phase in stage.phases)


def duty_cycle_rates(capacity_Bps: FloatArray, stage: Stage) -> FloatArray:
    """Return the rates of edges that are active in some repeats only, as in chains and trees.

    An active edge shares each of its links with those that are active in the same repeats. Edges
    that send more in a repeat need more of a link to keep in step, so a link is shared by bytes:
    capacity x own bytes / bytes of all edges there, its own included, in its own repeats. Edges of
    one channel that send in different repeats do not slow each other; channels that start together
    do. Exact where that link limits all edges that share it; too low elsewhere.

    `capacity_Bps`: shape (links,).

    Returns
    -------
    ndarray of float, shape (edges,)
        Wire bytes per second while an edge sends, whatever its own cap.
    """
    edges = stage.edges
    lengths = np.diff(edges.pointers)
    met, own = np.zeros(len(edges.arcs)), np.zeros(len(edges))
    unit = max((float(phase.nbytes.max(initial=0.0)) for phase in stage.phases), default=0.0) or 1.0
    for phase in stage.phases:
        nbytes = phase.nbytes / unit  # sums of equal ones are then exact
        met += _bytes_met(edges.arcs, lengths, phase.first, phase.active, nbytes)
        own += nbytes * phase.active
    overload = met / np.repeat(np.where(own > 0, own, np.inf), lengths)
    shares = capacity_Bps[edges.arcs] / np.maximum(overload, 1.0)
    least, crosses = np.full(len(edges), np.inf), lengths > 0
    if crosses.any():
        least[crosses] = np.minimum.reduceat(shares, edges.pointers[:-1][crosses])
    return least


def _bytes_met(
    arcs: IntArray, lengths: IntArray, first: IntArray, active: IntArray, nbytes: FloatArray
) -> FloatArray:
    """Bytes of all edges on each link of an edge, in the repeats in which that edge is active.

    Shape (arcs,). All that has crossed a link by repeat t is the sum of
    nbytes (min(t, last) - min(t, first)) over its edges.
    """
    met = np.repeat(active * nbytes, lengths)
    shared = np.flatnonzero(np.bincount(arcs)[arcs] > 1)
    span = int((first + active).max(initial=0)) + 1
    base, begins = arcs[shared] * span, np.repeat(first, lengths)[shared]
    order = np.argsort(base + begins)  # so that searches hit neighbouring entries
    shared, base, begins = shared[order], base[order], begins[order]
    ends = begins + np.repeat(active, lengths)[shared]
    weight = np.repeat(nbytes, lengths)[shared]
    by_end = np.argsort(base + ends, kind="stable")
    sums = [
        (keys, _cumulative_sum(own), _cumulative_sum(own * at))
        for keys, own, at in (
            (base + begins, weight, begins),
            ((base + ends)[by_end], weight[by_end], ends[by_end]),
        )
    ]
    lows, highs = _runs(base)

    def crossed(until: IntArray) -> FloatArray:
        total: list[FloatArray] = []
        for keys, weights, products in sums:
            position = np.searchsorted(keys, base + until)
            before = products[position] - products[lows]
            total.append(before + (weights[highs] - weights[position]) * until)
        done: FloatArray = total[1] - total[0]
        return done

    met[shared] = crossed(ends) - crossed(begins)
    return met


def fill_and_drain_rates(capacity_Bps: FloatArray, stage: Stage) -> FloatArray:
    """Return the rates of edges of a pipeline while it fills or drains.

    The first pieces of edges that begin early, and the last of those that end late, share their
    links with few others. The rate is that of an edge's first or of its last repeat, whichever is
    higher. A link is shared equally there, piece by piece: a small piece waits for as many bytes of
    a large one as it has itself.

    `capacity_Bps`: shape (links,). `stage`: of one phase.

    Returns
    -------
    ndarray of float, shape (edges,)
        Wire bytes per second, whatever an edge's own cap.
    """
    phase, edges = stage.phases[0], stage.edges
    lengths = np.diff(edges.pointers)
    at_first, at_last = _busy_bytes(edges.arcs, lengths, phase)
    busy_s = sending_s(np.minimum(at_first, at_last), capacity_Bps[edges.arcs])
    longest_s, crosses = np.zeros(len(edges)), lengths > 0
    if crosses.any():
        longest_s[crosses] = np.maximum.reduceat(busy_s, edges.pointers[:-1][crosses])
    unlimited = np.full(len(edges), np.inf)
    np.divide(phase.nbytes, longest_s, out=unlimited, where=longest_s > 0)
    return unlimited


def _busy_bytes(arcs: IntArray, lengths: IntArray, phase: Phase) -> tuple[FloatArray, FloatArray]:
    """Bytes that occupy each link of an edge in the edge's first repeat and in its last."""
    span = int((phase.first + phase.active).max(initial=0)) + 1
    base = arcs * span
    weight = np.repeat(phase.nbytes, lengths)
    first, end = (np.repeat(at, lengths) for at in (phase.first, phase.first + phase.active))
    begun, ended = _CumulativeWeights(base + first, weight), _CumulativeWeights(base + end, weight)

    def busy(begun_until: IntArray, ended_until: IntArray) -> FloatArray:
        active_edges = begun_until - ended_until
        active_bytes = begun.sums[begun_until] - ended.sums[ended_until]
        nbytes: FloatArray = np.maximum(weight, np.minimum(active_edges * weight, active_bytes))
        return nbytes

    at_first = busy(begun.up_to_own(), ended.up_to(base + first))
    return at_first, busy(begun.up_to(base + end - 1), ended.below_own())


class _CumulativeWeights:
    """How many keys lie up to a key; `sums` has the sum of their weights by this number."""

    def __init__(self, keys: IntArray, weight: FloatArray) -> None:
        self._order = np.argsort(keys, kind="stable")
        self._ascending = keys[self._order]
        self.sums = _cumulative_sum(weight[self._order])

    def up_to(self, most: IntArray) -> IntArray:
        """How many keys are not above each of some keys."""
        return np.searchsorted(self._ascending, most, side="right")

    def up_to_own(self) -> IntArray:
        """As `up_to` of each of the keys."""
        return self._in_order_of_keys(_runs(self._ascending)[1])

    def below_own(self) -> IntArray:
        """How many keys are below each of the keys."""
        return self._in_order_of_keys(_runs(self._ascending)[0])

    def _in_order_of_keys(self, values: IntArray) -> IntArray:
        ordered = np.empty_like(values)
        ordered[self._order] = values
        return ordered


def _runs(ascending: IntArray) -> tuple[IntArray, IntArray]:
    """Where the values equal to each value begin, and where they end."""
    begins = np.flatnonzero(np.diff(ascending, prepend=-1))  # no value is negative
    ends = np.append(begins, len(ascending))[1:]
    return np.repeat(begins, ends - begins), np.repeat(ends, ends - begins)


def _cumulative_sum(values: FloatArray) -> FloatArray:
    return np.concatenate([[0.0], np.cumsum(values)])

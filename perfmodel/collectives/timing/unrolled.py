"""Phases over one set of edges, repeat by repeat: what each edge sends and waits for."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, parts_of, stable_order
from perfmodel.collectives.schedule import Phase

MOST_TRACED = 200_000
"""Edges up to which rings are searched whose edges are not consecutive."""

MOST_TREE_EDGES = 1 << 17
"""Edges of trees up to which pieces are worked out one after the other: for each of a hundred
changes of rates, numbers of all edges are kept, up to a quarter of a GB."""

MANY_PIECES = 100
"""Pieces over trees from which on it is quicker to go through the runs that they form."""


class ContiguousPhase(NamedTuple):
    """Arrays of a phase, contiguous; `begins`: edges in the order in which they begin."""

    nbytes: FloatArray
    first: IntArray
    begins: IntArray


@dataclass
class UnrolledPhases:
    """Phases that share their edges, prepared for being stepped through.

    Parameters
    ----------
    phases : tuple of Phase
    credits : int
        Sends that an edge may have in flight.
    feeders : ndarray of int, shape (edges, most feeders)
        Edges that bring what each edge sends on; padded with `edges`.
    order : ndarray of int, shape (rings, edges of a ring), or None
        The edges ring by ring, each fed by the one before it; None if they form no such rings, or
        not all of them work all the time.
    ring_begins : ndarray of int, shape (rings,), or None
        First edge of each ring, where they stand ring after ring; by default as of `order`.
    """

    phases: tuple[Phase, ...]
    credits: int
    feeders: IntArray
    order: IntArray | None
    ring_begins: IntArray | None = None

    def __post_init__(self) -> None:
        first = self.phases[0].first
        self.edges = len(first)
        if self.order is not None:
            self.ring_begins = np.arange(0, self.edges, self.order.shape[1])
        self.together = all(bool((p.active == p.repeat).all()) for p in self.phases)
        self.pipelined = bool(first.max(initial=0) > 0)
        padded = np.append(first, first.max(initial=0))
        ahead = int(np.max(first[:, None] - padded[self.feeders], initial=0))
        self.depth = self.credits + max(ahead, *(p.lag for p in self.phases)) + 1
        self._firsts = [0]
        self._done = [np.zeros(self.edges, dtype=np.int64)]
        for phase in self.phases:
            self._firsts.append(self._firsts[-1] + phase.repeat)
            self._done.append(self._done[-1] + phase.active)
        self.steps, self.sends = self._firsts[-1], self._done[-1]
        self._contiguous: dict[Phase, ContiguousPhase] = {}
        self.spare: list[
            tuple[FloatArray, FloatArray, Any]
        ] = []  # arrays of clocks that have ended, for those that begin
        self.folds: list[Any] = []  # see `clocks.ring_folds`

    @cached_property
    def rings(self) -> IntArray | None:
        """First edge of each ring where they lie ring after ring; None elsewhere."""
        in_order = self.order is None or bool((np.diff(self.order.ravel()) == 1).all())
        return self.ring_begins if in_order and not self.pipelined else None

    def phase_at(self, step: int) -> tuple[Phase, int]:
        """Return the phase of a step, and its first step."""
        index = self._index(step)
        return self.phases[index], self._firsts[index]

    def _index(self, step: int) -> int:
        return min(bisect.bisect_right(self._firsts, step), len(self.phases)) - 1

    def done(self, step: int) -> IntArray:
        """Return the sends of each edge in the phases before that of a step."""
        return self._done[self._index(step)]

    def sent(self, step: int) -> IntArray:
        """Return the sends of each edge in the steps before this one."""
        phase, first = self.phase_at(step)
        return self.done(step) + np.clip(step - first - phase.first, 0, phase.active)

    @cached_property
    def least_bytes(self) -> FloatArray:
        """Least that each edge sends at once, contiguous; shape (edges,)."""
        return np.ascontiguousarray(
            np.min([phase.nbytes for phase in self.phases], axis=0), dtype=np.float64
        )

    @cached_property
    def are_trees(self) -> bool:
        """Whether all edges send as many pieces, each once edges before it have brought it.

        And there are few enough of them (`MOST_TREE_EDGES`).
        """
        phase = self.phases[0]
        if len(self.phases) > 1 or not self.pipelined or phase.drained:
            return False
        count = int(phase.active[0])
        return (
            0 < self.edges <= MOST_TREE_EDGES and count > 0 and bool((phase.active == count).all())
        )

    @cached_property
    def tree_order(self) -> IntArray:
        """Edges of trees in the order in which they begin; tree after tree where pieces are many.

        One by one, pieces pass all trees at once: edges of one wait for each other. Channels have a
        tree each.
        """
        phase = self.phases[0]
        if self.sends[0] < MANY_PIECES:
            return self.contiguous(phase).begins
        return np.lexsort((phase.first, phase.channel))

    @cached_property
    def tree_feeders(self) -> IntArray:
        """Feeders by their places in `tree_order`; padded at the end."""
        place = np.arange(self.edges + 1)
        place[self.tree_order] = np.arange(self.edges)
        return np.sort(place[self.feeders[self.tree_order]], axis=1)

    def landed(self, phase: Phase, last_s: FloatArray) -> FloatArray:
        """When the last send of any edge that starts or ends where this one starts has landed."""
        if self.ring_begins is not None:
            return np.maximum(last_s, last_s[self.feeders[:, 0]])
        places, ends = places_of(phase)
        landed = np.zeros(int(max(places.max(), ends.max())) + 1)
        np.maximum.at(landed, places, last_s)
        np.maximum.at(landed, ends, last_s)
        return landed[places]

    def working(self, phase: Phase, step: int) -> IntArray:
        """Return the edges that work in a repeat of a phase."""
        if (phase.active != phase.active[0]).any():
            return np.flatnonzero((phase.first <= step) & (step < phase.first + phase.active))
        begins = self.contiguous(phase).begins
        spans = [step - phase.active[0] + 1, step + 1]
        return begins[slice(*np.searchsorted(phase.first, spans, sorter=begins))]

    def contiguous(self, phase: Phase) -> ContiguousPhase:
        """Return the arrays of a phase for compiled loops.

        All can be written to: loops are compiled a second time for a view of one value that cannot.
        """
        if phase not in self._contiguous:
            self._contiguous[phase] = ContiguousPhase(
                np.require(phase.nbytes, np.float64, ("C", "W")),
                np.require(phase.first, requirements=("C", "W")),
                np.argsort(phase.first, kind="stable"),
            )
        return self._contiguous[phase]


def prepare_phases(phases: Sequence[Phase], credits: int) -> UnrolledPhases:
    """Prepare phases over the same edges, at least one."""
    rings = consecutive_rings(phases)
    if rings is not None:
        feeders = np.empty(rings.size, dtype=np.int64)
        feeders[rings.ravel()] = np.roll(rings, 1, axis=1).ravel()
        return UnrolledPhases(tuple(phases), credits, feeders[:, None], rings)
    if sum(phase.repeat for phase in phases) == 1:
        return UnrolledPhases(
            tuple(phases),
            credits,
            np.full((len(phases[0].src), 1), len(phases[0].src), dtype=np.int64),
            None,
        )
    feeders = feeders_of(phases[0])
    steady = all(bool((p.active == p.repeat).all()) for p in phases)
    return UnrolledPhases(
        tuple(phases), credits, feeders, _trace_rings(feeders) if steady else None
    )


def places_of(phase: Phase, ranks: int = 0) -> tuple[IntArray, IntArray]:
    """Return where each edge starts and where it ends: a number for each rank on each channel."""
    count = ranks or 1 + int(max(phase.src.max(), phase.dst.max()))
    return phase.channel * count + phase.src, phase.channel * count + phase.dst


def feeders_of(phase: Phase) -> IntArray:
    """Edges that bring what each edge sends on, shape (edges, most feeders); padded with `edges`.

    They end where it starts, on its channel. In a pipeline an edge that starts working later
    sends on what came over those that started before it; where all start together, each repeat
    sends what the one before brought.
    """
    edges = len(phase.src)
    starts, ends = places_of(phase)
    by_end = stable_order(ends)
    most = 1 + int(max(starts.max(initial=0), ends.max(initial=0)))
    bounds = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=most))])
    low, high = bounds[starts], bounds[starts + 1]
    number = np.arange(max(1, int((high - low).max(initial=0))))
    feeders = np.empty((edges, len(number)), dtype=np.int64)
    first = np.append(phase.first, edges + 1) if phase.first.max(initial=0) > 0 else None
    for rows in parts_of(edges):
        place = low[rows, None] + number
        own = np.where(place < high[rows, None], by_end[np.minimum(place, edges - 1)], edges)
        begun = True if first is None else first[own] < phase.first[rows, None]
        feeders[rows] = np.where(begun, own, edges)
    return feeders


def consecutive_rings(phases: Sequence[Phase]) -> IntArray | None:
    """Edges of closed rings, ring after ring; None if the edges form none in this order."""
    first = phases[0]
    edges, rings = len(first.src), int(first.channel[-1]) + 1
    if edges % rings or any((p.active != p.repeat).any() for p in phases):
        return None
    src, dst = first.src.reshape(rings, -1), first.dst.reshape(rings, -1)
    is_mixed = rings > 1 and (np.diff(first.channel.reshape(rings, -1), axis=1) != 0).any()
    if is_mixed or not np.array_equal(np.roll(src, -1, axis=1), dst):
        return None
    return np.arange(edges).reshape(rings, -1)


def _trace_rings(feeders: IntArray) -> IntArray | None:
    """Return the edges of rings of one length, in any order; None if they form none."""
    edges = len(feeders)
    is_few = feeders.shape[1] == 1 and edges <= MOST_TRACED
    if not is_few or not np.array_equal(np.sort(feeders[:, 0]), np.arange(edges)):
        return None
    after = np.empty(edges, dtype=np.int64)
    after[feeders[:, 0]] = np.arange(edges)
    follows, visited, rings = after.tolist(), [False] * edges, []
    for edge in range(edges):
        if visited[edge]:
            continue
        ring = []
        while not visited[edge]:
            visited[edge] = True
            ring.append(edge)
            edge = follows[edge]  # noqa: PLW2901  (the next of the ring)
        rings.append(ring)
        if len(ring) != len(rings[0]):
            return None
    return np.array(rings, dtype=np.int64)

"""Edges of large trees that are alike, and the heaviest path through them, class by class.

Subtrees of one shape have the same heaviest path: up to their root, and from their root down. So
both are found once for each shape, and the two are joined at the roots.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import (
    SMALL_TABLE,
    FloatArray,
    IntArray,
    each_of,
    first_of_each,
    mix,
    parts_of,
    stable_order,
)
from perfmodel.collectives.schedule import Phase
from perfmodel.collectives.timing.unrolled import feeders_of

Hashes = NDArray[np.uint64]

GAIN_ROWS = 5
"""What a path has gained so far: nothing, the first gain, the second, the third, the second and
the third."""
ONCE, BOTH = 1, 4
"""Rows of whole paths: those with the first gain, and with the two others."""
_GAINING, _GAIN = np.array([0, 0, 0, 2, 3]), np.array([0, 1, 2, 2, 1])
"""Rows that gain something on an edge, and which gain that is."""

Gains = tuple[FloatArray, FloatArray, FloatArray]
"""What a path may gain on an edge: the first, or the two others, each once; shapes (edges,)."""


@dataclass(eq=False)
class EdgeClasses:
    """Classes of edges that are alike."""

    of: IntArray
    """Class of each edge; shape (edges,)."""
    sample: IntArray
    """An edge of each class; shape (classes,)."""
    _shapes: list[tuple[Phase, TreeShapes | None]] = field(default_factory=list)

    def agree(self, values: FloatArray | IntArray) -> bool:
        """Whether all edges of a class have the same value."""
        if values.strides == (0,):
            return True
        own = values[self.sample]
        return all(
            np.array_equal(own[self.of[rows]], values[rows]) for rows in parts_of(len(self.of))
        )

    def shapes(self, phase: Phase) -> TreeShapes | None:
        """Return the shapes of the trees that the edges of a phase form; None if they form none.

        They are found at the first call.
        """
        for known, shapes in self._shapes:
            if known.first is phase.first and known.src is phase.src:
                return shapes
        self._shapes.append((phase, find_shapes(phase, self)))
        return self._shapes[-1][1]


def classify(hashes: Hashes) -> EdgeClasses:
    """Classes of edges with the same hash: by its last bits, and where those meet by a sort."""
    sample, of = first_of_each((hashes & _LAST_BITS).astype(np.int64))
    others = np.flatnonzero(hashes[sample][of] != hashes)
    _, first, places = np.unique(hashes[others], return_index=True, return_inverse=True)
    of[others] = len(sample) + places
    return EdgeClasses(of, np.concatenate([sample, others[first]]))


_LAST_BITS = np.uint64(4 * SMALL_TABLE - 1)


# ---------------------------------------------------------------- heaviest paths


def heaviest_rows(
    before: IntArray, order: IntArray, own_s: FloatArray, gains_s: Gains, ends_s: FloatArray
) -> FloatArray:
    """Heaviest paths to each edge, by what they have gained; shape (`GAIN_ROWS`, edges + 1).

    The last column is what a path has before its first edge.

    Parameters
    ----------
    before : ndarray of int, shape (edges, most)
        Edges that may come before each one; padded with `edges`.
    order : ndarray of int, shape (edges,)
        More than that of those that come before.
    own_s : ndarray of float, shape (edges,)
        Weight of each edge.
    gains_s : tuple of ndarray of float, shape (edges,)
    ends_s : ndarray of float, shape (edges + 1,)
        What a path has that begins at an edge; the last is of edges that none comes before.
    """
    edges, sorted_edges = len(own_s), np.argsort(order, kind="stable")
    place = np.full(edges + 1, edges)
    place[sorted_edges] = np.arange(edges)
    sources, own = place[before[sorted_edges]].T.copy(), own_s[sorted_edges]
    more, begins = np.stack(gains_s)[:, sorted_edges], ends_s[:-1][sorted_edges]
    best = np.full((GAIN_ROWS, edges + 1), ends_s[-1])
    for begin, end in _levels(order[sorted_edges]):
        reached = np.repeat(begins[None, begin:end], GAIN_ROWS, axis=0)
        for column in sources:
            np.maximum(reached, best.take(column[begin:end], axis=1), out=reached)
        gained = reached.take(_GAINING, axis=0) + more[:, begin:end].take(_GAIN, axis=0)
        last = gained[1] + more[2, begin:end]
        np.maximum(reached[1:4], gained[:3], out=reached[1:4])
        for both in (gained[3], gained[4], last):
            np.maximum(reached[BOTH], both, out=reached[BOTH])
        np.add(reached, own[begin:end], out=best[:, begin:end])
    rows = best.copy()
    rows[:, sorted_edges] = best[:, :edges]
    return rows


def whole_paths(rows: FloatArray) -> FloatArray:
    """Return the heaviest of each column that has all its gains."""
    return np.asarray(np.maximum(rows[ONCE], rows[BOTH]))


def _levels(ascending: IntArray) -> Iterator[tuple[int, int]]:
    """Return where the values equal to each value begin and end."""
    ends = np.flatnonzero(np.diff(ascending)) + 1
    return itertools.pairwise([0, *ends.tolist(), len(ascending)])


# ---------------------------------------------------------------- shapes of trees


@dataclass(frozen=True, slots=True)
class _Shapes:
    """Subtrees of edges; those of one shape are alike edge by edge."""

    of: IntArray
    """Shape of each edge's subtree; -1 of edges that have none; shape (edges,)."""
    top: IntArray
    """Class of the edge at the top of a subtree of each shape; shape (shapes,)."""
    below: IntArray
    """Shapes of the next subtrees; padded with the number of shapes. Shape (shapes, most)."""
    height: IntArray
    """Edges on the longest path down from the top; shape (shapes,)."""

    def rows(self, own_s: FloatArray, gains_s: Gains, ends_s: FloatArray) -> FloatArray:
        """Heaviest paths between the top of each shape and its leaves; see `heaviest_rows`.

        Arrays have an entry for each class of edges, `ends_s` one more.
        """
        chosen = self.top
        return heaviest_rows(
            self.below,
            self.height,
            own_s[chosen],
            (gains_s[0][chosen], gains_s[1][chosen], gains_s[2][chosen]),
            np.append(ends_s[:-1][chosen], ends_s[-1]),
        )


@dataclass(frozen=True, slots=True)
class TreeShapes:
    """Trees that gather on edges up and then spread on edges down."""

    up: _Shapes
    down: _Shapes
    gathered: IntArray
    """Shapes `up` whose data an edge down spreads first; padded. Shape (joints, most)."""
    spread: IntArray
    """Shape `down` of that edge; shape (joints,)."""

    def times(self, own_s: FloatArray, late_s: FloatArray, gains_s: Gains) -> tuple[float, float]:
        """Return when the last byte has left, and when everything has arrived; seconds.

        `own_s`, `late_s` and `gains_s`: weight of an edge of each class, how much of it is after
        its last byte, and what it may gain; shapes (classes,).
        """
        zero, padding = np.zeros(len(own_s) + 1), np.full(1, -np.inf)
        to_top = self.up.rows(own_s, gains_s, zero)
        top_s = whole_paths(to_top[:, :-1])
        before = to_top[:, self.gathered].max(axis=2)
        times = []
        for late, pad in ((late_s, padding), (zero[:-1], zero[:1])):
            after = self.down.rows(own_s, gains_s, np.concatenate([-late, pad]))
            joined = _join(before, after[:, self.spread])
            arrived = (top_s - late[self.up.top]).max(initial=0.0)
            times.append(float(joined.max(initial=arrived)))
        return times[0], times[1]


def _join(before: FloatArray, after: FloatArray) -> FloatArray:
    """Return the heaviest whole paths of two parts each, by what the parts have gained."""
    pairs = ((0, 1), (1, 0), (0, 4), (4, 0), (2, 3), (3, 2))
    return np.asarray(np.max([before[a] + after[b] for a, b in pairs], axis=0))


def find_shapes(phase: Phase, classes: EdgeClasses) -> TreeShapes | None:
    """Shapes of the trees of a phase; None if its edges do not gather and then spread."""
    edges, feeders = len(phase.src), feeders_of(phase)
    gathers = np.broadcast_to(np.asarray(phase.adds, dtype=np.bool_), edges)
    parent = _parents(feeders, gathers)
    if parent is None or not _come_back(phase, gathers):
        return None
    up = _fold(np.flatnonzero(gathers), feeders, phase.first, classes)
    down = _fold(np.flatnonzero(~gathers), _children(parent), -phase.first, classes)
    tops = np.flatnonzero(~gathers & (parent == edges))
    gathered = np.append(np.where(up.of < 0, len(up.top), up.of), len(up.top))[feeders[tops]]
    joints = classify(mix(np.sort(gathered, axis=1), down.of[tops]))
    return TreeShapes(up, down, gathered[joints.sample], down.of[tops][joints.sample])


def _parents(feeders: IntArray, gathers: NDArray[np.bool_]) -> IntArray | None:
    """Edge that spreads to each edge that spreads on, or their number; None if several do.

    What went up from below the parent's end has come down with the parent's data.
    """
    edges = len(feeders)
    spreading, parent = np.append(~gathers, False), np.empty(edges, dtype=np.int64)
    for rows in parts_of(edges):
        spreads = spreading[feeders[rows]]
        count = spreads.sum(axis=1)
        if count[gathers[rows]].any() or count.max(initial=0) > 1:
            return None
        parent[rows] = np.where(spreads, feeders[rows], edges).min(axis=1)
    return parent


def _come_back(phase: Phase, gathers: NDArray[np.bool_]) -> bool:
    """Whether what is spread to a rank goes where what it has gathered came from."""
    count = 1 + int(max(phase.src.max(), phase.dst.max()))
    channel = phase.channel * count
    up = ((channel + phase.src) * count + phase.dst)[gathers]
    down = ((channel + phase.dst) * count + phase.src)[~gathers]
    return not len(up) or not len(down) or bool(np.array_equal(np.sort(up), np.sort(down)))


def _children(parent: IntArray) -> IntArray:
    """Return the edges below each edge; padded with the number of edges. Shape (edges, most)."""
    edges = len(parent)
    child = np.flatnonzero(parent < edges)
    child = child[stable_order(parent[child])]
    counts = np.bincount(parent[child], minlength=edges)
    above, number = each_of(counts)
    children = np.full((edges, max(1, int(counts.max(initial=0)))), edges)
    children[above, number] = child
    return children


def _fold(selection: IntArray, below: IntArray, order: IntArray, classes: EdgeClasses) -> _Shapes:
    """Shapes of the subtrees of some edges, each of which comes after those `below` it."""
    edges = len(order)
    selection = selection[stable_order(order[selection])]
    hashes, height = np.zeros(edges + 1, dtype=np.uint64), np.zeros(edges + 1, dtype=np.int64)
    for begin, end in _levels(order[selection]):
        level = selection[begin:end]
        next_ones = below[level]
        height[level] = height[next_ones].max(axis=1) + 1
        hashes[level] = mix(hashes[next_ones].sum(axis=1), classes.of[level])
    shapes = classify(mix(hashes[selection], height[selection]))
    of = np.full(edges + 1, -1)
    of[selection] = shapes.of
    of[edges] = len(shapes.sample)
    sample = selection[shapes.sample]
    return _Shapes(of[:-1], classes.of[sample], of[below[sample]], height[sample])

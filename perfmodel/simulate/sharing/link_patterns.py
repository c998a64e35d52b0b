"""Links that are used alike, so that each pattern of uses is counted once.

In a cluster most links are used as others are, a number of repeats sooner or later: by edges of the
same channels, one after the other at the same distances. And most edges cross links of the same
patterns. Patterns are compared by sums of 64-bit hashes: that any two of a million that differ have
equal sums is less likely than one in ten million.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, parts_of
from perfmodel.collectives.schedule import Phase
from perfmodel.collectives.timing.path_classes import (
    EdgeClasses,
    Hashes,
    classify,
    mix,
)
from perfmodel.library.lowering.edges import Edges, ranges
from perfmodel.library.lowering.lowered import Stage
from perfmodel.simulate.sharing.link_uses import UseOrder, order_uses

LARGE = 1 << 14
"""Links of edges from which on it is quicker to look for patterns first."""


@dataclass(frozen=True, slots=True)
class UsePatterns:
    """The links of the edges that represent all edges, and the uses of links that count for them.

    The links are in arrays of shape (links,), edge by edge.
    """

    classes: EdgeClasses | None
    """None where every edge represents itself."""
    edges: IntArray
    """Edges that represent all; shape (classes,)."""
    pointers: IntArray
    """Where the links of each begin; shape (classes + 1,)."""
    arcs: IntArray
    order: UseOrder
    use: IntArray
    """Position in `order` of each link; -1 where an edge has the link to itself."""
    senders: EdgeClasses | None
    """Edges that send alike: as much, in as many repeats."""

    @property
    def lengths(self) -> IntArray:
        """Links of each edge that represents others; shape (classes,)."""
        return np.diff(self.pointers)

    def fits(self, phase: Phase) -> bool:
        """Whether edges that sent alike when the patterns were found do so in this phase."""
        senders = self.senders
        return senders is None or (senders.agree(phase.nbytes) and senders.agree(phase.active))

    def over_links(self, own: FloatArray, shared: FloatArray) -> FloatArray:
        """Values of links: of shared ones by their use, of others by edge; shape (links,).

        `own`: of the edges that represent all; shape (classes,).
        """
        values = np.repeat(own, self.lengths)
        has_others = self.use >= 0
        values[has_others] = shared[self.use[has_others]]
        return values


def patterns_of(
    stage: Stage, phase: Phase, capacity_Bps: FloatArray, *, by_channel: bool = False
) -> UsePatterns:
    """Find the patterns of a phase of a stage; each edge represents itself in a small one.

    `by_channel`: let edges of different channels never be alike, so that the patterns fit phases
    in which channels carry unlike bytes, too.
    """
    edges = stage.edges
    is_large = len(edges.arcs) >= LARGE and bool((np.diff(edges.pointers) > 0).all())
    if not is_large or len(stage.phases) > 1:
        return separate_uses(edges, phase.first)
    sent = (phase.active, phase.nbytes, *((phase.channel,) if by_channel else ()))
    return _find_patterns(stage, phase, capacity_Bps, classify(mix(*sent)))


def separate_uses(edges: Edges, first: IntArray) -> UsePatterns:
    """Let every edge represent itself."""
    order = order_uses(edges, first)
    use = np.full(len(edges.arcs), -1)
    use[order.uses] = np.arange(len(order.uses))
    return UsePatterns(
        None, np.arange(len(edges)), edges.pointers, edges.arcs, order, use, senders=None
    )


def _find_patterns(
    stage: Stage, phase: Phase, capacity_Bps: FloatArray, senders: EdgeClasses
) -> UsePatterns:
    edges, first = stage.edges, phase.first
    lengths = np.diff(edges.pointers)
    begin, users = _begins(edges, first), np.bincount(edges.arcs, minlength=len(capacity_Bps))
    count = len(begin)  # links up to the last used
    links = mix(_sums_of_uses(edges, first, begin, senders), users[:count], capacity_Bps[:count])
    routes = _routes(edges, first, begin, links)
    classes = classify(mix(routes, senders.of, lengths, stage.cap_Bps, stage.latency_s))
    chosen = classes.sample
    crossed = ranges(edges.pointers[:-1][chosen], lengths[chosen])
    arcs, owner = edges.arcs[crossed], np.repeat(chosen, lengths[chosen])
    later = first[owner] - begin[arcs]
    # Of the links that the chosen edges share with others, the first of each pattern.
    shared = np.flatnonzero(users[arcs] > 1)
    _, at, pattern = np.unique(links[arcs[shared]], return_index=True, return_inverse=True)
    counted = np.zeros(len(capacity_Bps), dtype=np.bool_)
    counted[arcs[shared][at]] = True
    order = order_uses(edges, first, counted)
    use = np.full(len(arcs), -1)
    represented = _Uses(arcs[shared][at][pattern], later[shared], senders.of[owner[shared]])
    use[shared] = represented.find_in(
        _Uses(order.links, first[order.edge] - begin[order.links], senders.of[order.edge])
    )
    pointers = np.concatenate([[0], np.cumsum(lengths[chosen])])
    return UsePatterns(classes, chosen, pointers, arcs, order, use, senders)


def _begins(edges: Edges, first: IntArray) -> IntArray:
    """Repeat in which each link is used first; shape (links up to the last used,)."""
    begin = np.full(int(edges.arcs.max()) + 1, np.iinfo(np.int64).max)
    for part in _parts(edges):
        np.minimum.at(begin, part.arcs, np.repeat(first[part.edges], part.lengths))
    return begin


def _sums_of_uses(edges: Edges, first: IntArray, begin: IntArray, senders: EdgeClasses) -> Hashes:
    """Sum of the hashes of the uses of each link, by when and by whom; shape (links,)."""
    sums = np.zeros(len(begin), dtype=np.uint64)
    for part in _parts(edges):
        later = np.repeat(first[part.edges], part.lengths) - begin[part.arcs]
        users = np.repeat(senders.of[part.edges], part.lengths)
        np.add.at(sums, part.arcs, mix(later, users))
    return sums


def _routes(edges: Edges, first: IntArray, begin: IntArray, links: Hashes) -> Hashes:
    """Hash of the links that each edge crosses, in order, and of when; shape (edges,)."""
    routes = np.empty(len(edges), dtype=np.uint64)
    for part in _parts(edges):
        later = np.repeat(first[part.edges], part.lengths) - begin[part.arcs]
        starts = np.cumsum(part.lengths) - part.lengths
        step = np.arange(len(part.arcs)) - np.repeat(starts, part.lengths)
        routes[part.edges] = np.add.reduceat(mix(links[part.arcs], later, step), starts)
    return routes


class _Part(NamedTuple):
    """Some edges in a row."""

    edges: slice
    lengths: IntArray
    arcs: IntArray


def _parts(edges: Edges) -> Iterator[_Part]:
    """Edges, so many at once that what is worked out for their links stays in a cache."""
    for rows in parts_of(len(edges)):
        pointers = edges.pointers[rows.start : rows.stop + 1]
        yield _Part(rows, np.diff(pointers), edges.arcs[pointers[0] : pointers[-1]])


@dataclass(frozen=True, slots=True)
class _Uses:
    """Uses of links; arrays of one shape."""

    link: IntArray
    later: IntArray
    """Repeats after the first use of its link."""
    sender: IntArray
    """Class of the edge."""

    def find_in(self, others: _Uses) -> IntArray:
        """Position among others of one with the same link, repeat and class."""
        later, senders = (
            1 + int(max(mine.max(initial=0), theirs.max(initial=0)))
            for mine, theirs in ((self.later, others.later), (self.sender, others.sender))
        )
        keys, sorted_keys = (
            (uses.link * later + uses.later) * senders + uses.sender for uses in (self, others)
        )
        order = np.argsort(sorted_keys, kind="stable")
        position: IntArray = order[np.searchsorted(sorted_keys[order], keys)]
        return position

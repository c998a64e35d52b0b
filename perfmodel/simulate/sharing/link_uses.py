"""Who else uses each link of an edge, and when, of edges that are active in some repeats only.

A use is an edge on one of its links. Uses are put in order once for each set of edges; how many
pieces follow each other, and of how many bytes, may differ from size to size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray, IntArray, mix, parts_of, running_sum
from perfmodel.collectives.schedule import Phase
from perfmodel.collectives.timing.path_classes import EdgeClasses, Hashes, classify
from perfmodel.library.lowering.lowered import Edges, Stage, ranges

USES_AT_ONCE = 1 << 17
"""Uses at least that are counted at once, so that their numbers fit a processor's cache."""


@dataclass(frozen=True, slots=True)
class UseOrder:
    """Uses of links that several edges use, link by link, in order of their first repeats.

    Arrays have shape (uses,).
    """

    uses: IntArray
    """Positions in `Edges.arcs`."""
    edge: IntArray
    links: IntArray

    def parts(self) -> Iterator[UseOrder]:
        """Yield the uses of some links after the others, all of a link at once."""
        begin, count = 0, len(self.uses)
        while begin < count:
            end = min(begin + USES_AT_ONCE, count)
            end = int(np.searchsorted(self.links, self.links[end - 1], side="right"))
            yield UseOrder(self.uses[begin:end], self.edge[begin:end], self.links[begin:end])
            begin = end


def order_uses(edges: Edges, first: IntArray, counted: NDArray[np.bool_] | None = None) -> UseOrder:
    """Put the uses of shared links in order.

    `first`: repeat in which an edge begins. `counted`: which links count, if not all that several
    edges share; shape (links,).
    """
    if counted is None:
        counted = np.bincount(edges.arcs) > 1
    uses = np.flatnonzero(counted[edges.arcs])
    edge = np.searchsorted(edges.pointers, uses, side="right") - 1
    order = np.argsort(edges.arcs[uses] * _span(first) + first[edge], kind="stable")
    uses, edge = uses[order], edge[order]
    return UseOrder(uses, edge, edges.arcs[uses])


def bytes_met(order: UseOrder, phase: Phase, nbytes: FloatArray) -> FloatArray:
    """Bytes of all edges on the link of each use, in the repeats of that use; shape (uses,).

    `nbytes`: of each edge in one repeat; shape (edges,).
    """
    return np.concatenate(
        [np.zeros(0), *[uses_in(part, phase).bytes_met(nbytes) for part in order.parts()]]
    )


def busy_bytes(order: UseOrder, phase: Phase) -> FloatArray:
    """Bytes that occupy a link in the first repeat of each use or in its last; shape (uses,)."""
    parts = [uses_in(part, phase).busy_bytes(phase.nbytes) for part in order.parts()]
    return np.concatenate([np.zeros(0), *parts])


def _span(repeats: IntArray) -> int:
    return int(repeats.max(initial=0)) + 1


@dataclass(frozen=True, slots=True)
class LinkUses:
    """Uses of shared links in a phase.

    Numbers of uses count from the first use of the first link, so that only differences mean
    something. Arrays have shape (uses,), in the order of `order`.
    """

    order: UseOrder
    by_end: IntArray | slice
    """What puts the uses of each link in order of their ends."""
    first: IntArray
    """Repeat in which a use begins."""
    end: IntArray
    """First repeat after a use."""
    low: IntArray
    """Uses of links before this one's."""
    high: IntArray
    """The same, with those of this one's link."""
    begun_before_first: IntArray
    begun_at_first: IntArray
    """Begun by the end of the repeat in which this use begins, itself included."""
    begun_before_end: IntArray
    ended_at_first: IntArray
    """Over before the repeat in which this use begins."""
    ended_before_end: IntArray
    """Over before the last repeat of this use."""

    def bytes_met(self, nbytes: FloatArray) -> FloatArray:
        """Return the bytes of all edges on the link of a use, in the repeats of that use.

        All that has crossed a link by repeat t is the sum of
        nbytes (min(t, end) - min(t, first)) over its edges.

        `nbytes`: in one repeat; shape (edges,).
        """
        weight = nbytes[self.order.edge]
        begins, ends = (
            (running_sum(own), running_sum(own * at))
            for own, at in (
                (weight, self.first),
                (weight[self.by_end], self.end[self.by_end]),
            )
        )

        def crossed(begun: IntArray, ended: IntArray, until: IntArray) -> FloatArray:
            return self._up_to(ends, ended, until) - self._up_to(begins, begun, until)

        before = crossed(self.begun_before_first, self.ended_at_first, self.first)
        return np.asarray(crossed(self.begun_before_end, self.ended_before_end, self.end) - before)

    def _up_to(
        self, sums: tuple[FloatArray, FloatArray], position: IntArray, until: IntArray
    ) -> FloatArray:
        """Sum of weight times the lesser of `until` and its own time, over the uses of a link."""
        weights, products = sums
        total: FloatArray = products[position] - products[self.low]
        total += (weights[self.high] - weights[position]) * until
        return total

    def busy_bytes(self, nbytes: FloatArray) -> FloatArray:
        """Bytes that occupy a link in the first repeat of a use or in its last, which are fewer.

        `nbytes`: in one repeat; shape (edges,).
        """
        weight = nbytes[self.order.edge]
        begun, ended = running_sum(weight), running_sum(weight[self.by_end])

        def busy(begun_until: IntArray, ended_until: IntArray) -> FloatArray:
            active_bytes = begun[begun_until] - ended[ended_until]
            return np.asarray(np.minimum((begun_until - ended_until) * weight, active_bytes))

        at_first = busy(self.begun_at_first, self.ended_at_first)
        at_last = busy(self.begun_before_end, self.ended_before_end)
        return np.maximum(weight, np.minimum(at_first, at_last))


def uses_in(order: UseOrder, phase: Phase) -> LinkUses:
    """Count the uses that have begun and ended when each use begins and ends."""
    first, active = phase.first[order.edge], phase.active[order.edge]
    if len(active) and (active == active[0]).all():
        return _alike_uses(order, first, int(active[0]))
    end, span = first + active, _span(first + active)
    base = order.links * span
    by_end = np.argsort(base + end, kind="stable")
    begins, ends = base + first, (base + end)[by_end]
    low, high = _runs(order.links)
    return LinkUses(
        order,
        by_end,
        first,
        end,
        low,
        high,
        *_runs(begins),
        begun_before_end=np.searchsorted(begins, base + end, side="left"),
        ended_at_first=np.searchsorted(ends, begins, side="right"),
        ended_before_end=np.searchsorted(ends, base + end, side="left"),
    )


def _alike_uses(order: UseOrder, first: IntArray, active: int) -> LinkUses:
    """As `uses_in`, of edges that all are active for as many repeats: they end as they begin."""
    low, high = _runs(order.links)
    span = _span(first)
    begins = order.links * span + first
    before, until = _runs(begins)
    ended, begun = low, high  # none is over before the last one begins
    if active < span:
        ended = np.maximum(low, np.searchsorted(begins, begins - active, side="right"))
        begun = np.minimum(high, np.searchsorted(begins, begins + active, side="left"))
    return LinkUses(
        order,
        slice(None),
        first,
        first + active,
        low,
        high,
        before,
        until,
        begun_before_end=begun,
        ended_at_first=ended,
        ended_before_end=before,
    )


def _runs(ascending: IntArray) -> tuple[IntArray, IntArray]:
    """Return where the values equal to each value begin, and where they end."""
    begins = np.flatnonzero(np.diff(ascending, prepend=-1))  # no value is negative
    ends = np.append(begins, len(ascending))[1:]
    return np.repeat(begins, ends - begins), np.repeat(ends, ends - begins)


LARGE_STAGE_LINKS = 1 << 14
"""Links of edges from which on it is quicker to look for patterns first."""


@dataclass(frozen=True, slots=True, eq=False)
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

    def reduce(self, least_or_most: np.ufunc, values: FloatArray, without: float) -> FloatArray:
        """Return the least or most of the values of an edge's links; shape (classes,).

        `without`: of edges without links.
        """
        found, crosses = np.full(len(self.edges), without), self.lengths > 0
        if crosses.any():
            found[crosses] = least_or_most.reduceat(values, self.pointers[:-1][crosses])
        return found


def patterns_of(
    stage: Stage, phase: Phase, capacity_Bps: FloatArray, *, by_channel: bool = False
) -> UsePatterns:
    """Find the patterns of a phase of a stage; each edge represents itself in a small one.

    `by_channel`: let edges of different channels never be alike, so that the patterns fit phases
    in which channels carry unlike bytes, too.
    """
    edges = stage.edges
    is_large = len(edges.arcs) >= LARGE_STAGE_LINKS and bool((np.diff(edges.pointers) > 0).all())
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
    use[shared] = _find_uses(
        (arcs[shared][at][pattern], later[shared], senders.of[owner[shared]]),
        (order.links, first[order.edge] - begin[order.links], senders.of[order.edge]),
    )
    pointers = np.concatenate([[0], np.cumsum(lengths[chosen])])
    return UsePatterns(classes, chosen, pointers, arcs, order, use, senders)


def _begins(edges: Edges, first: IntArray) -> IntArray:
    """Return the repeat in which each link is used first; shape (links up to the last used,)."""
    begin = np.full(int(edges.arcs.max()) + 1, np.iinfo(np.int64).max)
    for rows, lengths, arcs in _parts(edges):
        np.minimum.at(begin, arcs, np.repeat(first[rows], lengths))
    return begin


def _sums_of_uses(edges: Edges, first: IntArray, begin: IntArray, senders: EdgeClasses) -> Hashes:
    """Sum of the hashes of the uses of each link, by when and by whom; shape (links,)."""
    sums = np.zeros(len(begin), dtype=np.uint64)
    for rows, lengths, arcs in _parts(edges):
        later = np.repeat(first[rows], lengths) - begin[arcs]
        np.add.at(sums, arcs, mix(later, np.repeat(senders.of[rows], lengths)))
    return sums


def _routes(edges: Edges, first: IntArray, begin: IntArray, links: Hashes) -> Hashes:
    """Hash of the links that each edge crosses, in order, and of when; shape (edges,)."""
    routes = np.empty(len(edges), dtype=np.uint64)
    for rows, lengths, arcs in _parts(edges):
        later = np.repeat(first[rows], lengths) - begin[arcs]
        starts = np.cumsum(lengths) - lengths
        step = np.arange(len(arcs)) - np.repeat(starts, lengths)
        routes[rows] = np.add.reduceat(mix(links[arcs], later, step), starts)
    return routes


def _parts(edges: Edges) -> Iterator[tuple[slice, IntArray, IntArray]]:
    """Return some edges in a row, how many links each crosses, and these links.

    They are so many edges at once that what is worked out for their links stays in a cache.
    """
    for rows in parts_of(len(edges)):
        pointers = edges.pointers[rows.start : rows.stop + 1]
        yield rows, np.diff(pointers), edges.arcs[pointers[0] : pointers[-1]]


Uses = tuple[IntArray, IntArray, IntArray]
"""Uses of links: link, repeats after its first use, and class of the edge."""


def _find_uses(wanted: Uses, known: Uses) -> IntArray:
    """Position among some uses of one with the same link, repeat and class as each wanted one."""
    later, senders = (
        1 + int(max(mine.max(initial=0), theirs.max(initial=0)))
        for mine, theirs in zip(wanted[1:], known[1:], strict=True)
    )
    keys, sorted_keys = (
        (link * later + after) * senders + sender for link, after, sender in (wanted, known)
    )
    order = np.argsort(sorted_keys, kind="stable")
    return np.asarray(order[np.searchsorted(sorted_keys[order], keys)])

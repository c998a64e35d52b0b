"""Edges of several collectives as one, and which of them fit onto their links together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.library.lowering.lowered import Edges, join_edges
from perfmodel.memo import once

CAPACITY_TOLERANCE = 1e-9
"""Share by which the needs of edges may exceed a link that carries them: rounding."""

Parts = tuple[tuple[Edges, ...], ...]
"""Edges of several collectives, each with the distinct ones of its stages."""


@dataclass
class JoinedEdges:
    """Edges of several collectives as one, found once for all sizes and for alike machines."""

    _joined: dict[tuple[Edges, ...], Edges] = field(default_factory=dict)
    _apart: dict[Parts, bool] = field(default_factory=dict)
    _fitting: list[tuple[FloatArray, dict[Hashable, list[list[int]]]]] = field(default_factory=list)
    """What fits, by the capacities of links."""

    def of(self, parts: tuple[Edges, ...]) -> Edges:
        """Return edges as one, in order."""
        return once(self._joined, parts, lambda: join_edges(parts))

    def are_apart(self, parts: Parts) -> bool:
        """Whether no link is used by several parts."""
        return once(self._apart, parts, lambda: not len(_uses_of(parts)[2]))

    def fitting(
        self, parts: Parts, marks: tuple[int | None, ...], capacity_Bps: FloatArray
    ) -> list[list[int]]:
        """Return the positions of parts that are joined: see `_fitting`."""
        kept = next((kept for own, kept in self._fitting if own is capacity_Bps), None)
        if kept is None:
            self._fitting.append((capacity_Bps, kept := {}))
        return once(kept, (marks, parts), partial(_fitting, parts, marks, capacity_Bps))


def _uses_of(parts: Parts) -> tuple[IntArray, IntArray, IntArray]:
    """Links of all edges, how many each edge has, and the links that several parts use."""
    arcs = np.concatenate([each.arcs for part in parts for each in part])
    hops = np.concatenate([np.diff(each.pointers) for part in parts for each in part])
    owner = np.repeat(np.arange(len(parts)), [sum(len(e.arcs) for e in p) for p in parts])
    order = np.lexsort((owner, arcs))
    ascending, of = arcs[order], owner[order]
    is_shared = (ascending[1:] == ascending[:-1]) & (of[1:] != of[:-1])
    return arcs, hops, ascending[1:][is_shared]


def _fitting(own: Parts, marks: Sequence[int | None], capacity_Bps: FloatArray) -> list[list[int]]:
    """Join collectives of a kind: all at once, as most fit, or one by one to the first that fit.

    `marks`: equal where links may be shared that carry all; None where they may not.
    """
    if len(set(marks)) == 1 and marks[0] is not None and _all_fit(own, capacity_Bps):
        return [list(range(len(own)))]
    parts: list[tuple[dict[int, float], list[int]]] = []
    for at, edges in enumerate(own):
        needs = _needs_Bps(edges, capacity_Bps)
        for needed, members in parts:
            common = needed.keys() & needs.keys()
            if not common or (
                marks[at] is not None
                and marks[at] == marks[members[0]]
                and all(
                    needs[link] + needed[link]
                    <= float(capacity_Bps[link]) * (1 + CAPACITY_TOLERANCE)
                    for link in common
                )
            ):
                for link, need_Bps in needs.items():
                    needed[link] = needed.get(link, 0.0) + need_Bps
                members.append(at)
                break
        else:
            parts.append((needs, [at]))
    return [members for _, members in parts]


def _all_fit(own: Parts, capacity_Bps: FloatArray) -> bool:
    arcs, hops, shared = _uses_of(own)
    least_Bps = np.repeat(np.minimum.reduceat(capacity_Bps[arcs], np.cumsum(hops) - hops), hops)
    needed_Bps = np.bincount(arcs, least_Bps)[shared]
    return bool((needed_Bps <= capacity_Bps[shared] * (1 + CAPACITY_TOLERANCE)).all())


def _needs_Bps(own: Iterable[Edges], capacity_Bps: FloatArray) -> dict[int, float]:
    """Return the most that all edges of a collective together may send over each of its links."""
    needs: dict[int, float] = {}
    for edges in own:
        if not len(edges.arcs):
            continue
        least_Bps = np.minimum.reduceat(capacity_Bps[edges.arcs], edges.pointers[:-1])
        links, place = np.unique(edges.arcs, return_inverse=True)
        of_links = np.bincount(place, np.repeat(least_Bps, np.diff(edges.pointers)))
        for link, need_Bps in zip(links.tolist(), of_links.tolist(), strict=True):
            needs[link] = needs.get(link, 0.0) + need_Bps
    return needs

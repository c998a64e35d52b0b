"""Edges that are alike wherever jobs meet, so that one of them stands for all in max-min filling.

Two links are alike if they are as quick and edges of the same classes cross them as often; two
edges, if they are of one job, carry the same and cross alike links. Such classes are found by
refining coarser ones until nothing changes. Fair rates of alike edges are equal, whichever of the
jobs meet: of each class of links every one is crossed by as many edges of each class.

Source: equitable partitions by colour refinement; Berkholz, Bonsma and Grohe, Tight lower and upper
bounds for the complexity of canonical colour refinement, Theory of Computing Systems 60 (2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, mix
from perfmodel.collectives.timing.path_classes import EdgeClasses, Hashes, classify
from perfmodel.library.lowering.lowered import Edges, Stage, ranges


@dataclass(frozen=True, slots=True, eq=False)
class FoldedEdges:
    """Edges of one job, those of a class once, over classes of links.

    Parameters
    ----------
    classes : EdgeClasses or None
        None where each edge stands for itself and each link is a class.
    pointers : ndarray of int, shape (classes + 1,)
        Class c crosses ``links[pointers[c]:pointers[c + 1]]``.
    links : ndarray of int, shape (hops,)
    crossings : ndarray of float, shape (hops,)
        Edges of the class that cross each link of the class of links.
    """

    classes: EdgeClasses | None
    pointers: IntArray
    links: IntArray
    crossings: FloatArray

    @classmethod
    def of(cls, edges: Edges) -> FoldedEdges:
        """Let each edge stand for itself."""
        return cls(None, edges.pointers, edges.arcs, np.ones(len(edges.arcs)))

    def fold(self, values: FloatArray) -> FloatArray:
        """Return the value of each class; `values`: of all edges, equal in each class."""
        return values if self.classes is None else values[self.classes.sample]

    def unfold(self, values: FloatArray) -> FloatArray:
        """Return the value of each edge; `values`: of all classes."""
        return values if self.classes is None else values[self.classes.of]


Carried = tuple[Stage, FloatArray]
"""A stage, and the wire bytes of its edges."""


@dataclass
class AlikeEdges:
    """Classes of the edges that have met on a machine so far, and of their links.

    They get finer when other edges come, and when edges of a class turn out to carry unlike bytes.
    """

    capacity_Bps: FloatArray
    """Of each link of the machine; shape (links,)."""
    _columns: dict[Edges, list[FloatArray]] = field(default_factory=dict)
    """By which edges are told apart."""
    _folded: dict[Edges, FoldedEdges] = field(default_factory=dict)
    _fit: dict[Stage, FoldedEdges] = field(default_factory=dict)
    """Stages whose edges agree in each class."""
    link_classes_Bps: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Capacity of the links of each class; shape (classes of links,)."""

    def fold(self, carried: Sequence[Carried]) -> list[FoldedEdges]:
        """Return the classes of edges of some stages."""
        unlike = [(stage, nbytes) for stage, nbytes in carried if not self._fits(stage, nbytes)]
        for stage, nbytes in unlike:
            self._columns.setdefault(stage.edges, []).extend((stage.cap_Bps, nbytes))
        if unlike:
            self._refine()
        self._fit |= {stage: self._folded[stage.edges] for stage, _ in carried}
        return [self._fit[stage] for stage, _ in carried]

    def _fits(self, stage: Stage, nbytes: FloatArray) -> bool:
        """Whether edges of each class are known to carry the same in a stage."""
        if stage not in self._fit:
            folded = self._folded.get(stage.edges)
            if folded is None or folded.classes is None:
                return False
            if not (folded.classes.agree(stage.cap_Bps) and folded.classes.agree(nbytes)):
                return False
            self._fit[stage] = folded
        return True

    def _refine(self) -> None:
        """Find the coarsest classes that all edges known so far allow."""
        parts = list(self._columns)
        lengths = np.concatenate([np.diff(part.pointers) for part in parts])
        used, link = np.unique(np.concatenate([part.arcs for part in parts]), return_inverse=True)
        owner = np.repeat(np.arange(len(lengths)), lengths)
        told_apart = [
            mix(np.full(len(part), number), *self._columns[part])
            for number, part in enumerate(parts)
        ]
        edges, links = classify(np.concatenate(told_apart)), classify(mix(self.capacity_Bps[used]))
        known, count = 0, len(edges.sample) + len(links.sample)
        while known < count:
            links = _split(links, link, mix(edges.of)[owner])
            edges = _split(edges, owner, mix(links.of)[link])
            known, count = count, len(edges.sample) + len(links.sample)
        self._keep(parts, edges, links, (owner, link))
        self.link_classes_Bps = self.capacity_Bps[used][links.sample]

    def _keep(
        self,
        parts: Sequence[Edges],
        edges: EdgeClasses,
        links: EdgeClasses,
        hops: tuple[IntArray, IntArray],
    ) -> None:
        """Keep the classes of the edges of each job; `hops`: edge and link of each hop."""
        owner, link = hops
        members, kinds = np.bincount(links.of), len(links.sample)
        pairs, crossed = np.unique(edges.of[owner] * kinds + links.of[link], return_counts=True)
        crossing, crossed_kind = np.divmod(pairs, kinds)
        starts = np.searchsorted(crossing, np.arange(len(edges.sample) + 1))
        begin = 0
        for part in parts:
            end = begin + len(part)
            numbers, sample, of = np.unique(
                edges.of[begin:end], return_index=True, return_inverse=True
            )
            lengths = starts[numbers + 1] - starts[numbers]
            at = ranges(starts[numbers], lengths)
            self._folded[part] = FoldedEdges(
                EdgeClasses(of, sample),
                np.concatenate([[0], np.cumsum(lengths)]),
                crossed_kind[at],
                crossed[at] / members[crossed_kind[at]],
            )
            begin = end
        self._fit.clear()


def _split(classes: EdgeClasses, member: IntArray, hashes: Hashes) -> EdgeClasses:
    """Split classes by the sums of hashes of what their members cross, or are crossed by."""
    sums = np.zeros(len(classes.of), dtype=np.uint64)
    np.add.at(sums, member, hashes)
    return classify(mix(classes.of, mix(sums)))  # mixed: a hash and a sum of hashes may swap

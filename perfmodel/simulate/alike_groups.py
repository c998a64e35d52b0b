"""Groups that run a collective as another group does, on links of their own.

Which these are follows from routes, and from which links are as quick as which others. So what was
found on one machine holds on all that have the same links, as long as those that are alike stay
alike: where all NVLinks are infinitely fast, or no link has a latency.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.arrays import RankGroup
from perfmodel.library.lowering.lower import Algorithm
from perfmodel.library.lowering.lowered import Edges, LoweredCollective
from perfmodel.library.lowering.rerouting import distinct_edges, edges_on_hosts, shape_of
from perfmodel.library.machine import Machine
from perfmodel.memo import grouped, once
from perfmodel.simulate.sharing.duty_cycle import tells_apart
from perfmodel.topology.model import Topology

Laid = dict[Callable[[], Any], Any]
"""What was found of the edges of collectives, by what made it."""


def laid_on(machine: Machine) -> Laid:
    """Return what is kept for all machines on whose links the same groups are alike."""
    topology = machine.topology
    known: list[tuple[Topology, Laid]] = machine.shared.setdefault("laid on links", [])
    for other, laid in known:
        if _has_alike_links(topology, other):
            return laid
    known.append((topology, {}))
    return known[-1][1]


def _has_alike_links(topology: Topology, other: Topology) -> bool:
    """Whether both have the same links, and those that are alike on the other are so on this."""
    own, others = topology.arcs, other.arcs
    return (
        own.names is others.names
        and topology.tiers is other.tiers
        and topology.dead == other.dead
        and tells_apart(others.bandwidth_Bps, own.bandwidth_Bps)
        and tells_apart(others.latency_s, own.latency_s)
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """A group whose collective is lowered, for itself and for groups that are alike.

    `edges`: of its collective, those of several stages once.
    `is_alone`: whether it stands for itself only.
    """

    group: RankGroup
    root: int
    edges: tuple[Edges, ...]
    is_alone: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class AlikeGroups:
    """Groups with their roots, and which of the samples stands for each.

    `edges`: of each group, in place of those of its sample.
    """

    groups: tuple[tuple[RankGroup, int], ...]
    samples: tuple[Sample, ...]
    sample_of: tuple[int, ...]
    edges: tuple[tuple[Edges, ...], ...]

    def renumbered(self, own: Sequence[tuple[Edges, ...]]) -> AlikeGroups:
        """Return the same with other edges of the samples, over the same links."""
        return replace(
            self,
            samples=tuple(replace(s, edges=e) for s, e in zip(self.samples, own, strict=True)),
            edges=tuple(
                tuple(
                    replace(edges, src=moved.src, dst=moved.dst, arcs=moved.arcs)
                    for edges, moved in zip(own[at], its, strict=True)
                )
                for at, its in zip(self.sample_of, self.edges, strict=True)
            ),
        )


KnownGroups = dict[Hashable, list[AlikeGroups]]
"""Groups of communicators over all edges on which they were looked at."""

_ROUTES, _NUMBERS = ("src", "dst", "pointers", "arcs", "hop"), ("latency_s", "cap_Bps")


def _have_same(columns: Iterable[str], some: tuple[Edges, ...], others: tuple[Edges, ...]) -> bool:
    """Whether edges are the same ones, or equal in some columns and no copies in host memory."""
    return len(some) == len(others) and all(
        one is other
        or (
            one.copies is other.copies is None
            and all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)
        )
        for one, other in zip(some, others, strict=True)
    )


MOST_SAMPLES = 32
"""Groups of a shape that are lowered one by one because their routes share links in other ways."""
HOPS_AT_ONCE = 1 << 22
"""Hops of groups that are led over other hosts at once: a few times so many numbers."""

CollectiveKey = tuple[str, int, RankGroup, int, Algorithm | None]
"""Operation, bytes, group, root and algorithm of a collective."""
Best = tuple[LoweredCollective, float]
"""The fastest collective of a group, and its time in seconds."""


@dataclass(frozen=True, slots=True)
class GroupFinder:
    """Finds the groups that are alike in a collective.

    Parameters
    ----------
    machine : Machine
    laid : dict
        What is kept for machines like it (`laid_on`).
    samples : dict
        Those found before, by operation, bytes and shape.
    best : callable
        From operation, bytes, group and root to the fastest collective and its time.
    candidates : callable
        All collectives that it is the fastest of, of operations that are no messages.
    """

    machine: Machine
    laid: Laid
    samples: dict[Hashable, list[Sample]]
    best: Callable[[str, int, RankGroup, int], Best]
    candidates: Callable[[CollectiveKey], Sequence[LoweredCollective]]

    def find(
        self,
        op: str,
        nbytes: int,
        key: Hashable,
        groups: Callable[[], Iterable[tuple[RankGroup, int]]],
    ) -> tuple[AlikeGroups, list[Best]]:
        """Return which groups are alike, and the collectives of their samples.

        `key`: of the `groups`, which that returns with their roots.
        """
        known: list[AlikeGroups] = once(self.laid, KnownGroups, KnownGroups).setdefault(key, [])
        for columns in ((*_ROUTES, *_NUMBERS), _ROUTES):
            for alike in known:
                best = self._best_of(alike, op, nbytes, columns)
                if best is not None:
                    if columns is _ROUTES:
                        known.append(
                            alike.renumbered([distinct_edges(lowered) for lowered, _ in best])
                        )
                    return (known[-1] if columns is _ROUTES else alike), best
        alike = self._arrange(op, nbytes, tuple(groups()))
        if len(alike.groups) > 1:  # edges of a single group may be large
            known.append(alike)
        return alike, [self.best(op, nbytes, each.group, each.root) for each in alike.samples]

    def _best_of(
        self, alike: AlikeGroups, op: str, nbytes: int, columns: Sequence[str]
    ) -> list[Best] | None:
        """Collectives of samples; None if groups need not be alike in this collective."""
        best = []
        for sample in alike.samples:
            call = op, nbytes, sample.group, sample.root
            best.append(self.best(*call))
            is_same = _have_same(columns, distinct_edges(best[-1][0]), sample.edges)
            if not is_same or not (sample.is_alone or self._may_stand(*call)):
                return None
        return best

    def _arrange(
        self, op: str, nbytes: int, groups: tuple[tuple[RankGroup, int], ...]
    ) -> AlikeGroups:
        placed = self._place_alike(op, nbytes, groups)
        for group, root in groups:
            if group not in placed:
                own = distinct_edges(self.best(op, nbytes, group, root)[0])
                placed[group] = Sample(group, root, own, is_alone=True), own
        numbers: dict[Sample, int] = {}
        of = [numbers.setdefault(placed[group][0], len(numbers)) for group, _ in groups]
        return AlikeGroups(
            groups, tuple(numbers), tuple(of), tuple(placed[group][1] for group, _ in groups)
        )

    def _place_alike(
        self, op: str, nbytes: int, groups: Sequence[tuple[RankGroup, int]]
    ) -> dict[RankGroup, tuple[Sample, tuple[Edges, ...]]]:
        """Lower groups of alike hosts once, and several groups over the same number of hosts."""
        topology = self.machine.topology
        by_shape = grouped(
            (
                (group.index(root) if root in group else None, shape_of(topology, group)),
                (group, root),
            )
            for group, root in groups
            if self._is_on_one_host(group) or (len(groups) > 1 and self._is_whole(group))
        )
        placed: dict[RankGroup, tuple[Sample, tuple[Edges, ...]]] = {}
        for shape, members in by_shape.items():
            self._place_shape(
                op, nbytes, dict(members), self.samples.setdefault((op, nbytes, shape), []), placed
            )
        return placed

    def _place_shape(
        self,
        op: str,
        nbytes: int,
        members: dict[RankGroup, int],
        samples: list[Sample],
        placed: dict[RankGroup, tuple[Sample, tuple[Edges, ...]]],
    ) -> None:
        """Lower groups of one shape as others of it were; those with other courses one by one."""
        for sample in samples:
            self._place_as(sample, members, placed)
        while members and len(samples) < MOST_SAMPLES:
            group, root = next(iter(members.items()))
            if not self._may_stand(op, nbytes, group, root):
                return  # another candidate may be better elsewhere: no sample for later calls
            lowered, _ = self.best(op, nbytes, group, root)
            del members[group]
            samples.append(Sample(group, root, distinct_edges(lowered)))
            placed[group] = samples[-1], samples[-1].edges
            self._place_as(samples[-1], members, placed)

    def _may_stand(self, op: str, nbytes: int, group: RankGroup, root: int) -> bool:
        """Whether the candidates go over the same edges, or no routes over a fabric differ."""
        if op == "send" or self._is_on_one_host(group):
            return True
        candidates = self.candidates((op, nbytes, group, root, None))
        return len({tuple(stage.edges for stage in each.stages) for each in candidates}) < 2

    def _place_as(
        self,
        sample: Sample,
        members: dict[RankGroup, int],
        placed: dict[RankGroup, tuple[Sample, tuple[Edges, ...]]],
    ) -> None:
        """Take the edges of a sample for all groups on which they take the same time."""
        hops = sum(len(edges.arcs) for edges in sample.edges)
        others, at_once = list(members), max(1, HOPS_AT_ONCE // max(1, hops))
        for begin in range(0, len(others), at_once):
            part = others[begin : begin + at_once]
            moved = edges_on_hosts(sample.edges, self.machine, sample.group, part)
            for other, edges in zip(part, moved, strict=True):
                if edges is not None:
                    del members[other]
                    placed[other] = sample, edges

    def _is_on_one_host(self, group: RankGroup) -> bool:
        size = self.machine.topology.gpus_per_host
        return bool(min(group) // size == max(group) // size)

    def _is_whole(self, group: RankGroup) -> bool:
        """Whether no host of a group has lost a link or a NIC."""
        topology, variants = self.machine.topology, self.machine.router.variants
        return not topology.dead or bool(
            (variants[np.asarray(group) // topology.gpus_per_host] < 0).all()
        )

"""How several collectives share links: which of them are connected, and the rates of edges."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray, IntArray, distinct
from perfmodel.library.lowering.lowered import Edges, Stage, join_edges, ranges
from perfmodel.memo import T, once
from perfmodel.simulate.sharing.max_min import LinkSharing, max_min_rates

SHORTEST_S = 1e-300
"""Instead of zero where bytes are divided by a time; seconds."""
AVERAGING_ROUNDS = 3
"""Iterations of average rates (see `shared_rates`)."""
MOST_HOPS = 1 << 20
"""Links of edges that are kept of jobs that met before, some 6 bytes each."""
MANY_LINKS = 1 << 17
"""Links of two jobs from which on marks are quicker than sets, and smaller."""
NO_SLACK = 1e-9
"""An edge that uses its share up to this part uses all of it."""


@dataclass(eq=False)
class LinkSet:
    """The links that a job crosses, with repetitions.

    They are looked at where somebody else is on links too: most jobs are alone.
    """

    arcs: IntArray
    _met: dict[LinkSet, bool] = field(default_factory=dict)
    """Whether sets that it was compared with have links in common with it."""

    @cached_property
    def links(self) -> NDArray[np.int32]:
        """Each link once, ascending."""
        return distinct(self.arcs).astype(np.int32)

    @cached_property
    def mark(self) -> int:
        """A number that is equal for equal routes, whatever was asked for before."""
        return zlib.crc32(self.arcs.tobytes())

    @property
    def compared(self) -> int:
        """How many sets it was compared with."""
        return len(self._met)

    def meets(self, other: LinkSet) -> bool:
        """Whether two jobs have a link in common, which is found once for both."""
        if other not in self._met:
            self._met[other] = other._met[self] = not self.isdisjoint(other)
        return self._met[other]

    def isdisjoint(self, other: LinkSet) -> bool:
        """Whether two jobs have no link in common."""
        if len(self.arcs) + len(other.arcs) < MANY_LINKS:
            few, many = sorted((self.links, other.links), key=len)
            places = np.searchsorted(many, few)
            return not (many.take(places, mode="clip") == few).any() if len(few) else True
        marks = np.zeros(
            1 + max(int(self.arcs.max(initial=0)), int(other.arcs.max(initial=0))), np.bool_
        )
        marks[self.arcs] = True
        return not marks[other.arcs].any()


LinkSets = dict[Edges | bytes, LinkSet]
"""Sets of links by the edges of a collective or the links of streams: jobs that repeat themselves
cross the same links again and again."""


@dataclass
class LinkUsers(Generic[T]):
    """Jobs and their links, to find those that share links, directly or through others."""

    _links: dict[T, LinkSet] = field(default_factory=dict)
    _jobs: dict[LinkSet, dict[T, None]] = field(default_factory=dict)
    """Jobs on each set of links that is used."""
    _met: dict[LinkSet, dict[LinkSet, None]] = field(default_factory=dict)
    """Sets in use, itself among them, that have links in common with each set in use."""

    def enter(self, job: T, links: LinkSet) -> None:
        """Put a job on links."""
        self._links[job] = links
        if links not in self._jobs:
            self._jobs[links] = {}
            self._met[links] = met = self._meeting(links)
            for other in met:
                self._met[other][links] = None
        self._jobs[links][job] = None

    def leave(self, job: T) -> list[LinkSet]:
        """Take a job off its links; return the sets of links of jobs that shared some of them."""
        links = self._links.pop(job)
        del self._jobs[links][job]
        if self._jobs[links]:
            return list(self._met[links])
        del self._jobs[links]
        met = self._met.pop(links)
        met.pop(links, None)
        for other in met:
            del self._met[other][links]
        return list(met)

    def shares(self, job: T) -> bool:
        """Whether another job is on one of a job's links."""
        links = self._links[job]
        met = self._met[links]
        return len(met) > 1 or (len(met) == 1 and len(self._jobs[links]) > 1)

    def are_used(self, links: LinkSet) -> bool:
        """Whether a job is on this very set of links."""
        return links in self._jobs

    def links(self, job: T) -> LinkSet:
        """Return the links of a job."""
        return self._links[job]

    def components(self, links: LinkSet) -> list[set[T]]:
        """Jobs on some links and all connected to them through shared links, by component.

        Jobs of different components share no link.
        """
        components: list[set[T]] = []
        looked_at: set[LinkSet] = set()
        met = self._met.get(links)
        for other in self._meeting(links) if met is None else met:
            if other not in looked_at:
                connected = self._connected(other)
                looked_at |= connected
                components.append({job for each in connected for job in self._jobs[each]})
        if len(components) > 1:  # in the order in which jobs entered
            places = {job: place for place, job in enumerate(self._links)}
            components.sort(key=lambda component: min(places[job] for job in component))
        return components

    def _meeting(self, links: LinkSet) -> dict[LinkSet, None]:
        """Sets in use that have links in common with a set, in the order in which they came."""
        return {other: None for other in self._jobs if links.meets(other)}

    def _connected(self, links: LinkSet) -> set[LinkSet]:
        """Return the sets in use that are connected to one of them through common links."""
        connected, todo = {links}, [links]
        while todo:
            fresh = self._met[todo.pop()].keys() - connected
            connected |= fresh
            todo += fresh
        return connected


@dataclass(frozen=True, slots=True)
class Share:
    """Demand of one job on the links."""

    stage: Stage
    wire_bytes: FloatArray
    """Of the whole stage. Shape (edges,)."""
    takes_s: Callable[[FloatArray], float]
    """Estimated time of the stage at some rates; seconds."""
    key: object
    """Equal for jobs that began together and are alike, so that they send at the same times."""


def max_min_of(capacity_Bps: FloatArray, stages: Sequence[Stage]) -> list[FloatArray]:
    """Max-min fair rates of the edges of some stages on the same links, stage by stage."""
    edges = join_edges([stage.edges for stage in stages])
    caps = np.concatenate([stage.cap_Bps for stage in stages])
    ends = np.cumsum([len(stage.edges) for stage in stages])[:-1]
    return np.split(max_min_rates(capacity_Bps, edges.pointers, edges.arcs, caps), ends)


def rates_in_turns(
    capacity_Bps: FloatArray, stages: Sequence[Stage], needed_Bps: Sequence[FloatArray]
) -> list[tuple[FloatArray, float]]:
    """Share links among stages whose messages follow one another, each at full rate.

    While one stage waits for a latency, bytes of the others move. So a stage that is busy for a
    part of its time needs only that part of a link, and is slower than alone only where the needs
    of all exceed the capacity.

    Returns for each stage the rate of each edge, shape (edges,), at most what it needs, and the
    factor by which the stage is slower than alone.
    """
    limited = [replace(s, cap_Bps=needed) for s, needed in zip(stages, needed_Bps, strict=True)]
    rates = max_min_of(capacity_Bps, limited)
    with np.errstate(divide="ignore"):
        slower = [
            np.divide(needed, part, out=np.ones(len(part)), where=needed > 0)
            for needed, part in zip(needed_Bps, rates, strict=True)
        ]
    return [(part, float(own.max(initial=1.0))) for part, own in zip(rates, slower, strict=True)]


@dataclass(frozen=True, slots=True)
class JobsOnLinks:
    """Edges of some jobs on links that they share.

    Parameters
    ----------
    met : ndarray of int
        Edges on links of several jobs, and those connected to them through other links: what
        another job's edges are limited to changes the rates of these alone.
    edges : LinkSharing
        These edges.
    """

    met: IntArray
    edges: LinkSharing

    @classmethod
    def of(cls, parts: Sequence[Edges]) -> JobsOnLinks:
        """Prepare the edges of some jobs."""
        lengths = np.concatenate([np.diff(part.pointers) for part in parts])
        links = np.concatenate([part.arcs for part in parts])
        met = np.flatnonzero(_meeting_edges(parts, links, lengths))
        pointers = np.concatenate([[0], np.cumsum(lengths)])
        met_links = links[ranges(pointers[met], lengths[met])]
        return cls(
            met.astype(np.int32),
            LinkSharing.of(np.concatenate([[0], np.cumsum(lengths[met])]), met_links),
        )


def _meeting_edges(parts: Sequence[Edges], links: IntArray, lengths: IntArray) -> NDArray[np.bool_]:
    """Whether each edge is connected to an edge of another job through links; shape (edges,).

    `links`: of all edges, each of which crosses as many as `lengths` says.
    """
    # Links of a job are marked one by one: it has some thousands, and a cluster has a million.
    is_used, is_met = np.zeros((2, int(links.max(initial=-1)) + 1), dtype=np.bool_)
    for part in parts:
        is_met[part.arcs[is_used[part.arcs]]] = True
        is_used[part.arcs] = True
    owner = np.repeat(np.arange(len(lengths)), lengths)
    meets, count = np.zeros(len(lengths), dtype=np.bool_), -1
    while count < (count := int(np.count_nonzero(meets))):
        meets[owner[is_met[links]]] = True
        is_met[links[meets[owner]]] = True
    return meets


@dataclass
class _Solutions:
    """Max-min fair rates of the edges of some jobs, limited in several ways.

    Rounds soon ask for what the round before has asked for, and change the rates of edges that
    meet others alone.
    """

    jobs: JobsOnLinks
    capacity_Bps: FloatArray
    places: Sequence[slice]
    """Edges of each job."""
    alone: FloatArray
    """Rates of all edges, limited by their caps only."""
    _last: dict[object, tuple[FloatArray, list[FloatArray]]] = field(default_factory=dict)

    def of(self, name: object, limits_Bps: Iterable[FloatArray]) -> list[FloatArray]:
        """Rates of each job's edges under limits of those that meet; `name`: of the question."""
        jobs, limits = self.jobs, np.concatenate(list(limits_Bps))[self.jobs.met]
        last = self._last.get(name)
        if last is None or not np.array_equal(last[0], limits):
            rates = self.alone.copy()
            rates[jobs.met] = jobs.edges.rates(self.capacity_Bps, limits)
            last = self._last[name] = limits, [rates[place] for place in self.places]
        return last[1]


@dataclass
class LinkSharings:
    """Edges of jobs on a machine's links, prepared once: jobs that repeat themselves meet again."""

    _hops: int = 0
    _kept: dict[tuple[Edges, ...], JobsOnLinks] = field(default_factory=dict)
    _alone: dict[Stage, FloatArray] = field(default_factory=dict)

    def of(self, parts: tuple[Edges, ...]) -> JobsOnLinks:
        """Return all edges of some jobs on their links."""
        if parts in self._kept:
            return self._kept[parts]
        jobs = JobsOnLinks.of(parts)
        self._hops += len(jobs.edges.link)
        if self._hops <= MOST_HOPS:
            self._kept[parts] = jobs
        return jobs

    def alone(self, capacity_Bps: FloatArray, stage: Stage) -> FloatArray:
        """Max-min fair rates of the edges of a job that meets no other; shape (edges,)."""
        edges, caps_Bps = stage.edges, stage.cap_Bps
        share = partial(max_min_rates, capacity_Bps, edges.pointers, edges.arcs, caps_Bps)
        return once(self._alone, stage, share)


def shared_rates(
    capacity_Bps: FloatArray, shares: Sequence[Share], sharings: LinkSharings | None = None
) -> list[FloatArray]:
    """Return the rate of each job's edges while they send, max-min fairly; wire bytes per second.

    An edge that waits, for data or for latency, sends for a part of the time only: others share
    links with its average, bytes over time. So the rates of each job are solved with the others
    limited to their averages, and the averages follow from the rates, in `AVERAGING_ROUNDS`
    iterations, or fewer where the rates stay what they are.

    `sharings`: where edges are kept that meet again on the same links.
    """
    sharings = sharings or LinkSharings()
    jobs = sharings.of(tuple(share.stage.edges for share in shares))
    caps = [share.stage.cap_Bps for share in shares]
    ends = np.cumsum([len(cap) for cap in caps]).tolist()
    places = [slice(begin, end) for begin, end in itertools.pairwise([0, *ends])]
    alone = np.concatenate([sharings.alone(capacity_Bps, share.stage) for share in shares])
    alone[jobs.met] = jobs.edges.rates(capacity_Bps, np.concatenate(caps)[jobs.met])
    rates = [alone[place] for place in places]
    if len(shares) < 2 or any(not part.all() for part in rates):
        return rates
    solutions = _Solutions(jobs, capacity_Bps, places, alone)
    for _ in range(AVERAGING_ROUNDS):
        uses = [_average(share, part) for share, part in zip(shares, rates, strict=True)]
        slack = [bool((u < r * (1 - NO_SLACK)).any()) for u, r in zip(uses, rates, strict=True)]
        if not any(slack):
            break
        limited = solutions.of(
            "limited", (u if s else c for u, c, s in zip(uses, caps, slack, strict=True))
        )
        before, rates = rates, list(limited)
        for j, share in enumerate(shares):
            if slack[j]:
                own = (
                    not s or other.key == share.key for other, s in zip(shares, slack, strict=True)
                )
                limits = (c if o else u for u, c, o in zip(uses, caps, own, strict=True))
                rates[j] = solutions.of(("own", share.key), limits)[j]
        if all(map(np.array_equal, before, rates)):
            break
    return rates


def _average(share: Share, rates_Bps: FloatArray) -> FloatArray:
    return np.minimum(rates_Bps, share.wire_bytes / max(share.takes_s(rates_Bps), SHORTEST_S))

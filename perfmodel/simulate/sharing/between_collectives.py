"""How several collectives share links: which of them are connected, and the rates of edges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.library.lowering.edges import join_edges
from perfmodel.library.lowering.lowered import Stage
from perfmodel.simulate.sharing.max_min import LinkSharing, max_min_rates

T = TypeVar("T")

LARGE = 4096
"""Links from which on the set of a job is compared as a whole instead of link by link."""
SHORTEST_S = 1e-300
"""Instead of zero where bytes are divided by a time; seconds."""
ROUNDS = 3
"""Iterations of average rates (see `shared_rates`)."""
NO_SLACK = 1e-9
"""An edge that uses its share up to this part uses all of it."""


@dataclass
class LinkUsers(Generic[T]):
    """Jobs by link, to find those that share links, directly or through others."""

    _links: dict[T, frozenset[int]] = field(default_factory=dict)
    _by_link: dict[int, dict[T, None]] = field(default_factory=dict)
    _large: dict[T, None] = field(default_factory=dict)

    def enter(self, job: T, links: frozenset[int]) -> None:
        """Put a job on links."""
        self._links[job] = links
        if len(links) > LARGE:
            self._large[job] = None
            return
        for link in links:
            self._by_link.setdefault(link, {})[job] = None

    def leave(self, job: T) -> frozenset[int]:
        """Take a job off its links; return them."""
        links = self._links.pop(job)
        if job in self._large:
            del self._large[job]
            return links
        for link in links:
            users = self._by_link[link]
            del users[job]
            if not users:
                del self._by_link[link]
        return links

    def __contains__(self, job: T) -> bool:
        return job in self._links

    def links(self, job: T) -> frozenset[int]:
        """Links of a job."""
        return self._links[job]

    def components(self, links: AbstractSet[int]) -> list[set[T]]:
        """Jobs on some links and all connected to them through shared links, by component.

        Jobs of different components share no link.
        """
        components: list[set[T]] = []
        for job in self._users(links):
            if not any(job in component for component in components):
                components.append(self._component(job))
        return components

    def _component(self, job: T) -> set[T]:
        component, todo, visited = {job}, [job], set[int]()
        while todo:  # every link is looked at once, however many jobs cross it
            links = self._links[todo.pop()].difference(visited)
            visited |= links
            fresh = self._users(links) - component
            component |= fresh
            todo += fresh
        return component

    def _users(self, links: AbstractSet[int]) -> set[T]:
        jobs = {job for job in self._large if not links.isdisjoint(self._links[job])}
        if len(links) <= len(self._by_link):
            for link in links:
                jobs.update(self._by_link.get(link, ()))
        else:
            for link, users in self._by_link.items():
                if link in links:
                    jobs.update(users)
        return jobs


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
    shares = []
    for needed, part in zip(needed_Bps, rates, strict=True):
        with np.errstate(divide="ignore"):
            slower = np.divide(needed, part, out=np.ones(len(part)), where=needed > 0)
        shares.append((part, float(slower.max(initial=1.0))))
    return shares


def shared_rates(capacity_Bps: FloatArray, shares: Sequence[Share]) -> list[FloatArray]:
    """Rate of each job's edges while they send, max-min fairly; wire bytes per second.

    An edge that waits, for data or for latency, sends for a part of the time only: others share
    links with its average, bytes over time. So the rates of each job are solved with the others
    limited to their averages, and the averages follow from the rates, in `ROUNDS` iterations.
    """
    caps = [share.stage.cap_Bps for share in shares]
    edges = join_edges([share.stage.edges for share in shares])
    sharing = LinkSharing.of(edges.pointers, edges.arcs)
    ends = np.cumsum([len(cap) for cap in caps])[:-1]

    def solved(limits: Iterable[FloatArray]) -> list[FloatArray]:
        limit = np.concatenate(list(limits))
        return np.split(sharing.rates(capacity_Bps, limit), ends)

    rates = solved(caps)
    if len(shares) < 2 or any(not part.all() for part in rates):
        return rates
    for _ in range(ROUNDS):
        uses = [_average(share, part) for share, part in zip(shares, rates, strict=True)]
        slack = [bool((u < r * (1 - NO_SLACK)).any()) for u, r in zip(uses, rates, strict=True)]
        if not any(slack):
            break
        limited = solved(u if s else c for u, c, s in zip(uses, caps, slack, strict=True))
        by_key: dict[object, list[FloatArray]] = {}
        for share in (share for share, s in zip(shares, slack, strict=True) if s):
            if share.key not in by_key:
                own = [not s or other.key == share.key
                       for other, s in zip(shares, slack, strict=True)]  # fmt: skip
                by_key[share.key] = solved(
                    c if o else u for u, c, o in zip(uses, caps, own, strict=True)
                )
        rates = [by_key[share.key][j] if slack[j] else limited[j] for j, share in enumerate(shares)]
    return rates


def _average(share: Share, rates_Bps: FloatArray) -> FloatArray:
    return np.minimum(rates_Bps, share.wire_bytes / max(share.takes_s(rates_Bps), SHORTEST_S))

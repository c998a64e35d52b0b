"""How edges of several collectives share links: who meets whom, and what each edge gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.library.lowering.edges import joined
from perfmodel.library.lowering.lowered import Stage
from perfmodel.simulate.sharing.max_min import max_min_rates

Floats = NDArray[np.float64]
T = TypeVar("T")

LARGE = 4096
"""Links above which a job's are compared as a whole and not put down one by one."""
SHORTEST_S = 1e-300
"""Stands for no time at all where bytes are divided by it."""
ROUNDS = 3
"""Of working out how much of its share each job leaves to the others."""
NO_SLACK = 1e-9
"""An edge that uses its share but for this part uses it."""


@dataclass
class Meeting(Generic[T]):
    """Who is on which links: jobs by link, so that only those who meet are looked at."""

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

    def apart(self, links: frozenset[int]) -> list[set[T]]:
        """Everyone on some links with all whom they share links with, directly or through others.

        Those in different sets share none.
        """
        sets: list[set[T]] = []
        for job in self._on(links):
            if not any(job in found for found in sets):
                sets.append(self._around(job))
        return sets

    def _around(self, job: T) -> set[T]:
        found, todo = {job}, [job]
        while todo:
            near = self._on(self._links[todo.pop()]) - found
            found |= near
            todo += near
        return found

    def _on(self, links: frozenset[int]) -> set[T]:
        found = {job for job in self._large if not links.isdisjoint(self._links[job])}
        if len(links) <= len(self._by_link):
            for link in links:
                found.update(self._by_link.get(link, ()))
        else:
            for link, users in self._by_link.items():
                if link in links:
                    found.update(users)
        return found


@dataclass(frozen=True, slots=True)
class Share:
    """What one job asks of the links.

    Parameters
    ----------
    stage : Stage
    wire_bytes : ndarray of float, shape (edges,)
        Of the whole stage.
    takes_s : callable
        About how long the stage takes at some rates.
    together : object
        Jobs with the same value began together and are alike, so that they send at the same times.
    """

    stage: Stage
    wire_bytes: Floats
    takes_s: Callable[[Floats], float]
    together: object


def max_min_of(capacity_Bps: Floats, stages: Sequence[Stage]) -> list[Floats]:
    """Max-min fair rates of the edges of some stages on the same links, stage by stage."""
    edges = joined([stage.edges for stage in stages])
    caps = np.concatenate([stage.cap_Bps for stage in stages])
    ends = np.cumsum([len(stage.edges) for stage in stages])[:-1]
    return np.split(max_min_rates(capacity_Bps, edges.pointers, edges.arcs, caps), ends)


def in_turns(
    capacity_Bps: Floats, stages: Sequence[Stage], asked_Bps: Sequence[Floats]
) -> list[tuple[Floats, float]]:
    """Share links among stages whose messages follow one another, each at full rate.

    While one waits for a latency the other's bytes move, so a stage that is busy for a part of its
    time asks for that part of a link only. It is slower than alone by what the others leave of
    the links: they share work, not rates.

    Returns
    -------
    list of (ndarray of float, shape (edges,), float)
        Stage by stage: what each edge gets of what it asks for, and by what factor the stage is
        slower than alone.
    """
    limited = [replace(s, cap_Bps=asked) for s, asked in zip(stages, asked_Bps, strict=True)]
    rates = max_min_of(capacity_Bps, limited)
    found = []
    for wanted, part in zip(asked_Bps, rates, strict=True):
        with np.errstate(divide="ignore"):
            slower = np.divide(wanted, part, out=np.ones(len(part)), where=wanted > 0)
        found.append((part, float(slower.max(initial=1.0))))
    return found


def shared_rates(capacity_Bps: Floats, shares: Sequence[Share]) -> list[Floats]:
    """Rate of each job's edges while they send, max-min fairly; wire bytes per second.

    An edge that waits, for data or for latency, sends for a part of the time only: what others
    meet of it is its average, bytes over time. So everybody's rates are worked out with the others
    at no more than their averages, and these from the rates, in turns.
    """
    caps = [share.stage.cap_Bps for share in shares]
    edges = joined([share.stage.edges for share in shares])
    ends = np.cumsum([len(cap) for cap in caps])[:-1]

    def solved(limits: Iterable[Floats]) -> list[Floats]:
        limit = np.concatenate(list(limits))
        return np.split(max_min_rates(capacity_Bps, edges.pointers, edges.arcs, limit), ends)

    rates = solved(caps)
    if len(shares) < 2 or any(not part.all() for part in rates):
        return rates
    for _ in range(ROUNDS):
        uses = [_average(share, part) for share, part in zip(shares, rates, strict=True)]
        slack = [bool((u < r * (1 - NO_SLACK)).any()) for u, r in zip(uses, rates, strict=True)]
        if not any(slack):
            break
        usual = solved(u if s else c for u, c, s in zip(uses, caps, slack, strict=True))
        beside: dict[object, list[Floats]] = {}
        for share in (share for share, s in zip(shares, slack, strict=True) if s):
            if share.together not in beside:
                own = [not s or other.together == share.together
                       for other, s in zip(shares, slack, strict=True)]  # fmt: skip
                beside[share.together] = solved(
                    c if o else u for u, c, o in zip(uses, caps, own, strict=True)
                )
        rates = [
            beside[share.together][j] if slack[j] else usual[j] for j, share in enumerate(shares)
        ]
    return rates


def _average(share: Share, rates_Bps: Floats) -> Floats:
    return np.minimum(rates_Bps, share.wire_bytes / max(share.takes_s(rates_Bps), SHORTEST_S))

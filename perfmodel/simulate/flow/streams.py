"""Background traffic in progress at fidelity "flow": streams that begin together are one job."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import simpy

from perfmodel.arrays import FloatArray, IntArray, sending_s
from perfmodel.library.lowering.edges import Edges, join_edges, select_edges
from perfmodel.library.lowering.lowered import Stage
from perfmodel.simulate.network import LinkCounters, count_streams

SAME_RATE = 1e-12
"""Rates this close are the same: sums of like rates differ in the last bits."""
SAME_INSTANT = 1e-14
"""Ends this close (relative to the time) are one instant: equal times that are summed in another
order differ in the last bits, and would each cost a solution of the rates."""


class Arrival(NamedTuple):
    """A stream that begins."""

    route: tuple[int, ...]
    cap_Bps: float
    """Most that it takes of a link."""
    nbytes: float
    done: simpy.Event


@dataclass(eq=False)
class Streams:
    """Streams that began together and cross the same last link; times on the simulation's clock.

    Arrays have shape (streams,).
    """

    stage: Stage
    """An edge for each stream."""
    nbytes: FloatArray
    """Not yet sent at `since_s`."""
    done: list[simpy.Event]
    since_s: float
    rate_Bps: FloatArray = field(init=False)
    end_s: FloatArray = field(init=False)
    """When the last byte of each leaves at these rates."""
    version: int = 0

    def __post_init__(self) -> None:
        self.rate_Bps = np.zeros(len(self.nbytes))
        self.end_s = np.full(len(self.nbytes), np.inf)

    def __len__(self) -> int:
        return len(self.nbytes)

    @property
    def edges(self) -> Edges:
        """Their links."""
        return self.stage.edges

    @property
    def routes(self) -> list[tuple[int, ...]]:
        """The links of each."""
        arcs, ends = self.edges.arcs.tolist(), self.edges.pointers.tolist()
        return [tuple(arcs[a:b]) for a, b in itertools.pairwise(ends)]

    def set_rates(self, now_s: float, rate_Bps: FloatArray, counters: LinkCounters) -> bool:
        """Go on at other rates, and work out the ends; return whether any rate changes."""
        differ = np.abs(rate_Bps - self.rate_Bps) > SAME_RATE * rate_Bps
        if self.version and not differ.any():
            return False
        self.send(now_s, counters)
        self.rate_Bps = np.where(differ, rate_Bps, self.rate_Bps)
        self.end_s = np.where(differ, now_s + sending_s(self.nbytes, rate_Bps), self.end_s)
        self.version += 1
        return True

    def first_s(self) -> float:
        """When the first of them ends."""
        return float(self.end_s.min())

    def send(self, now_s: float, counters: LinkCounters) -> None:
        """Send at the present rates up to a time, and count the bytes."""
        self._count(np.minimum(self.nbytes, self.rate_Bps * (now_s - self.since_s)), counters)
        self.since_s = now_s

    def finish(self, now_s: float, counters: LinkCounters) -> list[simpy.Event]:
        """Send all of those that end first, which are then no longer part of this job."""
        ending = self.end_s <= self.first_s() * (1 + SAME_INSTANT)
        self.send(now_s, counters)
        self._count(np.where(ending, self.nbytes, 0.0), counters)
        ended = [event for event, ends in zip(self.done, ending, strict=True) if ends]
        self._keep(np.flatnonzero(~ending))
        return ended

    def _count(self, sent: FloatArray, counters: LinkCounters) -> None:
        if sent.any():
            count_streams(counters, self.edges, sent)
            self.nbytes = self.nbytes - sent

    def _keep(self, places: IntArray) -> None:
        """Keep some of the streams."""
        self.done = [self.done[place] for place in places]
        self.stage = _stage(select_edges(self.edges, places))
        self.nbytes, self.rate_Bps, self.end_s = (
            values[places] for values in (self.nbytes, self.rate_Bps, self.end_s)
        )


def begin_streams(arrivals: Iterable[Arrival], now_s: float) -> list[Streams]:
    """Return streams that begin now, those over the same last link as one job.

    They are in an order independent of that in which they arrived.
    """
    by_last: dict[tuple[int, ...], list[Arrival]] = {}
    for arrival in sorted(arrivals, key=lambda arrival: arrival[:3]):
        by_last.setdefault(arrival.route[-1:], []).append(arrival)
    return [
        Streams(
            stream_stage(
                [arrival.route for arrival in together], [arrival.cap_Bps for arrival in together]
            ),
            np.array([arrival.nbytes for arrival in together]),
            [arrival.done for arrival in together],
            now_s,
        )
        for together in by_last.values()
    ]


def stream_stage(routes: Sequence[tuple[int, ...]], caps_Bps: Sequence[float]) -> Stage:
    """Return a stage with an edge for each stream over a route, at most at its rate."""
    zero = np.zeros(len(routes), dtype=np.int64)
    edges = Edges(
        src=zero,
        dst=zero,
        pointers=np.cumsum([0, *map(len, routes)]),
        arcs=np.array([link for route in routes for link in route], dtype=np.int64),
        latency_s=np.zeros(len(routes)),
        cap_Bps=np.array(caps_Bps),
        hop=zero,
        staged=False,
    )
    return _stage(edges)


def joined_stage(jobs: Sequence[Streams]) -> Stage:
    """Return a stage with the edges of all streams of some jobs."""
    return jobs[0].stage if len(jobs) == 1 else _stage(join_edges([job.edges for job in jobs]))


def _stage(edges: Edges) -> Stage:
    return Stage((), edges, edges.latency_s, edges.cap_Bps, np.ones(len(edges)))

"""Messages between devices as fluid streams: thousands at once, max-min fair over shared links.

For traffic that consists of messages from one device to another, each over one route: what workers
send to servers and back. Streams are rows of arrays, so that an event costs one solution of the
rates of all and no Python per stream. Rates are those of `FlowNetwork.stream`, with which it agrees
exactly; collectives it cannot carry.

Background traffic in progress at fidelity "flow": streams that begin together are one job.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray, IntArray, sending_s
from perfmodel.collectives.timing.compiled_loops import Effort
from perfmodel.errors import SimulationError
from perfmodel.library.lowering.lowered import (
    Edges,
    LoweredCollective,
    Stage,
    join_edges,
    select_edges,
)
from perfmodel.library.machine import Machine
from perfmodel.memo import grouped
from perfmodel.simulate.network import (
    LinkCounters,
    Network,
    UnsuitedNetworkError,
    count_stream,
    reroute_stream,
    schedule_last,
    stream_edges,
)
from perfmodel.simulate.sharing.max_min import LinkSharing

INSTANT_TOLERANCE = 1e-12
"""Streams whose ends are this close, relative to their time, end together: sums of like rates
differ in the last bits."""
MORE_ROWS = 64
"""Streams for which there is room at least when the table of streams grows; it doubles."""
NO_ARC, NO_LIMIT_BPS = -1, 1e300
"""What stands for a link in short routes, and its bandwidth, more than any other and finite."""
ROW = np.dtype(
    [("left", "f8"), ("sent", "f8"), ("rate_Bps", "f8"), ("cap_Bps", "f8"), ("active", "?")],
    align=True,
)
"""A stream in progress: at the time of the last solution bytes left and bytes sent that are not
counted yet, its rate since then, and its cap."""


@dataclass
class StreamNetwork(Network):
    """Streams in progress, one row each (see the module and `Network`).

    `quantum_s`: streams that begin and end within it are solved together, up to so much later;
        0: each at its time. The rate of a stream that ends is unused until then.
    """

    quantum_s: float = 0.0
    solved: int = field(default=0, init=False)
    """How often rates were solved."""
    _rows: NDArray[Any] = field(default_factory=lambda: np.zeros(0, ROW), init=False)
    _links: dict[int, int] = field(default_factory=lambda: {NO_ARC: 0}, init=False)
    """Numbers of the links that streams have crossed."""
    _crossed: NDArray[np.int32] = field(
        default_factory=lambda: np.zeros((0, 1), np.int32), init=False
    )
    """Numbers of the links of each row, filled up with 0."""
    _ends: dict[int, tuple[simpy.Event, tuple[int, ...]]] = field(default_factory=dict, init=False)
    """Of each row, with its route."""
    _carried: dict[tuple[int, ...], float] = field(default_factory=dict, init=False)
    """Bytes of streams over each route that are not yet among those of the links."""
    _order: list[tuple[float, int]] = field(default_factory=list, init=False)
    """When streams end at the present rates, with their rows; the first is the last here."""
    _free: list[int] = field(default_factory=list, init=False)
    """Rows whose streams have ended; the last is used first."""
    _since_s: float = field(default=0.0, init=False)
    _is_marked: bool = field(default=False, init=False)
    _version: int = field(default=0, init=False)

    def stream(self, route: tuple[int, ...], cap_Bps: float, nbytes: float) -> simpy.Event:
        """Send bytes over some arcs from now on; the event fires when the last has left."""
        ended = self.env.event()
        if nbytes <= 0 or not (route or math.isfinite(cap_Bps)):
            return ended.succeed()
        row = self._free.pop() if self._free else len(self._ends)
        if row == len(self._rows):
            more = max(row, MORE_ROWS)
            self._rows = np.concatenate([self._rows, np.zeros(more, ROW)])
            self._crossed = np.pad(self._crossed, ((0, more), (0, 0)))
        self._rows[row] = nbytes, 0.0, 0.0, cap_Bps, True
        self._set_route(row, route)
        self._ends[row] = ended, route
        self._mark()
        return ended

    @property
    def counted(self) -> LinkCounters:
        """Bytes over each directed link: of streams that have ended, and of the others till now."""
        self._send()
        self._count()
        return self._counted

    def become(self, machine: Machine) -> None:
        """Go on on this machine; bytes already sent stay sent.

        Raises `TopologyError`: no route is left for a stream.
        """
        self._send()
        self._note_change(machine)
        self._count()
        for row, (ended, route) in self._ends.items():
            self._ends[row] = ended, reroute_stream(machine, route)
            self._set_route(row, self._ends[row][1])
        self._solve()

    def _launch(self, lowered: LoweredCollective) -> simpy.Event:
        raise UnsuitedNetworkError(
            f"{lowered.schedule.collective}: this network carries streams only"
        )

    # ------------------------------------------------------------ rows

    @property
    def _active(self) -> IntArray:
        """Rows of the streams in progress."""
        return np.flatnonzero(self._rows["active"])

    def _set_route(self, row: int, route: tuple[int, ...]) -> None:
        more = len(route) - self._crossed.shape[1]
        if more > 0:
            self._crossed = np.pad(self._crossed, ((0, 0), (0, more)))
        self._crossed[row] = 0
        own = [self._links.setdefault(arc, len(self._links)) for arc in route]
        self._crossed[row, : len(own)] = own

    def _count(self) -> None:
        """Count what streams have sent since they were counted last."""
        sent: list[float] = self._rows["sent"].tolist()
        for row, (_, route) in self._ends.items():
            self._carry(route, sent[row])
        self._rows["sent"] = 0.0
        for route, nbytes in self._carried.items():
            count_stream(self._counted, np.array(route, np.int64), nbytes)
        self._carried.clear()

    def _carry(self, route: tuple[int, ...], nbytes: float) -> None:
        self._carried[route] = self._carried.get(route, 0.0) + nbytes

    # ------------------------------------------------------------ time

    def _mark(self) -> None:
        """Schedule one update of the rates, at the end of this instant or of this quantum."""
        if self._is_marked:
            return
        self._is_marked = True
        quantum_s, now_s = self.quantum_s, self.env.now
        at_s = quantum_s * (math.floor(now_s / quantum_s) + 1) if quantum_s else now_s
        schedule_last(self.env, self._update, max(0.0, at_s - now_s))

    def _update(self, _: simpy.Event) -> None:
        self._is_marked = False
        self._send()
        self._solve()

    def _send(self) -> None:
        """Send at the present rates up to now."""
        sent = np.minimum(
            self._rows["left"], self._rows["rate_Bps"] * (self.env.now - self._since_s)
        )
        self._rows["left"] -= sent
        self._rows["sent"] += sent
        self._since_s = self.env.now

    def _solve(self) -> None:
        """Solve the rates of all streams, and schedule their ends."""
        self.solved += 1
        self.timer.keep(Effort).spend()
        rows = self._active
        if len(rows):
            rates_Bps = self._rates_Bps(self._crossed[rows], self._rows["cap_Bps"][rows])
            self._rows["rate_Bps"][rows] = rates_Bps
            if self.changes_left == 0 and not rates_Bps.any():
                raise SimulationError(f"{len(rows)} messages stall for ever on links without rate")
        left, rate_Bps = self._rows["left"], self._rows["rate_Bps"]
        rows = np.flatnonzero((rate_Bps > 0) & (left < np.inf))
        ends_s = self.env.now + left[rows] / rate_Bps[rows]
        late = np.argsort(-ends_s)
        self._order = list(zip(ends_s[late].tolist(), rows[late].tolist(), strict=True))
        self._schedule_next_end()

    def _rates_Bps(self, crossed: NDArray[np.int32], caps_Bps: FloatArray) -> FloatArray:
        """Rates of some streams that cross links of these numbers; shape (streams,)."""
        arcs = np.fromiter(self._links, np.int64, len(self._links))
        capacity_Bps = self.machine.topology.arcs.bandwidth_Bps[arcs]
        capacity_Bps[0] = NO_LIMIT_BPS
        if len(crossed) == 1:
            return np.asarray(np.minimum(caps_Bps, capacity_Bps[crossed[0]].min()))
        pointers = np.arange(0, crossed.size + 1, crossed.shape[1])
        sharing = LinkSharing(np.arange(len(arcs)), pointers, crossed.ravel())
        return sharing.rates(capacity_Bps, caps_Bps)

    def _schedule_next_end(self) -> None:
        """Schedule the streams that end first at the present rates."""
        self._version += 1
        if self._order:
            schedule_last(
                self.env,
                partial(self._end, self._version),
                max(0.0, self._order[-1][0] - self.env.now),
            )

    def _end(self, version: int, _: simpy.Event) -> None:
        """End some streams, in the order of their rows; what they leave unused is shared anew."""
        if version != self._version:
            return
        together, last_s = list[int](), self._order[-1][0] * (1 + INSTANT_TOLERANCE)
        while self._order and self._order[-1][0] <= last_s:
            together.append(self._order.pop()[1])
        together.sort()
        for row in together:
            ended, route = self._ends.pop(row)
            left, sent, *_ = self._rows[row].item()
            self._carry(route, left + sent)
            self._rows[row] = 0.0, 0.0, 0.0, 0.0, False
            ended.succeed()
        self._free += together[::-1]
        self._mark()
        if self.quantum_s:
            self._schedule_next_end()
        else:
            self._version += 1


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
    version: int = 0

    def __post_init__(self) -> None:
        self.rate_Bps = np.zeros(len(self.nbytes))
        self.end_s = np.full(len(self.nbytes), np.inf)  # when the last byte leaves at these rates

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
        """Return when the first of them ends."""
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
        kept = np.flatnonzero(~ending)
        self.done = [self.done[place] for place in kept]
        self.stage = _stage(select_edges(self.edges, kept))
        self.nbytes, self.rate_Bps, self.end_s = (
            values[kept] for values in (self.nbytes, self.rate_Bps, self.end_s)
        )
        return ended

    def _count(self, sent: FloatArray, counters: LinkCounters) -> None:
        if sent.any():
            count_stream(counters, self.edges.arcs, np.repeat(sent, np.diff(self.edges.pointers)))
            self.nbytes = self.nbytes - sent


def begin_streams(arrivals: Iterable[Arrival], now_s: float) -> list[Streams]:
    """Return streams that begin now, those over the same last link as one job.

    They are in an order independent of that in which they arrived.
    """
    in_order = sorted(arrivals, key=lambda arrival: arrival[:3])
    return [
        Streams(
            stream_stage(
                [arrival.route for arrival in together], [arrival.cap_Bps for arrival in together]
            ),
            np.array([arrival.nbytes for arrival in together]),
            [arrival.done for arrival in together],
            now_s,
        )
        for together in grouped((arrival.route[-1:], arrival) for arrival in in_order).values()
    ]


def stream_stage(routes: Sequence[tuple[int, ...]], caps_Bps: Sequence[float]) -> Stage:
    """Return a stage with an edge for each stream over a route, at most at its rate."""
    return _stage(stream_edges(routes, caps_Bps))


def joined_stage(jobs: Sequence[Streams]) -> Stage:
    """Return a stage with the edges of all streams of some jobs."""
    return jobs[0].stage if len(jobs) == 1 else _stage(join_edges([job.edges for job in jobs]))


def _stage(edges: Edges) -> Stage:
    return Stage((), edges, edges.latency_s, edges.cap_Bps, np.ones(len(edges)))

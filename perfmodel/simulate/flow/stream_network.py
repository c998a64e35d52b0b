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
from typing import NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray, IntArray, sending_s
from perfmodel.errors import SimulationError
from perfmodel.library.lowering.lowered import (
    Edges,
    LoweredCollective,
    Stage,
    join_edges,
    select_edges,
)
from perfmodel.library.machine import Machine
from perfmodel.simulate.network import (
    LinkCounters,
    Network,
    UnsuitedNetworkError,
    count_stream,
    reroute_stream,
    schedule_last,
    stream_edges,
)
from perfmodel.simulate.sharing.max_min import max_min_rates

TOGETHER = 1e-12
"""Streams whose ends are this close, relative to their time, end together: sums of like rates
differ in the last bits."""
ROWS = 64
"""Streams that there is room for at first; doubled when they are more."""


@dataclass
class StreamNetwork(Network):
    """Streams in progress, one row each (see the module and `Network`).

    `quantum_s`: streams that begin and end within it are solved together, up to so much later;
        0: each at its time. The rate of a stream that ends is unused until then.
    """

    quantum_s: float = 0.0
    solved: int = field(default=0, init=False)
    """How often rates were solved."""
    _left: FloatArray = field(init=False)
    _rates_Bps: FloatArray = field(init=False)
    _caps_Bps: FloatArray = field(init=False)
    _active: NDArray[np.bool_] = field(init=False)
    _arcs: IntArray = field(init=False)  # of each row, filled up with -1
    _ends: dict[int, simpy.Event] = field(default_factory=dict, init=False)
    _sizes: dict[int, float] = field(default_factory=dict, init=False)
    _free: list[int] = field(default_factory=list, init=False)
    _endless: list[int] = field(default_factory=list, init=False)
    _since_s: float = field(default=0.0, init=False)
    _is_marked: bool = field(default=False, init=False)
    _version: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._left, self._rates_Bps, self._caps_Bps = (np.zeros(ROWS) for _ in range(3))
        self._active = np.zeros(ROWS, dtype=np.bool_)
        self._arcs = np.full((ROWS, 1), -1, dtype=np.int64)
        self._free = list(range(ROWS - 1, -1, -1))

    def stream(self, route: tuple[int, ...], cap_Bps: float, nbytes: float) -> simpy.Event:
        """Send bytes over some arcs from now on; the event fires when the last has left."""
        ended = self.env.event()
        if nbytes <= 0 or not (route or math.isfinite(cap_Bps)):
            return ended.succeed()
        row = self._take_row(len(route))
        self._arcs[row, : len(route)] = route
        self._left[row], self._caps_Bps[row], self._rates_Bps[row] = nbytes, cap_Bps, 0.0
        self._active[row] = True
        self._ends[row] = ended
        if math.isfinite(nbytes):
            self._sizes[row] = nbytes
        else:
            self._endless.append(row)
        self._mark()
        return ended

    @property
    def counted(self) -> LinkCounters:
        """Bytes over each directed link: of streams that have ended, and of the others till now."""
        self._send()
        self._count_sent()
        return self._counted

    def become(self, machine: Machine) -> None:
        """Go on on this machine; bytes already sent stay sent.

        Raises `TopologyError`: no route is left for a stream.
        """
        self._send()
        self._note_change(machine)
        self._count_sent()
        for row in np.flatnonzero(self._active).tolist():
            route = reroute_stream(machine, self._arcs[row][self._arcs[row] >= 0].tolist())
            self._widen(len(route))
            self._arcs[row] = -1
            self._arcs[row, : len(route)] = route
        self._solve()

    def _launch(self, lowered: LoweredCollective) -> simpy.Event:
        name = lowered.schedule.collective
        raise UnsuitedNetworkError(f"{name}: this network carries streams only")

    # ------------------------------------------------------------ rows

    def _take_row(self, hops: int) -> int:
        self._widen(hops)
        if not self._free:
            rows = len(self._left)
            self._left, self._rates_Bps, self._caps_Bps = (
                np.pad(part, (0, rows)) for part in (self._left, self._rates_Bps, self._caps_Bps)
            )
            self._active = np.pad(self._active, (0, rows))
            self._arcs = np.pad(self._arcs, ((0, rows), (0, 0)), constant_values=-1)
            self._free = list(range(2 * rows - 1, rows - 1, -1))
        return self._free.pop()

    def _widen(self, hops: int) -> None:
        more = hops - self._arcs.shape[1]
        if more > 0:
            self._arcs = np.pad(self._arcs, ((0, 0), (0, more)), constant_values=-1)

    def _count_sent(self) -> None:
        """Count what streams with an end have sent so far; those without are counted as they go."""
        for row, nbytes in self._sizes.items():
            self._count(row, nbytes - float(self._left[row]))
            self._sizes[row] = float(self._left[row])

    def _count(self, row: int, nbytes: float) -> None:
        arcs = self._arcs[row]
        count_stream(self._counted, arcs[arcs >= 0], nbytes)

    # ------------------------------------------------------------ time

    def _mark(self) -> None:
        """Solve rates when everything else of this instant, or of this quantum, has happened."""
        if self._is_marked:
            return
        self._is_marked = True
        wait_s = 0.0
        if self.quantum_s:
            wait_s = self.quantum_s * (math.floor(self.env.now / self.quantum_s) + 1)
            wait_s -= self.env.now
        schedule_last(self.env, self._update, max(0.0, wait_s))

    def _update(self, _: simpy.Event) -> None:
        self._is_marked = False
        self._send()
        self._solve()

    def _send(self) -> None:
        """Send at the present rates up to now."""
        lasted_s = self.env.now - self._since_s
        if lasted_s > 0:
            rows = self._active
            self._left[rows] -= self._rates_Bps[rows] * lasted_s
            np.maximum(self._left, 0.0, out=self._left)
            for row in self._endless:
                self._count(row, float(self._rates_Bps[row]) * lasted_s)
        self._since_s = self.env.now

    def _solve(self) -> None:
        """Solve the rates of all streams, and schedule the next end."""
        self.solved += 1
        rows = np.flatnonzero(self._active)
        if len(rows):
            arcs = self._arcs[rows]
            on_link = arcs >= 0
            pointers = np.concatenate([[0], np.cumsum(on_link.sum(axis=1))])
            capacity_Bps = self.machine.topology.arcs.bandwidth_Bps
            self._rates_Bps[rows] = (
                min(self._caps_Bps[rows[0]], capacity_Bps[arcs[on_link]].min(initial=np.inf))
                if len(rows) == 1
                else max_min_rates(capacity_Bps, pointers, arcs[on_link], self._caps_Bps[rows])
            )
            if self.changes_left == 0 and not self._rates_Bps[rows].any():
                raise SimulationError(f"{len(rows)} messages stall for ever on links without rate")
        self._schedule_next_end()

    def _schedule_next_end(self) -> None:
        """Schedule the streams that end first at the present rates."""
        self._version += 1
        rows = np.flatnonzero(self._active & (self._rates_Bps > 0) & (self._left < np.inf))
        if not len(rows):
            return
        left_s = self._left[rows] / self._rates_Bps[rows]
        first_s = float(left_s.min())
        together = rows[left_s <= first_s * (1 + TOGETHER) + TOGETHER * self.env.now]
        version = self._version

        def end(_: simpy.Event) -> None:
            if version == self._version:
                self._end(together)

        schedule_last(self.env, end, first_s)

    def _end(self, rows: IntArray) -> None:
        """End some streams, in the order of their rows; what they leave unused is shared anew."""
        self._send()
        ended: list[int] = rows.tolist()
        self._active[rows] = False
        for row in ended:
            self._count(row, self._sizes.pop(row))
        self._arcs[rows] = -1
        self._free += ended[::-1]
        for row in ended:
            self._ends.pop(row).succeed()
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
            spread = np.repeat(sent, np.diff(self.edges.pointers))
            count_stream(counters, self.edges.arcs, spread)
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
    return _stage(stream_edges(routes, caps_Bps))


def joined_stage(jobs: Sequence[Streams]) -> Stage:
    """Return a stage with the edges of all streams of some jobs."""
    return jobs[0].stage if len(jobs) == 1 else _stage(join_edges([job.edges for job in jobs]))


def _stage(edges: Edges) -> Stage:
    return Stage((), edges, edges.latency_s, edges.cap_Bps, np.ones(len(edges)))

"""The message kernel with its records: takes collectives in, runs on, tells which have ended."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.simulate.message import event_heap, event_loop, link_sharing, numba_kernel
from perfmodel.simulate.message.compile import (
    POINTS_TO,
    REFILLED,
    SIZED_BY,
    Columns,
    Routes,
    limits_Bps,
)
from perfmodel.simulate.message.event_heap import BEGIN, FINISH, KINDS
from perfmodel.simulate.message.records import (
    DTYPES,
    LISTS,
    Arc,
    Clock,
    Edge,
    State,
    as_array,
    as_list,
    fill,
    rows,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a collective stands in the records, and what to fill in before it runs again."""

    at: dict[str, range]
    refill: Columns

    @property
    def run(self) -> int:
        """Its number."""
        return self.at["runs"].start


class Sending:
    """Sends on the links of one machine.

    Parameters
    ----------
    capacity_Bps : ndarray of float, shape (arcs,)
    """

    def __init__(self, capacity_Bps: Floats) -> None:
        arcs = [Arc(capacity) for capacity in capacity_Bps.tolist()]
        state: dict[str, Any] = {name: [] for name in LISTS}
        state |= {"arcs": arcs, "clock": [Clock()]}
        state |= {name: [0] * len(arcs) for name in ("touched", "chosen")}
        self._state = State(**state)
        self._sizes = dict.fromkeys(SIZED_BY, 0)
        self._lines: dict[tuple[int, ...], int] = {}
        self.is_compiled = False
        self._set_events([])

    def compile(self) -> None:
        """Go on compiled. The results are the same bits.

        Raises
        ------
        ImportError
            numba is missing, or one that does not go with this NumPy.
        """
        if not self.is_compiled:
            numba_kernel.compiled()
            self._pack()

    def try_compile(self) -> bool:
        """Go on compiled if numba is there and works; whether it does."""
        try:
            self.compile()
        except ImportError:
            return False
        return True

    def place(self, columns: Columns) -> Place:
        """Take a collective in."""
        first = self._sizes
        sizes = {group: len(columns[column]) for group, column in SIZED_BY.items()}
        known = dict(columns)
        for name, target in POINTS_TO.items():
            blank = np.zeros(sizes[name.partition(".")[0]], np.int64)
            values = columns.get(name, blank)
            known[name] = np.where(values >= 0, values + first[target], -1)
        for group, size in sizes.items():
            self._append(group, rows(group, known, size))
        for name, group in (("flows", "edges"), ("chosen", "edges"), ("ended", "runs")):
            self._append(name, np.zeros(sizes[group], np.int64))
        self._sizes = {group: first[group] + size for group, size in sizes.items()}
        self._set_events(self._events())
        at = {group: range(first[group], self._sizes[group]) for group in sizes}
        return Place(at, {name: known[name] for name in REFILLED})

    def lines(self, columns: Columns) -> NDArray[np.int64]:
        """One connection for all edges over the same links, those placed before included."""
        arcs, ends = columns["hops.arc"].tolist(), columns["edges.route_end"].tolist()
        routes = [tuple(arcs[a:b]) for a, b in itertools.pairwise([0, *ends])]
        before = len(self._lines)
        found = [self._lines.setdefault(route, len(self._lines)) for route in routes]
        self._append("lines", rows("lines", {}, len(self._lines) - before))
        return np.array(found, dtype=np.int64)

    def begin(self, place: Place, at_s: float, nbytes: float | None = None) -> None:
        """Let a collective begin at a time; with `nbytes` as the size of its only send."""
        for name, values in place.refill.items():
            self._fill(name, place, values)
        if nbytes is not None:
            self._fill("sends.nbytes", place, np.array([nbytes]))
        if self._queued() >= self._clock("room"):
            self._set_events(self._events())
        what = place.run * KINDS + BEGIN
        if not self.is_compiled:
            event_heap.push(self._state, max(at_s, self.now_s), what)
            return
        view = {name: getattr(self._state, name).view(np.recarray) for name in ("events", "clock")}
        numba_kernel.push(SimpleNamespace(**view), max(at_s, self.now_s), what)  # type: ignore[arg-type]

    def advance(self, until_s: float) -> list[int]:
        """Run on up to a time, or through the instant in which some runs end; return these."""
        while True:
            if self.is_compiled:
                arrays = numba_kernel.Arrays(*(getattr(self._state, name) for name in LISTS))
                found = numba_kernel.compiled()(arrays, until_s)
            else:
                found = event_loop.advance(self._state, until_s)
            if found != event_loop.CROWDED:
                break
            self._set_events(self._events())
        if found != event_loop.SOME_ENDED:
            return []
        ended = self._state.ended[: int(self._clock("ended"))]
        if self.is_compiled:
            self._state.clock["ended"] = 0
        else:
            self._state.clock[0].ended = 0
        return [int(run) for run in ended]

    @property
    def now_s(self) -> float:
        """Time of the last event."""
        return float(self._clock("now_s"))

    @property
    def landed(self) -> int:
        """Sends that have arrived."""
        return int(self._clock("landed"))

    @property
    def solved(self) -> int:
        """Rates solved, each time counted for each edge."""
        return int(self._clock("solved"))

    @property
    def may_stand(self) -> bool:
        """Whether some edge has been given nothing since the machine changed last."""
        return bool(self._clock("stalled"))

    def standing(self, place: Place) -> list[int]:
        """Edges of a run, from 0, with something to send and a link that carries nothing."""
        edges = enumerate(self._edges(place))
        return [at for at, edge in edges if edge.sending >= 0 and edge.limit_Bps == 0.0]

    def sends_left(self, place: Place) -> int:
        """How many sends of a run have not landed."""
        run = self._state.runs[place.run]
        return int(run["sends_left"] if self.is_compiled else run.sends_left)

    def sent_bytes(self, place: Place, at_s: float) -> float:
        """Bytes of its only send that a stream has put on the wire by a time."""
        (edge,) = self._edges(place)
        return float(edge.sent_bytes + edge.rate_Bps * max(0.0, at_s - edge.since_s))

    def left_bytes(self, place: Place, at_s: float) -> Floats:
        """Bytes that each edge of a run has still to put on the wire at a time; shape (edges,)."""
        edges = self._edges(place)
        sends = self._state.sends[place.at["sends"].start : place.at["sends"].stop]
        first = place.at["sends"].start
        nbytes = sends["nbytes"] if self.is_compiled else [send.nbytes for send in sends]
        total = np.concatenate([[0.0], np.cumsum(nbytes)])
        gone_s = [max(0.0, at_s - edge.since_s) for edge in edges]
        return np.array(
            [
                total[edge.tail - first] - total[edge.head - first]
                + (edge.sending >= 0) * (edge.left_bytes - edge.rate_Bps * s)
                for edge, s in zip(edges, gone_s, strict=True)
            ]
        )  # fmt: skip

    def become(
        self, capacity_Bps: Floats, at_s: float, routes: Sequence[tuple[Place, Routes]]
    ) -> None:
        """Change the links, and the routes of the collectives that are on the move.

        Parameters
        ----------
        capacity_Bps : ndarray of float, shape (arcs,)
        at_s : float
        routes : sequence of (Place, Routes)
            Everything on the move.
        """
        compiled = self.is_compiled
        if compiled:
            self._unpack()
        s = self._state
        s.clock[0].now_s = max(s.clock[0].now_s, at_s)
        every = [number for place, _ in routes for number in place.at["edges"]]
        sending = [number for number in every if _is_on_its_links(s, number)]
        for number in sending:
            link_sharing.set_rate(s, number, 0.0)  # counts what is sent
            link_sharing.leave(s, number)
        for arc, capacity in zip(s.arcs, capacity_Bps.tolist(), strict=True):
            arc.capacity_Bps = capacity
        for place, way in routes:
            self._lead(place, way, limits_Bps(way, capacity_Bps))
        s.clock[0].stalled = 0
        for number in sending:
            link_sharing.enter(s, number)
        self._set_events(s.events)
        if compiled:
            self._pack()

    def _lead(self, place: Place, way: Routes, limit_Bps: Floats) -> None:
        """Give a collective's edges their links anew."""
        first, edges = self._sizes["hops"], place.at["edges"]
        owner = np.repeat(np.arange(edges.start, edges.stop), np.diff(way.pointers))
        self._append("hops", rows("hops", {"hops.arc": way.arcs, "hops.edge": owner}, len(owner)))
        self._sizes["hops"] += len(owner)
        for name, values in (
            ("route_start", way.pointers[:-1] + first), ("route_end", way.pointers[1:] + first),
            ("limit_Bps", limit_Bps), ("latency_s", way.latency_s),
        ):  # fmt: skip
            self._fill(f"edges.{name}", place, values)

    def _edges(self, place: Place) -> list[Edge]:
        span = place.at["edges"]
        edges = self._state.edges[span.start : span.stop]
        return as_list("edges", edges) if self.is_compiled else edges

    def _fill(self, name: str, place: Place, values: NDArray[Any]) -> None:
        group = name.partition(".")[0]
        span = slice(place.at[group].start, place.at[group].stop)
        fill(name, getattr(self._state, group), span, values)

    def _append(self, name: str, new: NDArray[Any]) -> None:
        values = getattr(self._state, name)
        if self.is_compiled:
            setattr(self._state, name, np.concatenate([values, new]))
        else:
            values.extend(as_list(name, new))

    def _clock(self, name: str) -> float:
        clock = self._state.clock
        value: float = clock[name][0] if self.is_compiled else getattr(clock[0], name)
        return value

    def _queued(self) -> int:
        return int(self._clock("queued")) if self.is_compiled else len(self._state.events)

    def _events(self) -> list[tuple[float, int, int]]:
        events = self._state.events
        found: list[tuple[float, int, int]] = (
            events[: self._queued()].tolist() if self.is_compiled else events
        )
        return found

    def _set_events(self, events: list[tuple[float, int, int]]) -> None:
        """Clear outdated events, and see to it that those of one instant find room."""
        edges = self._state.edges
        end_s = edges["end_s"].tolist() if self.is_compiled else [edge.end_s for edge in edges]
        live = sorted(
            event
            for event in events
            if event[2] % KINDS != FINISH or end_s[event[2] // KINDS] == event[0]
        )
        room = 2 * len(live) + 2 * len(end_s) + 1024
        if self.is_compiled:
            table = np.zeros(room + len(end_s) + 64, DTYPES["events"])
            table[: len(live)] = live
            self._state.events = table
            self._state.clock["queued"], self._state.clock["room"] = len(live), room
        else:
            self._state.events = live
            self._state.clock[0].room = room

    def _pack(self) -> None:
        """Go over from lists of objects to arrays."""
        events = self._state.events
        self._state = State(*(as_array(name, getattr(self._state, name)) for name in LISTS))
        self.is_compiled = True
        self._state.clock["queued"] = len(events)
        self._set_events(events)

    def _unpack(self) -> None:
        """Go over from arrays to lists of objects."""
        events = self._events()
        self._state = State(*(as_list(name, getattr(self._state, name)) for name in LISTS))
        self.is_compiled = False
        self._set_events(events)


def _is_on_its_links(s: State, number: int) -> bool:
    """Whether an edge has a send on its links, and not only in line for them."""
    edge = s.edges[number]
    return bool(edge.sending >= 0 and (edge.line < 0 or s.lines[edge.line].edge == number))

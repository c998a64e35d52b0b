"""The message kernel with its state: collectives are added and begun, and run to their ends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.library.lowering.lowered import Edges
from perfmodel.simulate.message import event_loop, link_sharing, numba_kernel, records
from perfmodel.simulate.message.compile import (
    POINTS_TO,
    REFILLED,
    SIZED_BY,
    Columns,
    limits_Bps,
    route_columns,
)
from perfmodel.simulate.message.records import (
    BEGIN,
    DTYPES,
    EVENT_KINDS,
    FINISH,
    INF,
    LISTS,
    State,
    make_rows,
    to_array,
    to_list,
    write_column,
)

EVENTS_FOR_EACH = 8
"""Events, outdated ones included, for each that counts, from which on the others are removed."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The entries of a collective in the state, and what to restore before it runs again."""

    spans: dict[str, range]
    refill: Columns

    @property
    def run(self) -> int:
        """Index of its run."""
        return self.spans["runs"].start


class Kernel:
    """Simulates sends on the links of one machine.

    `capacity_Bps`: shape (arcs,).
    """

    def __init__(self, capacity_Bps: FloatArray) -> None:
        arcs, columns = len(capacity_Bps), {"arcs.capacity_Bps": capacity_Bps}
        state: dict[str, Any] = {name: [] for name in LISTS}
        for name, size in (("arcs", arcs), ("clock", 1)):
            state[name] = to_list(name, make_rows(name, columns, size))
        state |= {name: [0] * arcs for name in ("touched", "to_freeze")}
        self._state = State(**state)
        self._sizes = dict.fromkeys(SIZED_BY, 0)
        self._connections: dict[tuple[int, ...], int] = {}
        self.is_compiled = False
        self._set_events([])

    def compile(self) -> None:
        """Run compiled from now on. The results are the same bits.

        Raises `ImportError`: numba is missing, or one that does not go with this NumPy.
        """
        if not self.is_compiled:
            numba_kernel.compiled()
            self._convert(compiled=True)

    def add(self, columns: Columns) -> Slot:
        """Add a collective."""
        spans, numbered = self._extend(columns)
        self._append("ended", np.zeros(len(spans["runs"]), np.int32))
        self._set_events(self._events())
        return Slot(spans, {name: numbered[name] for name in REFILLED})

    def connections(self, columns: Columns) -> IntArray:
        """Number the connection of each edge: one for all edges ever added over the same links."""
        arcs, ends = columns["hops.arc"].tolist(), columns["routes.hop_end"].tolist()
        routes = [tuple(arcs[a:b]) for a, b in itertools.pairwise([0, *ends])]
        before = len(self._connections)
        numbers = [self._connections.setdefault(route, len(self._connections)) for route in routes]
        self._append("connections", make_rows("connections", {}, len(self._connections) - before))
        return np.array(numbers, dtype=np.int64)[columns["edges.route"]]

    def begin(self, slot: Slot, at_s: float, nbytes: float | None = None) -> None:
        """Begin a collective at a time; `nbytes` replaces the size of its only send."""
        for name, values in slot.refill.items():
            self._fill(name, slot, values)
        if nbytes is not None:
            self._fill("sends.nbytes", slot, np.array([nbytes]))
        if self._queued() >= self.clock.room:
            self._set_events(self._events())
        push = numba_kernel.push if self.is_compiled else records.push
        state: Any = SimpleNamespace(events=self._records("events"), clock=self._records("clock"))
        push(state, max(at_s, self.clock.now_s), slot.run * EVENT_KINDS + BEGIN)

    def restart(self) -> None:
        """Set the clock to zero, when everything has ended."""
        s, clock, arcs = self._state, self.clock, self._records("arcs")
        for number in s.touched[: clock.touched]:
            arcs[number].is_touched = 0
        write_column("routes.next_s", s.routes, slice(None), np.full(len(s.routes), INF))
        clock.touched, clock.now_s = 0, 0.0
        self._set_events(s.events[:0])

    def advance(self, until_s: float) -> list[int]:
        """Run up to a time, or to the end of the instant in which some runs end; return these."""
        while True:
            if self.is_compiled:
                status = numba_kernel.compiled()(
                    numba_kernel.Arrays(*(getattr(self._state, name) for name in LISTS)), until_s
                )
            else:
                status = event_loop.advance(self._state, until_s)
            if status != event_loop.CROWDED:
                break
            self._set_events(self._events())
        if status != event_loop.SOME_ENDED:
            return []
        clock = self.clock
        ended, clock.ended = self._state.ended[: int(clock.ended)], 0
        return [int(run) for run in ended]

    def stalled_edges(self, slot: Slot) -> list[int]:
        """Return the edges of a run, from 0, that are sending over a link that carries nothing."""
        routes = self._records("routes")
        return [
            at
            for at, edge in enumerate(self._edges(slot))
            if edge.sending >= 0 and routes[edge.route].limit_Bps == 0.0
        ]

    def sends_left(self, slot: Slot) -> int:
        """Return how many sends of a run have not landed."""
        return int(self._records("runs")[slot.run].sends_left)

    def sent_bytes(self, slot: Slot, at_s: float) -> float:
        """Return the bytes that a stream has sent by a time."""
        (edge,) = self._edges(slot)
        return float(edge.sent_bytes + edge.rate_Bps * max(0.0, at_s - edge.since_s))

    def unsent_bytes(self, slot: Slot, at_s: float) -> FloatArray:
        """Return the bytes that each edge of a run has not sent by a time; shape (edges,)."""
        edges = self._edges(slot)
        sends = self._state.sends[slot.spans["sends"].start : slot.spans["sends"].stop]
        first = slot.spans["sends"].start
        nbytes = sends["nbytes"] if self.is_compiled else [send.nbytes for send in sends]
        total = np.concatenate([[0.0], np.cumsum(nbytes)])
        left = [total[edge.tail - first] - total[edge.head - first] for edge in edges]
        for at, edge in enumerate(edges):
            if edge.sending >= 0:
                left[at] += edge.unsent_bytes - edge.rate_Bps * max(0.0, at_s - edge.since_s)
        return np.array(left)

    def become(
        self, capacity_Bps: FloatArray, at_s: float, routes: Sequence[tuple[Slot, Edges]]
    ) -> None:
        """Change the links, and the routes of everything in progress.

        `capacity_Bps`: shape (arcs,). `routes`: of everything in progress.
        """
        compiled = self.is_compiled
        if compiled:
            self._convert(compiled=False)
        s = self._state
        s.clock[0].now_s = max(s.clock[0].now_s, at_s)
        sending = [at for slot, _ in routes for at in slot.spans["edges"] if _is_on_wire(s, at)]
        for number in sending:
            link_sharing.set_rate(s, number, 0.0)  # which updates the bytes sent
            link_sharing.leave_links(s, number)
        for arc, capacity in zip(s.arcs, capacity_Bps.tolist(), strict=True):
            arc.capacity_Bps = capacity
        for slot, new in routes:
            self._reroute(slot, new, limits_Bps(new, capacity_Bps))
        s.clock[0].stalled = 0
        for number in sending:
            link_sharing.join_links(s, number)
        self._set_events(s.events)
        if compiled:
            self._convert(compiled=True)

    def _reroute(self, slot: Slot, new: Edges, limit_Bps: FloatArray) -> None:
        """Replace the links of a collective's edges."""
        columns = route_columns(new, limit_Bps)
        route = columns.pop("edges.route") + self._sizes["routes"]
        self._extend(columns)
        self._fill("edges.route", slot, route)
        self._fill("edges.latency_s", slot, new.latency_s)

    def _extend(self, columns: Columns) -> tuple[dict[str, range], Columns]:
        """Append entries to lists; return where they are, and their columns as numbered there."""
        first = dict(self._sizes)
        sizes = {group: len(columns[name]) for group, name in SIZED_BY.items() if name in columns}
        numbered = dict(columns)
        for name, target in POINTS_TO.items():
            group = name.partition(".")[0]
            if group in sizes:
                values = columns.get(name, np.zeros(sizes[group], np.int64))
                numbered[name] = np.where(values >= 0, values + first[target], -1)
        for group, size in sizes.items():
            self._append(group, make_rows(group, numbered, size))
            self._sizes[group] += size
        for name in ("flows", "to_freeze"):
            self._append(name, np.zeros(sizes["routes"], np.int32))
        return {group: range(first[group], self._sizes[group]) for group in sizes}, numbered

    def _edges(self, slot: Slot) -> list[Any]:
        span = slot.spans["edges"]
        edges = self._state.edges[span.start : span.stop]
        return to_list("edges", edges) if self.is_compiled else edges

    def _fill(self, name: str, slot: Slot, values: NDArray[Any]) -> None:
        group = name.partition(".")[0]
        write_column(
            name,
            getattr(self._state, group),
            slice(slot.spans[group].start, slot.spans[group].stop),
            values,
        )

    def _append(self, name: str, new: NDArray[Any]) -> None:
        values = getattr(self._state, name)
        if self.is_compiled:
            setattr(self._state, name, np.concatenate([values, new]))
        else:
            values.extend(to_list(name, new))

    def _records(self, name: str) -> Any:
        """Return a list of records, of which fields are attributes in either form."""
        values = getattr(self._state, name)
        return values.view(np.recarray) if self.is_compiled else values

    @property
    def clock(self) -> Any:
        """The time of the last event, and counts of what has happened (see `records.FIELDS`)."""
        return self._records("clock")[0]

    def _queued(self) -> int:
        return int(self.clock.queued) if self.is_compiled else len(self._state.events)

    def _events(self) -> list[tuple[float, int, int]] | NDArray[Any]:
        events = self._state.events
        return events[: self._queued()] if self.is_compiled else list(events)

    def _set_events(self, events: list[tuple[float, int, int]] | NDArray[Any]) -> None:
        """Remove outdated events, and make room for those of one instant."""
        table, routes = np.array(events, dtype=DTYPES["events"]), self._records("routes")
        number, kind = np.divmod(table["code"], EVENT_KINDS)
        is_live = kind != FINISH
        finish = np.flatnonzero(~is_live)
        of = number[finish]
        next_s = (
            routes.next_s[of] if self.is_compiled else [routes[at].next_s for at in of.tolist()]
        )
        is_live[finish] = next_s == table["at_s"][finish]
        live = table[is_live]
        live = live[np.lexsort((live["order"], live["at_s"]))]
        room = EVENTS_FOR_EACH * (len(live) + len(routes)) + 1024
        if self.is_compiled:
            more = np.zeros(room + len(self._state.edges) + 64 - len(live), DTYPES["events"])
            self._state.events = np.concatenate([live, more])
        else:
            self._state.events = live.tolist()
        self.clock.queued, self.clock.room = len(live), room

    def _convert(self, *, compiled: bool) -> None:
        """Convert lists of objects to arrays, or arrays to lists of objects."""
        events, convert = self._events(), to_array if compiled else to_list
        lists = {name: convert(name, getattr(self._state, name)) for name in LISTS}
        self._state, self.is_compiled = State(**lists), compiled
        self._set_events(events)


def _is_on_wire(s: State, number: int) -> bool:
    """Whether an edge has a send on its links, and does not wait for its connection."""
    edge = s.edges[number]
    return bool(
        edge.sending >= 0 and (edge.connection < 0 or s.connections[edge.connection].edge == number)
    )

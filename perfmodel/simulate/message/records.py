"""State of the message kernel: records of links, edges, sends and events.

In the interpreter they are lists of objects; compiled, structured arrays with the same fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import make_dataclass
from heapq import heappop, heappush
from itertools import starmap
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

INF = float("inf")


FIELDS: Mapping[str, Mapping[str, float]] = {
    "arcs": {  # directed links
        "capacity_Bps": 0.0,
        "demand_Bps": 0.0,  # sum of the limits of the edges now sending over it
        "users": 0,
        "first_hop": -1,  # of the linked list of its users; -1: end
        "is_touched": 0,
        "mark": 0,
        "spare_Bps": 0.0,
        "open_users": 0,
    },
    "hops": {  # crossings of a link by a route
        "arc": 0,
        "route": 0,
        "before": -1,  # of the users of its link
        "after": -1,
    },
    "routes": {  # links that some edges cross with the same limit: they have one fair rate
        "hop_start": 0,
        "hop_end": 0,
        "limit_Bps": 0.0,  # least of the cap and of what each link can carry of one edge alone
        "next_s": INF,  # when the first of its edges ends, or before that; this event is queued
        "solved_Bps": 0.0,
        "first_edge": -1,  # of the linked list of those that send; -1: end
        "edges": 0,  # that send
        "mark": 0,
    },
    "edges": {  # a sender and a receiver, and the send on the wire between them: one at a time
        "route": 0,
        "latency_s": 0.0,
        "credits": 0,
        "head": 0,  # next send; those of an edge are numbered in the order in which it sends them
        "tail": 0,
        "run": 0,
        "connection": 0,  # on which it sends in turn with other edges; -1: on its own
        "next_on_connection": -1,
        "sending": -1,  # send on the wire; -1: none
        "in_flight": 0,
        "sent_bytes": 0.0,
        "unsent_bytes": 0.0,
        "since_s": 0.0,  # when these two were updated
        "rate_Bps": 0.0,
        "end_s": INF,
        "before": -1,  # of the edges of its route that send
        "after": -1,
    },
    "connections": {  # on which sends follow one another
        "edge": -1,  # that sends at present
        "last": -1,
    },
    "sends": {  # messages of a collective, and behind them barriers between its stages
        "edge": 0,  # -1: a barrier, which lands as soon as it waits for nothing any more
        "nbytes": 0.0,
        "waiting": 0,  # sends that must land before it starts
        "follower_start": 0,
        "follower_end": 0,
    },
    "runs": {"edge_start": 0, "edge_end": 0, "sends_left": 0},  # collectives
    "events": {"at_s": 0.0, "order": 0, "code": 0},  # those of one time as they were pushed
    "clock": {  # the time, and the numbers of entries of the lists that are filled in place
        "now_s": 0.0,
        "touched": 0,
        "ended": 0,
        "stamp": 0,
        "sequence": 0,
        "queued": 0,
        "room": 0,
        "stalled": 0,
        "landed": 0,
        "solved": 0,
    },
}
"""Lists of records: the fields of each record with their first values. A field is a fraction where
its first value is one, and otherwise a whole number."""

RECORDS = {
    name: make_dataclass(name, [(field, type(first)) for field, first in own.items()], slots=True)
    for name, own in FIELDS.items()
}


LISTS = (
    *FIELDS,
    "followers",  # sends, by the one that they wait for
    "touched",  # arcs that changed in this instant, then arcs connected to them
    "flows",  # routes to solve
    "to_freeze",  # arcs or routes to freeze
    "ended",  # runs
)
"""All lists: those of records, of which events are a heap and the clock is one, and of numbers."""


class State(make_dataclass("Lists", LISTS, slots=True)):  # type: ignore[misc]
    """All `LISTS` by name, as lists (in the interpreter) or as arrays (compiled)."""


COUNTERS = ("events", "clock")
"""Records whose whole numbers grow with time; all others are places in lists, or less."""


def _dtype(name: str) -> np.dtype[Any]:
    whole = np.int64 if name in COUNTERS else np.int32  # half the memory, in which sends are slow
    kinds = [
        (field, np.float64 if isinstance(first, float) else whole)
        for field, first in FIELDS[name].items()
    ]
    return np.dtype(kinds, align=True)


DTYPES: Mapping[str, np.dtype[Any]] = {name: _dtype(name) for name in FIELDS}
"""Data type of each list of records as a structured array."""


def make_rows(name: str, columns: Mapping[str, NDArray[Any]], size: int) -> NDArray[Any]:
    """Return `size` new entries of a list; fields without a column have their first values."""
    if name not in FIELDS:
        return columns[name].astype(np.int32)
    table = np.zeros(size, DTYPES[name])
    for field, first in FIELDS[name].items():
        table[field] = columns.get(f"{name}.{field}", first)
    return table


def to_list(name: str, table: NDArray[Any]) -> list[Any]:
    """Return a structured array as a list of objects; events as tuples, which a heap can order."""
    values: list[Any] = table.tolist()
    is_plain = name not in RECORDS or name == "events"
    return values if is_plain else list(starmap(RECORDS[name], values))


def to_array(name: str, values: list[Any]) -> NDArray[Any]:
    """Return a list of objects as a structured array."""
    if name not in RECORDS:
        return np.array(values, dtype=np.int32)
    if name == "events":
        return np.array(values, dtype=DTYPES[name])
    row = attrgetter(*FIELDS[name])
    return np.array([row(value) for value in values], dtype=DTYPES[name])


def write_column(name: str, target: Any, span: slice, values: NDArray[Any]) -> None:
    """Write some entries of one column, "edges.head" or "followers", into a list or an array."""
    field = name.partition(".")[2]
    if isinstance(target, np.ndarray):
        (target[field] if field else target)[span] = values
    elif not field:
        target[span] = values.tolist()
    else:
        for record, value in zip(target[span], values.tolist(), strict=True):
            setattr(record, field, value)


BEGIN, FINISH, LAND = 0, 1, 2
"""Kinds of events: a run begins, the last byte of a send leaves its edge, a send arrives."""
EVENT_KINDS = 4
"""The code of an event is its kind plus this times the number of the run, edge or send."""


def push(s: State, at_s: float, code: int) -> None:
    """Add an event."""
    clock = s.clock[0]
    clock.sequence += 1
    heappush(s.events, (at_s, clock.sequence, code))


def pop(s: State) -> int:
    """Remove the first event; return its code."""
    return int(heappop(s.events)[2])


def first_s(s: State) -> float:
    """Time of the first event, infinite if there is none."""
    first: float = s.events[0][0] if s.events else INF  # whatever kind of number times are
    return first


def count_events(s: State) -> int:
    """Number of events, outdated ones included."""
    return len(s.events)

"""State of the message kernel: records of links, edges, sends and events.

In the interpreter they are lists of objects; compiled, structured arrays with the same fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from heapq import heappop, heappush
from itertools import starmap
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

INF = float("inf")


@dataclass(slots=True)
class Arc:
    """A directed link."""

    capacity_Bps: float
    demand_Bps: float = 0.0  # sum of the limits of the edges now sending over it
    users: int = 0
    first_hop: int = -1  # of the linked list of its users; -1: end
    is_touched: int = 0
    mark: int = 0
    spare_Bps: float = 0.0
    open_users: int = 0


@dataclass(slots=True)
class Hop:
    """One crossing of a link by a route."""

    arc: int
    route: int
    before: int = -1  # of the users of its link
    after: int = -1


@dataclass(slots=True)
class Route:
    """The links that some edges cross with the same limit: they have one fair rate."""

    hop_start: int
    hop_end: int
    limit_Bps: float  # least of the cap and of what each link can carry of one edge alone
    next_s: float = INF  # when the first of its edges ends, or before that; this event is queued
    solved_Bps: float = 0.0
    first_edge: int = -1  # of the linked list of those that send; -1: end
    edges: int = 0  # that send
    mark: int = 0


@dataclass(slots=True)
class Edge:
    """A sender and a receiver, and the send on the wire between them: one at a time.

    The sends of an edge are numbered consecutively in the order in which it sends them.
    """

    route: int
    latency_s: float
    credits: int
    head: int  # next send
    tail: int
    stage: int
    sender: int  # a `Rank`; -1 in schedules of one stage
    receiver: int  # a `Rank`
    run: int
    connection: int  # on which it sends in turn with other edges; -1: on its own
    next_on_connection: int = -1
    sending: int = -1  # send on the wire; -1: none
    in_flight: int = 0
    sent_bytes: float = 0.0
    unsent_bytes: float = 0.0
    since_s: float = 0.0  # when these two were updated
    rate_Bps: float = 0.0
    end_s: float = INF
    before: int = -1  # of the edges of its route that send
    after: int = -1


@dataclass(slots=True)
class Connection:
    """A connection on which sends follow one another."""

    edge: int = -1  # that sends at present
    last: int = -1


@dataclass(slots=True)
class Send:
    """One message of a collective."""

    edge: int
    nbytes: float
    waiting: int  # sends that must land before it starts
    follower_start: int
    follower_end: int


@dataclass(slots=True)
class Rank:
    """A rank on one channel of a collective, which goes through the stages in order."""

    stage: int  # the first in which a send from it or to it has not landed
    stages: int
    pending_start: int
    next_edge: int  # of its outgoing edges, by stage: the first that waits for its stage
    edge_end: int


@dataclass(slots=True)
class CollectiveRun:
    """One collective."""

    edge_start: int
    edge_end: int
    sends_left: int


@dataclass(slots=True)
class Event:
    """An event; those of one time are in the order in which they were pushed."""

    at_s: float
    order: int
    code: int


@dataclass(slots=True)
class Clock:
    """The time, and the numbers of entries of the lists that are filled in place."""

    now_s: float = 0.0
    touched: int = 0
    ended: int = 0
    stamp: int = 0
    sequence: int = 0
    queued: int = 0
    room: int = 0
    stalled: int = 0
    landed: int = 0
    solved: int = 0


RECORDS = {
    "arcs": Arc,
    "hops": Hop,
    "routes": Route,
    "edges": Edge,
    "connections": Connection,
    "sends": Send,
    "ranks": Rank,
    "runs": CollectiveRun,
    "events": Event,
    "clock": Clock,
}
"""Lists of records; the others hold whole numbers."""


@dataclass(slots=True)
class State:
    """All lists (in the interpreter) or arrays (compiled)."""

    arcs: Any
    hops: Any
    routes: Any
    edges: Any
    connections: Any
    sends: Any
    followers: Any  # sends, by the one that they wait for
    ranks: Any
    rank_edges: Any  # edges, by sender and stage
    pending: Any  # by rank and stage: sends from it and to it that have not landed
    runs: Any
    events: Any  # a heap
    clock: Any  # one
    touched: Any  # arcs that changed in this instant, then arcs connected to them
    flows: Any  # routes to solve
    to_freeze: Any  # arcs or routes to freeze
    ended: Any  # runs


LISTS = tuple(field.name for field in fields(State))
COUNTERS = ("events", "clock")
"""Records whose whole numbers grow with time; all others are places in lists, or less."""


def _dtype(name: str) -> np.dtype[Any]:
    whole = np.int64 if name in COUNTERS else np.int32  # half the memory, in which sends are slow
    kinds = [(f.name, np.float64 if f.type == "float" else whole) for f in fields(RECORDS[name])]
    return np.dtype(kinds, align=True)


DTYPES: Mapping[str, np.dtype[Any]] = {name: _dtype(name) for name in RECORDS}
"""Data type of each list of records as a structured array."""


def make_rows(name: str, columns: Mapping[str, NDArray[Any]], size: int) -> NDArray[Any]:
    """Return `size` new entries of a list; fields without a column have their default, or 0."""
    if name not in RECORDS:
        return columns[name].astype(np.int32)
    table = np.zeros(size, DTYPES[name])
    for field in fields(RECORDS[name]):
        values = columns.get(f"{name}.{field.name}")
        if values is not None:
            table[field.name] = values
        elif isinstance(field.default, (int, float)):
            table[field.name] = field.default
    return table


def to_list(name: str, table: NDArray[Any]) -> list[Any]:
    """Return a structured array as a list of objects; events as tuples, which a heap can order."""
    values: list[Any] = table.tolist()
    if name in RECORDS and name != "events":
        return list(starmap(RECORDS[name], values))
    return values


def to_array(name: str, values: list[Any]) -> NDArray[Any]:
    """Return a list of objects as a structured array."""
    if name not in RECORDS:
        return np.array(values, dtype=np.int32)
    if name == "events":
        return np.array(values, dtype=DTYPES[name])
    row = attrgetter(*(field.name for field in fields(RECORDS[name])))
    return np.array([row(value) for value in values], dtype=DTYPES[name])


def write_column(name: str, target: Any, span: slice, values: NDArray[Any]) -> None:
    """Write some entries of one column, "edges.head" or "pending", into a list or an array."""
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
KINDS = 4
"""The code of an event is its kind plus this times the number of the run, edge or send."""


def push(s: State, at_s: float, code: int) -> None:
    """Add an event."""
    clock = s.clock[0]
    clock.sequence += 1
    heappush(s.events, (at_s, clock.sequence, code))


def pop(s: State) -> int:
    """Remove the first event; return its code."""
    code: int = heappop(s.events)[2]
    return code


def first_s(s: State) -> float:
    """Time of the first event, infinite if there is none."""
    first: float = s.events[0][0] if s.events else INF  # whatever kind of number times are
    return first


def count_events(s: State) -> int:
    """Number of events, outdated ones included."""
    return len(s.events)

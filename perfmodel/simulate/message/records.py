"""What the message kernel works on: links, edges, sends and events, as records in lists.

In the interpreter a list holds objects; compiled, the same fields stand in a structured array.

The message kernel's records in bulk: from columns to lists of objects or structured arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
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
    first_hop: int = -1  # of the chained list of those that use it; -1 ends it
    is_touched: int = 0
    seen: int = 0
    spare_Bps: float = 0.0
    open_users: int = 0


@dataclass(slots=True)
class Hop:
    """One crossing of a link by the route of an edge."""

    arc: int
    edge: int
    before: int = -1
    after: int = -1


@dataclass(slots=True)
class Edge:
    """Who sends to whom. It sends one message at a time, so it stands for its transfer as well.

    Its sends are numbered one after the other in the order in which it sends them.
    """

    route_start: int
    route_end: int
    limit_Bps: float  # least of its cap and of what each link can carry of it alone
    latency_s: float
    credits: int
    head: int  # next send
    tail: int
    stage: int
    gate: int  # of its sender; -1 in schedules of one stage
    gate_to: int  # of its receiver
    run: int
    line: int  # connection on which it sends in turn with others; -1: on its own
    next_in_line: int = -1
    sending: int = -1  # send on the wire; -1: none
    under_way: int = 0
    sent_bytes: float = 0.0
    left_bytes: float = 0.0
    since_s: float = 0.0  # when these two were right
    rate_Bps: float = 0.0
    fresh_Bps: float = 0.0
    end_s: float = INF
    mark: int = 0


@dataclass(slots=True)
class Line:
    """A connection on which transfers follow one another."""

    edge: int = -1  # that sends now
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
class Gate:
    """A rank on a channel, which passes stage after stage."""

    passing: int  # its first stage in which something must still land
    stages: int
    pending_start: int
    next_edge: int  # of those that it sends over, by stage: the first that must still wait for it
    edge_end: int


@dataclass(slots=True)
class Run:
    """One collective."""

    edge_start: int
    edge_end: int
    sends_left: int


@dataclass(slots=True)
class Event:
    """What happens when; events of one time in the order in which they were caused."""

    at_s: float
    order: int
    what: int


@dataclass(slots=True)
class Clock:
    """Where the simulation stands; counts of what is in the lists that are filled in place."""

    now_s: float = 0.0
    touched: int = 0
    ended: int = 0
    stamp: int = 0
    caused: int = 0
    queued: int = 0
    room: int = 0
    stalled: int = 0
    landed: int = 0
    solved: int = 0


RECORDS = {
    "arcs": Arc, "hops": Hop, "edges": Edge, "lines": Line, "sends": Send, "gates": Gate,
    "runs": Run, "events": Event, "clock": Clock,
}  # fmt: skip
"""Lists of records; the others hold whole numbers."""


@dataclass(slots=True)
class State:
    """All lists (in the interpreter) or arrays (compiled)."""

    arcs: Any
    hops: Any
    edges: Any
    lines: Any
    sends: Any
    followers: Any  # sends, by the send that they wait for
    gates: Any
    gate_edges: Any  # edges, by the gate of their sender and by stage
    pending: Any  # by gate and stage: sends from it and to it that have not landed
    runs: Any
    events: Any  # a heap
    clock: Any  # one
    touched: Any  # arcs that changed in this instant, then those that are connected to them
    flows: Any  # edges to solve
    chosen: Any  # arcs or edges to freeze
    ended: Any  # runs


LISTS = tuple(field.name for field in fields(State))
DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype([(f.name, np.float64 if f.type == "float" else np.int64) for f in fields(kind)])
    for name, kind in RECORDS.items()
}
"""Of each list of records as a structured array."""


def rows(name: str, columns: Mapping[str, NDArray[Any]], size: int) -> NDArray[Any]:
    """Return `size` new entries of a list; fields without a column are as at first, or 0."""
    if name not in RECORDS:
        return columns[name].astype(np.int64)
    found = np.zeros(size, DTYPES[name])
    for field in fields(RECORDS[name]):
        values = columns.get(f"{name}.{field.name}")
        if values is not None:
            found[field.name] = values
        elif isinstance(field.default, (int, float)):
            found[field.name] = field.default
    return found


def as_list(name: str, table: NDArray[Any]) -> list[Any]:
    """Return a structured array as a list of objects; events as tuples, which a heap can order."""
    values: list[Any] = table.tolist()
    if name in RECORDS and name != "events":
        return list(starmap(RECORDS[name], values))
    return values


def as_array(name: str, values: list[Any]) -> NDArray[Any]:
    """Return a list of objects as a structured array."""
    if name not in RECORDS:
        return np.array(values, dtype=np.int64)
    if name == "events":
        return np.array(values, dtype=DTYPES[name])
    row = attrgetter(*(field.name for field in fields(RECORDS[name])))
    return np.array([row(value) for value in values], dtype=DTYPES[name])


def fill(name: str, target: Any, span: slice, values: NDArray[Any]) -> None:
    """Write some entries of one column, "edges.head" or "pending", into a list or an array."""
    field = name.partition(".")[2]
    if isinstance(target, np.ndarray):
        (target[field] if field else target)[span] = values
    elif not field:
        target[span] = values.tolist()
    else:
        for record, value in zip(target[span], values.tolist(), strict=True):
            setattr(record, field, value)

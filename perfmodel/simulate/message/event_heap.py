"""The events of the message kernel: a heap of (time, order, what).

Compiled, `accelerate.py` puts a heap in an array in its place.
"""

from __future__ import annotations

from heapq import heappop, heappush

from perfmodel.simulate.message.records import INF, State

BEGIN, FINISH, LAND = 0, 1, 2
"""What an event is: a run begins, an edge has put its send on the wire, a send arrives."""
KINDS = 4
"""An event is its kind plus this times the number of the run, the edge or the send."""


def push(s: State, at_s: float, what: int) -> None:
    """Add an event."""
    clock = s.clock[0]
    clock.caused += 1
    heappush(s.events, (at_s, clock.caused, what))


def pop(s: State) -> int:
    """Take the first event out; return its number."""
    what: int = heappop(s.events)[2]
    return what


def first_s(s: State) -> float:
    """Time of the first event, infinite if there is none."""
    return float(s.events[0][0]) if s.events else INF


def queued(s: State) -> int:
    """Number of events, outdated ones included."""
    return len(s.events)

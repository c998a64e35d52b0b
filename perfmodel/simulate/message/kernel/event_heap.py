"""The events of the message kernel: a heap of (time, order, code).

Compiled, `numba_kernel.py` replaces it by a heap in an array.
"""

from __future__ import annotations

from heapq import heappop, heappush

from perfmodel.simulate.message.kernel.records import INF, State

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

"""The event loop of fidelity "message": sends on shared links.

The functions read and write records and call each other, nothing else. So the same source runs in
the interpreter and, where numba is installed, compiled (`numba_kernel.py`), and both give the same
bits: events come in the order of time, simultaneous ones in the order in which they were pushed.

A send starts when the sends that it depends on have landed, its edge has sent its predecessor, and
the edge has a credit. A rank begins a stage when its earlier ones are over: behind a barrier, which
is a send over no edge, on which the rank's first sends of the stage depend. A send shares links
max-min fairly with all other active sends and lands `latency_s` after its last byte left.
Simultaneous starts share links from the start. Rates are solved again only for the sends that are
connected, through overbooked links, to one that changed.
"""

from __future__ import annotations

from typing import Any

from perfmodel.simulate.message.link_sharing import (
    expect_end,
    join_links,
    leave_links,
    set_rate,
    solve,
)
from perfmodel.simulate.message.records import (
    BEGIN,
    EVENT_KINDS,
    INF,
    LAND,
    State,
    count_events,
    first_s,
    pop,
    push,
)

SAME_INSTANT = 1e-14
"""Events this close (relative to the time) are one instant: equal times that are summed in another
order differ in the last bits, and would each cost a solution of the rates."""
IDLE, SOME_ENDED, CROWDED = range(3)
"""What `advance` returns."""


def advance(s: State, until_s: float) -> int:
    """Process events up to a time, or to the end of the instant in which a run ends.

    Returns `IDLE` where no event is left before `until_s`; `SOME_ENDED`: `s.ended` names the runs,
    at the clock's `now_s`; `CROWDED`: outdated events must be removed first.
    """
    clock = s.clock[0]
    while True:
        if count_events(s) > clock.room:
            return CROWDED
        at_s = first_s(s)
        if at_s > clock.now_s + SAME_INSTANT * clock.now_s:
            if clock.ended > 0:
                return SOME_ENDED
            if clock.touched > 0:
                solve(s)
                continue
            if at_s > until_s or at_s == INF:
                return IDLE
            clock.now_s = at_s
        code = pop(s)
        index = code // EVENT_KINDS
        if code % EVENT_KINDS == LAND:
            land(s, index)
        elif code % EVENT_KINDS == BEGIN:
            begin(s, index)
        elif s.routes[index].next_s == at_s:  # else outdated: another end is expected before
            finish_next(s, index, at_s)


def begin(s: State, number: int) -> None:
    """Start every edge of a collective that can."""
    run = s.runs[number]
    if run.sends_left == 0:
        end(s, number)
    for edge in range(run.edge_start, run.edge_end):
        start_if_ready(s, edge)


def end(s: State, run: int) -> None:
    """Note that a collective has ended."""
    clock = s.clock[0]
    s.ended[clock.ended] = run
    clock.ended += 1


def can_send(s: State, edge: Any) -> bool:
    """Whether an edge has a next send, and all that it waits for has happened."""
    if edge.sending >= 0 or edge.head == edge.tail or edge.in_flight >= edge.credits:
        return False  # no next send, or not yet
    return bool(s.sends[edge.head].waiting == 0)


def start_send(s: State, edge: Any) -> None:
    """Make the next send of an edge the current one."""
    edge.sending = edge.head
    edge.unsent_bytes = s.sends[edge.head].nbytes
    edge.sent_bytes = 0.0
    edge.since_s = s.clock[0].now_s
    edge.head += 1
    edge.in_flight += 1


def start_if_ready(s: State, number: int) -> None:
    """Start the next send of an edge if it may start."""
    edge = s.edges[number]
    if not can_send(s, edge):
        return
    start_send(s, edge)
    if edge.connection >= 0:
        edge.next_on_connection = -1
        connection = s.connections[edge.connection]
        last = connection.last
        connection.last = number
        if connection.edge >= 0:
            s.edges[last].next_on_connection = number
            return
        connection.edge = number
    join_links(s, number)


def finish_next(s: State, number: int, at_s: float) -> None:
    """End the current send of one edge of a route, if one ends now; queue its next end."""
    route = s.routes[number]
    route.next_s = -INF  # so that nothing is queued until all ends are known
    at = route.first_edge
    while at >= 0 and s.edges[at].end_s != at_s:  # none: all are slower than when it was queued
        at = s.edges[at].after
    if at >= 0:
        finish(s, at)
    first_s = INF
    at = route.first_edge
    while at >= 0:
        first_s = min(first_s, s.edges[at].end_s)
        at = s.edges[at].after
    route.next_s = INF
    expect_end(s, number, first_s)


def finish(s: State, number: int) -> None:
    """End the current send of an edge, whose last byte has left."""
    edge = s.edges[number]
    push(s, s.clock[0].now_s + edge.latency_s, edge.sending * EVENT_KINDS + LAND)
    edge.sending = -1
    edge.end_s = INF
    after = edge.next_on_connection if edge.connection >= 0 else -1
    if after < 0 and can_send(s, edge):  # the same links for the next send: no rate changes
        start_send(s, edge)
        set_rate(s, number, edge.rate_Bps)
        return
    leave_links(s, number)
    if edge.connection >= 0:
        s.connections[edge.connection].edge = after
    if after >= 0:
        join_links(s, after)
        start_if_ready(s, number)


def land(s: State, number: int) -> None:
    """Deliver a send, or pass a barrier, and start what waited for it."""
    send = s.sends[number]
    if send.edge >= 0:
        s.edges[send.edge].in_flight -= 1
        s.clock[0].landed += 1
    for place in range(send.follower_start, send.follower_end):
        follower = s.sends[s.followers[place]]
        follower.waiting -= 1
        if follower.waiting == 0 and follower.edge >= 0:
            start_if_ready(s, follower.edge)
        elif follower.waiting == 0:
            push(s, s.clock[0].now_s, s.followers[place] * EVENT_KINDS + LAND)
    if send.edge >= 0:
        start_if_ready(s, send.edge)
        number = s.edges[send.edge].run
        s.runs[number].sends_left -= 1
        if s.runs[number].sends_left == 0:
            end(s, number)

"""The event loop of fidelity "message": sends on shared links.

The functions read and write records and call each other, nothing else. So the same source runs in
the interpreter and, where numba is installed, compiled (`accelerate.py`), and both give the same
bits: events come in the order of time, those of one time in the order in which they were caused.

A send starts when what it depends on has landed, its edge has sent what came before it, the edge
has a credit and the rank has finished the stages before. It shares links max-min fairly with every
other send on the move and lands `latency_s` after its last byte left. Everything that starts at
one instant shares from the start. Rates are solved again only for the sends that are connected,
through links that are short of bandwidth, to one that changed.
"""

from __future__ import annotations

from perfmodel.simulate.message.event_heap import BEGIN, KINDS, LAND, first_s, pop, push, queued
from perfmodel.simulate.message.link_sharing import enter, leave, set_rate, solve
from perfmodel.simulate.message.records import INF, Edge, State

SAME_INSTANT = 1e-14
"""Events this close (relative to the time) are one instant: sums of like times differ in the last
bits, and would cost a solution each."""
IDLE, SOME_ENDED, CROWDED = range(3)
"""What `advance` returns."""


def advance(s: State, until_s: float) -> int:
    """Work through the events up to a time, or through the instant in which a run ends.

    Returns
    -------
    int
        `IDLE`: nothing is left to do before `until_s`. `SOME_ENDED`: `s.ended` names the runs, at
        the clock's `now_s`. `CROWDED`: outdated events must be cleared before it can go on.
    """
    clock = s.clock[0]
    while True:
        if queued(s) > clock.room:
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
        what = pop(s)
        index = what // KINDS
        if what % KINDS == LAND:
            land(s, index)
        elif what % KINDS == BEGIN:
            begin(s, index)
        elif s.edges[index].end_s == at_s:  # else outdated: the rate has changed since
            finish(s, index)


def begin(s: State, number: int) -> None:
    """Start every edge of a collective that can."""
    run = s.runs[number]
    if run.sends_left == 0:
        end(s, number)
    for edge in range(run.edge_start, run.edge_end):
        try_edge(s, edge)


def end(s: State, run: int) -> None:
    """Note that a collective has ended."""
    clock = s.clock[0]
    s.ended[clock.ended] = run
    clock.ended += 1


def can_send(s: State, edge: Edge) -> bool:
    """Whether nothing holds back the next send of an edge."""
    if edge.sending >= 0 or edge.head == edge.tail or edge.under_way >= edge.credits:
        return False
    if s.sends[edge.head].waiting > 0:
        return False
    passed: bool = edge.gate < 0 or s.gates[edge.gate].passing >= edge.stage
    return passed


def take(s: State, edge: Edge) -> None:
    """Give an edge its next send."""
    edge.sending = edge.head
    edge.left_bytes = s.sends[edge.head].nbytes
    edge.sent_bytes = 0.0
    edge.since_s = s.clock[0].now_s
    edge.head += 1
    edge.under_way += 1


def try_edge(s: State, number: int) -> None:
    """Start the next send of an edge if nothing holds it back."""
    edge = s.edges[number]
    if not can_send(s, edge):
        return
    take(s, edge)
    if edge.line >= 0:
        edge.next_in_line = -1
        line = s.lines[edge.line]
        last = line.last
        line.last = number
        if line.edge >= 0:
            s.edges[last].next_in_line = number
            return
        line.edge = number
    enter(s, number)


def finish(s: State, number: int) -> None:
    """The last byte of a send has left."""
    edge = s.edges[number]
    push(s, s.clock[0].now_s + edge.latency_s, edge.sending * KINDS + LAND)
    edge.sending = -1
    edge.end_s = INF
    after = edge.next_in_line if edge.line >= 0 else -1
    if after < 0 and can_send(s, edge):  # the same links for the next send: no rate changes
        take(s, edge)
        set_rate(s, number, edge.rate_Bps)
        return
    leave(s, number)
    if edge.line >= 0:
        s.lines[edge.line].edge = after
    if after >= 0:
        enter(s, after)
        try_edge(s, number)


def land(s: State, number: int) -> None:
    """A send has arrived."""
    send = s.sends[number]
    edge = s.edges[send.edge]
    edge.under_way -= 1
    s.clock[0].landed += 1
    for place in range(send.follower_start, send.follower_end):
        follower = s.sends[s.followers[place]]
        follower.waiting -= 1
        if follower.waiting == 0:
            try_edge(s, follower.edge)
    try_edge(s, send.edge)
    if edge.gate >= 0:
        pass_gate(s, edge.gate, edge.stage)
        pass_gate(s, edge.gate_to, edge.stage)
    run = s.runs[edge.run]
    run.sends_left -= 1
    if run.sends_left == 0:
        end(s, edge.run)


def pass_gate(s: State, number: int, stage: int) -> None:
    """Count a delivery at one of its ends, which may begin its next stage by it."""
    gate = s.gates[number]
    s.pending[gate.pending_start + stage] -= 1
    if s.pending[gate.pending_start + stage] > 0 or gate.passing != stage:
        return
    while stage < gate.stages and s.pending[gate.pending_start + stage] == 0:
        stage += 1
    gate.passing = stage
    while gate.next_edge < gate.edge_end and s.edges[s.gate_edges[gate.next_edge]].stage <= stage:
        gate.next_edge += 1
        try_edge(s, s.gate_edges[gate.next_edge - 1])

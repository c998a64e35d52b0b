"""How the sends on the move share their links: max-min fairly, solved where something changed.

Part of the message kernel: what `kernel.py` says of its source holds here too.
"""

from __future__ import annotations

from perfmodel.simulate.message.event_heap import FINISH, KINDS, push
from perfmodel.simulate.message.records import INF, Arc, State

SAME_RATE = 1e-12
"""Shares this close are one level, and links this little overbooked are not short: sums of like
rates differ in the last bits."""


def enter(s: State, number: int) -> None:
    """Take a place on the links of an edge, and send at once if none of them is short by it."""
    edge = s.edges[number]
    edge.rate_Bps = 0.0
    short = False
    for place in range(edge.route_start, edge.route_end):
        hop = s.hops[place]
        arc = s.arcs[hop.arc]
        hop.before = -1
        hop.after = arc.first_hop
        if arc.first_hop >= 0:
            s.hops[arc.first_hop].before = place
        arc.first_hop = place
        arc.users += 1
        arc.demand_Bps += edge.limit_Bps
        if is_short(arc):
            short = True
            touch(s, hop.arc)
    if not short:
        set_rate(s, number, edge.limit_Bps)


def leave(s: State, number: int) -> None:
    """Give up the place on the links of an edge."""
    edge = s.edges[number]
    edge.rate_Bps = 0.0
    for place in range(edge.route_start, edge.route_end):
        hop = s.hops[place]
        arc = s.arcs[hop.arc]
        if hop.before >= 0:
            s.hops[hop.before].after = hop.after
        else:
            arc.first_hop = hop.after
        if hop.after >= 0:
            s.hops[hop.after].before = hop.before
        if is_short(arc):
            touch(s, hop.arc)
        arc.users -= 1
        arc.demand_Bps -= edge.limit_Bps
        if arc.users == 0:
            arc.demand_Bps = 0.0


def is_short(arc: Arc) -> bool:
    """Whether those on a link could together send more than it carries."""
    return arc.demand_Bps > arc.capacity_Bps * (1.0 + SAME_RATE)


def touch(s: State, number: int) -> None:
    """Note that the rates on a link must be solved again at the end of this instant."""
    arc = s.arcs[number]
    if arc.is_touched == 0:
        arc.is_touched = 1
        s.touched[s.clock[0].touched] = number
        s.clock[0].touched += 1


def set_rate(s: State, number: int, rate_Bps: float) -> None:
    """From now on an edge sends at this rate."""
    edge = s.edges[number]
    now_s = s.clock[0].now_s
    if edge.since_s < now_s:
        gone_bytes = edge.rate_Bps * (now_s - edge.since_s)
        edge.sent_bytes += gone_bytes
        edge.left_bytes = max(0.0, edge.left_bytes - gone_bytes)
        edge.since_s = now_s
    edge.rate_Bps = rate_Bps
    edge.end_s = INF
    if rate_Bps > 0.0:
        end_s = now_s + edge.left_bytes / rate_Bps
        if end_s < INF:
            push(s, end_s, number * KINDS + FINISH)
            edge.end_s = end_s
    else:
        s.clock[0].stalled = 1


def solve(s: State) -> None:
    """Solve the rates of everything connected to what changed in this instant."""
    flows, arcs = connected(s)
    fill(s, flows, arcs)
    s.clock[0].solved += flows
    for place in range(flows):
        number = s.flows[place]
        edge = s.edges[number]
        if abs(edge.fresh_Bps - edge.rate_Bps) > edge.rate_Bps * SAME_RATE:
            set_rate(s, number, edge.fresh_Bps)
        elif edge.fresh_Bps == 0.0:
            s.clock[0].stalled = 1


def connected(s: State) -> tuple[int, int]:
    """Find the edges to solve, and the links that may be short for them: how many there are.

    A link that can give everyone on it all they could take connects nobody.
    """
    clock = s.clock[0]
    clock.stamp += 1
    stamp = clock.stamp
    arcs = clock.touched
    clock.touched = 0
    for place in range(arcs):
        arc = s.arcs[s.touched[place]]
        arc.is_touched = 0
        arc.seen = stamp
    flows = 0
    at = 0
    while at < arcs:
        place = s.arcs[s.touched[at]].first_hop
        at += 1
        while place >= 0:
            hop = s.hops[place]
            place = hop.after
            edge = s.edges[hop.edge]
            if edge.mark == stamp:
                continue
            edge.mark = stamp
            s.flows[flows] = hop.edge
            flows += 1
            for other in range(edge.route_start, edge.route_end):
                number = s.hops[other].arc
                near = s.arcs[number]
                if near.seen != stamp and is_short(near):
                    near.seen = stamp
                    s.touched[arcs] = number
                    arcs += 1
    return flows, arcs


def fill(s: State, flows: int, arcs: int) -> None:
    """Progressive filling: raise all rates together; freeze who meets a limit or a full link.

    Source: Bertsekas and Gallager, Data Networks, section 6.5.2.
    """
    short = keep_short(s, arcs)
    lowest_Bps = INF
    for place in range(flows):
        edge = s.edges[s.flows[place]]
        edge.fresh_Bps = -1.0
        lowest_Bps = min(lowest_Bps, edge.limit_Bps)
    level_Bps = 0.0
    still_open = flows
    while still_open > 0:
        share_Bps = INF
        still = 0
        for place in range(short):
            arc = s.arcs[s.touched[place]]
            if arc.open_users > 0:
                s.touched[still] = s.touched[place]
                still += 1
                share_Bps = min(share_Bps, arc.spare_Bps / arc.open_users)
        short = still
        level_Bps = max(level_Bps, share_Bps)
        if lowest_Bps <= level_Bps:
            found, lowest_Bps = freeze_limited(s, flows, level_Bps)
            still_open -= found
        else:
            still_open -= freeze_full(s, short, level_Bps)


def keep_short(s: State, arcs: int) -> int:
    """Keep those of the links found that are short, all of their bandwidth to be given away."""
    short = 0
    for place in range(arcs):
        number = s.touched[place]
        arc = s.arcs[number]
        if is_short(arc):
            s.touched[short] = number
            short += 1
            arc.spare_Bps = arc.capacity_Bps
            arc.open_users = arc.users
    return short


def freeze_limited(s: State, flows: int, level_Bps: float) -> tuple[int, float]:
    """Give those whose limit is no higher than a level their limit, lowest first.

    Returns how many there were, and the lowest limit of those that are still open.
    """
    lowest_Bps = INF
    found = 0
    for place in range(flows):
        number = s.flows[place]
        edge = s.edges[number]
        if edge.fresh_Bps >= 0.0:
            continue
        if edge.limit_Bps > level_Bps:
            lowest_Bps = min(lowest_Bps, edge.limit_Bps)
            continue
        at = found  # sorted, so that what is left of a link does not depend on their order
        while at > 0 and level_Bps < INF and s.edges[s.chosen[at - 1]].limit_Bps > edge.limit_Bps:
            s.chosen[at] = s.chosen[at - 1]
            at -= 1
        s.chosen[at] = number
        found += 1
    for place in range(found):
        number = s.chosen[place]
        freeze(s, number, s.edges[number].limit_Bps)
    return found, lowest_Bps


def freeze_full(s: State, short: int, level_Bps: float) -> int:
    """Freeze everyone on the links that are full at a level; how many."""
    full = 0
    for place in range(short):
        arc = s.arcs[s.touched[place]]
        if arc.spare_Bps <= level_Bps * (1.0 + SAME_RATE) * arc.open_users:
            s.chosen[full] = s.touched[place]
            full += 1
    frozen = 0
    for place in range(full):
        at = s.arcs[s.chosen[place]].first_hop
        while at >= 0:
            hop = s.hops[at]
            at = hop.after
            if s.edges[hop.edge].fresh_Bps < 0.0:
                freeze(s, hop.edge, level_Bps)
                frozen += 1
    return frozen


def freeze(s: State, number: int, rate_Bps: float) -> None:
    """Settle the rate of an edge, and take it off what its links have left."""
    edge = s.edges[number]
    edge.fresh_Bps = rate_Bps
    for place in range(edge.route_start, edge.route_end):
        arc = s.arcs[s.hops[place].arc]
        arc.spare_Bps = max(0.0, arc.spare_Bps - rate_Bps)
        arc.open_users -= 1

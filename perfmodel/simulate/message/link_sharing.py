"""Max-min fair rates of the sends in progress, solved only where something has changed.

Part of the message kernel: compiled from the same source (see `event_loop.py`).
"""

from __future__ import annotations

from typing import Any

from perfmodel.simulate.message.records import EVENT_KINDS, FINISH, INF, State, push

SAME_RATE = 1e-12
"""Relative difference below which shares are equal, and links not overbooked: equal rates that are
summed in another order differ in the last bits."""


def join_links(s: State, number: int) -> None:
    """Add an edge to its links; send at its limit at once if none of them is overbooked then."""
    edge = s.edges[number]
    route = s.routes[edge.route]
    edge.rate_Bps = 0.0
    edge.before = -1
    edge.after = route.first_edge
    if route.first_edge >= 0:
        s.edges[route.first_edge].before = number
    else:
        join_arcs(s, edge.route)
    route.first_edge = number
    route.edges += 1
    must_solve = False
    for place in range(route.hop_start, route.hop_end):
        hop = s.hops[place]
        arc = s.arcs[hop.arc]
        arc.users += 1
        arc.demand_Bps += route.limit_Bps
        if is_overbooked(arc):
            must_solve = True
            touch(s, hop.arc)
    if not must_solve:
        set_rate(s, number, route.limit_Bps)
        expect_end(s, edge.route, edge.end_s)


def join_arcs(s: State, number: int) -> None:
    """Add a route to the users of its links."""
    route = s.routes[number]
    for place in range(route.hop_start, route.hop_end):
        hop = s.hops[place]
        arc = s.arcs[hop.arc]
        hop.before = -1
        hop.after = arc.first_hop
        if arc.first_hop >= 0:
            s.hops[arc.first_hop].before = place
        arc.first_hop = place


def leave_links(s: State, number: int) -> None:
    """Remove an edge from its links."""
    edge = s.edges[number]
    route = s.routes[edge.route]
    edge.rate_Bps = 0.0
    if edge.before >= 0:
        s.edges[edge.before].after = edge.after
    else:
        route.first_edge = edge.after
    if edge.after >= 0:
        s.edges[edge.after].before = edge.before
    route.edges -= 1
    for place in range(route.hop_start, route.hop_end):
        hop = s.hops[place]
        arc = s.arcs[hop.arc]
        if is_overbooked(arc):
            touch(s, hop.arc)
        arc.users -= 1
        arc.demand_Bps -= route.limit_Bps
        if arc.users == 0:
            arc.demand_Bps = 0.0
    if route.edges == 0:
        leave_arcs(s, edge.route)


def leave_arcs(s: State, number: int) -> None:
    """Remove a route from the users of its links."""
    route = s.routes[number]
    for place in range(route.hop_start, route.hop_end):
        hop = s.hops[place]
        if hop.before >= 0:
            s.hops[hop.before].after = hop.after
        else:
            s.arcs[hop.arc].first_hop = hop.after
        if hop.after >= 0:
            s.hops[hop.after].before = hop.before


def is_overbooked(arc: Any) -> bool:
    """Whether the limits of the edges on a link add up to more than its capacity."""
    return bool(arc.demand_Bps > arc.capacity_Bps * (1.0 + SAME_RATE))


def touch(s: State, number: int) -> None:
    """Mark a link, whose rates must be solved again at the end of this instant."""
    arc = s.arcs[number]
    if arc.is_touched == 0:
        arc.is_touched = 1
        s.touched[s.clock[0].touched] = number
        s.clock[0].touched += 1


def set_rate(s: State, number: int, rate_Bps: float) -> None:
    """Let an edge send at this rate from now on."""
    edge = s.edges[number]
    now_s = s.clock[0].now_s
    if edge.since_s < now_s:
        sent_bytes = edge.rate_Bps * (now_s - edge.since_s)
        edge.sent_bytes += sent_bytes
        edge.unsent_bytes = max(0.0, edge.unsent_bytes - sent_bytes)
        edge.since_s = now_s
    edge.rate_Bps = rate_Bps
    edge.end_s = INF
    if rate_Bps > 0.0:
        edge.end_s = now_s + edge.unsent_bytes / rate_Bps
    else:
        s.clock[0].stalled = 1


def expect_end(s: State, number: int, end_s: float) -> None:
    """Queue the end of an edge, if it is the first of its route."""
    route = s.routes[number]
    if end_s < route.next_s:
        route.next_s = end_s
        push(s, end_s, number * EVENT_KINDS + FINISH)


def solve(s: State) -> None:
    """Solve the rates of all edges connected to links that changed in this instant."""
    flows, arcs = find_connected(s)
    fill_progressively(s, flows, arcs)
    for place in range(flows):
        number = s.flows[place]
        route = s.routes[number]
        s.clock[0].solved += route.edges
        first_s = INF
        at = route.first_edge
        while at >= 0:
            edge = s.edges[at]
            if abs(route.solved_Bps - edge.rate_Bps) > edge.rate_Bps * SAME_RATE:
                set_rate(s, at, route.solved_Bps)
                first_s = min(first_s, edge.end_s)
            elif route.solved_Bps == 0.0:
                s.clock[0].stalled = 1
            at = edge.after
        expect_end(s, number, first_s)


def find_connected(s: State) -> tuple[int, int]:
    """Find the routes to solve, and the links that may limit them; return the numbers of both.

    A link that is not overbooked connects no routes.
    """
    clock = s.clock[0]
    clock.stamp += 1
    stamp = clock.stamp
    arcs = clock.touched
    clock.touched = 0
    for place in range(arcs):
        arc = s.arcs[s.touched[place]]
        arc.is_touched = 0
        arc.mark = stamp
    flows = 0
    at = 0
    while at < arcs:
        place = s.arcs[s.touched[at]].first_hop
        at += 1
        while place >= 0:
            hop = s.hops[place]
            place = hop.after
            route = s.routes[hop.route]
            if route.mark == stamp:
                continue
            route.mark = stamp
            s.flows[flows] = hop.route
            flows += 1
            for other in range(route.hop_start, route.hop_end):
                number = s.hops[other].arc
                near = s.arcs[number]
                if near.mark != stamp and is_overbooked(near):
                    near.mark = stamp
                    s.touched[arcs] = number
                    arcs += 1
    return flows, arcs


def fill_progressively(s: State, flows: int, arcs: int) -> None:
    """Raise all rates together; freeze routes that reach their limit or a full link.

    Source: Bertsekas and Gallager, Data Networks, section 6.5.2.
    """
    overbooked = keep_overbooked(s, arcs)
    lowest_Bps = INF
    for place in range(flows):
        route = s.routes[s.flows[place]]
        route.solved_Bps = -1.0
        lowest_Bps = min(lowest_Bps, route.limit_Bps)
    level_Bps = 0.0
    open_flows = flows
    while open_flows > 0:
        share_Bps = INF
        limiting = 0
        for place in range(overbooked):
            arc = s.arcs[s.touched[place]]
            if arc.open_users > 0:
                s.touched[limiting] = s.touched[place]
                limiting += 1
                share_Bps = min(share_Bps, arc.spare_Bps / arc.open_users)
        overbooked = limiting
        level_Bps = max(level_Bps, share_Bps)
        if lowest_Bps <= level_Bps:
            frozen, lowest_Bps = freeze_limited(s, flows, level_Bps)
            open_flows -= frozen
        else:
            open_flows -= freeze_full(s, overbooked, level_Bps)


def keep_overbooked(s: State, arcs: int) -> int:
    """Keep the overbooked ones of some links, with their whole capacity to be shared out."""
    overbooked = 0
    for place in range(arcs):
        number = s.touched[place]
        arc = s.arcs[number]
        if is_overbooked(arc):
            s.touched[overbooked] = number
            overbooked += 1
            arc.spare_Bps = arc.capacity_Bps
            arc.open_users = arc.users
    return overbooked


def freeze_limited(s: State, flows: int, level_Bps: float) -> tuple[int, float]:
    """Freeze routes whose limit is at most `level_Bps` at that limit, lowest first.

    Returns how many there were, and the lowest limit of the routes that are still open.
    """
    lowest_Bps = INF
    limited = 0
    for place in range(flows):
        number = s.flows[place]
        route = s.routes[number]
        if route.solved_Bps >= 0.0:
            continue
        if route.limit_Bps > level_Bps:
            lowest_Bps = min(lowest_Bps, route.limit_Bps)
            continue
        at = limited  # sorted, so that the rest of a link does not depend on the order of routes
        while (
            at > 0 and level_Bps < INF and s.routes[s.to_freeze[at - 1]].limit_Bps > route.limit_Bps
        ):
            s.to_freeze[at] = s.to_freeze[at - 1]
            at -= 1
        s.to_freeze[at] = number
        limited += 1
    for place in range(limited):
        number = s.to_freeze[place]
        freeze(s, number, s.routes[number].limit_Bps)
    return limited, lowest_Bps


def freeze_full(s: State, overbooked: int, level_Bps: float) -> int:
    """Freeze all routes over the links that are full at a level; return how many."""
    full = 0
    for place in range(overbooked):
        arc = s.arcs[s.touched[place]]
        if arc.spare_Bps <= level_Bps * (1.0 + SAME_RATE) * arc.open_users:
            s.to_freeze[full] = s.touched[place]
            full += 1
    frozen = 0
    for place in range(full):
        at = s.arcs[s.to_freeze[place]].first_hop
        while at >= 0:
            hop = s.hops[at]
            at = hop.after
            if s.routes[hop.route].solved_Bps < 0.0:
                freeze(s, hop.route, level_Bps)
                frozen += 1
    return frozen


def freeze(s: State, number: int, rate_Bps: float) -> None:
    """Fix the rate of a route's edges, and subtract it from the spare capacity of its links.

    Edge by edge: so rounding is as if each had a route of its own.
    """
    route = s.routes[number]
    route.solved_Bps = rate_Bps
    for place in range(route.hop_start, route.hop_end):
        arc = s.arcs[s.hops[place].arc]
        spare_Bps = arc.spare_Bps
        for _ in range(route.edges):
            spare_Bps = max(0.0, spare_Bps - rate_Bps)
        arc.spare_Bps = spare_Bps
        arc.open_users -= route.edges

"""Loops over pieces that trees send, compiled as those of `compiled_loops.py` are."""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import FloatArray, IntArray

FEW_PIECES, NEVER_S = 4, 1e300
"""Pieces over trees up to which each is looked at; a finite time that is after all others."""
ROUNDING = 1e-15
"""Share of a time up to which it is the same: pieces that follow each other so are one run."""


def send_over_trees(  # noqa: C901, PLR0912, PLR0915  (numba caches a function without those that it calls)
    order: IntArray,
    feeders: IntArray,
    first: IntArray,
    nbytes: FloatArray,
    begin: int,
    goal: int,
    free_s: FloatArray,
    arrived_s: FloatArray,
    from_s: FloatArray,
    rate_Bps: FloatArray,
    latency_s: FloatArray,
    until_s: float,
    last: int,
) -> int:
    """Go on in place from piece `begin` to `goal` (see `timing.tree_clocks.TreeClocks`).

    Pieces of which nothing leaves by a time are left out. As long as no rate changes, the last of
    several pieces leaves an edge when all of them have been sent since the first one could be, or
    when the last one has been brought and sent: what feeds an edge brings pieces at times that are
    convex in their number. So most pieces are not looked at one by one.

    Parameters
    ----------
    order : ndarray of int, shape (edges,)
        Edges, each after those that feed it, which begin in an earlier step.
    feeders : ndarray of int, shape (edges, most feeders)
        Places in `order`; padded with the number of edges at the end.
    first : ndarray of int, shape (edges,)
        Step of the first piece of each edge.
    nbytes : ndarray of float, shape (edges,)
    begin, goal : int
    free_s : ndarray of float, shape (edges,)
        When the last piece has left each edge, in `order`.
    arrived_s : ndarray of float, shape (credits, edges + 1)
        When the last pieces have arrived, in `order`; zero where there is none, as in the last
        column, which is for edges that nothing feeds.
    from_s, rate_Bps, latency_s
        As for `compiled_loops.step_rings`.
    until_s : float
    last : int
        Pieces up to `goal` that are looked at one by one, so that `arrived_s` is of these.

    Returns
    -------
    int
        The first step of which a piece leaves later than by `until_s`.
    """
    paces, edges, credits = len(from_s), len(order), len(arrived_s)
    pace, over_s = np.zeros(edges, np.int64), np.empty(edges)
    hold_s, flight_s = np.empty(edges), np.empty(edges)
    leaps = goal - begin > last + FEW_PIECES
    for place in range(edges):  # as in the first pace
        edge, over_s[place] = order[place], from_s[1] if paces > 1 else np.inf
        hold_s[place] = nbytes[edge] / rate_Bps[0, edge] if nbytes[edge] > 0 else 0.0
        flight_s[place] = latency_s[0, edge]
    for edge in range(edges if leaps else 0):  # whether a piece never waits for one in flight
        longest_s, most_Bps = 0.0, 0.0
        for at in range(paces):
            longest_s, most_Bps = (
                max(longest_s, latency_s[at, edge]),
                max(most_Bps, rate_Bps[at, edge]),
            )
        if longest_s * most_Bps > (credits - 1) * nbytes[edge]:
            leaps = False
    first_s, last_s = np.empty(edges), np.empty(edges)  # when the first and last of several arrive
    step, piece = first.max() + goal, begin
    while piece < goal:
        brought_s, earliest_s = arrived_s[piece % credits], np.inf
        slack_s, slowest_s = np.inf, 0.0
        for place in range(edges):
            start_s, column = max(free_s[place], brought_s[place]), 0
            while column < feeders.shape[1] and feeders[place, column] < edges:
                start_s = max(start_s, brought_s[feeders[place, column]])
                column += 1
            leaves_s = start_s + hold_s[place]
            if leaves_s > over_s[place]:
                edge, at = order[place], pace[place]
                while at + 1 < paces and from_s[at + 1] < start_s:
                    at += 1
                unsent = nbytes[edge]
                while True:
                    over = from_s[at + 1] if at + 1 < paces else np.inf
                    leaves_s = start_s + (unsent / rate_Bps[at, edge] if unsent > 0 else 0.0)
                    if not leaves_s > over:
                        break
                    unsent = max(0.0, unsent - (over - start_s) * rate_Bps[at, edge])
                    start_s = over
                    at += 1
                pace[place], over_s[place] = at, over
                hold_s[place] = nbytes[edge] / rate_Bps[at, edge] if nbytes[edge] > 0 else 0.0
                flight_s[place] = latency_s[at, edge]
            free_s[place], brought_s[place] = leaves_s, leaves_s + flight_s[place]
            # Never the difference of two infinities, as over a link that is cut for good.
            slack_s = min(slack_s, over_s[place] - min(leaves_s, NEVER_S))
            slowest_s = max(slowest_s, hold_s[place])
        for place in range(edges if until_s < np.inf else 0):
            if free_s[place] > until_s:
                step = min(step, first[order[place]] + piece)
            earliest_s = min(earliest_s, free_s[place])
            slack_s = min(slack_s, until_s - free_s[place])
        if earliest_s > until_s:
            break
        piece += 1
        several = goal - last - piece
        if not leaps or several < FEW_PIECES or slack_s < FEW_PIECES * slowest_s:
            continue
        if slack_s < several * slowest_s:
            several = int(slack_s / slowest_s)
        for place in range(edges):
            ready_s, brought, column = free_s[place], 0.0, 0
            while column < feeders.shape[1] and feeders[place, column] < edges:
                ready_s = max(ready_s, first_s[feeders[place, column]])
                brought = max(brought, last_s[feeders[place, column]])
                column += 1
            hold = hold_s[place]
            first_s[place] = ready_s + hold + flight_s[place]
            free_s[place] = max(ready_s + several * hold, brought + hold)
            last_s[place] = free_s[place] + flight_s[place]
        piece += several
    return int(step)


def send_in_runs(  # noqa: C901, PLR0912, PLR0915  (numba caches a function without those that it calls)
    order: IntArray,
    feeders: IntArray,
    first: IntArray,
    nbytes: FloatArray,
    begin: int,
    goal: int,
    free_s: FloatArray,
    arrived_s: FloatArray,
    from_s: FloatArray,
    rate_Bps: FloatArray,
    latency_s: FloatArray,
    until_s: float,
    last: int,
) -> int:
    """Go on as `send_over_trees` does where no piece waits for one in flight, all pieces at once.

    The pieces of an edge are few runs of even gaps: those that follow each other as soon as they
    are sent, or as they are brought. A change of rates or another run of what is brought ends one.

    Parameters
    ----------
    order : ndarray of int, shape (edges,)
        Edges tree after tree, each after those that feed it, which begin in an earlier step.
    feeders, first, nbytes, begin, goal, free_s, from_s, rate_Bps, latency_s, until_s
        As for `send_over_trees`.
    arrived_s : ndarray of float, shape (credits, edges + 1)
        Only written to.
    last : int
        Pieces up to `goal` whose arrivals are asked for.

    Returns
    -------
    int
        The first step of which a piece leaves later than by `until_s`.
    """
    paces, edges, runs = len(from_s), len(order), 0
    begun, now = np.empty(edges, np.int64), np.empty(feeders.shape[1], np.int64)
    # Of each run its first piece, the one past it, when the first arrives, and the gap.
    since, past = np.empty((2, edges + goal - begin), np.int64)
    at_s, every_s = np.empty((2, edges + goal - begin))
    step = first.max() + goal
    for place in range(edges):
        if place and first[order[place]] < first[order[place - 1]]:
            runs = 0  # of the next tree, so that they stay in the processor's cache
        if runs + goal - begin > len(past):
            since, past = np.append(since, since), np.append(past, past)
            at_s, every_s = np.append(at_s, at_s), np.append(every_s, every_s)
        edge, free, piece, pace, fed = order[place], free_s[place], begin, 0, 0
        begun[place] = runs
        while fed < len(now) and feeders[place, fed] < edges:
            now[fed] = begun[feeders[place, fed]]
            fed += 1
        over_s = from_s[1] if paces > 1 else np.inf
        hold = nbytes[edge] / rate_Bps[0, edge] if nbytes[edge] > 0 else 0.0
        while piece < goal:
            ready, gap, several = -np.inf, 0.0, goal - piece  # how evenly so many are brought
            for number in range(fed):
                while past[now[number]] <= piece:
                    now[number] += 1
                run = now[number]
                brought = at_s[run] + (piece - since[run]) * every_s[run]
                several = min(several, past[run] - piece)
                if brought > ready or (brought == ready and every_s[run] > gap):
                    ready, gap = brought, every_s[run]
            for number in range(fed if fed > 1 else 0):
                run = now[number]
                if every_s[run] > gap:  # until another brings them later
                    brought = at_s[run] + (piece - since[run]) * every_s[run]
                    if ready - brought < (several - 1) * (every_s[run] - gap):
                        several = int((ready - brought) / (every_s[run] - gap)) + 1
            start, every = max(free, ready), 0.0
            leaves = start + hold
            is_late = leaves > over_s
            if is_late:
                while pace + 1 < paces and from_s[pace + 1] < start:
                    pace += 1
                unsent, several = nbytes[edge], 1
                while True:
                    over_s = from_s[pace + 1] if pace + 1 < paces else np.inf
                    leaves = start + (unsent / rate_Bps[pace, edge] if unsent > 0 else 0.0)
                    if not leaves > over_s:
                        break
                    unsent = max(0.0, unsent - (over_s - start) * rate_Bps[pace, edge])
                    start = over_s
                    pace += 1
                hold = nbytes[edge] / rate_Bps[pace, edge] if nbytes[edge] > 0 else 0.0
            elif leaves < np.inf:
                every = gap if gap > hold and ready >= free else hold
                if every < gap and free - ready < (several - 1) * (gap - every):
                    several = int((free - ready) / (gap - every)) + 1  # until none is left to send
                if over_s - leaves < (several - 1) * every:
                    several = int((over_s - leaves) / every) + 1
            if leaves > until_s:
                step = min(step, first[edge] + piece)
            elif every > 0 and until_s - leaves < (several - 1) * every:
                step = min(step, first[edge] + piece + int((until_s - leaves) / every) + 1)
            if (
                is_late
                or runs == begun[place]
                or leaves > (free + every) * (1 + ROUNDING)
                or leaves < (free + every) * (1 - ROUNDING)
                or (past[runs - 1] - since[runs - 1] > 1 and every_s[runs - 1] != every)
            ):
                since[runs], at_s[runs] = piece, leaves + latency_s[pace, edge]
                runs += 1
            past[runs - 1], every_s[runs - 1] = piece + several, every
            free = leaves + (several - 1) * every
            piece += several
        free_s[place], run = free, runs - 1
        for piece in range(goal - 1, max(begin, goal - last) - 1, -1):
            while since[run] > piece:
                run -= 1
            brought = at_s[run] + (piece - since[run]) * every_s[run]
            arrived_s[piece % len(arrived_s), place] = brought
    return int(step)


def least_tree_end(
    order: IntArray,
    nbytes: FloatArray,
    pieces: int,
    free_s: FloatArray,
    from_s: FloatArray,
    rate_Bps: FloatArray,
) -> float:
    """Return when the last byte leaves at the earliest: each edge has to send some more pieces.

    Parameters
    ----------
    order, nbytes, free_s, from_s, rate_Bps
        As for `send_over_trees`.
    pieces : int
    """
    paces, least_s = len(from_s), 0.0
    for place in range(len(order)):
        edge, since_s = order[place], free_s[place]
        unsent = pieces * nbytes[edge]
        for pace in range(paces):
            over_s = from_s[pace + 1] if pace + 1 < paces else np.inf
            if unsent <= 0 or over_s < since_s:
                continue
            leaves_s = since_s + unsent / rate_Bps[pace, edge]
            if leaves_s <= over_s:
                since_s, unsent = leaves_s, 0.0
            else:
                unsent -= (over_s - since_s) * rate_Bps[pace, edge]
                since_s = over_s
        least_s = max(least_s, since_s)
    return least_s

"""Loops over small arrays, compiled by numba: where NumPy spends its time on the calls themselves.

All functions are written a second time with NumPy, by which they are replaced where numba is
missing or not worth loading; the results are the same bits. Loading takes half a second, and some
seconds once on each machine, until the compiled code is in numba's cache on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from perfmodel.arrays import FloatArray, IntArray

PAYS = 400
"""Changes of rates that were followed (about a millisecond each) from which on loading pays."""


@dataclass
class Effort:
    """What simulations on a machine have done of what compiled loops are quicker at."""

    spent: int = 0
    """Changes of rates that were followed."""

    def expect(self, changes: int) -> None:
        """Load the compiled functions at once where so many changes are to come that they pay."""
        if changes >= PAYS > self.spent:
            self.spend(PAYS - self.spent)

    @property
    def loops(self) -> Loops | None:
        """The compiled loops, where they pay and exist."""
        return load() if self.spent >= PAYS else None

    def spend(self, changes: int = 1) -> None:
        """Count changes of rates; load the compiled functions when they pay."""
        before, self.spent = self.spent, self.spent + changes
        if before < PAYS <= self.spent:
            load()


class Loops(NamedTuple):
    """The compiled functions; arguments are contiguous arrays of int64 and float64."""

    step_rings: Callable[..., int]
    step_trees: Callable[..., int]
    least_end: Callable[..., float]
    send_over_trees: Callable[..., None]
    keep_sent: Callable[..., float]
    least_tree_end: Callable[..., float]
    slowest_cycle: Callable[..., float]
    fill: Callable[..., None]
    heaviest: Callable[..., None]


@cache
def load() -> Loops | None:
    """Compile the functions, or read them from disk; None where numba is missing.

    Nor are they compiled, in each process anew, where there is no folder that numba may write to
    for its cache, beside this file or in the user's own.
    """
    try:
        from numba import njit  # takes 0.5 s to import

        compile_as = njit(cache=True, error_model="numpy")  # divides by zero as NumPy does
        return Loops(
            compile_as(step_rings),
            compile_as(step_trees),
            compile_as(least_end),
            compile_as(send_over_trees),
            compile_as(keep_sent),
            compile_as(least_tree_end),
            compile_as(slowest_cycle),
            compile_as(fill),
            compile_as(heaviest),
        )
    except (ImportError, RuntimeError):
        return None


def loaded() -> Loops | None:
    """Return the compiled functions if `load` was called, and they could be compiled."""
    return load() if load.cache_info().currsize else None


def step_rings(
    rows: FloatArray,
    free: FloatArray,
    feeders: IntArray,
    begin: int,
    goal: int,
    lag: int,
    credits: int,
    nbytes: FloatArray,
    from_s: FloatArray,
    rate_Bps: FloatArray,
    latency_s: FloatArray,
    until_s: float,
) -> int:
    """Go on in place from step `begin` to `goal`, while all of a step leaves by a time.

    Parameters
    ----------
    rows : ndarray of float, shape (depth, edges + 1)
        See `RecurrenceState.delivered`.
    free : ndarray of float, shape (edges,)
    feeders : ndarray of int, shape (edges, most feeders)
    begin, goal, lag, credits : int
    nbytes : ndarray of float, shape (edges,)
    from_s : ndarray of float, shape (paces,)
        When each pace begins.
    rate_Bps, latency_s : ndarray of float, shape (paces, edges)
        Rates are above zero.
    until_s : float

    Returns
    -------
    int
        The step that was reached.
    """
    depth, edges, paces = len(rows), len(free), len(from_s)
    start, end, arrived = np.empty(edges), np.empty(edges), np.empty(edges)
    for number in range(begin, goal):
        brought, credit = rows[(number - lag) % depth], rows[(number - credits) % depth]
        first_s, last_s = np.inf, -np.inf
        for edge in range(edges):
            start_s = max(free[edge], credit[edge])
            for column in range(feeders.shape[1]):
                start_s = max(start_s, brought[feeders[edge, column]])
            start[edge] = start_s
            first_s = min(first_s, start_s)
        pace_of_first = 0  # what was before all of these sends is skipped
        while pace_of_first + 1 < paces and from_s[pace_of_first + 1] <= first_s:
            pace_of_first += 1
        for edge in range(edges):
            since_s, unsent = start[edge], nbytes[edge]
            for pace in range(pace_of_first, paces):
                over_s = from_s[pace + 1] if pace + 1 < paces else np.inf
                if over_s < since_s:
                    continue
                rate = rate_Bps[pace, edge]
                finish_s = since_s + (unsent / rate if unsent > 0 else 0.0)
                if finish_s <= over_s:
                    end[edge] = finish_s
                    arrived[edge] = finish_s + latency_s[pace, edge]
                    break
                unsent = max(0.0, unsent - (over_s - since_s) * rate)
                since_s = over_s
            last_s = max(last_s, end[edge])
        if last_s > until_s:
            return number
        rows[number % depth, :edges] = arrived
        free[:] = end
    return max(begin, goal)


def step_trees(  # noqa: C901  (numba caches a function without those that it calls)
    rows: FloatArray,
    free: FloatArray,
    feeders: IntArray,
    begins: IntArray,
    first: IntArray,
    active: IntArray,
    done: IntArray,
    begin: int,
    goal: int,
    first_step: int,
    lag: int,
    credits: int,
    nbytes: FloatArray,
    from_s: FloatArray,
    rate_Bps: FloatArray,
    latency_s: FloatArray,
    until_s: float,
) -> int:
    """As `step_rings`, where not all edges work in each step.

    Parameters
    ----------
    rows, free, feeders, begin, goal, credits, nbytes, from_s, rate_Bps, latency_s, until_s
        As there.
    begins : ndarray of int, shape (edges,)
        Edges in the order in which they begin.
    first, active, done : ndarray of int, shape (edges,)
        In which step of the phase each begins, in how many it works, and what it has sent before.
    first_step : int
        Of the phase.
    lag : int
        Repeats after which a send is sent on.
    """
    depth, edges, paces = len(rows), len(free), len(from_s)
    end, arrived = np.empty(edges), np.empty(edges)
    low = high = 0
    for number in range(begin, goal):
        step, last_s = number - first_step, -np.inf
        while high < edges and first[begins[high]] <= step:
            high += 1
        while low < high and first[begins[low]] + active[begins[low]] <= step:
            low += 1
        for place in range(low, high):
            edge = begins[place]
            if first[edge] + active[edge] <= step:
                continue
            send = done[edge] + step - first[edge]
            start_s = max(free[edge], rows[(send - credits) % depth, edge])
            for column in range(feeders.shape[1]):
                start_s = max(start_s, rows[(send - lag) % depth, feeders[edge, column]])
            since_s, unsent = start_s, nbytes[edge]
            for pace in range(paces):
                over_s = from_s[pace + 1] if pace + 1 < paces else np.inf
                if over_s < since_s:
                    continue
                rate = rate_Bps[pace, edge]
                finish_s = since_s + (unsent / rate if unsent > 0 else 0.0)
                if finish_s <= over_s:
                    end[place] = finish_s
                    arrived[place] = finish_s + latency_s[pace, edge]
                    break
                unsent = max(0.0, unsent - (over_s - since_s) * rate)
                since_s = over_s
            last_s = max(last_s, end[place])
        if last_s > until_s:
            return number
        for place in range(low, high):
            edge = begins[place]
            if first[edge] + active[edge] > step:
                send = done[edge] + step - first[edge]
                rows[send % depth, edge] = arrived[place]
                free[edge] = end[place]
    return max(begin, goal)


def least_end(
    free: FloatArray,
    sends: IntArray,
    done: IntArray,
    first: IntArray,
    active: IntArray,
    step: int,
    nbytes: FloatArray,
    rate_Bps: FloatArray,
) -> float:
    """When the last byte leaves at the earliest (see `variable_rate.Clocks.least_wire_s`).

    Parameters
    ----------
    free, first, active, done, rate_Bps
        As for `step_trees`; `step` is counted from the first of the phase.
    sends : ndarray of int, shape (edges,)
        Of all phases.
    nbytes : ndarray of float, shape (edges,)
        Least that each edge sends at once.
    """
    least_s = 0.0
    for edge in range(len(free)):
        if sends[edge] == 0:
            continue
        unsent = sends[edge] - done[edge] - min(max(step - first[edge], 0), active[edge])
        best_Bps = 0.0
        for pace in range(len(rate_Bps)):
            best_Bps = max(best_Bps, rate_Bps[pace, edge])
        more_s = unsent * (nbytes[edge] / best_Bps) if unsent > 0 and nbytes[edge] > 0 else 0.0
        least_s = max(least_s, free[edge] + more_s)
    return least_s


def send_over_trees(  # noqa: C901  (numba caches a function without those that it calls)
    order: IntArray,
    feeders: IntArray,
    nbytes: FloatArray,
    begin_s: FloatArray,
    sent: IntArray,
    left_s: FloatArray,
    arrived_s: FloatArray,
    credits: int,
    from_s: FloatArray,
    rate_Bps: FloatArray,
    latency_s: FloatArray,
) -> None:
    """Work out in place when pieces leave and arrive (see `timing.tree_clocks`).

    Parameters
    ----------
    order : ndarray of int, shape (edges,)
        Edges, each after those that feed it.
    feeders : ndarray of int, shape (edges, most feeders)
    nbytes, begin_s : ndarray of float, shape (edges,)
    sent : ndarray of int, shape (edges,)
        Pieces of each edge in steps that have left: their times stay what they are.
    left_s : ndarray of float, shape (edges, pieces)
    arrived_s : ndarray of float, shape (edges + 1, pieces)
        The last row is that of edges that nothing feeds.
    credits : int
    from_s, rate_Bps, latency_s
        As for `step_rings`.
    """
    paces, (edges, pieces) = len(from_s), left_s.shape
    ready_s = np.empty(pieces)
    for place in range(edges):
        edge, pace = order[place], 0
        done, leaves_s, arrives_s = sent[edge], left_s[edge], arrived_s[edge]
        ready_s[done:] = arrived_s[feeders[edge, 0], done:]
        for column in range(1, feeders.shape[1]):
            if feeders[edge, column] < edges:
                brought_s = arrived_s[feeders[edge, column]]
                for piece in range(done, pieces):
                    ready_s[piece] = max(ready_s[piece], brought_s[piece])
        free_s = leaves_s[done - 1] if done > 0 else max(begin_s[edge], 0.0)
        piece = done
        while piece < pieces:  # those at paces that end
            start_s = max(free_s, ready_s[piece])
            if piece >= credits:
                start_s = max(start_s, arrives_s[piece - credits])
            while pace + 1 < paces and from_s[pace + 1] < start_s:
                pace += 1
            if pace + 1 == paces:
                break
            unsent = nbytes[edge]
            for at in range(pace, paces):
                over_s = from_s[at + 1] if at + 1 < paces else np.inf
                free_s = start_s + (unsent / rate_Bps[at, edge] if unsent > 0 else 0.0)
                if free_s <= over_s:
                    arrives_s[piece] = free_s + latency_s[at, edge]
                    break
                unsent = max(0.0, unsent - (over_s - start_s) * rate_Bps[at, edge])
                start_s = over_s
            leaves_s[piece] = free_s
            piece += 1
        hold_s = nbytes[edge] / rate_Bps[paces - 1, edge] if nbytes[edge] > 0 else 0.0
        flight_s, alone = latency_s[paces - 1, edge], min(max(piece, credits), pieces)
        for number in range(piece, alone):
            free_s = max(free_s, ready_s[number]) + hold_s
            leaves_s[number], arrives_s[number] = free_s, free_s + flight_s
        for number in range(alone, pieces):
            waits_s = max(ready_s[number], arrives_s[number - credits])
            free_s = max(free_s, waits_s) + hold_s
            leaves_s[number], arrives_s[number] = free_s, free_s + flight_s


def keep_sent(
    sent: IntArray, left_s: FloatArray, begin_s: FloatArray, first: IntArray, until_s: float
) -> float:
    """Keep in place the steps that have left by a time; return when an edge was free first.

    Parameters
    ----------
    sent, left_s, begin_s
        As for `send_over_trees`.
    first : ndarray of int, shape (edges,)
        Step of the first piece of each edge.
    until_s : float
    """
    edges, pieces = left_s.shape
    earliest_s, step = np.inf, first.max() + pieces
    for edge in range(edges):
        count = sent[edge]
        while count < pieces and first[edge] + count < step and left_s[edge, count] <= until_s:
            count += 1
        if count < pieces:
            step = min(step, first[edge] + count)
    for edge in range(edges):
        count = max(0, min(step - first[edge], pieces))
        sent[edge] = count
        if count < pieces:
            earliest_s = min(earliest_s, left_s[edge, count - 1] if count else begin_s[edge])
    return earliest_s


def least_tree_end(
    sent: IntArray,
    left_s: FloatArray,
    begin_s: FloatArray,
    nbytes: FloatArray,
    from_s: FloatArray,
    rate_Bps: FloatArray,
) -> float:
    """When the last byte leaves at the earliest: each edge has to send what it has not sent.

    Parameters
    ----------
    sent, left_s, begin_s, nbytes, from_s, rate_Bps
        As for `send_over_trees`.
    """
    paces, (edges, pieces) = len(from_s), left_s.shape
    least_s = 0.0
    for edge in range(edges):
        since_s = left_s[edge, sent[edge] - 1] if sent[edge] > 0 else max(begin_s[edge], 0.0)
        unsent = (pieces - sent[edge]) * nbytes[edge]
        for pace in range(paces):
            over_s = from_s[pace + 1] if pace + 1 < paces else np.inf
            if unsent <= 0 or over_s < since_s:
                continue
            free_s = since_s + unsent / rate_Bps[pace, edge]
            if free_s <= over_s:
                since_s, unsent = free_s, 0.0
            else:
                unsent -= (over_s - since_s) * rate_Bps[pace, edge]
                since_s = over_s
        least_s = max(least_s, since_s)
    return least_s


def slowest_cycle(
    nbytes: FloatArray,
    rate_Bps: FloatArray,
    latency_s: FloatArray,
    active: IntArray,
    channel: IntArray,
    edges: IntArray,
    credits: int,
    repeat: int,
    lag: int,
    is_ring: bool,
) -> float:
    """Estimate the time of a phase (see `simulate.flow.transfers.cycle_s`).

    Parameters
    ----------
    nbytes, rate_Bps, latency_s, active, channel : ndarray, shape (edges,)
    edges : ndarray of int, shape (channels,)
        Edges of each channel.
    credits, repeat, lag : int
    is_ring : bool
        Whether all edges start together, and wait for each other around a ring.
    """
    slowest_s, around_s = 0.0, np.zeros(len(edges))
    for edge in range(len(nbytes)):
        busy_s = nbytes[edge] / rate_Bps[edge] if nbytes[edge] > 0 else 0.0
        step_s = busy_s + latency_s[edge]
        own_s = max(busy_s, step_s / credits) if repeat > 1 else busy_s
        if active[edge] > 0:
            slowest_s = max(slowest_s, own_s * active[edge])
        around_s[channel[edge]] += step_s
    if is_ring:
        for number in range(len(edges)):
            turn_s = around_s[number] / max(edges[number], 1)
            slowest_s = max(slowest_s, repeat * turn_s / lag)
    return slowest_s


def fill(  # noqa: C901, PLR0912  (numba caches a function without those that it calls)
    pointers: IntArray,
    link: IntArray,
    spare_Bps: FloatArray,
    caps_Bps: FloatArray,
    rates_Bps: FloatArray,
) -> None:
    """Share links max-min fairly (see `sharing.max_min`), in place.

    Parameters
    ----------
    pointers : ndarray of int, shape (flows + 1,)
    link : ndarray of int, shape (hops,)
        Flow f crosses the links ``link[pointers[f]:pointers[f + 1]]``.
    spare_Bps : ndarray of float, shape (links,)
        Capacities, all finite; what is left of them afterwards.
    caps_Bps : ndarray of float, shape (flows,)
    rates_Bps : ndarray of float, shape (flows,)
        Infinite; rates afterwards.
    """
    flows, links = len(pointers) - 1, len(spare_Bps)
    waiting, still = np.arange(flows), flows
    level, is_frozen = np.empty(flows), np.zeros(flows, np.bool_)
    share, lowest = np.empty(links), np.empty(links)
    while still > 0:
        count = np.zeros(links, np.int64)
        for flow in waiting[:still]:
            for hop in range(pointers[flow], pointers[flow + 1]):
                count[link[hop]] += 1
        for number in range(links):
            share[number] = spare_Bps[number] / count[number] if count[number] else np.inf
            lowest[number] = np.inf
        for flow in waiting[:still]:
            level[flow] = caps_Bps[flow]
            for hop in range(pointers[flow], pointers[flow + 1]):
                level[flow] = min(level[flow], share[link[hop]])
            for hop in range(pointers[flow], pointers[flow + 1]):
                lowest[link[hop]] = min(lowest[link[hop]], level[flow])
        frozen = np.empty(still, np.int64)
        freezing = staying = 0
        for flow in waiting[:still]:
            is_frozen[flow] = level[flow] >= caps_Bps[flow]
            for hop in range(pointers[flow], pointers[flow + 1]):
                if lowest[link[hop]] >= share[link[hop]]:
                    is_frozen[flow] = True
            if is_frozen[flow]:
                frozen[freezing] = flow
                freezing += 1
            else:
                waiting[staying] = flow
                staying += 1
        if freezing == 0:  # flows without links and without caps
            return
        still = staying
        order = np.argsort(level[frozen[:freezing]])  # independent of the order of the flows
        for place in order:
            flow = frozen[place]
            rates_Bps[flow] = level[flow]
            for hop in range(pointers[flow], pointers[flow + 1]):
                spare_Bps[link[hop]] -= level[flow]
        for number in range(links):
            spare_Bps[number] = max(spare_Bps[number], 0.0)


def heaviest(
    sources: IntArray,
    order: IntArray,
    own_s: FloatArray,
    gains_s: FloatArray,
    begins_s: FloatArray,
    best: FloatArray,
    rows: FloatArray,
) -> None:
    """Heaviest paths to edges, each after those that come before it (see `path_classes`).

    Parameters
    ----------
    sources : ndarray of int, shape (most, edges)
        Places of edges that come before; padded with the number of edges.
    order : ndarray of int, shape (edges,)
        The edge at each place.
    own_s, begins_s : ndarray of float, shape (edges,)
        By place, as all that follows.
    gains_s : ndarray of float, shape (3, edges)
    best : ndarray of float, shape (5, edges + 1)
        By what a path has gained: nothing, the first gain, the second, the third, the second and
        the third. Its last column is given; the others are filled.
    rows : ndarray of float, shape (5, edges + 1)
        The result, by edge.
    """
    edges, last = len(order), best.shape[1] - 1
    reached = np.empty(5)
    for place in range(edges):
        for row in range(5):
            reached[row] = begins_s[place]
            for column in range(len(sources)):
                reached[row] = max(reached[row], best[row, sources[column, place]])
        first = reached[0] + gains_s[0, place]
        second, third = reached[0] + gains_s[1, place], reached[0] + gains_s[2, place]
        both = max(reached[2] + gains_s[2, place], reached[3] + gains_s[1, place])
        reached[1] = max(reached[1], first)
        reached[4] = max(reached[4], both, second + gains_s[2, place])
        reached[2], reached[3] = max(reached[2], second), max(reached[3], third)
        for row in range(5):
            best[row, place] = reached[row] + own_s[place]
            rows[row, order[place]] = best[row, place]
    for row in range(5):
        rows[row, last] = best[row, last]

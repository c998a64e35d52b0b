"""Sends of a phase, step by step for all edges, at rates that change."""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import FloatArray, IntArray


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

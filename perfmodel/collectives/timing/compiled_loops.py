"""Loops over small arrays, compiled by numba: where NumPy spends its time on the calls themselves.

All of them are written a second time with NumPy, by which they are replaced where numba is missing
or not worth loading; the results are the same bits. None calls another: numba's cache would not
notice that what is called has changed. Loading takes half a second, and some seconds once on each
machine, until the compiled code is in numba's cache on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.memo import T


def step(  # noqa: C901, PLR0912  (numba caches a function without those that it calls)
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
    """Go on in place from step `begin` to `goal`, while all of a step leaves by a time.

    Parameters
    ----------
    rows : ndarray of float, shape (depth, edges + 1)
        See `RecurrenceState.delivered`.
    free : ndarray of float, shape (edges,)
    feeders : ndarray of int, shape (edges, most feeders)
    begins : ndarray of int, shape (edges,)
        Edges in the order in which they begin.
    first, active, done : ndarray of int, shape (edges,)
        In which step of the phase each begins, in how many it works, and what it has sent before.
    begin, goal : int
    first_step : int
        Of the phase.
    lag : int
        Repeats after which a send is sent on.
    credits : int
    nbytes : ndarray of float, shape (edges,)
    from_s : ndarray of float, shape (paces,)
        When each pace begins.
    rate_Bps, latency_s : ndarray of float, shape (paces, edges)
    until_s : float

    Returns
    -------
    int
        The step that was reached.
    """
    depth, edges, paces = len(rows), len(free), len(from_s)
    start, end, arrived = np.empty(edges), np.empty(edges), np.empty(edges)
    low = high = 0
    before, brought, credit = -1, 0, 0  # rows of the send before, of all edges that began with it
    for number in range(begin, goal):
        step, first_s, last_s = number - first_step, np.inf, -np.inf
        while high < edges and first[begins[high]] <= step:
            high += 1
        while low < high and first[begins[low]] + active[begins[low]] <= step:
            low += 1
        for place in range(low, high):
            edge = begins[place]
            send = done[edge] + step - first[edge]
            if send != before:
                before, brought, credit = send, (send - lag) % depth, (send - credits) % depth
            start_s = max(free[edge], rows[credit, edge])
            for column in range(feeders.shape[1]):
                start_s = max(start_s, rows[brought, feeders[edge, column]])
            start[place] = start_s
            first_s = min(first_s, start_s)
        pace_of_first = 0  # what was before all of these sends is skipped
        while pace_of_first + 1 < paces and from_s[pace_of_first + 1] <= first_s:
            pace_of_first += 1
        for place in range(low, high):
            edge = begins[place]
            if first[edge] + active[edge] <= step:
                continue
            since_s, unsent = start[place], nbytes[edge]
            for pace in range(pace_of_first, paces):
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


def send_over_trees(  # noqa: C901, PLR0912  (numba caches a function without those that it calls)
    order: IntArray,
    feeders: IntArray,
    first: IntArray,
    nbytes: FloatArray,
    begin_s: FloatArray,
    sent: IntArray,
    left_s: FloatArray,
    arrived_s: FloatArray,
    credits: int,
    from_s: FloatArray,
    rate_Bps: FloatArray,
    latency_s: FloatArray,
    until_s: float,
) -> float:
    """Work out in place when pieces leave and arrive (see `timing.variable_rate.TreeClocks`).

    Steps that have left by a time are kept, and those after them are not worked out; all are where
    that time is infinite, and none kept.

    Parameters
    ----------
    order : ndarray of int, shape (edges,)
        Edges, each after those that feed it, which begin in an earlier step.
    feeders : ndarray of int, shape (edges, most feeders)
    first : ndarray of int, shape (edges,)
        Step of the first piece of each edge.
    nbytes, begin_s : ndarray of float, shape (edges,)
    sent : ndarray of int, shape (edges,)
        Pieces of each edge in steps that are kept: their times stay what they are.
    left_s : ndarray of float, shape (edges, pieces)
    arrived_s : ndarray of float, shape (edges + 1, pieces)
        The last row is that of edges that nothing feeds.
    credits : int
    from_s, rate_Bps, latency_s
        As for `step`.
    until_s : float

    Returns
    -------
    float
        When an edge that has not sent everything was free first.
    """
    paces, (edges, pieces) = len(from_s), left_s.shape
    ready_s, step = np.empty(pieces), first.max() + pieces
    for place in range(edges):
        edge, pace = order[place], 0
        done, leaves_s, arrives_s = sent[edge], left_s[edge], arrived_s[edge]
        goal = min(pieces, step - first[edge])
        if done >= goal:
            continue
        ready_s[done:goal] = arrived_s[feeders[edge, 0], done:goal]
        for column in range(1, feeders.shape[1]):
            if feeders[edge, column] < edges:
                brought_s = arrived_s[feeders[edge, column]]
                for piece in range(done, goal):
                    ready_s[piece] = max(ready_s[piece], brought_s[piece])
        free_s = leaves_s[done - 1] if done > 0 else max(begin_s[edge], 0.0)
        piece = done
        while piece < goal and free_s <= until_s:  # those at paces that end
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
        flight_s, alone = latency_s[paces - 1, edge], min(max(piece, credits), goal)
        while piece < alone and free_s <= until_s:
            free_s = max(free_s, ready_s[piece]) + hold_s
            leaves_s[piece], arrives_s[piece] = free_s, free_s + flight_s
            piece += 1
        while piece < goal and free_s <= until_s:
            waits_s = max(ready_s[piece], arrives_s[piece - credits])
            free_s = max(free_s, waits_s) + hold_s
            leaves_s[piece], arrives_s[piece] = free_s, free_s + flight_s
            piece += 1
        if free_s > until_s:  # the last piece worked out, or what comes before the first
            step = min(step, first[edge] + max(piece - 1, done))
    earliest_s = np.inf
    for edge in range(edges if until_s < np.inf else 0):
        sent[edge] = count = max(0, min(step - first[edge], pieces))
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
    """Return when the last byte leaves at the earliest: each edge has to send what it has not sent.

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
    link : ndarray of int32, shape (hops,)
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
        count = np.zeros(links)
        for flow in waiting[:still]:
            for hop in range(pointers[flow], pointers[flow + 1]):
                count[link[hop]] += 1.0
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


CHANGES_TO_LOAD = 400
"""Changes of rates that were followed (about a millisecond each) from which on loading pays."""
CHANGES_TO_COMPILE = 5_000
"""Those from which on compiling pays, where numba's cache on disk has nothing yet."""


def _pays(changes: int) -> bool:
    """Whether so many changes of rates are worth the compiled functions, as they are on disk."""
    return changes >= CHANGES_TO_LOAD and (changes >= CHANGES_TO_COMPILE or _are_on_disk())


@cache
def _are_on_disk() -> bool:
    loops = _dispatchers()
    return loops is None or any(map(is_on_disk, loops))


def is_on_disk(compiled: Any) -> bool:
    """Whether numba compiled a function before, on this machine and for this Python."""
    module = Path(compiled.py_func.__code__.co_filename).stem
    name = (
        f"{module}.*{compiled.__name__}-*.py{sys.version_info.major}{sys.version_info.minor}*.nbi"
    )
    return any(Path(compiled.stats.cache_path).glob(name))


@dataclass
class Effort:
    """How much work simulations on a machine have done; it decides when compiled loops pay."""

    spent: int = 0
    """Changes of rates that were followed."""

    def expect(self, changes: int) -> None:
        """Load the compiled functions at once where so many changes are to come that they pay."""
        if _pays(changes) and changes > self.spent:
            self.spend(changes - self.spent)

    @property
    def loops(self) -> Loops | None:
        """The compiled loops, where they pay and exist."""
        return load() if _pays(self.spent) else None

    def spend(self, changes: int = 1) -> None:
        """Count changes of rates; load the compiled functions when they pay."""
        before, self.spent = self.spent, self.spent + changes
        if _pays(self.spent) and not _pays(before):
            load()


class Loops(NamedTuple):
    """The compiled functions, on contiguous arrays of int64, float64, and int32 of links."""

    step: Callable[..., int]
    send_over_trees: Callable[..., float]
    least_tree_end: Callable[..., float]
    fill: Callable[..., None]


@cache
def load() -> Loops | None:
    """Return the functions to be called from now on; None where numba is missing."""
    return _dispatchers()


@cache
def _dispatchers() -> Loops | None:
    """Functions that compile themselves when they are called, or are read from disk.

    Nor are they compiled, in each process anew, where there is no folder that numba may write to
    for its cache, beside these files or in the user's own.
    """
    try:
        return Loops(*map(_compiled, (step, send_over_trees, least_tree_end, fill)))
    except (ImportError, RuntimeError):
        return None


@cache
def _compiled(loop: Callable[..., T]) -> Callable[..., T]:
    from numba import njit  # takes half a second to import

    # It divides by zero as NumPy does. Of numbers that are never nan, the larger is one
    # instruction; nothing else of fastmath, so that results stay the same bits.
    compile_as: Any = njit(cache=True, error_model="numpy", fastmath={"nnan", "nsz"})
    found: Callable[..., T] = compile_as(loop)
    return found


def loaded() -> Loops | None:
    """Return the compiled functions if `load` was called, and they could be compiled."""
    return load() if load.cache_info().currsize else None


def compiled(loop: Callable[..., T]) -> Callable[..., T] | None:
    """Return another loop compiled, where the compiled functions are `loaded`."""
    return None if loaded() is None else _compiled(loop)

"""What edges can do from a time on, and when their sends leave and arrive as that changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.collectives.schedule import Floats, Ints


@dataclass(frozen=True, slots=True)
class Pace:
    """What edges can do from a time on.

    Parameters
    ----------
    from_s : float
    rate_Bps : ndarray of float, shape (edges,)
        Payload bytes per second while an edge sends.
    latency_s : ndarray of float, shape (edges,)
    """

    from_s: float
    rate_Bps: Floats
    latency_s: Floats

    def chosen(self, which: Ints) -> Pace:
        """The same for some of the edges."""
        return Pace(self.from_s, self.rate_Bps[which], self.latency_s[which])


def merged(begin_s: float, one: Pace, other: Pace, after: Pace) -> Pace:
    """Two paces as one that sends as much from a time on."""
    parts = np.array([other.from_s - begin_s, after.from_s - other.from_s])
    parts /= parts.sum()
    rate_Bps = parts[0] * one.rate_Bps + parts[1] * other.rate_Bps
    return Pace(-np.inf, rate_Bps, other.latency_s)


def sent_s(
    start_s: Floats, nbytes: Floats, paces: list[Pace], on: Ints | slice
) -> tuple[Floats, Floats]:
    """When sends of some edges that start at some times have left, and when they arrive."""
    last = paces[-1]
    if len(paces) == 1 or float(start_s.min(initial=np.inf)) >= last.from_s:
        end = start_s + nbytes / last.rate_Bps[on]
        return end, end + last.latency_s[on]
    at, left = start_s, nbytes
    end = np.full(len(start_s), np.inf)
    arrived, todo = end.copy(), np.ones(len(start_s), dtype=np.bool_)
    for pace, after in zip(paces, [*paces[1:], None], strict=True):
        rate, until_s = pace.rate_Bps[on], np.inf if after is None else after.from_s
        finish = at + np.where(left > 0, left / rate, 0.0)
        now = todo & (finish <= until_s) & (at <= until_s)
        end[now], arrived[now] = finish[now], (finish + pace.latency_s[on])[now]
        todo &= ~now
        if not todo.any():
            break
        left = np.maximum(0.0, left - np.maximum(0.0, until_s - at) * rate)
        at = np.maximum(at, until_s)
    return end, arrived

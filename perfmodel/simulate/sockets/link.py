"""A directed link that messages share, and how much of it is free at which time.

A message takes of a link what messages written before it leave free, from the arrival of its first
byte on. So a message that a slower link feeds takes no more of a faster one than what arrives, one
that has yet to arrive leaves the time before to others, no link carries more than its rate, and
none is idle while a message waits for it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

SHARE_TOLERANCE = 1e-12
"""Shares of a message or of a rate that count as nothing."""
LEAST_BYTES = 1.0
"""Of a message on a link: one without payload waits for its turn too."""


@dataclass(slots=True)
class FreeCapacity:
    """What a link of constant rate has left, by time."""

    rate_Bps: float
    _times_s: list[float] = field(default_factory=lambda: [-math.inf])
    _free_Bps: list[float] = field(init=False)
    """From each of the times until the next."""

    def __post_init__(self) -> None:
        self._free_Bps = [self.rate_Bps]

    def forget(self, before_s: float) -> None:
        """Drop what is past: nothing will be sent before this time."""
        if len(self._times_s) > 1 and self._times_s[1] <= before_s:
            past = bisect_right(self._times_s, before_s) - 1
            del self._times_s[:past], self._free_Bps[:past]

    def take(self, first_s: float, last_s: float, nbytes: float) -> tuple[float, float]:
        """Send bytes that arrive evenly between two times; return when they start and end."""
        begin = index = self._split(first_s)
        input_Bps = nbytes / (last_s - first_s) if last_s > first_s else 0.0
        at_s, start_s, sent = first_s, math.inf, 0.0
        while True:
            arrived = (at_s - first_s) * input_Bps if at_s < last_s else nbytes
            waiting = arrived - sent
            if waiting <= SHARE_TOLERANCE * nbytes:
                if at_s >= last_s:
                    break
                waiting = 0.0
            input_now_Bps = input_Bps if at_s < last_s else 0.0
            rate_Bps, lasts_s = _service(self._free_Bps[index], input_now_Bps, waiting)
            stop_s = min(at_s + lasts_s, self._next_s(index), last_s if at_s < last_s else math.inf)
            if stop_s <= at_s:  # what waits is less than the clock resolves
                sent = arrived
                continue
            if rate_Bps > 0:
                start_s = min(start_s, at_s)
                sent += (stop_s - at_s) * rate_Bps
            self._use(index, stop_s, rate_Bps)
            at_s, index = stop_s, index + 1
        self._join(begin, index)
        return min(start_s, at_s), at_s

    def _next_s(self, index: int) -> float:
        return self._times_s[index + 1] if index + 1 < len(self._times_s) else math.inf

    def _split(self, at_s: float) -> int:
        """Return the index of the time `at_s`, which it inserts."""
        index = bisect_right(self._times_s, at_s) - 1
        if self._times_s[index] < at_s:
            index += 1
            self._times_s.insert(index, at_s)
            self._free_Bps.insert(index, self._free_Bps[index - 1])
        return index

    def _use(self, index: int, until_s: float, rate_Bps: float) -> None:
        """Take a rate from the time of an index until another, no later than the next."""
        if until_s < self._next_s(index):
            self._times_s.insert(index + 1, until_s)
            self._free_Bps.insert(index + 1, self._free_Bps[index])
        left_Bps = self._free_Bps[index] - rate_Bps
        self._free_Bps[index] = left_Bps if left_Bps > SHARE_TOLERANCE * self.rate_Bps else 0.0

    def _join(self, begin: int, end: int) -> None:
        """Drop times at which nothing changes, between two indices."""
        for index in range(min(end, len(self._times_s) - 1), max(begin, 1) - 1, -1):
            if self._free_Bps[index] == self._free_Bps[index - 1]:
                del self._times_s[index], self._free_Bps[index]


def _service(free_Bps: float, input_Bps: float, waiting: float) -> tuple[float, float]:
    """Return the rate at which a message is sent now, and for how long at most; seconds."""
    if waiting <= 0 and input_Bps <= free_Bps:
        return input_Bps, math.inf
    return free_Bps, waiting / (free_Bps - input_Bps) if free_Bps > input_Bps else math.inf


_Booking = tuple[float, float, float, float, float]
"""Bytes at a link: when they begin and end to arrive, begin and end to leave, and how many."""


def _share(at_s: float, from_s: float, to_s: float) -> float:
    if at_s >= to_s:
        return 1.0
    return 0.0 if at_s <= from_s else (at_s - from_s) / (to_s - from_s)


@dataclass(slots=True)
class Link:
    """One directed link, with a token bucket where a shaper lets a burst pass."""

    rate_Bps: float
    burst_bytes: float = 0.0
    """Size of the token bucket."""
    _capacity: FreeCapacity = field(init=False)
    _bookings: deque[_Booking] = field(default_factory=deque)
    _empty_s: float = -math.inf
    """From when on nothing waits."""

    def __post_init__(self) -> None:
        self._capacity = FreeCapacity(self.rate_Bps)

    def book(
        self, at_s: float, first_s: float, last_s: float, nbytes: float
    ) -> tuple[float, float]:
        """Send bytes that arrive between two times; return when the first and the last leave.

        `at_s`: now; nothing that is booked later arrives before it.

        Behind a bucket bytes leave earlier than behind a queue of the same rate, by the time in
        which the bucket fills, but not before they have arrived.
        """
        self._capacity.forget(at_s)
        start_s, end_s = self._capacity.take(first_s, last_s, max(nbytes, LEAST_BYTES))
        early_s = self.burst_bytes / self.rate_Bps
        start_s, end_s = max(first_s, start_s - early_s), max(last_s, end_s - early_s)
        bookings = self._bookings
        while bookings and bookings[0][3] <= at_s:
            bookings.popleft()
        bookings.append((first_s, last_s, start_s, end_s, nbytes))
        self._empty_s = max(self._empty_s, end_s)
        return start_s, end_s

    def waiting_bytes(self, at_s: float) -> float:
        """Return the bytes that have arrived by a time and have not left."""
        waiting = 0.0
        if at_s < self._empty_s:
            for first_s, last_s, start_s, end_s, nbytes in self._bookings:
                if at_s < end_s:
                    waiting += nbytes * (
                        _share(at_s, first_s, last_s) - _share(at_s, start_s, end_s)
                    )
        return waiting

"""What messages between processes wait for: links, sockets and the cores that they share.

Times only: every message is booked when it is written to a socket, first come first served, and
bookings are final. A connection between two ranks carries all messages of one direction in the
order in which they were written. Unsent data wait in the sockets of the host, but for a small part
in the queue of its network device (TCP small queues), behind which a ready message on another
connection has to wait. Switches further on queue whatever arrives faster than they can send it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

ENDLESS = 100.0
"""A link this many times as fast as the slowest on a route never makes a message wait."""


@dataclass(slots=True)
class _Booking:
    """Bytes at a link: when they arrive and when they leave."""

    first_s: float
    last_s: float
    start_s: float
    end_s: float
    nbytes: float

    def waiting_bytes(self, at_s: float) -> float:
        """Return the bytes that have arrived by a time and have not left."""
        return self.nbytes * (
            _share(at_s, self.first_s, self.last_s) - _share(at_s, self.start_s, self.end_s)
        )


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
    free_s: float = 0.0
    _tokens: float = 0.0
    _bookings: deque[_Booking] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._tokens = self.burst_bytes

    def book(self, first_s: float, last_s: float, nbytes: float) -> tuple[float, float]:
        """Send bytes that arrive between two times; return when the first and the last leave."""
        start_s = max(first_s, self.free_s)
        earned = (start_s - self.free_s) * self.rate_Bps
        self._tokens = min(self.burst_bytes, self._tokens + earned)
        free = min(self._tokens, nbytes)
        self._tokens -= free
        end_s = max(start_s + (nbytes - free) / self.rate_Bps, last_s)
        while self._bookings and self._bookings[0].end_s <= first_s:
            self._bookings.popleft()
        self._bookings.append(_Booking(first_s, last_s, start_s, end_s, nbytes))
        self.free_s = end_s
        return start_s, end_s

    def queue_s(self, at_s: float, most_bytes: float) -> float:
        """Return the wait of a small message behind `most_bytes` of a queue at most."""
        if self.free_s <= at_s:
            return 0.0
        waiting = sum(booking.waiting_bytes(at_s) for booking in self._bookings)
        return min(waiting, most_bytes) / self.rate_Bps


@dataclass(slots=True)
class Connection:
    """One direction of the connection between two ranks."""

    links: Sequence[Link]
    """Those of the route that can make messages wait; the first is its host's own."""
    latency_s: float
    queue_bytes: float
    """Most that the host's sockets put in the queue of its device."""
    sent_s: float = 0.0

    @property
    def rate_Bps(self) -> float:
        """Rate of the slowest link."""
        return min((link.rate_Bps for link in self.links), default=float("inf"))

    def send(self, at_s: float, nbytes: float) -> float:
        """Write data; return when all of them have arrived."""
        first_s = last_s = at_s
        for number, link in enumerate(self.links):
            first_s, last_s = link.book(first_s, last_s, nbytes)
            if number == 0:
                self.sent_s = last_s
        return last_s + self.latency_s

    def send_ready(self, at_s: float) -> float:
        """Write a ready message, whose size is negligible; return when it has arrived."""
        at_s = max(at_s, self.sent_s)
        most = self.queue_bytes
        for link in self.links:
            at_s += link.queue_s(at_s, most)
            most = float("inf")
        return at_s + self.latency_s


@dataclass(slots=True)
class Cores:
    """Cores that all processes of a machine share; first come first served, one core a task.

    A step's latency on an idle machine includes its work; here is only the wait for a core.
    """

    number: int | None
    """None: every process has its own, so that nothing waits."""
    speed: float = 1.0
    _free_s: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self._free_s = [0.0] * (self.number or 0)

    def wait_s(self, at_s: float, work_s: float) -> float:
        """Book work that arrives at a time, no earlier than any other; return how long it waits.

        `work_s`: on a core of speed 1; seconds.
        """
        if not self._free_s or work_s <= 0:
            return 0.0
        start_s = max(at_s, self._free_s[0])
        heapq.heapreplace(self._free_s, start_s + work_s / self.speed)
        return start_s - at_s

    def done_s(self, at_s: float, work_s: float) -> float:
        """As `wait_s`, but return when the work is done."""
        return at_s + self.wait_s(at_s, work_s) + work_s / self.speed

"""Sockets between processes: what data and ready messages wait for on their way.

Times only: everything is booked when it is handed to a socket, first come first served, and nothing
is taken back. A connection between two ranks carries all messages of one direction in the order in
which they were written. What a host has not yet sent waits in its sockets, but for a small part in
the queue of its network device (TCP small queues), behind which a ready message on another
connection has to wait. Switches further on keep whatever comes faster than they can send it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

ENDLESS = 100.0
"""A link so many times as fast as the slowest on a route never makes anything wait."""


@dataclass(slots=True)
class _Booked:
    """Some bytes at a link: when they arrive there and when they leave it."""

    first_s: float
    last_s: float
    start_s: float
    end_s: float
    nbytes: float

    def waiting_bytes(self, at_s: float) -> float:
        """Bytes that have arrived by a time and have not left."""
        return self.nbytes * (
            _share(at_s, self.first_s, self.last_s) - _share(at_s, self.start_s, self.end_s)
        )


def _share(at_s: float, from_s: float, to_s: float) -> float:
    if at_s >= to_s:
        return 1.0
    return 0.0 if at_s <= from_s else (at_s - from_s) / (to_s - from_s)


@dataclass(slots=True)
class Link:
    """One directed link, with a token bucket where a shaper lets a burst pass.

    Parameters
    ----------
    rate_Bps : float
    burst_bytes : float
        So much may pass at once after a pause.
    """

    rate_Bps: float
    burst_bytes: float = 0.0
    free_s: float = 0.0
    _tokens: float = 0.0
    _booked: deque[_Booked] = field(default_factory=deque)

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
        while self._booked and self._booked[0].end_s <= first_s:
            self._booked.popleft()
        self._booked.append(_Booked(first_s, last_s, start_s, end_s, nbytes))
        self.free_s = end_s
        return start_s, end_s

    def queue_s(self, at_s: float, most_bytes: float) -> float:
        """How long something small waits that arrives at a time, behind so many bytes at most."""
        if self.free_s <= at_s:
            return 0.0
        waiting = sum(one.waiting_bytes(at_s) for one in self._booked)
        return min(waiting, most_bytes) / self.rate_Bps


@dataclass(slots=True)
class Connection:
    """One direction of the connection between two ranks.

    Parameters
    ----------
    links : sequence of Link
        That can make it wait, in the order of the route; the first is its host's own.
    latency_s : float
    queue_bytes : float
        Most that the host's sockets keep in the queue of its device.
    """

    links: Sequence[Link]
    latency_s: float
    queue_bytes: float
    left_s: float = 0.0

    @property
    def rate_Bps(self) -> float:
        """What the slowest of the links lets pass."""
        return min((link.rate_Bps for link in self.links), default=float("inf"))

    def data(self, at_s: float, nbytes: float) -> float:
        """Write data; return when all of it has arrived."""
        first_s = last_s = at_s
        for number, link in enumerate(self.links):
            first_s, last_s = link.book(first_s, last_s, nbytes)
            if number == 0:
                self.left_s = last_s
        return last_s + self.latency_s

    def word(self, at_s: float) -> float:
        """Write a message too small to count; return when it has arrived."""
        at_s = max(at_s, self.left_s)
        most = self.queue_bytes
        for link in self.links:
            at_s += link.queue_s(at_s, most)
            most = float("inf")
        return at_s + self.latency_s

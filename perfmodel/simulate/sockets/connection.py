"""What messages between processes wait for: links, sockets and the cores that they share.

Times only: every message takes its share of all links when it is written to a socket, after those
that were written before (see `link.py`), and keeps it. A connection between two ranks carries all
messages of one direction in the order in which they were written. Unsent data wait in the sockets
of the host, but for a small part in the queue of its network device (TCP small queues), behind
which a ready message on another connection has to wait. Switches further on queue whatever arrives
faster than they can send it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from perfmodel.simulate.sockets.link import Link

Schedule = Callable[[float, Callable[[], None]], None]
"""Acts at a time, or now if that has passed."""


@dataclass(slots=True)
class Connection:
    """One direction of the connection between two ranks."""

    links: Sequence[Link]
    latency_s: float
    queue_bytes: float
    """Most that the host's sockets put in its own queues at once, the device's included."""
    own: int
    """So many of the first links are the sender's host's, its device included."""
    sent_s: float = field(default=0.0, init=False)
    """When all data have left the sender's host."""
    begun_s: float = field(default=0.0, init=False)
    """When the last data that were sent begin to leave the last link."""
    waiting: deque[Callable[[], None]] = field(default_factory=deque, init=False)
    """What is to be sent after it, in order."""
    rate_Bps: float = field(init=False)
    """Rate of the slowest link."""

    def __post_init__(self) -> None:
        self.rate_Bps = min((link.rate_Bps for link in self.links), default=float("inf"))

    def send(self, at_s: float, nbytes: float) -> float:
        """Write data; return when all of them have arrived."""
        first_s = last_s = at_s
        for number, link in enumerate(self.links, start=1):
            first_s, last_s = link.book(at_s, first_s, last_s, nbytes)
            if number == self.own:
                self.sent_s = last_s
        self.begun_s = first_s
        return last_s + self.latency_s

    def send_ready(self, at_s: float) -> float:
        """Write a ready message, whose size is negligible; return when it has arrived."""
        at_s = max(at_s, self.sent_s)
        most = self.queue_bytes
        for number, link in enumerate(self.links):
            if number >= self.own:
                most = float("inf")
            ahead = min(link.waiting_bytes(at_s), most)
            if ahead:
                most -= ahead
                at_s += ahead / link.rate_Bps
        return at_s + self.latency_s

    def send_in_order(self, actions: Sequence[Callable[[], None]], schedule: Schedule) -> None:
        """Do what sends something, in order, after all that waits already.

        Each begins when what was sent before it begins to arrive, so that no more than one piece of
        a message is ahead of what other connections send over the same links.
        """
        if not self.waiting and len(actions) == 1:
            actions[0]()
            return
        idle = not self.waiting
        self.waiting.extend(actions)
        if idle:
            self._send_next(schedule)

    def _send_next(self, schedule: Schedule) -> None:
        self.waiting.popleft()()
        if self.waiting:
            schedule(self.begun_s, lambda: self._send_next(schedule))


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

"""Links and connections that messages share, and what processes do for them on their cores.

A message takes of a link what messages written before it leave free, from the arrival of its first
byte on. So a message that a slower link feeds takes no more of a faster one than what arrives, one
that has yet to arrive leaves the time before to others, no link carries more than its rate, and
none is idle while a message waits for it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import simpy

from perfmodel.garbage import no_collections
from perfmodel.library.model import CommLibrary
from perfmodel.simulate.network import schedule_last
from perfmodel.topology.model import Sockets

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
    _bookings: deque[tuple[float, float, float, float, float]] = field(default_factory=deque)
    """Bytes: when they begin and end to arrive, begin and end to leave, and how many."""
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


@dataclass(slots=True)
class EventQueue:
    """Actions by time; of those at the same time, in order."""

    env: simpy.Environment
    now_s: float = field(default=0.0, init=False)
    """Time of the action that is performed."""
    _events: list[tuple[float, int, Callable[[], object]]] = field(default_factory=list, init=False)
    _count: itertools.count[int] = field(default_factory=itertools.count, init=False)
    _wake: simpy.Event | None = field(default=None, init=False)
    _wake_s: float = field(default=0.0, init=False)

    def next_order(self) -> int:
        """Return a place in the order of actions at the same time."""
        return next(self._count)

    def at(self, time_s: float, action: Callable[[], object], order: int | None = None) -> None:
        """Act at a time; of what happens at the same time, in order (default: of these calls)."""
        order = next(self._count) if order is None else order
        heapq.heappush(self._events, (time_s, order, action))
        if self._wake is None or time_s < self._wake_s:
            self._wait(time_s)

    def _wait(self, time_s: float) -> None:
        wake = schedule_last(self.env, self._advance, max(0.0, time_s - self.env.now))
        self._wake, self._wake_s = wake, time_s

    def _advance(self, event: simpy.Event) -> None:
        """Run to the next event of SimPy."""
        if event is not self._wake:
            return
        self._wake_s = -math.inf  # events that are added meanwhile are seen below
        with no_collections():  # a million rounds of ranks that would be visited again and again
            self._run()
        self._wake = None
        if self._events:
            self._wait(self._events[0][0])

    def _run(self) -> None:
        events, env = self._events, self.env
        while events and events[0][0] <= max(env.now, env.peek()):
            self.now_s, _, action = heapq.heappop(events)
            action()


Schedule = Callable[[float, Callable[[], None]], None]
"""Acts at a time, or now if that has passed."""


@dataclass
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

    def __post_init__(self) -> None:
        # Of the slowest link:
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
        idle = not self.waiting
        self.waiting.extend(actions)
        if idle:
            self._send_next(schedule)

    def _send_next(self, schedule: Schedule) -> None:
        self.waiting.popleft()()
        if self.waiting:
            schedule(self.begun_s, lambda: self._send_next(schedule))


@dataclass
class Cores:
    """Cores that all processes of a machine share; first come first served, one core a task.

    A step's latency on an idle machine includes its work; here is only the wait for a core.
    """

    number: int | None
    """None: every process has its own, so that nothing waits."""
    speed: float = 1.0

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


PIECE_BYTES = 65536
"""Bytes that a receiver processes at once (Linux delivers TCP in pieces of 64 KiB at most)."""


@dataclass(frozen=True, slots=True)
class CoreWork:
    """Work on the cores that all processes of a machine share, first come first served."""

    library: CommLibrary
    sockets: Sockets
    queue: EventQueue
    cores: Cores

    def occupy(self, work_s: float, ranks: int) -> None:
        """Keep one core of each of some ranks' processes busy for `work_s` from now on."""
        if self.cores.number is None:
            return
        for _ in range(ranks):
            self.queue.at(self.queue.env.now, partial(self._occupy, work_s))

    def when_free(self, work_s: float, action: Callable[[], None]) -> None:
        """Perform an action as soon as a core is free for it."""
        wait_s = self.cores.wait_s(self.queue.now_s, work_s)
        if wait_s > 0:
            self.queue.at(self.queue.now_s + wait_s, action)
        else:
            action()

    def receive(
        self, at_s: float, idle_s: float, nbytes: float, rate_Bps: float, land: Callable[[], None]
    ) -> None:
        """Process arriving data on a core of the receiver; deliver after the last packet.

        Data before the last packet are processed piece by piece, each in the middle of its arrival.
        An idle machine is done at `idle_s`, wake-up included; a busy one waits for a core instead
        of waking up, so that the later of both counts. What lands at the same time lands in the
        order in which it was written, however it was processed.
        """
        queue, cores, order = self.queue, self.cores, self.queue.next_order()
        if cores.number is None:
            queue.at(idle_s, land, order)
            return
        last_bytes = min(nbytes, self.sockets.frame_bytes or PIECE_BYTES)
        pieces = math.ceil((nbytes - last_bytes) / PIECE_BYTES)
        if pieces:
            piece_bytes = (nbytes - last_bytes) / pieces
            occupy = partial(self._occupy, self._receiving_s(piece_bytes, rate_Bps))
        for piece in range(pieces):
            before_s = (last_bytes + (pieces - piece - 0.5) * piece_bytes) / rate_Bps
            queue.at(max(queue.now_s, at_s - before_s), occupy)
        last_s = self.library.core_message + self._receiving_s(last_bytes, rate_Bps)

        def process_last() -> None:
            queue.at(max(idle_s, cores.done_s(queue.now_s, last_s)), land, order)

        queue.at(at_s, process_last)

    def _occupy(self, work_s: float) -> None:
        """Keep a core busy from now on, or as soon as one is free."""
        self.cores.wait_s(self.queue.now_s, work_s)

    def _receiving_s(self, nbytes: float, rate_Bps: float) -> float:
        """Return how long arriving data keep a core of speed 1 busy, sending included; seconds.

        One core at most: packets that arrive faster than it processes them are batched.
        """
        library, frame = self.library, self.sockets.frame_bytes
        if frame and library.core_frame > 0:
            return min(nbytes / frame * library.core_frame, nbytes / rate_Bps * self.cores.speed)
        return 0.0 if library.core_bytes is None else nbytes / library.core_bytes

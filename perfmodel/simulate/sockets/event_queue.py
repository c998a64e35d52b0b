"""What happens on sockets, and when: a queue beside SimPy's, which wakes it by an event."""

from __future__ import annotations

import gc
import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import simpy

from perfmodel.simulate.network import schedule_last


@contextmanager
def without_collector() -> Iterator[None]:
    """Let Python's cycle collector rest, and set it as it was.

    Messages leave no cycles behind, but a million rounds of ranks that the collector visits again
    and again: it took up to half of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


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
        delay_s = max(0.0, time_s - self.env.now)
        wake = schedule_last(self.env, self._advance, delay_s)
        self._wake, self._wake_s = wake, time_s

    def _advance(self, event: simpy.Event) -> None:
        """Run to the next event of SimPy."""
        if event is not self._wake:
            return
        self._wake_s = -math.inf  # events that are added meanwhile are seen below
        with without_collector():
            self._run()
        self._wake = None
        if self._events:
            self._wait(self._events[0][0])

    def _run(self) -> None:
        events, env = self._events, self.env
        while events and events[0][0] <= max(env.now, env.peek()):
            self.now_s, _, action = heapq.heappop(events)
            action()

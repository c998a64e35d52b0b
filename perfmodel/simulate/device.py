"""One rank class in simulated time: its compute slows down while it communicates."""

from __future__ import annotations

from dataclasses import dataclass, field

import simpy


@dataclass(slots=True, eq=False)
class _Work:
    done: simpy.Event
    left_s: float
    since_s: float
    version: int = 0


@dataclass(slots=True, eq=False)
class Device:
    """Runs compute at full speed, or `slowdown` times slower while a collective is under way.

    Parameters
    ----------
    env : simpy.Environment
    slowdown : float
        1 or more.
    """

    env: simpy.Environment
    slowdown: float
    _communicating: int = 0
    _running: list[_Work] = field(default_factory=list)

    def compute(self, duration_s: float) -> simpy.Event:
        """Start work that takes `duration_s` undisturbed; the event fires when it is done."""
        if self.slowdown == 1.0 or duration_s == 0.0:
            return self.env.timeout(duration_s)
        work = _Work(self.env.event(), duration_s, self.env.now)
        self._running.append(work)
        self._schedule(work)
        return work.done

    def communicate(self, change: int) -> None:
        """Count collectives under way: +1 when one starts, -1 when one ends."""
        before = self._factor
        self._communicating += change
        if self._factor != before:
            for work in self._running:
                work.left_s -= (self.env.now - work.since_s) / before
                work.since_s = self.env.now
                self._schedule(work)

    @property
    def _factor(self) -> float:
        return self.slowdown if self._communicating else 1.0

    def _schedule(self, work: _Work) -> None:
        work.version += 1
        version = work.version
        end = self.env.timeout(max(0.0, work.left_s) * self._factor)
        end.callbacks.append(lambda _: self._finish(work, version))

    def _finish(self, work: _Work, version: int) -> None:
        if version == work.version:
            self._running.remove(work)
            work.done.succeed()

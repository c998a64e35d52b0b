"""Cores of a machine that all its processes share, where a library's work has to be done on them.

What a ring step of an idle machine takes is in its latency already; here is only how long it waits
for a core because all of them have something else to do.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


@dataclass(slots=True)
class Cores:
    """Some cores; work is done first come first served, each piece on one core.

    Parameters
    ----------
    number : int, optional
        How many; None where every process has its own, so that nothing waits.
    speed : float
    """

    number: int | None
    speed: float = 1.0
    _free_s: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self._free_s = [0.0] * (self.number or 0)

    def wait_s(self, at_s: float, work_s: float) -> float:
        """Do work that comes at a time, not before any other; return how long it waits.

        Parameters
        ----------
        at_s : float
        work_s : float
            How long a core of speed 1 is busy with it.
        """
        if not self._free_s or work_s <= 0:
            return 0.0
        start_s = max(at_s, self._free_s[0])
        heapq.heapreplace(self._free_s, start_s + work_s / self.speed)
        return start_s - at_s

    def done_s(self, at_s: float, work_s: float) -> float:
        """As `wait_s`; return when the work is done."""
        return at_s + self.wait_s(at_s, work_s) + work_s / self.speed

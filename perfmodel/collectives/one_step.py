"""A single send per edge, at rates that change now and then: `Clocks` without a recurrence."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perfmodel.collectives.clocks import Ends
from perfmodel.collectives.schedule import Floats, Phase


@dataclass
class OneStep:
    """Edges each of which sends once, on their way. Times are seconds since the collective began.

    Parameters
    ----------
    phase : Phase
        Of one repeat.
    begin_s : ndarray of float, shape (edges,)
        When each edge may send at the earliest.
    rate_Bps, latency_s : ndarray of float, shape (edges,)
        Until `change`.
    """

    phase: Phase
    begin_s: Floats
    rate_Bps: Floats
    latency_s: Floats
    _left_bytes: Floats = field(init=False)
    _since_s: Floats = field(init=False)

    def __post_init__(self) -> None:
        self._left_bytes = self.phase.nbytes * self.phase.active.astype(float)
        self._since_s = np.array(self.begin_s, float)

    def change(self, now_s: float, rate_Bps: Floats, latency_s: Floats) -> None:
        """From now on the edges have other rates and latencies; what is sent stays sent."""
        leave_s = self._leave_s()
        under_way = leave_s > now_s
        sent = self.rate_Bps * np.maximum(0.0, now_s - self._since_s)
        self._left_bytes = np.where(under_way, np.maximum(0.0, self._left_bytes - sent), 0.0)
        # What has left keeps the time at which it did, and the latency that it met.
        self._since_s = np.where(under_way, np.maximum(self._since_s, now_s), leave_s)
        self.rate_Bps = rate_Bps
        self.latency_s = np.where(under_way, latency_s, self.latency_s)

    def ends(self) -> Ends:
        """Tell how the sends end if nothing changes any more."""
        leave_s, works = self._leave_s(), self.phase.active > 0
        landed_s = np.where(works, leave_s + self.latency_s, 0.0)
        return Ends(float(leave_s[works].max(initial=0.0)), landed_s)

    def left(self) -> Floats:
        """Share of its bytes that each edge has not yet sent; shape (edges,)."""
        whole = self.phase.nbytes * self.phase.active.astype(float)
        share: Floats = np.divide(
            self._left_bytes, whole, out=np.zeros(len(whole)), where=whole > 0
        )
        return share

    def _leave_s(self) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            busy_s = self._left_bytes / self.rate_Bps
        return self._since_s + np.where(self._left_bytes > 0, busy_s, 0.0)


def is_one_step(phases: tuple[Phase, ...]) -> bool:
    """Whether no edge sends more than once, and none waits for another."""
    return len(phases) == 1 and phases[0].repeat == 1

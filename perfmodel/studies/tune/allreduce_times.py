"""Time of an all-reduce of any size: computed for some sizes, interpolated between them.

A library changes its algorithm or protocol at certain sizes, where times jump. Bisection finds
these; between two computed sizes with the same algorithm and protocol the time is close to linear.
How close is measured whenever a size is computed that was interpolated before.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, RankGroup
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.lowering.lowered import link_times_s
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.steps.simulate_step import simulated_s

AlgorithmProtocol = tuple[str, str]
"""Algorithm and protocol of a size."""

SIZE_STEP_BYTES = 4
"""Resolution of sizes."""
FEW_RANKS = 32
"""Most ranks for which computing a collective takes about a millisecond."""
RATIO_ON_FEW, RATIO_ON_MANY = 2.0, 3.0
"""Ratio of neighbouring sizes of the first grid, on few and on many ranks."""
LEAST_ERROR = 2e-4
"""Least relative error of interpolation that is assumed.

Pieces of a size are whole lines of a protocol: 1.2e-4 of the small trees on 8 ranks over Ethernet.
"""
UNSEEN_ERROR = 0.05
"""Relative error of interpolation where none was measured yet."""

TimeOf = Callable[[int], float]
"""Seconds of an all-reduce of so many bytes of gradients."""


@dataclass
class AllReduceTimes:
    """Times of all-reduces of one group with nothing else on the network.

    `scale`: bytes on the network per byte of gradients (a hook that compresses sends fewer).
    `factor`: on all times; 0 where communication takes no time.
    """

    timer: UncontendedTimer
    group: RankGroup
    scale: float = 1.0
    factor: float = 1.0
    _sizes: list[int] = field(default_factory=list)
    _timed: dict[int, tuple[float, AlgorithmProtocol]] = field(default_factory=dict)
    _errors: dict[int, float] = field(default_factory=dict)  # by the lower size of an interval
    _per_byte: FloatArray | None = None
    _interpolated: dict[int, float] = field(default_factory=dict)
    _lower: dict[int, float] = field(default_factory=dict)

    @property
    def computed_sizes(self) -> int:
        """Number of sizes computed so far."""
        return len(self._timed)

    def compute(self, nbytes: int) -> float:
        """Compute the time of one size of gradients; seconds."""
        size = self.wire_bytes(nbytes)
        if size not in self._timed:
            lowered, time_s = self.timer.best("all_reduce", size, self.group)
            if self.in_order:
                time_s = simulated_s(self.timer, self.group, "all_reduce", size)
            time_s *= self.factor
            self._record_error(size, time_s)
            self._timed[size] = (time_s, (lowered.schedule.algorithm, lowered.protocol))
            capacity_Bps = self.timer.machine.topology.arcs.bandwidth_Bps
            links = self.factor * link_times_s(capacity_Bps, lowered) / size
            self._per_byte = links if self._per_byte is None else np.minimum(self._per_byte, links)
            insort(self._sizes, size)
            self._interpolated.clear()
            self._lower.clear()
        return self._timed[size][0]

    @property
    def in_order(self) -> bool:
        """Whether the messages of a connection are in order, so that each is simulated."""
        return self.timer.machine.library.in_order

    def is_timed(self, nbytes: int) -> bool:
        """Whether the time of a size has been computed."""
        return self.wire_bytes(nbytes) in self._timed

    def interpolate(self, nbytes: IntArray) -> FloatArray:
        """Interpolate the times of some sizes of gradients; seconds."""
        wire = np.ceil(nbytes * self.scale / SIZE_STEP_BYTES) * SIZE_STEP_BYTES
        times = [self._timed[size][0] for size in self._sizes]
        read: FloatArray = np.interp(wire, self._sizes, times)
        return read

    def time_s(self, nbytes: int) -> float:
        """Return the time of one size, computed before or interpolated; seconds."""
        if nbytes not in self._interpolated:
            self._interpolated[nbytes] = self._interpolate(self.wire_bytes(nbytes))
        return self._interpolated[nbytes]

    def _interpolate(self, size: int) -> float:
        timed, sizes = self._timed, self._sizes
        index = bisect_left(sizes, size)
        if size in timed or not 0 < index < len(sizes):
            return timed[sizes[min(index, len(sizes) - 1)]][0]
        low, high = sizes[index - 1], sizes[index]
        low_s, high_s = timed[low][0], timed[high][0]
        return low_s + (high_s - low_s) * ((size - low) / (high - low))

    def lower_s(self, nbytes: int) -> float:
        """Return the least time of a size, given the error that interpolation may have; seconds."""
        if nbytes not in self._lower:
            size, least_s = self.wire_bytes(nbytes), self.time_s(nbytes)
            if size not in self._timed:
                position = bisect_left(self._sizes, size)
                low = self._sizes[max(0, position - 1)]
                least_s *= 1 - self._errors.get(low, UNSEEN_ERROR)
                (before_s, style), (_, other) = self._timed[low], self._timed[self._sizes[position]]
                least_s = max(before_s, least_s) if style == other else least_s
            self._lower[nbytes] = least_s
        return self._lower[nbytes]

    def prepare(self, least: int, most: int) -> None:
        """Compute enough sizes to interpolate all between two sizes of gradients."""
        ratio = RATIO_ON_MANY if len(self.group) > FEW_RANKS else RATIO_ON_FEW
        steps = max(1, int(np.ceil(np.log(max(most / least, 1.0)) / np.log(ratio))))
        grid = [int(size) for size in np.geomspace(least, most, steps + 1)]
        for size in [least, most, *grid[::2], *grid[1::2]]:
            self.compute(size)
        for low, high in list(pairwise(self._sizes)):
            if self._timed[low][1] != self._timed[high][1]:
                self._find_jump(low, high)

    def lower_bounds(self) -> list[tuple[int, int, float]]:
        """Return the least time of the sizes between neighbouring computed ones.

        Times do not fall with the size while algorithm and protocol are the same.

        Returns first size and last, in bytes on the network, and seconds.
        """
        bounds = []
        for low, high in pairwise((*self._sizes, self._sizes[-1])):
            (low_s, style), (high_s, high_style) = self._timed[low], self._timed[high]
            bounds.append((low, high, low_s if style == high_style else min(low_s, high_s)))
        return bounds

    @property
    def wire_s_per_byte(self) -> float:
        """Least time of the busiest link per byte over all algorithms used; seconds per byte."""
        if self._per_byte is None or self.in_order:  # shaped links let bursts pass at any rate
            return 0.0
        return float(self._per_byte.max(initial=0.0))

    def wire_bytes(self, nbytes: int) -> int:
        """Return the bytes on the network of some bytes of gradients."""
        steps = math.ceil(nbytes * self.scale / SIZE_STEP_BYTES)
        return max(SIZE_STEP_BYTES, steps * SIZE_STEP_BYTES)

    def _record_error(self, size: int, time_s: float) -> None:
        """Record the error that interpolating this size would have had.

        Halving an interval quarters the error of a straight line; half of it is assumed.
        """
        position = bisect_left(self._sizes, size)
        if not 0 < position < len(self._sizes):
            return
        low, high = self._sizes[position - 1], self._sizes[position]
        if self._timed[low][1] == self._timed[high][1] and time_s > 0:
            error = abs(self._interpolate(size) / time_s - 1.0)
            self._errors[low] = self._errors[size] = max(error / 2, LEAST_ERROR)

    def _find_jump(self, low: int, high: int) -> None:
        """Find the size between two at which algorithm or protocol change, by bisection."""
        first = self._timed[low][1]
        while high - low > SIZE_STEP_BYTES:
            middle = (low + high) // (2 * SIZE_STEP_BYTES) * SIZE_STEP_BYTES
            lowerings = lower_collective(self.timer.machine, "all_reduce", middle, self.group)
            lowered = lowerings[0]
            if len(lowerings) > 1:
                lowered, _ = self.timer.best("all_reduce", middle, self.group)
            is_first = (lowered.schedule.algorithm, lowered.protocol) == first
            low, high = (middle, high) if is_first else (low, middle)
        for size in (low, high):
            if size not in self._timed:
                self.compute(int(size / self.scale))

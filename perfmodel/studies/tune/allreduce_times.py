"""Time of an all-reduce of any size: computed for some sizes, interpolated between them.

A library changes its algorithm or protocol at certain sizes, where times jump. Bisection finds
these; between two computed sizes with the same algorithm and protocol the time is close to linear.
How close is measured whenever a size is computed that was interpolated before.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, RankGroup
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.lowering.lowered import link_times_s
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.steps.simulate_step import simulated_s

AlgorithmProtocol = tuple[str, str]
"""Algorithm and protocol of a size."""

ITEM = 4
"""Resolution of sizes; bytes."""
FEW_RANKS = 32
"""Most ranks for which computing a collective takes about a millisecond."""
SMALL, LARGE = 2.0, 3.0
"""Ratio of neighbouring sizes of the first grid, on few and on many ranks."""
LEAST_ERROR = 2e-4
"""Least relative error of interpolation that is assumed.

Pieces of a size are whole lines of a protocol: 1.2e-4 of the small trees on 8 ranks over Ethernet.
"""
UNSEEN = 0.05
"""Relative error of interpolation where none was measured yet."""


@dataclass
class AllReduceTimes:
    """Times of all-reduces of one group with nothing else on the network.

    `scale`: bytes on the network per byte of gradients (a hook that compresses sends fewer).
    `factor`: on all times; 0 where communication takes no time.
    `computed_sizes`: number of sizes computed so far.
    """

    timer: UncontendedTimer
    group: RankGroup
    scale: float = 1.0
    factor: float = 1.0
    computed_sizes: int = 0
    _sizes: list[int] = field(default_factory=list)
    _timed: dict[int, tuple[float, AlgorithmProtocol]] = field(default_factory=dict)
    _errors: dict[int, float] = field(default_factory=dict)  # by the lower size of an interval
    _arrays: tuple[FloatArray, FloatArray] | None = None
    _per_byte: FloatArray | None = None
    _interpolated: dict[int, float] = field(default_factory=dict)
    _lower: dict[int, float] = field(default_factory=dict)

    def compute(self, nbytes: int) -> float:
        """Compute the time of one size of gradients; seconds."""
        size = self.wire_bytes(nbytes)
        if size not in self._timed:
            lowered, time_s = self.timer.best("all_reduce", size, self.group)
            time_s = self.factor * (
                simulated_s(self.timer, self.group, "all_reduce", size) if self.in_order else time_s
            )
            self._record_error(size, time_s)
            self._timed[size] = (time_s, (lowered.schedule.algorithm, lowered.protocol))
            capacity_Bps = self.timer.machine.topology.arcs.bandwidth_Bps
            links = self.factor * link_times_s(capacity_Bps, lowered) / size
            self._per_byte = links if self._per_byte is None else np.minimum(self._per_byte, links)
            insort(self._sizes, size)
            self._arrays = None
            self._interpolated.clear()
            self._lower.clear()
            self.computed_sizes += 1
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
        sizes, times = self._table()
        wire = np.ceil(nbytes * self.scale / ITEM) * ITEM
        read: FloatArray = np.interp(wire, sizes, times)
        return read

    def time_s(self, nbytes: int) -> float:
        """Return the time of one size, computed before or interpolated; seconds."""
        if nbytes not in self._interpolated:
            self._interpolated[nbytes] = self._interpolate(self.wire_bytes(nbytes))
        return self._interpolated[nbytes]

    def _interpolate(self, size: int) -> float:
        timed, sizes = self._timed, self._sizes
        if size in timed:
            return timed[size][0]
        index = bisect_left(sizes, size)
        if not 0 < index < len(sizes):
            return timed[sizes[min(index, len(sizes) - 1)]][0]
        low, high = sizes[index - 1], sizes[index]
        low_s, high_s = timed[low][0], timed[high][0]
        return low_s + (high_s - low_s) * ((size - low) / (high - low))

    def lower_s(self, nbytes: int) -> float:
        """Return the least time of a size, given the error that interpolation may have; seconds."""
        if nbytes not in self._lower:
            self._lower[nbytes] = self._lower_at(nbytes, self.wire_bytes(nbytes))
        return self._lower[nbytes]

    def _lower_at(self, nbytes: int, size: int) -> float:
        if size in self._timed:
            return self._timed[size][0]
        position = bisect_left(self._sizes, size)
        low = self._sizes[max(0, position - 1)]
        read_s = self.time_s(nbytes) * (1 - self._errors.get(low, UNSEEN))
        (before_s, style), (_, other) = self._timed[low], self._timed[self._sizes[position]]
        return max(before_s, read_s) if style == other else read_s

    @property
    def worst_error(self) -> float:
        """Largest relative error that an interpolated time may have now."""
        gaps = zip(self._sizes, self._sizes[1:], strict=False)
        return max((self._errors.get(a, UNSEEN) for a, b in gaps if b - a > ITEM), default=0.0)

    def prepare(self, least: int, most: int) -> None:
        """Compute enough sizes to interpolate all between two sizes of gradients."""
        ratio = LARGE if len(self.group) > FEW_RANKS else SMALL
        steps = max(1, int(np.ceil(np.log(max(most / least, 1.0)) / np.log(ratio))))
        grid = [int(size) for size in np.geomspace(least, most, steps + 1)]
        for size in [least, most, *grid[::2], *grid[1::2]]:
            self.compute(size)
        self._find_jumps()

    def refine(self, nbytes: Iterable[int], at_most: int) -> int:
        """Compute some sizes, at most a number of new ones; returns how many."""
        before = self.computed_sizes
        for size in nbytes:
            if self.computed_sizes - before >= at_most:
                break
            self.compute(size)
        return self.computed_sizes - before

    def lower_bounds(self) -> list[tuple[int, int, float]]:
        """Return the least time of the sizes between neighbouring computed ones.

        Times do not fall with the size while algorithm and protocol are the same.

        Returns first size and last, in bytes on the network, and seconds.
        """
        bounds = []
        for low, high in zip(self._sizes, self._sizes[1:], strict=False):
            (low_s, style), (high_s, high_style) = self._timed[low], self._timed[high]
            bounds.append((low, high, low_s if style == high_style else min(low_s, high_s)))
        return [*bounds, (self._sizes[-1], self._sizes[-1], self._timed[self._sizes[-1]][0])]

    @property
    def wire_s_per_byte(self) -> float:
        """Least time of the busiest link per byte over all algorithms used; seconds per byte."""
        if self._per_byte is None or self.in_order:  # shaped links let bursts pass at any rate
            return 0.0
        return float(self._per_byte.max(initial=0.0))

    def wire_bytes(self, nbytes: int) -> int:
        """Return the bytes on the network of some bytes of gradients."""
        return max(ITEM, math.ceil(nbytes * self.scale / ITEM) * ITEM)

    def _table(self) -> tuple[FloatArray, FloatArray]:
        if self._arrays is None:
            times = [self._timed[size][0] for size in self._sizes]
            self._arrays = np.array(self._sizes, dtype=float), np.array(times)
        return self._arrays

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

    def _find_jumps(self) -> None:
        """Find the sizes at which algorithm or protocol change between computed ones."""
        for low, high in list(zip(self._sizes, self._sizes[1:], strict=False)):
            if self._timed[low][1] != self._timed[high][1]:
                self._bisect(low, high, self._select_at)

    def _bisect(self, low: int, high: int, select_at: Callable[[int], AlgorithmProtocol]) -> None:
        first = self._timed[low][1]
        while high - low > ITEM:
            middle = (low + high) // (2 * ITEM) * ITEM
            if select_at(middle) == first:
                low = middle
            else:
                high = middle
        for size in (low, high):
            if size not in self._timed:
                self.compute(int(size / self.scale))

    def _select_at(self, size: int) -> AlgorithmProtocol:
        lowerings = lower_collective(self.timer.machine, "all_reduce", size, self.group)
        if len(lowerings) > 1:
            lowered, _ = self.timer.best("all_reduce", size, self.group)
            return lowered.schedule.algorithm, lowered.protocol
        return lowerings[0].schedule.algorithm, lowerings[0].protocol


TimeOf = Callable[[int], float]
"""Seconds of an all-reduce of so many bytes of gradients."""

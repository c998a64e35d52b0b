"""What an all-reduce of any size takes: worked out for some sizes, read off between them.

A library changes its algorithm or protocol at certain sizes, where times jump. These are found by
halving; between two neighbours that are carried alike times are close to linear. How close is
measured wherever a size is worked out that was read off before.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import RankGroup
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.uncontended import UncontendedTimer, links_s
from perfmodel.training.plan import Collective, Communicator, RankClass, StepPlan, Stream, Task

Floats = NDArray[np.float64]
AlgorithmProtocol = tuple[str, str]
"""How a size is carried: algorithm and protocol."""

ITEM = 4
"""Sizes are told apart to this many bytes."""
FEW_RANKS = 32
"""Up to so many ranks a collective is worked out in about a millisecond."""
SMALL, LARGE = 2.0, 3.0
"""Ratio of neighbouring sizes that are worked out at once, on few and on many ranks."""
LEAST_ERROR = 1e-4
"""Relative error that is always allowed for."""
UNSEEN = 0.05
"""Relative error that is allowed for where none was seen yet."""


@dataclass
class AllReduceTimes:
    """Times of all-reduces of one group with nothing else on the network.

    Parameters
    ----------
    estimator : UncontendedTimer
    group : range or tuple of int
    scale : float
        Bytes on the network per byte of gradients (a hook that compresses sends fewer).
    factor : float
        On all times; 0 where communication is imagined to take none.
    computed_sizes : int
        Sizes so far.
    """

    estimator: UncontendedTimer
    group: RankGroup
    scale: float = 1.0
    factor: float = 1.0
    computed_sizes: int = 0
    _sizes: list[int] = field(default_factory=list)
    _timed: dict[int, tuple[float, AlgorithmProtocol]] = field(default_factory=dict)
    _errors: dict[int, float] = field(default_factory=dict)  # by the size that a gap begins at
    _arrays: tuple[Floats, Floats] | None = None
    _per_byte: Floats | None = None
    _interpolated: dict[int, float] = field(default_factory=dict)
    _lower: dict[int, float] = field(default_factory=dict)

    def compute(self, nbytes: int) -> float:
        """Work out the time of one size of gradients; seconds."""
        size = self.wire_bytes(nbytes)
        if size not in self._timed:
            lowered, time_s = self.estimator.best("all_reduce", size, self.group)
            time_s = self.factor * (self._simulate(size) if self.in_order else time_s)
            self._record_error(size, time_s)
            self._timed[size] = (time_s, (lowered.schedule.algorithm, lowered.protocol))
            links = self.factor * links_s(self._capacity_Bps, lowered) / size
            self._per_byte = links if self._per_byte is None else np.minimum(self._per_byte, links)
            insort(self._sizes, size)
            self._arrays = None
            self._interpolated.clear()
            self._lower.clear()
            self.computed_sizes += 1
        return self._timed[size][0]

    @property
    def in_order(self) -> bool:
        """Whether messages follow one another on a connection, and are simulated one by one."""
        return self.estimator.machine.library.in_order

    @property
    def _capacity_Bps(self) -> Floats:
        return self.estimator.machine.topology.arcs.bandwidth_Bps

    def _simulate(self, size: int) -> float:
        """Simulate an all-reduce alone; seconds."""
        group = tuple(self.group)
        work = Collective("all_reduce", size, "all", "one")
        plan = StepPlan(
            "one all-reduce",
            (RankClass("ranks", group),),
            (Stream("comm", "comm"),),
            (Communicator("all", (group,)),),
            (Task("all-reduce", "communication", "ranks", "comm", work),),
            samples=1,
        )
        machine = self.estimator.machine
        return simulate(plan, machine, estimator=self.estimator).step_time_s

    def is_timed(self, nbytes: int) -> bool:
        """Whether a size has been worked out."""
        return self.wire_bytes(nbytes) in self._timed

    def interpolate(self, nbytes: NDArray[np.int64]) -> Floats:
        """Read times off for some sizes of gradients; seconds."""
        sizes, times = self._table()
        wire = np.ceil(nbytes * self.scale / ITEM) * ITEM
        read: Floats = np.interp(wire, sizes, times)
        return read

    def time_s(self, nbytes: int) -> float:
        """Return the time of one size, worked out already or read off; seconds."""
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
        """Return what a size takes at least, given how far off reading it off may be; seconds."""
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
        """Largest relative error that reading a time off may have now."""
        gaps = zip(self._sizes, self._sizes[1:], strict=False)
        return max((self._errors.get(a, UNSEEN) for a, b in gaps if b - a > ITEM), default=0.0)

    def prepare(self, least: int, most: int) -> None:
        """Work enough sizes out to read all between two sizes of gradients off."""
        ratio = LARGE if len(self.group) > FEW_RANKS else SMALL
        steps = max(1, int(np.ceil(np.log(max(most / least, 1.0)) / np.log(ratio))))
        grid = [int(size) for size in np.geomspace(least, most, steps + 1)]
        for size in [least, most, *grid[::2], *grid[1::2]]:
            self.compute(size)
        self._find_jumps()

    def refine(self, nbytes: Iterable[int], at_most: int) -> int:
        """Work some sizes out, no more than so many; returns how many."""
        before = self.computed_sizes
        for size in nbytes:
            if self.computed_sizes - before >= at_most:
                break
            self.compute(size)
        return self.computed_sizes - before

    def lower_bounds(self) -> list[tuple[int, int, float]]:
        """What sizes take at least, from one that is worked out to the next.

        Between sizes that are carried alike times do not fall.

        Returns
        -------
        list of tuple
            First size and last, in bytes on the network, and seconds.
        """
        bounds = []
        for low, high in zip(self._sizes, self._sizes[1:], strict=False):
            (low_s, style), (high_s, high_style) = self._timed[low], self._timed[high]
            bounds.append((low, high, low_s if style == high_style else min(low_s, high_s)))
        return [*bounds, (self._sizes[-1], self._sizes[-1], self._timed[self._sizes[-1]][0])]

    @property
    def wire_s_per_byte(self) -> float:
        """Time of the busiest link per byte, however it is carried; seconds per byte."""
        if self._per_byte is None or self.in_order:  # shaped links let bursts pass at any rate
            return 0.0
        return float(self._per_byte.max(initial=0.0))

    def wire_bytes(self, nbytes: int) -> int:
        """Return the bytes on the network of so many bytes of gradients."""
        return max(ITEM, math.ceil(nbytes * self.scale / ITEM) * ITEM)

    def _table(self) -> tuple[Floats, Floats]:
        if self._arrays is None:
            times = [self._timed[size][0] for size in self._sizes]
            self._arrays = np.array(self._sizes, dtype=float), np.array(times)
        return self._arrays

    def _record_error(self, size: int, time_s: float) -> None:
        """Remember how far off reading this size off would have been.

        Halving a gap quarters the error of a straight line; half of it is allowed for.
        """
        position = bisect_left(self._sizes, size)
        if not 0 < position < len(self._sizes):
            return
        low, high = self._sizes[position - 1], self._sizes[position]
        if self._timed[low][1] == self._timed[high][1] and time_s > 0:
            error = abs(self._interpolate(size) / time_s - 1.0)
            self._errors[low] = self._errors[size] = max(error / 2, LEAST_ERROR)

    def _find_jumps(self) -> None:
        """Where neighbours are carried unlike, find the size at which that changes."""
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
        lowerings = lower_collective(self.estimator.machine, "all_reduce", size, self.group)
        if len(lowerings) > 1:
            lowered, _ = self.estimator.best("all_reduce", size, self.group)
            return lowered.schedule.algorithm, lowered.protocol
        return lowerings[0].schedule.algorithm, lowerings[0].protocol


TimeOf = Callable[[int], float]
"""Seconds of an all-reduce of so many bytes of gradients."""

"""Estimates of how long phases take at some rates, without stepping through them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, sending_s
from perfmodel.collectives.schedule import Phase
from perfmodel.compiled_loops import Loops


@dataclass(frozen=True, slots=True)
class PreparedPhase:
    """A phase with some edges, its arrays contiguous.

    Parameters
    ----------
    phase : Phase
    nbytes : ndarray of float, shape (edges,)
    active, channel : ndarray of int, shape (edges,)
    edges : ndarray of int, shape (channels,)
        Edges of each channel.
    is_ring : bool
        Whether all edges start together, and wait for each other around a ring.
    """

    phase: Phase
    nbytes: FloatArray
    active: IntArray
    channel: IntArray
    edges: IntArray
    is_ring: bool


@dataclass
class PreparedPhases:
    """Phases prepared once for all collectives that have them."""

    _prepared: dict[int, PreparedPhase] = field(default_factory=dict)

    def of(self, phase: Phase) -> PreparedPhase:
        """Return a phase prepared."""
        if id(phase) not in self._prepared:  # the entry holds it, so that its id stays unique
            self._prepared[id(phase)] = PreparedPhase(
                phase,
                np.ascontiguousarray(phase.nbytes, dtype=np.float64),
                np.ascontiguousarray(phase.active),
                np.ascontiguousarray(phase.channel),
                np.bincount(phase.channel),
                phase.repeat > 1 and not phase.first.any(),
            )
        return self._prepared[id(phase)]


def cycle_s(
    prepared: PreparedPhase,
    rate_Bps: FloatArray,
    latency_s: FloatArray,
    credits: int,
    loops: Loops | None,
) -> float:
    """Estimate the time of a phase: its slowest cycle times its repeats; seconds.

    The elementary cycles of a ring's recurrence are an edge's own work, the return of its credits,
    and the path around the ring.
    """
    phase, nbytes, active = prepared.phase, prepared.nbytes, prepared.active
    if loops is not None:
        links = np.ascontiguousarray(rate_Bps), np.ascontiguousarray(latency_s)
        edges = active, prepared.channel, prepared.edges
        steps = credits, phase.repeat, phase.lag, prepared.is_ring
        return loops.slowest_cycle(nbytes, *links, *edges, *steps)
    busy = nbytes / rate_Bps if rate_Bps.all() else sending_s(nbytes, rate_Bps)
    step = busy + latency_s
    own = np.maximum(busy, step / credits) if phase.repeat > 1 else busy
    slowest = float((own * active).max(initial=0.0))
    if not prepared.is_ring:
        return slowest
    sums = np.bincount(prepared.channel, weights=step)
    around = float((sums / np.maximum(prepared.edges, 1)).max())
    return max(slowest, phase.repeat * around / phase.lag)

"""Estimates of the time of a phase: the slowest edge, or a turn around its ring."""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import FloatArray, IntArray


def slowest_cycle(
    nbytes: FloatArray,
    rate_Bps: FloatArray,
    latency_s: FloatArray,
    active: IntArray,
    channel: IntArray,
    edges: IntArray,
    credits: int,
    repeat: int,
    lag: int,
    is_ring: bool,
) -> float:
    """Estimate the time of a phase (see `simulate.flow.transfers.cycle_s`).

    Parameters
    ----------
    nbytes, rate_Bps, latency_s, active, channel : ndarray, shape (edges,)
    edges : ndarray of int, shape (channels,)
        Edges of each channel.
    credits, repeat, lag : int
    is_ring : bool
        Whether all edges start together, and wait for each other around a ring.
    """
    slowest_s, around_s = 0.0, np.zeros(len(edges))
    for edge in range(len(nbytes)):
        busy_s = nbytes[edge] / rate_Bps[edge] if nbytes[edge] > 0 else 0.0
        step_s = busy_s + latency_s[edge]
        own_s = max(busy_s, step_s / credits) if repeat > 1 else busy_s
        if active[edge] > 0:
            slowest_s = max(slowest_s, own_s * active[edge])
        around_s[channel[edge]] += step_s
    if is_ring:
        for number in range(len(edges)):
            turn_s = around_s[number] / max(edges[number], 1)
            slowest_s = max(slowest_s, repeat * turn_s / lag)
    return slowest_s

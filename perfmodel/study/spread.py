"""Intervals of predictions from datasheets: how far recorded runs of like machines were off."""

from __future__ import annotations

from functools import cache

from perfmodel.library.carry import Machine
from perfmodel.library.measured import Measured, Situation
from perfmodel.library.spread import band_of, factors_by_band


def spread_bounds(machine: Machine) -> tuple[Machine, ...]:
    """The machine with all its collectives as quick, and as slow, as eight of ten were.

    Every collective of a step errs the same way at once, which is the worst case. Empty for
    libraries whose predictions from datasheets were not compared with recorded sweeps.
    """
    if machine.library.name != "nccl" or len(machine.topology.ranks) < 2:
        return ()

    def at(end: int) -> Machine:
        known = cache(lambda op: factors_by_band(machine.topology, op))

        def factor(situation: Situation) -> float:
            return known(situation.op)[band_of(situation.nbytes)][end]

        return machine.stretched(machine.topology, Measured(residual=factor))

    return at(0), at(1)

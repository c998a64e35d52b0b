"""A way of carrying a collective, stretched by what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.library.carried import Carried, Stage
from perfmodel.library.costs import launch_s
from perfmodel.library.edges import HOPS
from perfmodel.library.measured import Measured, Situation
from perfmodel.library.model import Library
from perfmodel.library.protocols import numbers_of


def uneven_s(library: Library, way: Carried, nbytes: float) -> float:
    """What a way's launch holds of what uneven channels lose; seconds."""
    schedule = way.schedule
    numbers = numbers_of(library, schedule.collective, schedule.algorithm)
    protocol = numbers.get(way.protocol)
    lost_s = 0.0 if protocol is None else launch_s(protocol, nbytes) - protocol.launch
    return min(lost_s, way.launch_s)


def as_measured(
    measured: Measured, way: Carried, situation: Situation, *, uneven_s: float = 0.0
) -> Carried:
    """Stretch a way of carrying a collective by what was measured.

    Parameters
    ----------
    measured : Measured
    way : Carried
    situation : Situation
    uneven_s : float
        Part of the launch that is what uneven channels lose.

    Returns
    -------
    Carried
        With the same schedule and edges.
    """
    whole = 1.0 if measured.residual is None else measured.residual(situation)
    steps = np.array([measured.steps.get(f"{way.protocol}/{hop}", 1.0) for hop in HOPS]) * whole
    rate = measured.rates.get(f"{situation.algorithm}/{way.protocol}", 1.0) / whole

    def stretched(stage: Stage) -> Stage:
        # A cap is in bytes on the wire, of which there are more or fewer now: it stays.
        return replace(stage, latency_s=stage.latency_s * steps[stage.edges.hop])

    return replace(
        way,
        launch_s=((way.launch_s - uneven_s) * measured.launch + uneven_s * measured.uneven) * whole,
        wire_factor=way.wire_factor / rate,
        stages=tuple(stretched(stage) for stage in way.stages),
    )

"""Busy periods of a network, and when collectives end that begin one together and stay alone.

They end as they did before on the same machine, or round by round where no link can be overbooked.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.collectives.timing.chunk_recurrence import EdgePaces, fits, last_landing_s
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.machine import Machine
from perfmodel.simulate.message.compile import Routes, limits_Bps, routes_of, wire_shares
from perfmodel.simulate.message.kernel.link_sharing import SAME_RATE
from perfmodel.simulate.message.kernel_runs import Run

MOST_PERIODS = 1024
"""Busy periods that are kept of a machine."""


@dataclass
class SimulatedPeriods:
    """When collectives ended that began together on an empty network, and remained alone.

    Shared by all simulations of one machine. Entries hold the objects whose ids are their keys.
    """

    _ends_s: dict[Hashable, tuple[object, list[float]]] = field(default_factory=dict)

    def find(self, machine: Machine, runs: list[Run]) -> list[float] | None:
        """When each run ends, from the beginning of the period; seconds. None: not known."""
        entry = self._ends_s.get(_period_key(machine, runs))
        return None if entry is None else entry[1]

    def keep(self, machine: Machine, runs: list[Run], ends_s: list[float]) -> None:
        """Keep when each run ended."""
        if len(self._ends_s) >= MOST_PERIODS:
            self._ends_s.clear()
        held = machine, [run.transfer for run in runs]
        self._ends_s[_period_key(machine, runs)] = held, ends_s


def _period_key(machine: Machine, runs: list[Run]) -> Hashable:
    return id(machine), tuple((id(run.transfer), run.begin_s) for run in runs)


@dataclass
class BusyPeriod:
    """From when the network begins to carry something until it is empty again."""

    begin_s: float
    runs: list[Run] = field(default_factory=list)  # all that began in its first instant
    ends_s: dict[Run, float] = field(default_factory=dict)  # of those, from `begin_s`
    has_begun: bool = False  # the first instant is over
    is_recalled: bool = False  # its ends are known; the kernel is idle
    is_undisturbed: bool = True  # nothing has begun or changed since the first instant


def known_ends_s(
    periods: SimulatedPeriods, machine: Machine, runs: list[Run], *, by_rounds: bool
) -> list[float] | None:
    """When each run of a period ends, from its beginning; seconds. None: to be simulated.

    Raises `SimulationError` and `ScheduleError`: as `unshared_ends_s`.
    """
    ends_s = periods.find(machine, runs)
    if ends_s is None and by_rounds:
        ends_s = unshared_ends_s(machine, runs)
        if ends_s is not None:
            periods.keep(machine, runs, ends_s)
    return ends_s


def unshared_ends_s(machine: Machine, runs: Sequence[Run]) -> list[float] | None:
    """When each run ends, in their own time; seconds.

    None where a link cannot carry all edges over it at their limits, where sends queue for
    connections, and for background traffic: the kernel simulates these.

    Raises `SimulationError` and `ScheduleError`: as `last_landing_s`.
    """
    transfers = [run.transfer for run in runs]
    carried = [lowered for lowered in transfers if isinstance(lowered, LoweredCollective)]
    if machine.library.in_order or len(carried) < len(runs):
        return None
    if not all(fits(lowered.schedule, lowered.credits) for lowered in carried):
        return None
    capacity_Bps = machine.topology.arcs.bandwidth_Bps
    routes = [routes_of(lowered) for lowered in carried]
    limits = [limits_Bps(each, capacity_Bps) for each in routes]
    if any((limit_Bps <= 0.0).any() for limit_Bps in limits):
        return None
    if _is_overbooked(routes, limits, capacity_Bps):
        return None
    return [
        last_landing_s(lowered.schedule, _paces(lowered, each, limit_Bps), run.begin_s)
        for run, lowered, each, limit_Bps in zip(runs, carried, routes, limits, strict=True)
    ]


def _is_overbooked(
    routes: Sequence[Routes], limits: Sequence[FloatArray], capacity_Bps: FloatArray
) -> bool:
    """Whether any link cannot carry all edges that cross it at their limits."""
    demand_Bps = np.zeros(len(capacity_Bps))
    for each, limit_Bps in zip(routes, limits, strict=True):
        spread = np.repeat(limit_Bps, np.diff(each.pointers))
        demand_Bps += np.bincount(each.arcs, weights=spread, minlength=len(demand_Bps))
    return bool((demand_Bps > capacity_Bps * (1.0 + SAME_RATE)).any())


def _paces(lowered: LoweredCollective, routes: Routes, limit_Bps: FloatArray) -> EdgePaces:
    stages = [stage.phases for stage in lowered.stages]
    return EdgePaces(stages, wire_shares(lowered) / limit_Bps, routes.latency_s, lowered.credits)

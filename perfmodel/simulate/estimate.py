"""What a collective takes when nothing else is on the wire, and which protocol is quickest then."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perfmodel.collectives.timing import schedule_s
from perfmodel.library.carry import Carried, Group, Machine, carry
from perfmodel.library.edges import Edges
from perfmodel.simulate.fairness import max_min_rates

Floats = NDArray[np.float64]


@dataclass
class Estimator:
    """Times collectives alone on a machine; remembers what it has worked out."""

    machine: Machine
    _best: dict[tuple[object, ...], tuple[Carried, float]] = field(default_factory=dict)
    _rates: dict[int, tuple[Edges, Floats]] = field(default_factory=dict)
    _alone_s: dict[int, tuple[Carried, float]] = field(default_factory=dict)

    def best(self, op: str, nbytes: int, group: Group, root: int = 0) -> tuple[Carried, float]:
        """Return the library's quickest way to carry a collective, and its time in seconds."""
        key = (op, nbytes, group, root)
        if key not in self._best:
            ways = carry(self.machine, op, nbytes, group, root=root).values()
            timed = [(way, way.launch_s + self.alone_s(way)) for way in ways]
            self._best[key] = min(timed, key=lambda pair: pair[1])
        return self._best[key]

    def alone_s(self, way: Carried) -> float:
        """Return the time from the first byte to the last delivery when nothing else moves."""
        if id(way) not in self._alone_s:  # the entry keeps the way alive, so its id stays its own
            self._alone_s[id(way)] = (way, takes_s(way, self.rates(way)))
        return self._alone_s[id(way)][1]

    def rates(self, way: Carried) -> Floats:
        """Return the rate of each edge when nothing else moves; wire bytes per second."""
        unlimited = bool(np.isinf(way.cap_Bps).all())
        known = self._rates.get(
            id(way.edges)
        )  # the entry keeps the edges alive, so ids stay theirs
        if unlimited and known is not None:
            return known[1]
        edges, capacity = way.edges, self.machine.topology.arcs.bandwidth_Bps
        rates = max_min_rates(capacity, edges.pointers, edges.arcs, way.cap_Bps)
        if unlimited:
            self._rates[id(edges)] = (edges, rates)
        return rates


def takes_s(way: Carried, rates_Bps: Floats) -> float:
    """Time from the first byte to the last delivery at given wire rates; seconds."""
    return schedule_s(
        way.schedule.phases, rates_Bps / way.wire_factor, way.latency_s, credits=way.credits
    )


def add_traffic(bytes_on_arc: Floats, way: Carried) -> None:
    """Count the wire bytes that a collective puts on each directed link."""
    phases = way.schedule.phases
    if not phases:
        return
    per_edge = sum((phase.nbytes * phase.active for phase in phases), np.zeros(len(way.edges)))
    spread = np.repeat(per_edge * way.wire_factor, np.diff(way.edges.pointers))
    bytes_on_arc += np.bincount(way.edges.arcs, weights=spread, minlength=len(bytes_on_arc))

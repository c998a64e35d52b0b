"""What a collective takes when nothing else is on the wire, and which way is quickest then."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perfmodel.collectives.timing import schedule_s
from perfmodel.library.carry import Carried, Group, Machine, Stage, carry
from perfmodel.library.edges import Edges
from perfmodel.simulate.fairness import max_min_rates, staggered_rates

Floats = NDArray[np.float64]


@dataclass
class Estimator:
    """Times collectives alone on a machine; remembers what it has worked out.

    Entries keep the objects alive whose ids they are known by, so that an id stays its object's.
    """

    machine: Machine
    _best: dict[tuple[object, ...], tuple[Carried, float]] = field(default_factory=dict)
    _rates: dict[int, tuple[Edges, Floats]] = field(default_factory=dict)
    _alone_s: dict[int, tuple[Stage, float]] = field(default_factory=dict)

    def best(
        self, op: str, nbytes: int, group: Group, root: int = 0, algorithm: str | None = None
    ) -> tuple[Carried, float]:
        """Return the library's quickest way to carry a collective, and its time in seconds."""
        key = (op, nbytes, group, root, algorithm)
        if key not in self._best:
            ways = carry(self.machine, op, nbytes, group, root=root, algorithm=algorithm)
            timed = [(way, self.way_s(way)) for way in ways]
            self._best[key] = min(timed, key=lambda pair: pair[1])
        return self._best[key]

    def way_s(self, way: Carried) -> float:
        """Return the time of a whole collective when nothing else moves; seconds."""
        return way.launch_s + sum(self.alone_s(way, stage) for stage in way.stages)

    def alone_s(self, way: Carried, stage: Stage) -> float:
        """Return the time of one stage when nothing else moves; seconds."""
        if id(stage) not in self._alone_s:
            self._alone_s[id(stage)] = (stage, stage_s(way, stage, self.rates(stage)))
        return self._alone_s[id(stage)][1]

    def rates(self, stage: Stage) -> Floats:
        """Return the rate of each edge when nothing else moves; wire bytes per second."""
        unlimited = bool(np.isinf(stage.cap_Bps).all())
        known = self._rates.get(id(stage.edges))
        if unlimited and known is not None:
            return known[1]
        edges, capacity = stage.edges, self.machine.topology.arcs.bandwidth_Bps
        duty = _duty(stage)
        if (duty < 1).any():
            return staggered_rates(capacity, edges.pointers, edges.arcs, stage.cap_Bps, duty)
        rates = max_min_rates(capacity, edges.pointers, edges.arcs, stage.cap_Bps)
        if unlimited:
            self._rates[id(edges)] = (edges, rates)
        return rates


def _duty(stage: Stage) -> Floats:
    """Share of the stage's repeats in which each edge works; 1 but for pipelines and trees."""
    works = sum((phase.active for phase in stage.phases), np.zeros(len(stage.edges)))
    return works / sum(phase.repeat for phase in stage.phases)


def stage_s(way: Carried, stage: Stage, rates_Bps: Floats) -> float:
    """Time from a stage's first byte to its last delivery at given wire rates; seconds."""
    return schedule_s(
        stage.phases, rates_Bps / way.wire_factor, stage.latency_s, credits=way.credits
    )


def add_traffic(bytes_on_arc: Floats, way: Carried) -> None:
    """Count the wire bytes that a collective puts on each directed link."""
    for stage in way.stages:
        edges = stage.edges
        per_edge = sum((p.nbytes * p.active for p in stage.phases), np.zeros(len(edges)))
        spread = np.repeat(per_edge * way.wire_factor, np.diff(edges.pointers))
        bytes_on_arc += np.bincount(edges.arcs, weights=spread, minlength=len(bytes_on_arc))

"""What a collective takes when nothing else is on the wire, and which way is quickest then.

What a library chose on one machine, as it goes on when the machine has become another.

A running library does not choose again when a link slows down or is lost: it keeps protocol,
algorithm and rings, and only the routes change.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import RankGroup
from perfmodel.collectives.timing.recurrence import TimedPhases, legs_ends, schedule_s
from perfmodel.collectives.timing.variable_rate import CompletionTimes
from perfmodel.library.lowering.edges import Edges
from perfmodel.library.lowering.lower import lower_collective, lower_message
from perfmodel.library.lowering.lowered import LoweredCollective, Stage
from perfmodel.library.lowering.rerouting import reroute
from perfmodel.library.machine import Machine
from perfmodel.simulate.sharing.duty_cycle import share_at_ends, share_by_turns
from perfmodel.simulate.sharing.max_min import max_min_rates

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timed:
    """A leg of a collective when nothing else moves; seconds since its collective's first byte.

    Parameters
    ----------
    stage : Stage
    rates_Bps : ndarray of float, shape (edges,)
        Wire bytes per second of each edge while it sends.
    begin_s : ndarray of float, shape (edges,), or None
        When each edge may send; None: at once.
    ends : CompletionTimes
    """

    stage: Stage
    rates_Bps: Floats
    begin_s: Floats | None
    ends: CompletionTimes


@dataclass
class UncontendedTimer:
    """Times collectives alone on a machine; remembers what it has worked out.

    Entries keep the objects alive whose ids they are known by, so that an id stays its object's.
    """

    machine: Machine
    _best: dict[tuple[object, ...], tuple[LoweredCollective, float]] = field(default_factory=dict)
    _rates: dict[int, tuple[Edges, Floats]] = field(default_factory=dict)
    _cut_s: dict[int, tuple[LoweredCollective, float]] = field(default_factory=dict)
    _by_turns: dict[tuple[int, int], tuple[Stage, Floats]] = field(default_factory=dict)
    _timed: dict[int, tuple[LoweredCollective, tuple[Timed, ...]]] = field(default_factory=dict)
    _legs: dict[int, tuple[LoweredCollective, tuple[Stage, ...]]] = field(default_factory=dict)

    def best(
        self, op: str, nbytes: int, group: RankGroup, root: int = 0, algorithm: str | None = None
    ) -> tuple[LoweredCollective, float]:
        """Return the library's quickest way to carry a collective, and its time in seconds."""
        key = (op, nbytes, group, root, algorithm)
        if key not in self._best:
            ways = lower_collective(self.machine, op, nbytes, group, root=root, algorithm=algorithm)
            timed = [(way, self.way_s(way)) for way in ways]
            self._best[key] = min(timed, key=lambda pair: pair[1])
            for way in ways:
                if way is not self._best[key][0]:
                    self._forget(way)
        return self._best[key]

    def ways(
        self, op: str, nbytes: int, groups: tuple[RankGroup, ...], root: int = 0
    ) -> list[LoweredCollective]:
        """Return the quickest way for each group that has somebody to talk to."""
        real = [group for group in groups if len(group) > 1]
        return [self.best(op, nbytes, group, root)[0] for group in real]

    def _forget(self, way: LoweredCollective) -> None:
        """Let go of what is known of a way that is not taken: large groups have large arrays."""
        for known in (self._cut_s, self._timed, self._legs):
            known.pop(id(way), None)

    def way_s(self, way: LoweredCollective) -> float:
        """Return the time of a whole collective when nothing else moves; seconds."""
        last_s = max((leg.ends.last_s for leg in self.timed(way)), default=0.0)
        return way.launch_s + max(last_s, self.cut_s(way))

    def timed(self, way: LoweredCollective) -> tuple[Timed, ...]:
        """Return the legs of a collective when nothing else moves, each begun rank by rank."""
        if id(way) not in self._timed:
            stages = self.legs(way)
            rates = [self.rates(stage) for stage in stages]
            parts = [leg_of(way, s, r) for s, r in zip(stages, rates, strict=True)]
            ends = legs_ends(parts, ranks_of(way), credits=way.credits)
            legs = tuple(Timed(s, r, *e) for s, r, e in zip(stages, rates, ends, strict=True))
            self._timed[id(way)] = (way, legs)
        return self._timed[id(way)][1]

    def cut_s(self, way: LoweredCollective) -> float:
        """Return the time that the busiest link of a collective needs at least; seconds.

        Only for collectives whose rates do not see to it: edges that work by turns get an average
        share, and legs that ranks begin one by one do not see each other.
        """
        if id(way) not in self._cut_s:
            stages = self.legs(way)
            seen = len(stages) < 2 and all(_is_steady(stage) for stage in stages)
            least_s = 0.0 if seen else busiest_link_s(self.machine.topology.arcs.bandwidth_Bps, way)
            self._cut_s[id(way)] = (way, least_s)
        return self._cut_s[id(way)][1]

    def legs(self, way: LoweredCollective) -> tuple[Stage, ...]:
        """Return the stages of a collective, those over the very same edges joined into one.

        What separates them is then in their phases (`Phase.drained`), rank by rank.
        """
        if id(way) not in self._legs:
            stages = joined_stages(way.stages)
            self._legs[id(way)] = (way, tuple(self._filling(way, stage) for stage in stages))
        return self._legs[id(way)][1]

    def _filling(self, way: LoweredCollective, stage: Stage) -> Stage:
        """A stage whose pieces arrive as early as they do while a pipeline fills and drains.

        A fluid edge has one rate, what its links leave to it when all are at work. The few pieces
        that travel before and after meet fewer others and arrive earlier than that; the edge is
        busy as long.
        """
        if len(stage.phases) != 1 or _is_steady(stage) or not stage.phases[0].first.any():
            return stage
        capacity_Bps = self.machine.topology.arcs.bandwidth_Bps
        ends_Bps = np.minimum(stage.cap_Bps, share_at_ends(capacity_Bps, stage))
        usual_Bps = self.rates(stage)
        with np.errstate(divide="ignore", invalid="ignore"):
            sooner_s = stage.phases[0].nbytes * (1 / usual_Bps - 1 / ends_Bps) * way.wire_factor
        sooner_s = np.where(np.isfinite(sooner_s), np.maximum(sooner_s, 0.0), 0.0)
        return replace(stage, latency_s=stage.latency_s - sooner_s)

    def rates(self, stage: Stage) -> Floats:
        """Return the rate of each edge when nothing else moves; wire bytes per second."""
        unlimited = bool(np.isinf(stage.cap_Bps).all())
        known = self._rates.get(id(stage.edges))
        if unlimited and known is not None:
            return known[1]
        edges, capacity = stage.edges, self.machine.topology.arcs.bandwidth_Bps
        if not _is_steady(stage):
            return np.minimum(stage.cap_Bps, self._share_by_turns(stage))
        rates = max_min_rates(capacity, edges.pointers, edges.arcs, stage.cap_Bps)
        if unlimited:
            self._rates[id(edges)] = (edges, rates)
        return rates

    def _share_by_turns(self, stage: Stage) -> Floats:
        """As `turns.share_by_turns`; the same for all protocols."""
        key = (id(stage.edges), id(stage.phases))
        if key not in self._by_turns:
            capacity_Bps = self.machine.topology.arcs.bandwidth_Bps
            self._by_turns[key] = (stage, share_by_turns(capacity_Bps, stage))
        return self._by_turns[key][1]


def _is_steady(stage: Stage) -> bool:
    """Whether all edges work all the time."""
    return all(bool((phase.active == phase.repeat).all()) for phase in stage.phases)


def joined_stages(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Stages with those over the very same edges joined."""
    found: list[Stage] = []
    for stage in stages:
        if found and stage.edges is found[-1].edges:
            found[-1] = replace(found[-1], phases=found[-1].phases + stage.phases)
        else:
            found.append(stage)
    return tuple(found)


def busiest_link_s(capacity_Bps: Floats, way: LoweredCollective) -> float:
    """Time in which the busiest link of a collective carries its bytes; seconds."""
    return float(links_s(capacity_Bps, way).max(initial=0.0))


def links_s(capacity_Bps: Floats, way: LoweredCollective) -> Floats:
    """Time in which each link carries the bytes of a collective; seconds, shape (links,)."""
    nbytes = np.zeros(len(capacity_Bps))
    add_traffic(nbytes, way)
    with np.errstate(divide="ignore"):
        return np.divide(nbytes, capacity_Bps, out=np.zeros(len(nbytes)), where=nbytes > 0)


def leg_of(way: LoweredCollective, stage: Stage, rates_Bps: Floats) -> TimedPhases:
    """Return a stage with its edges at given wire rates."""
    return TimedPhases(stage.phases, rates_Bps / way.wire_factor, stage.latency_s)


def ranks_of(way: LoweredCollective) -> int:
    """Ranks of a collective, and the switches that take part."""
    return way.schedule.ranks + way.schedule.switches


def stage_s(way: LoweredCollective, stage: Stage, rates_Bps: Floats) -> float:
    """Time from a stage's first byte to its last delivery at given wire rates; seconds."""
    return schedule_s(
        stage.phases, rates_Bps / way.wire_factor, stage.latency_s, credits=way.credits
    )


def stage_bytes(way: LoweredCollective, stage: Stage) -> Floats:
    """Wire bytes of each edge in a whole stage; shape (edges,)."""
    payload = sum((p.nbytes * p.active for p in stage.phases), np.zeros(len(stage.edges)))
    return payload * way.wire_factor


def add_traffic(
    bytes_on_arc: Floats, way: LoweredCollective, times: int = 1, *, payload: bool = False
) -> None:
    """Count bytes of a collective, or so many like it, on each link: on the wire, or of payload."""
    for stage in way.stages:
        edges, nbytes = stage.edges, times * stage_bytes(way, stage)
        if payload:
            nbytes /= way.wire_factor * stage.load
        spread = np.repeat(nbytes, np.diff(edges.pointers))
        bytes_on_arc += np.bincount(edges.arcs, weights=spread, minlength=len(bytes_on_arc))


@dataclass
class Adapted:
    """Collectives as a library carries them that chose on the machine of `estimator`.

    Parameters
    ----------
    estimator : UncontendedTimer
        Of the machine on which the run began.
    machine : Machine
        What it is now.
    """

    estimator: UncontendedTimer
    machine: Machine
    _moved: dict[int, tuple[LoweredCollective, LoweredCollective]] = field(default_factory=dict)
    _legs: dict[int, tuple[LoweredCollective, tuple[Stage, ...]]] = field(default_factory=dict)
    _messages: dict[tuple[int, int, int], LoweredCollective] = field(default_factory=dict)

    def message(self, src: int, dst: int, nbytes: int) -> LoweredCollective:
        """Return the way of a point-to-point message on the first machine (see `now`)."""
        key = (src, dst, nbytes)
        if key not in self._messages:
            self._messages[key] = lower_message(self.estimator.machine, src, dst, nbytes)
        return self._messages[key]

    def now(self, way: LoweredCollective) -> LoweredCollective:
        """Return a way of the first machine as it is on the present one.

        Raises
        ------
        TopologyError
            Two that have to talk cannot reach each other any more.
        """
        if self.machine is self.estimator.machine:
            return way
        if id(way) not in self._moved:  # which keeps `way` alive, and its id its own
            self._moved[id(way)] = (way, reroute(way, self.machine))
        return self._moved[id(way)][1]

    def legs(self, way: LoweredCollective) -> tuple[Stage, ...]:
        """Return the legs of a way of the first machine (`Estimator.legs`), as they are now.

        Raises
        ------
        TopologyError
            Two that have to talk cannot reach each other any more.
        """
        legs = self.estimator.legs(way)
        if self.machine is self.estimator.machine:
            return legs
        if id(way) not in self._legs:
            self._legs[id(way)] = (way, reroute(replace(way, stages=legs), self.machine).stages)
        return self._legs[id(way)][1]

    def become(self, machine: Machine) -> None:
        """Go on on another machine."""
        self.machine = machine
        self._moved.clear()
        self._legs.clear()

"""Collectives and streams on the move at fidelity "flow": what is sent, and when it will end."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np
import simpy
from numpy.typing import NDArray

from perfmodel.collectives.schedule import Phase
from perfmodel.collectives.timing.recurrence import ReadyTimes
from perfmodel.collectives.timing.unrolled import course_of
from perfmodel.collectives.timing.variable_rate import (
    Clocks,
    CompletionTimes,
    LinkRates,
    OneStep,
    is_one_step,
)
from perfmodel.library.lowering.edges import Edges
from perfmodel.library.lowering.lowered import LoweredCollective, Stage
from perfmodel.simulate.network import LinkCounters, count_elsewhere
from perfmodel.simulate.uncontended import Timed, UncontendedTimer, leg_of, ranks_of, stage_bytes

Floats = NDArray[np.float64]

SAME_RATE = 1e-12
"""Rates this close are the same: sums of like rates differ in the last bits."""


@dataclass(eq=False)
class Collective:
    """A collective on the move, leg after leg; times since its first byte, unless they say so.

    As long as nothing disturbs it, its times are those that the estimator knows.

    Parameters
    ----------
    laid : LoweredCollective
        As it was when the run began.
    way : LoweredCollective
        As it was when the collective began.
    known : UncontendedTimer
        Of the machine as it was then.
    start_s : float
        When its first byte may move, on the simulation's clock.
    done : simpy.Event
    """

    laid: LoweredCollective
    way: LoweredCollective
    known: UncontendedTimer
    start_s: float
    done: simpy.Event
    leg: int = 0
    stage: Stage = field(init=False)
    rates_Bps: Floats = field(init=False)
    landed_s: float = 0.0
    version: int = 0
    _clocks: Clocks | OneStep | None = None
    _doors: ReadyTimes | None = None
    _is_moved: bool = False

    def __post_init__(self) -> None:
        self._take(self.legs[0])

    @property
    def legs(self) -> tuple[Timed, ...]:
        """Its legs when nothing else moves."""
        return self.known.timed(self.way)

    @property
    def is_last(self) -> bool:
        """Whether it is on its last leg."""
        return self.leg + 1 == len(self.legs)

    def _take(self, timed: Timed) -> None:
        self.stage, self.rates_Bps = timed.stage, timed.rates_Bps

    def ends(self) -> CompletionTimes:
        """How its leg ends if nothing changes any more."""
        return self._clocks.ends() if self._clocks else self.legs[self.leg].ends

    def set_rates(self, now_s: float, rates_Bps: Floats, slower: float = 1.0) -> bool:
        """Go on at these rates, all of it slowed down; whether that is anything new."""
        rates_Bps = rates_Bps if slower == 1.0 else rates_Bps / slower
        if not self._is_moved and _are_same(rates_Bps, self.rates_Bps):
            return False
        leg = leg_of(self.way, self.stage, rates_Bps)
        clocks = self._disturbed()
        clocks.change(now_s - self.start_s, leg.rate_Bps, leg.latency_s * slower)
        self.rates_Bps, self._is_moved = rates_Bps, False
        return True

    def move(self, stage: Stage) -> None:
        """Go on over other links from the next `set_rates` on."""
        self._disturbed()
        self.stage, self._is_moved = stage, True

    def _disturbed(self) -> Clocks | OneStep:
        """Its clocks, edge by edge, from now on its own."""
        if self._clocks is None:
            timed = self.legs[self.leg]
            begin_s = np.zeros(len(timed.stage.edges)) if timed.begin_s is None else timed.begin_s
            self._clocks = self._clocks_of(timed.stage, timed.rates_Bps, begin_s)
            self._doors = ReadyTimes(ranks_of(self.way))
            for before in self.legs[: self.leg]:
                self._doors.land(before.stage.phases[0], before.ends.landed_s)
        return self._clocks

    def _clocks_of(self, stage: Stage, rates_Bps: Floats, begin_s: Floats) -> Clocks | OneStep:
        leg = leg_of(self.way, stage, rates_Bps)
        if is_one_step(leg.phases):
            return OneStep(leg.phases[0], begin_s, leg.rate_Bps, leg.latency_s)
        course = course_of(leg.phases, self.way.credits)
        return Clocks(course, begin_s, LinkRates(-np.inf, leg.rate_Bps, leg.latency_s))

    def next_leg(self, stage: Stage, rates_Bps: Floats) -> None:
        """Begin the next leg, rank by rank, at rates that it has if nobody is in the way."""
        ends = self.ends()
        self.landed_s = max(self.landed_s, ends.last_s)
        self.leg += 1
        if self._clocks is None:
            self._take(self.legs[self.leg])
            return
        assert self._doors is not None
        self._doors.land(self.stage.phases[0], ends.landed_s)
        begin_s = self._doors.begin_s(stage.phases[0])
        self._clocks = self._clocks_of(stage, rates_Bps, begin_s)
        self.stage, self.rates_Bps = stage, rates_Bps

    def alone_s(self) -> float:
        """Time for which the present leg is on the wire when nothing else moves."""
        before_s = self.legs[self.leg - 1].ends.wire_s if self.leg else 0.0
        return max(0.0, self.legs[self.leg].ends.wire_s - before_s)

    @property
    def is_disturbed(self) -> bool:
        """Whether its times are its own, and no longer those that the estimator knows."""
        return self._clocks is not None

    def left(self) -> Floats:
        """Share of its leg that each edge has not yet sent for certain; shape (edges,)."""
        return self._clocks.left() if self._clocks else np.ones(len(self.stage.edges))

    def recount(self, now_s: float, counted: LinkCounters, stages: tuple[Stage, ...]) -> None:
        """Count what is still to be sent on the links that will carry it, and not on others."""
        before = (self.stage, *(leg.stage for leg in self.legs[self.leg + 1 :]))
        if not np.array_equal(self.stage.edges.arcs, stages[0].edges.arcs):
            leg = leg_of(self.way, self.stage, self.rates_Bps)
            self._disturbed().change(now_s - self.start_s, leg.rate_Bps, leg.latency_s)
        for index, (old, new) in enumerate(zip(before, stages, strict=True)):
            nbytes = stage_bytes(self.way, old) * (1.0 if index else self.left())
            share = self.way.wire_factor * old.load
            count_elsewhere(counted, old.edges, new.edges, nbytes, share)

    def wire_bytes(self) -> Floats:
        """Wire bytes of each edge in the present leg."""
        return stage_bytes(self.way, self.stage)

    def takes_s(self, rates_Bps: Floats) -> float:
        """About how long the present leg takes at some rates; seconds."""
        leg = leg_of(self.way, self.stage, rates_Bps)
        return sum(
            cycle_s(phase, leg.rate_Bps, leg.latency_s, self.way.credits) for phase in leg.phases
        )

    def together(self) -> object:
        """Equal for collectives that are alike and began together."""
        schedule = self.way.schedule
        return (self.start_s, self.leg, schedule.collective, schedule.nbytes, schedule.ranks)


def _are_same(one: Floats, other: Floats) -> bool:
    return one is other or bool((np.abs(one - other) <= SAME_RATE * other).all())


def cycle_s(phase: Phase, rate_Bps: Floats, latency_s: Floats, credits: int) -> float:
    """About how long a phase takes: its slowest cycle times its repeats; seconds.

    The cycles of a ring's recurrence are an edge's own work, its credits coming back, and the way
    around the ring; no other is elementary.
    """
    busy = phase.nbytes / rate_Bps
    step = busy + latency_s
    own = np.maximum(busy, step / credits) if phase.repeat > 1 else busy
    slowest = float((own * phase.active).max(initial=0.0))
    if phase.repeat == 1 or phase.first.any():
        return slowest
    around = np.bincount(phase.channel, weights=step) / np.bincount(phase.channel)
    return max(slowest, phase.repeat * float(np.nanmax(around)) / phase.lag)


@dataclass(eq=False)
class Flow:
    """A stream of somebody else on the move; times on the simulation's clock."""

    stage: Stage
    nbytes: float
    since_s: float
    done: simpy.Event
    rate_Bps: float = 0.0
    version: int = 0

    def send(self, now_s: float) -> float:
        """Send at the present rate up to a time; return how many bytes that was."""
        sent = min(self.nbytes, self.rate_Bps * (now_s - self.since_s))
        self.nbytes -= sent
        self.since_s = now_s
        return sent


def stream_stage(route: tuple[int, ...], cap_Bps: float) -> Stage:
    """One edge that carries somebody else's bytes over a route."""
    one = np.zeros(1, dtype=np.int64)
    edges = Edges(
        src=one, dst=one, pointers=np.array([0, len(route)]), arcs=np.array(route, dtype=np.int64),
        latency_s=np.zeros(1), cap_Bps=np.array([cap_Bps]), hop=one, staged=False,
    )  # fmt: skip
    return Stage((), edges, np.zeros(1), np.array([cap_Bps]), np.ones(1))


def sort_key(job: Collective | Flow) -> tuple[float, int, float, int]:
    """Something by which jobs can be put in an order that does not depend on who came first."""
    start_s = job.start_s if isinstance(job, Collective) else job.since_s
    nbytes = job.way.schedule.nbytes if isinstance(job, Collective) else job.nbytes
    return (
        start_s,
        len(job.stage.edges),
        float(nbytes),
        zlib.crc32(job.stage.edges.arcs.tobytes()),
    )

"""Collectives in progress at fidelity "flow": bytes sent, rates, ends."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from perfmodel.arrays import FloatArray, sending_s
from perfmodel.collectives.schedule import Phase
from perfmodel.collectives.timing.compiled_loops import Effort
from perfmodel.collectives.timing.recurrence import ReadyTimes
from perfmodel.collectives.timing.recurrence_steps import LinkRates
from perfmodel.collectives.timing.tree_clocks import TreeClocks
from perfmodel.collectives.timing.unrolled import UnrolledPhases, prepare_phases
from perfmodel.collectives.timing.variable_rate import (
    Clocks,
    CompletionTimes,
    OneStep,
)
from perfmodel.library.lowering.lowered import Edges, LoweredCollective, Stage, stage_bytes
from perfmodel.memo import once
from perfmodel.simulate.flow.stream_network import SAME_RATE, Streams
from perfmodel.simulate.network import LinkCounters, move_counts
from perfmodel.simulate.uncontended import UncontendedTimer, participants, timed_phases

FEW_EDGES = 1024
"""Edges of rings up to which each is stepped through in compiled loops where few are alike: what
repeats in such a ring is not sought, which costs more."""
EDGES_A_MILLISECOND = 500
"""Edges whose ends NumPy works out in a millisecond, which is the unit of `Effort`."""
STEPS_A_MILLISECOND = 80
"""Steps of a few edges that NumPy goes through in a millisecond."""
MOST_KEPT = 1 << 22
"""Edges of legs in progress that are kept, with when they end; some 10 bytes each. Then all are
forgotten: what was kept last comes again soonest."""
MOST_CHANGES = 64
"""Changes of a leg that are kept: hardly two legs go the same way for longer."""
INSTANT_S = 1e-13
"""Changes of rates that come this close after the starts of two legs come at the same time: sums of
equal times differ in their last bits."""

AnyClocks = Clocks | TreeClocks | OneStep
Change = tuple[float, FloatArray, FloatArray]
"""Of rates: when, since the collective's start; rates and latencies of the edges from then on."""

Courses = dict[tuple[int, tuple[Phase, ...]], UnrolledPhases]
"""Phases prepared for being stepped through, once for all collectives that have them."""


@dataclass
class KnownProgress:
    """Legs whose rates have changed on a machine, by their collectives."""

    begun: dict[tuple[LoweredCollective, int], Progress] = field(default_factory=dict)
    edges: int = 0
    """Of all that are kept."""

    def keep(self, edges: int) -> None:
        """Count the edges of a leg that is kept; forget all others where there are too many."""
        self.edges += edges
        if self.edges > MOST_KEPT:
            known, self.edges = list(self.begun.values()), edges
            self.begun.clear()
            while known:  # as they refer to each other, they would stay
                known += known.pop().forget()


@dataclass(eq=False)
class Progress:
    """A leg after some changes of its rates, found once for all legs that go the same way.

    Layers that are alike meet others in the same way.

    Parameters
    ----------
    timer : UncontendedTimer
    begin : callable
        Returns the clocks of the leg that begins.
    kept : int
        Changes from here on that are kept, as other legs may go the same way.
    before : Progress, optional
        It until its last change.
    change : callable, optional
        Returns that change.
    """

    timer: UncontendedTimer
    begin: Callable[[], AnyClocks]
    kept: int = MOST_CHANGES
    before: Progress | None = None
    change: Callable[[], Change] | None = None
    _after: dict[Hashable, tuple[Progress, FloatArray]] = field(default_factory=dict)
    """The last that changed in a way, and its rates since then."""
    _clocks: AnyClocks | None = None
    """None where they have gone on with another leg."""
    _ends: CompletionTimes | None = None
    _least_s: float | None = None

    def clocks(self) -> AnyClocks:
        """Return its clocks, those of what it was before brought forward."""
        path, at = list[Callable[[], Change]](), self
        while at._clocks is None and at.before is not None and at.change is not None:
            path.append(at.change)
            at = at.before
        clocks, at._clocks = at._clocks or at.begin(), None
        for change in reversed(path):
            clocks.change(*change())
        self._clocks = clocks
        return clocks

    def go_on(self, key: Hashable, change: Callable[[], Change], rates_Bps: FloatArray) -> Progress:
        """Return it after a change to some rates; `key` tells what else changes."""
        same, its_Bps = self._after.get(key, (self, None))
        if its_Bps is not None and np.array_equal(its_Bps, rates_Bps):
            return same
        before, kept = (self, self.kept - 1) if self.kept else (None, 0)
        after = Progress(self.timer, self.begin, kept, before, change)
        after._clocks, self._clocks = self.clocks(), None
        after._clocks.change(*change())
        self.timer.keep(Effort).spend()
        if self.kept:
            self._after[key] = after, rates_Bps
            self.timer.keep(KnownProgress).keep(len(rates_Bps))
        return after

    def forget(self) -> list[Progress]:
        """Forget what came after it, and return that; nothing more is kept."""
        after, self.kept = [each for each, _ in self._after.values()], 0
        self._after.clear()
        return after

    def ends(self) -> CompletionTimes:
        """Return when it ends if no rate changes any more."""
        if self._ends is None:
            self._ends = self.clocks().ends()
            self.timer.keep(Effort).spend(len(self._ends.landed_s) // EDGES_A_MILLISECOND)
        return self._ends

    def least_wire_s(self) -> float:
        """Least time at which the last byte can have left: that of `ends`, or less."""
        if self._ends is not None:
            return self._ends.wire_s
        if self._least_s is None:
            self._least_s = self.clocks().least_wire_s()
        return self._least_s

    def release(self) -> None:
        """Give back the arrays of clocks whose leg is over."""
        if isinstance(self._clocks, TreeClocks):
            self._clocks.release()
        self._clocks = None


def _begin(
    timer: UncontendedTimer,
    lowered: LoweredCollective,
    stage: Stage,
    rates_Bps: FloatArray,
    begin_s: FloatArray,
) -> AnyClocks:
    """Return clocks of a leg of a collective that begins."""
    leg = timed_phases(lowered, stage, rates_Bps)
    if len(leg.phases) == 1 and leg.phases[0].repeat == 1:
        return OneStep(leg.phases[0], begin_s, leg.rate_Bps, leg.latency_s)
    credits, phases = lowered.credits, leg.phases
    course = once(timer.keep(Courses), (credits, phases), partial(prepare_phases, phases, credits))
    pace = LinkRates(-np.inf, leg.rate_Bps, leg.latency_s)
    effort = timer.keep(Effort)
    effort.spend(course.steps // STEPS_A_MILLISECOND)
    loops = effort.loops
    if loops is not None and course.are_trees:
        return TreeClocks(loops, course, begin_s, pace)
    if loops is not None and (course.order is None or course.edges <= FEW_EDGES):
        return Clocks(course, begin_s, pace, loops)
    return Clocks(course, begin_s, pace)


def _change(
    at_s: float, lowered: LoweredCollective, stage: Stage, rates_Bps: FloatArray, slower: float
) -> Change:
    leg = timed_phases(lowered, stage, rates_Bps)
    return at_s, leg.rate_Bps, leg.latency_s * slower


@dataclass(eq=False)
class Collective:
    """A collective in progress, leg after leg; times since its first byte, unless stated.

    Until its rates change, its times are those of `timer`.
    """

    original: LoweredCollective
    """On the machine on which the run began."""
    lowered: LoweredCollective
    """On the machine on which the collective began."""
    timer: UncontendedTimer
    """Of that machine."""
    start_s: float
    """When its first byte may move, on the simulation's clock."""
    land: Callable[[float], None]
    """What to do when the last leg has left the wire, with the time at which all has landed."""
    leg: int = 0
    landed_s: float = 0.0
    version: int = 0
    timed: bool = False  # whether the end of its leg is scheduled
    _progress: Progress | None = None
    _ready: ReadyTimes | None = None
    _is_rerouted: bool = False
    _stage: Stage | None = None  # instead of that of `timer`
    _rates_Bps: FloatArray | None = None

    @property
    def stage(self) -> Stage:
        """Its present leg on the links that it crosses now."""
        return self.legs[self.leg].stage if self._stage is None else self._stage

    @property
    def edges(self) -> Edges:
        """The links that its present leg crosses now."""
        return self.legs[self.leg].edges if self._stage is None else self._stage.edges

    @property
    def rates_Bps(self) -> FloatArray:
        """Rate of each edge of its present leg; wire bytes per second."""
        return self.legs[self.leg].rates_Bps if self._rates_Bps is None else self._rates_Bps

    def __post_init__(self) -> None:
        self.legs = self.timer.timed_legs(self.lowered)  # without other traffic

    @property
    def is_last(self) -> bool:
        """Whether it is on its last leg."""
        return self.leg + 1 == len(self.legs)

    def ends(self) -> CompletionTimes:
        """Return when its leg ends if no rate changes any more."""
        return self.legs[self.leg].ends if self._progress is None else self._progress.ends()

    def least_wire_s(self) -> float:
        """Least time at which the last byte of its leg can have left: that of `ends`, or less."""
        return self.ends().wire_s if self._progress is None else self._progress.least_wire_s()

    def set_rates(self, now_s: float, rates_Bps: FloatArray, slower: float = 1.0) -> bool:
        """Change rates, the whole leg `slower` times slower; return whether anything changes."""
        rates_Bps = rates_Bps if slower == 1.0 else rates_Bps / slower
        if not self._is_rerouted and (
            rates_Bps is self.rates_Bps
            or bool((np.abs(rates_Bps - self.rates_Bps) <= SAME_RATE * self.rates_Bps).all())
        ):
            self._rates_Bps = rates_Bps  # the same array is compared at once
            return False
        self._go_on(now_s, rates_Bps, slower)
        self._rates_Bps, self._is_rerouted = rates_Bps, False
        return True

    def _go_on(self, now_s: float, rates_Bps: FloatArray, slower: float = 1.0) -> None:
        """Go on at other rates."""
        at_s, stage = now_s - self.start_s, self.stage
        change = partial(_change, at_s, self.lowered, stage, rates_Bps, slower)
        key = round(at_s / INSTANT_S), slower, stage
        self._progress = self._own_progress().go_on(key, change, rates_Bps)

    def reroute(self, stage: Stage) -> None:
        """Change to other links from the next `set_rates` on."""
        self._progress = self._own_progress()
        self._stage, self._is_rerouted = stage, True

    def _own_progress(self) -> Progress:
        """Return its progress, which differs from that of `timer` from now on."""
        if self._progress is not None:
            return self._progress
        timed = self.legs[self.leg]
        if not self.is_last:
            self._ready = ReadyTimes(participants(self.lowered))
            for before in self.legs[: self.leg]:
                self._ready.land(before.stage.phases[0], before.ends.landed_s)
        begin = partial(
            _begin,
            self.timer,
            self.lowered,
            timed.stage,
            timed.rates_Bps,
            np.zeros(len(timed.edges)) if timed.begin_s is None else timed.begin_s,
        )
        known = self.timer.keep(KnownProgress).begun
        return once(known, (self.lowered, self.leg), lambda: Progress(self.timer, begin))

    def next_leg(self, stage: Stage | None = None, rates_Bps: FloatArray | None = None) -> None:
        """Begin the next leg, rank by rank, at its rates without other traffic.

        Where it was disturbed, `stage` and `rates_Bps` are those of the present machine.
        """
        ends, ended = self.ends(), self.stage
        self.landed_s = max(self.landed_s, ends.last_s)
        self.leg += 1
        self._rates_Bps = rates_Bps
        if self._progress is None:
            return
        assert self._ready is not None
        assert stage is not None
        assert rates_Bps is not None
        self._ready.land(ended.phases[0], ends.landed_s)
        self.release()
        begin = partial(
            _begin, self.timer, self.lowered, stage, rates_Bps, self._ready.begin_s(stage.phases[0])
        )
        self._progress = Progress(self.timer, begin, kept=0)
        self._stage = stage

    def release(self) -> None:
        """Give back the arrays of clocks whose leg is over."""
        if self._progress is not None:
            self._progress.release()

    def alone_s(self) -> float:
        """Time for which the present leg is on the wire without other traffic; seconds."""
        before_s = self.legs[self.leg - 1].ends.wire_s if self.leg else 0.0
        return max(0.0, self.legs[self.leg].ends.wire_s - before_s)

    @property
    def is_disturbed(self) -> bool:
        """Whether its times differ from those of `timer`."""
        return self._progress is not None

    def unsent(self) -> FloatArray:
        """Share of its leg that each edge has not certainly sent yet; shape (edges,)."""
        progress = self._progress
        return progress.clocks().left() if progress else np.ones(len(self.stage.edges))

    def recount(self, now_s: float, counters: LinkCounters, stages: tuple[Stage, ...]) -> None:
        """Move unsent bytes from the links that were to carry them to those that will."""
        before = (self.stage, *(leg.stage for leg in self.legs[self.leg + 1 :]))
        if not np.array_equal(self.stage.edges.arcs, stages[0].edges.arcs):
            self._go_on(now_s, self.rates_Bps)
        for index, (old, new) in enumerate(zip(before, stages, strict=True)):
            move_counts(
                counters,
                old.edges,
                new.edges,
                stage_bytes(self.lowered, old) * (1.0 if index else self.unsent()),
                self.lowered.wire_factor * old.load,
            )

    def wire_bytes(self) -> FloatArray:
        """Wire bytes of each edge in the present leg."""
        return stage_bytes(self.lowered, self.stage)

    def takes_s(self, rates_Bps: FloatArray) -> float:
        """Estimate the time of the present leg at some rates; seconds."""
        leg = timed_phases(self.lowered, self.stage, rates_Bps)
        links = leg.rate_Bps, leg.latency_s, self.lowered.credits
        return sum(cycle_s(phase, *links) for phase in leg.phases)

    def key(self) -> Hashable:
        """Return a value that is equal for collectives that are alike and began together."""
        schedule = self.lowered.schedule
        return (self.start_s, self.leg, schedule.collective, schedule.nbytes, schedule.ranks)


def cycle_s(phase: Phase, rate_Bps: FloatArray, latency_s: FloatArray, credits: int) -> float:
    """Estimate the time of a phase: its slowest cycle times its repeats; seconds.

    The elementary cycles of a ring's recurrence are an edge's own work, the return of its credits,
    and the path around the ring.
    """
    busy = phase.nbytes / rate_Bps if rate_Bps.all() else sending_s(phase.nbytes, rate_Bps)
    step = busy + latency_s
    own = np.maximum(busy, step / credits) if phase.repeat > 1 else busy
    slowest = float((own * phase.active).max(initial=0.0))
    if phase.repeat == 1 or phase.first.any():  # no ring
        return slowest
    sums = np.bincount(phase.channel, weights=step)
    around = float((sums / np.maximum(np.bincount(phase.channel), 1)).max())
    return max(slowest, phase.repeat * around / phase.lag)


def sort_key(job: Collective | Streams, mark: int) -> tuple[float, int, float, int]:
    """Return a key that puts jobs in an order independent of that in which they started.

    `mark`: of the links that it crosses, see `LinkSet.mark`.
    """
    if isinstance(job, Collective):
        return (job.start_s, len(job.edges), float(job.lowered.schedule.nbytes), mark)
    return (job.since_s, len(job.edges), float(job.nbytes.sum()), mark)

"""Factors on the work of single ranks: jitter by distribution and seed, and slow ranks.

Every factor depends on (seed, step, piece of work, rank) only, so that the same seed gives the same
bits in whatever order a simulator draws, and for a rank alone in its class as among thousands.

How long the collectives of a plan take, one after the other: alone, or among others.

Both know a plan of which at most one collective is in progress at a time
(`perfmodel.simulate.engine.rank_vectors.why_unsuited`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import simpy

from perfmodel.arrays import FloatArray, IntArray, RankGroup, round_bits
from perfmodel.errors import SimulationError, TopologyError
from perfmodel.library.machine import Machine
from perfmodel.simulate.engine.engine import Fidelity, Surroundings, on_network
from perfmodel.simulate.engine.plan_run import PlanRun
from perfmodel.simulate.flow.approximation import ApproximationNote
from perfmodel.simulate.network import (
    LinkCounters,
    Network,
    run_until,
    sum_counters,
    zero_counters,
)
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.training.plan.step_plan import Collective, StepPlan, Task

Kind = Literal["normal", "lognormal", "gamma", "exponential"]


@dataclass(frozen=True, slots=True)
class Jitter:
    """Random factors on GPU work with mean 1 and a coefficient of variation."""

    kind: Kind
    """Normal factors are cut at zero; "exponential" is 1 - cv and a tail of mean cv."""
    cv: float
    """Standard deviation over mean."""
    per: Literal["step", "layer"]
    """One factor for all work of a rank in a step, or one for each piece of work."""
    seed: int

    def factors(self, ranks: int, step: int, piece: int) -> FloatArray:
        """Draw one factor per rank for a numbered piece of work of a step; shape (ranks,).

        Rounded to 40 bits: powers and logarithms differ in the last of 53 bits between processors.
        """
        return round_bits(self._draw(ranks, step, piece))

    def _draw(self, ranks: int, step: int, piece: int) -> FloatArray:
        entropy = (self.seed, step, piece if self.per == "layer" else 0)
        draw = np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy)))
        cv = self.cv
        if self.kind == "normal":
            return np.maximum(0.0, draw.normal(1.0, cv, ranks))
        if self.kind == "lognormal":
            sigma = math.sqrt(math.log1p(cv * cv))
            return draw.lognormal(-sigma * sigma / 2, sigma, ranks)
        if self.kind == "gamma":
            return draw.gamma(1 / (cv * cv), cv * cv, ranks)
        return 1.0 - cv + draw.exponential(cv, ranks)


@dataclass(frozen=True, slots=True)
class SlowSteps:
    """A class of ranks that is `by` times slower in some steps."""

    rank_class: str
    by: float
    steps: frozenset[int]


@dataclass
class Variation:
    """Factor on each task on each rank of its class; a `Stretch` of the engine.

    Work on the host is not varied. Copies of a task in several classes (see
    `perfmodel.training.plan.split_class`) are the same piece of work.
    """

    plan: StepPlan
    jitters: Sequence[Jitter] = ()
    slow: Sequence[SlowSteps] = ()
    _piece: list[int] = field(init=False)
    _place: Mapping[str, IntArray | slice] = field(init=False)
    _ranks: int = field(init=False)
    _drawn: dict[int, tuple[tuple[int, int], FloatArray]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        on_host = {stream.name for stream in self.plan.streams if stream.kind == "host"}
        count: dict[str, int] = {}
        self._piece = []
        for task in self.plan.tasks:
            piece = count.get(task.rank_class, 0)
            count[task.rank_class] = piece + 1
            self._piece.append(-1 if task.stream in on_host else piece)
        members = [np.asarray(c.ranks, dtype=np.int64) for c in self.plan.classes]
        all_ranks = np.sort(np.concatenate(members))
        self._ranks = len(all_ranks)
        self._place = {
            c.name: slice(None) if len(part) == len(all_ranks) else np.searchsorted(all_ranks, part)
            for c, part in zip(self.plan.classes, members, strict=True)
        }

    def __call__(self, step: int, index: int) -> float | FloatArray:
        """Return the factor on a task: one for the class, or one for each of its ranks."""
        piece = self._piece[index]
        if piece < 0:
            return 1.0
        name = self.plan.tasks[index].rank_class
        factor: float | FloatArray = 1.0
        for slow in self.slow:
            if slow.rank_class == name and step in slow.steps:
                factor = factor * slow.by
        for number, jitter in enumerate(self.jitters):
            factor = factor * self._draw(number, jitter, step, piece)[self._place[name]]
        return factor

    def _draw(self, number: int, jitter: Jitter, step: int, piece: int) -> FloatArray:
        """Factors of all ranks; the last ones are cached for the other classes."""
        key = (step, piece if jitter.per == "layer" else 0)
        cached = self._drawn.get(number)
        if cached is None or cached[0] != key:
            cached = self._drawn[number] = (key, jitter.factors(self._ranks, *key))
        return cached[1]


@dataclass
class TimesAlone:
    """Times of collectives without other traffic, each worked out once."""

    plan: StepPlan
    timer: UncontendedTimer
    fidelity: Fidelity | Literal["free"]
    _notes: dict[str, ApproximationNote] = field(default_factory=dict)
    _cache: dict[Collective, tuple[float, LinkCounters]] = field(default_factory=dict)
    _uses: Counter[Collective] = field(default_factory=Counter)

    @property
    def others_step_ends_s(self) -> Mapping[str, tuple[float, ...]]:
        """None: there are no other jobs."""
        return {}

    @property
    def notes(self) -> tuple[ApproximationNote, ...]:
        """Where what was simulated is an approximation, one of each kind."""
        return tuple(self._notes.values())

    def takes_s(self, _tasks: Sequence[Task], work: Collective, _start_s: float) -> float:
        """Duration of a collective of some tasks, whenever it starts; seconds."""
        if work not in self._cache:
            groups = groups_of(self.plan, work)

            def run(network: Network) -> Network:
                ended = network.collective(work.op, work.nbytes, groups, work.root, work.times)
                network.env.run(until=ended)
                return network

            network = on_network(self.timer, self.fidelity, run)
            self._cache[work] = (float(network.env.now), network.counted)
            self._notes |= {note.why: note for note in network.notes}
        self._uses[work] += 1
        return self._cache[work][0]

    def counted(self, _end_s: float) -> LinkCounters:
        """Bytes on each arc of all collectives so far."""
        total = zero_counters(len(self.timer.machine.topology.arcs))
        for work, times in self._uses.items():
            single = self._cache[work][1]
            many = LinkCounters(times * single.wire_bytes, times * single.payload_bytes)
            total = sum_counters(total, many)
        return total


class TimesAmongOthers:
    """Times of collectives on a network that others use, too, or that changes.

    Simulated time goes on from the start of one collective to its end, and to the start of the
    next; what happens beside them happens at its time.
    """

    def __init__(
        self, plan: StepPlan, machine: Machine, network: Network, surroundings: Surroundings
    ) -> None:
        self._plan, self._network, self._env = plan, network, network.env
        self._in_progress: tuple[str, ...] = ()
        self._others: list[PlanRun] = surroundings.start(
            network, machine, lambda: self._in_progress
        )

    @property
    def others_step_ends_s(self) -> Mapping[str, tuple[float, ...]]:
        """Ends of the steps of other jobs that are over."""
        return {job.plan.name: job.completed_s for job in self._others}

    @property
    def notes(self) -> tuple[ApproximationNote, ...]:
        """Where what was simulated is an approximation."""
        return self._network.notes

    def takes_s(self, tasks: Sequence[Task], work: Collective, start_s: float) -> float:
        """Duration of a collective, whose start is not before the end of the one before."""
        self._go_on(start_s)
        classes = ", ".join(task.rank_class for task in tasks[:4])
        self._in_progress = (f"{tasks[0].name} ({classes})",)
        try:
            groups = groups_of(self._plan, work)
            ended = self._network.collective(work.op, work.nbytes, groups, work.root, work.times)
        except TopologyError as error:
            raise SimulationError(f"{self._in_progress[0]} cannot start: {error}") from error
        begun_s = self._env.now
        self._run(ended)
        self._in_progress = ()
        return float(self._env.now - begun_s)

    def counted(self, end_s: float) -> LinkCounters:
        """Bytes on each arc until the plan has ended, those of others included."""
        self._go_on(end_s)
        return self._network.counted

    def _go_on(self, until_s: float) -> None:
        if until_s > self._env.now:
            self._run(until_s)

    def _run(self, until: simpy.Event | float) -> None:
        run_until(self._env, until, lambda: f"{self._plan.name!r}: {', '.join(self._in_progress)}")


CollectiveTimes = TimesAlone | TimesAmongOthers
"""Times of the collectives of a plan, which are asked for in the order of their starts."""


def groups_of(plan: StepPlan, work: Collective) -> tuple[RankGroup, ...]:
    """Return the groups of ranks of a collective."""
    return next(c.groups for c in plan.communicators if c.name == work.communicator)

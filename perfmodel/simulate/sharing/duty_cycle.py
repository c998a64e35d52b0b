"""Rates of the edges of a collective alone on its links.

Edges that are active in all repeats share links max-min fairly. Those of chains and trees are
active in some repeats only, and share a link with those that are active in the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, sending_s
from perfmodel.collectives.schedule import Phase
from perfmodel.collectives.timing.critical_path import classed_trees_s
from perfmodel.collectives.timing.path_classes import EdgeClasses
from perfmodel.collectives.timing.variable_rate import CompletionTimes
from perfmodel.library.lowering.lowered import Edges, LoweredCollective, Stage
from perfmodel.memo import once
from perfmodel.simulate.sharing.link_uses import (
    LARGE_STAGE_LINKS,
    UsePatterns,
    busy_bytes,
    bytes_met,
    patterns_of,
)
from perfmodel.simulate.sharing.max_min import max_min_rates


class _KnownPatterns(NamedTuple):
    """Patterns of the uses of links by some edges: at first of channels that carry alike."""

    arcs: IntArray
    first: IntArray
    phases: int
    capacity_Bps: FloatArray
    patterns: list[UsePatterns]

    def are_of(self, stage: Stage, phase: Phase) -> bool:
        """Whether they are those of the edges of a stage in one of its phases."""
        return (
            self.arcs is stage.edges.arcs
            and self.first is phase.first
            and self.phases == len(stage.phases)
        )


@dataclass
class UseOrders:
    """How links are used by sets of edges; found once for all sizes of a collective.

    Machines whose links differ in their latencies only may share it.

    Parameters
    ----------
    unscaled : UseOrders, optional
        Of a machine on which links of one bandwidth are also of one bandwidth here (see
        `tells_apart`): what was found there holds here, over the same edges.
    """

    unscaled: UseOrders | None = None
    _known: list[_KnownPatterns] = field(default_factory=list)
    _fits: dict[tuple[UsePatterns, Phase], bool] = field(default_factory=dict)
    """Whether patterns, those of `unscaled` among them, are those of a phase: what is asked for on
    a machine goes with it."""

    def __len__(self) -> int:
        return sum(len(entry.patterns) for entry in self._known)

    def of(self, stage: Stage, phase: Phase, capacity_Bps: FloatArray) -> UsePatterns:
        """Return how links of some capacity are used in a phase of a stage."""
        same = self._find_unscaled(stage, phase)
        if same is not None:
            return same
        own = (each for each in self._known if each.capacity_Bps is capacity_Bps)
        known = next((each for each in own if each.are_of(stage, phase)), None)
        if known is None:
            known = _KnownPatterns(
                stage.edges.arcs, phase.first, len(stage.phases), capacity_Bps, []
            )
            self._known.append(known)
        fitting = self._fitting([known], stage, phase)
        if fitting is None:  # channels that carry unlike bytes are told apart
            fitting = patterns_of(stage, phase, capacity_Bps, by_channel=bool(known.patterns))
            known.patterns[1:] = [fitting]
        return fitting

    def _find_unscaled(self, stage: Stage, phase: Phase) -> UsePatterns | None:
        """Return what was found for the edges of a stage, if those of a class are alike in it."""
        known = [] if self.unscaled is None else self.unscaled._known
        patterns = self._fitting(known, stage, phase)
        classes = None if patterns is None else patterns.classes
        numbers = stage.latency_s, stage.cap_Bps
        return patterns if classes is None or all(map(classes.agree, numbers)) else None

    def _fitting(
        self, known: Sequence[_KnownPatterns], stage: Stage, phase: Phase
    ) -> UsePatterns | None:
        """Return those patterns of the first that are known of these edges that are a phase's."""
        patterns = next((each.patterns for each in known if each.are_of(stage, phase)), [])
        fits = (
            each for each in patterns if once(self._fits, (each, phase), partial(each.fits, phase))
        )
        return next(fits, None)

    def classes(self, stage: Stage) -> EdgeClasses | None:
        """Return the classes of edges of a stage whose rates were asked for; None without any."""
        if len(stage.phases) > 1:  # patterns of one phase are not those of another
            return None
        patterns = self._find_unscaled(stage, stage.phases[0]) or self._fitting(
            self._known, stage, stage.phases[0]
        )
        return None if patterns is None else patterns.classes


def tells_apart(of_links: FloatArray, others: FloatArray) -> bool:
    """Whether links of unlike numbers on another machine are of unlike ones on this one, too.

    `of_links`, `others`: bandwidths or latencies of the same links on both; shape (links,).
    """
    if of_links is others or len(of_links) != len(others):
        return of_links is others
    _, sample, of = np.unique(of_links, return_index=True, return_inverse=True)
    return bool(np.array_equal(others[sample][of], others))


@dataclass(frozen=True, slots=True)
class ClassRates:
    """Rates of edges, those of a class once."""

    rates: FloatArray
    classes: EdgeClasses | None
    """None where every edge is a class of its own."""

    def of_edges(self) -> FloatArray:
        """Return the rate of each edge; shape (edges,)."""
        return self.rates if self.classes is None else self.rates[self.classes.of]


@dataclass
class StageRates:
    """Rates of stages without other traffic, with a cache; wire bytes per second.

    They follow from links, caps and bytes: stages that differ in latencies only have the same.

    Parameters
    ----------
    capacity_Bps : ndarray of float, shape (links,)
    orders : UseOrders
    """

    capacity_Bps: FloatArray
    orders: UseOrders = field(default_factory=UseOrders)
    _max_min: dict[Edges, FloatArray] = field(default_factory=dict)
    _classed: dict[Hashable, ClassRates] = field(default_factory=dict)

    def of(self, stage: Stage) -> FloatArray:
        """Return the rate of each edge; shape (edges,)."""
        if not is_steady(stage):
            return np.minimum(stage.cap_Bps, self.of_classes(duty_cycle_rates, stage).of_edges())
        edges = stage.edges
        share = partial(max_min_rates, self.capacity_Bps, edges.pointers, edges.arcs, stage.cap_Bps)
        return once(self._max_min, edges, share) if np.isinf(stage.cap_Bps).all() else share()

    def of_classes(
        self, find: Callable[[FloatArray, Stage, UseOrders], ClassRates], stage: Stage
    ) -> ClassRates:
        """Return the `duty_cycle_rates` or `fill_and_drain_rates` of edges, whatever their caps."""
        return once(
            self._classed,
            (find, stage.edges, *stage.phases),
            lambda: find(self.capacity_Bps, stage, self.orders),
        )


def is_steady(stage: Stage) -> bool:
    """Whether all edges are active in all repeats."""
    return all(bool((phase.active == phase.repeat).all()) for phase in stage.phases)


def duty_cycle_rates(capacity_Bps: FloatArray, stage: Stage, orders: UseOrders) -> ClassRates:
    """Return the rates of edges that are active in some repeats only, as in chains and trees.

    An active edge shares each of its links with those that are active in the same repeats. Edges
    that send more in a repeat need more of a link to keep in step, so a link is shared by bytes:
    capacity x own bytes / bytes of all edges there, its own included, in its own repeats. Edges of
    one channel that send in different repeats do not slow each other; channels that start together
    do. Exact where that link limits all edges that share it; too low elsewhere.

    `capacity_Bps`: shape (links,). `orders`: of stages over the same edges.

    Returns
    -------
    ClassRates
        Wire bytes per second while an edge sends, whatever its own cap.
    """
    met, own = np.zeros(1), np.zeros(1)
    unit = max((float(phase.nbytes.max(initial=0.0)) for phase in stage.phases), default=0.0) or 1.0
    for phase in stage.phases:
        nbytes = phase.nbytes / unit  # sums of equal ones are then exact
        patterns = orders.of(stage, phase, capacity_Bps)
        of_phase = phase.active[patterns.edges] * nbytes[patterns.edges]
        met = met + patterns.over_links(of_phase, bytes_met(patterns.order, phase, nbytes))
        own = own + of_phase
    overload = met / np.repeat(np.where(own > 0, own, np.inf), patterns.lengths)
    shares = capacity_Bps[patterns.arcs] / np.maximum(overload, 1.0)
    return ClassRates(patterns.reduce(np.minimum, shares, np.inf), orders.classes(stage))


def fill_and_drain_rates(capacity_Bps: FloatArray, stage: Stage, orders: UseOrders) -> ClassRates:
    """Return the rates of edges of a pipeline while it fills or drains.

    The first pieces of edges that begin early, and the last of those that end late, share their
    links with few others. The rate is that of an edge's first or of its last repeat, whichever is
    higher. A link is shared equally there, piece by piece: a small piece waits for as many bytes of
    a large one as it has itself.

    `capacity_Bps`: shape (links,). `stage`: of one phase. `orders`: of stages over the same edges.

    Returns
    -------
    ClassRates
        Wire bytes per second, whatever an edge's own cap.
    """
    phase = stage.phases[0]
    patterns = orders.of(stage, phase, capacity_Bps)
    own = phase.nbytes[patterns.edges]
    busy = patterns.over_links(own, busy_bytes(patterns.order, phase))
    busy_s = sending_s(busy, capacity_Bps[patterns.arcs])
    longest_s, unlimited = patterns.reduce(np.maximum, busy_s, 0.0), np.full(len(own), np.inf)
    np.divide(own, longest_s, out=unlimited, where=longest_s > 0)
    return ClassRates(unlimited, orders.classes(stage))


@dataclass(frozen=True, eq=False)
class TimedLeg:
    """A leg of a collective without other traffic; seconds since its collective's first byte.

    A leg is a stage, or several successive stages over the same edges.

    Parameters
    ----------
    edges : Edges
    expand : callable
        Returns its stage, and the wire bytes per second of each edge while it sends, shape
        (edges,). Of a million edges of few classes nobody asks for them, unless others send too.
    begin_s : ndarray of float, shape (edges,), or None
        When each edge may send; None: at once.
    ends : CompletionTimes
    """

    edges: Edges
    expand: Callable[[], tuple[Stage, FloatArray]]
    begin_s: FloatArray | None
    ends: CompletionTimes

    @cached_property
    def _expanded(self) -> tuple[Stage, FloatArray]:
        return self.expand()

    @property
    def stage(self) -> Stage:
        """The stage, with the latency of each edge."""
        return self._expanded[0]

    @property
    def rates_Bps(self) -> FloatArray:
        """Wire bytes per second of each edge while it sends; shape (edges,)."""
        return self._expanded[1]


def classed_leg(lowered: LoweredCollective, rates: StageRates) -> TimedLeg | None:
    """Time the leg of a collective over trees of few shapes; None if it is no such.

    `rates`: of stages on the machine without other traffic.
    """
    stages = joined_stages(lowered.stages)
    if len(stages) != 1 or lowered.credits == 1 or not _may_be_classed(stages[0]):
        return None
    stage, phase = stages[0], stages[0].phases[0]
    usual = rates.of_classes(duty_cycle_rates, stage)
    ends = rates.of_classes(fill_and_drain_rates, stage)
    classes = usual.classes
    if classes is None or ends.classes is not classes:
        return None
    if not all(map(classes.agree, (stage.latency_s, stage.cap_Bps))):
        return None  # bytes of a class fit where rates were found
    sample = classes.sample
    cap_Bps, wire_bytes = stage.cap_Bps[sample], phase.nbytes[sample] * lowered.wire_factor
    usual_Bps, ends_Bps = np.minimum(cap_Bps, usual.rates), np.minimum(cap_Bps, ends.rates)
    latency_s = stage.latency_s[sample] - sooner_s(wire_bytes, usual_Bps, ends_Bps)
    hold_s = sending_s(phase.nbytes[sample], usual_Bps / lowered.wire_factor)
    if np.isinf(hold_s).any():  # over a dead link
        return None
    times = classed_trees_s(phase, classes, hold_s, latency_s, lowered.credits)
    if times is None:
        return None

    def expand() -> tuple[Stage, FloatArray]:
        return replace(stage, latency_s=latency_s[classes.of]), usual_Bps[classes.of]

    return TimedLeg(stage.edges, expand, None, CompletionTimes(times[0], np.array([times[1]])))


def _may_be_classed(stage: Stage) -> bool:
    """Whether edges may be trees of few shapes: those that gather and spread pieces do."""
    if len(stage.phases) != 1 or len(stage.edges.arcs) < LARGE_STAGE_LINKS:
        return False
    phase = stage.phases[0]
    adds = np.asarray(phase.adds)
    both = adds.any() and not adds.all()
    pipelined = not phase.drained and phase.active[0] == phase.active.max() == phase.active.min()
    return bool(both and pipelined and phase.first.any())


def sooner_s(nbytes: FloatArray, usual_Bps: FloatArray, ends_Bps: FloatArray) -> FloatArray:
    """By how much pieces arrive sooner that travel while a pipeline fills or drains; seconds."""
    alive = (usual_Bps > 0) & (ends_Bps > 0)  # over a dead link nothing comes sooner
    inverse = [np.divide(1.0, r, out=np.zeros(len(r)), where=alive) for r in (usual_Bps, ends_Bps)]
    return np.asarray(np.maximum(nbytes * (inverse[0] - inverse[1]), 0.0))


def joined_stages(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Join successive stages over the same edges."""
    joined: list[Stage] = []
    for stage in stages:
        if joined and stage.edges is joined[-1].edges:
            joined[-1] = replace(joined[-1], phases=joined[-1].phases + stage.phases)
        else:
            joined.append(stage)
    return tuple(joined)

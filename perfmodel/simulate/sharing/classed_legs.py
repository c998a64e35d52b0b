"""Legs of collectives without other traffic; those over trees of few shapes, class by class.

In a cluster of like hosts a million edges of trees are of some hundred classes. Edges of a class
have the same rates, latencies and times, so that those of a class are worked out once, and those of
edges only where somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from perfmodel.arrays import FloatArray, sending_s
from perfmodel.collectives.timing.clocks.variable_rate import CompletionTimes
from perfmodel.collectives.timing.critical_path import classed_trees_s
from perfmodel.collectives.timing.path_classes import EdgeClasses
from perfmodel.library.lowering.edges import Edges
from perfmodel.library.lowering.lowered import LoweredCollective, Stage
from perfmodel.simulate.sharing.duty_cycle import StageRates
from perfmodel.simulate.sharing.link_patterns import LARGE


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
    usual, ends = rates.duty_cycled(stage), rates.filled_and_drained(stage)
    classes = usual.classes
    if classes is None or ends.classes is not classes or not _agree(classes, stage):
        return None
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
    if len(stage.phases) != 1 or len(stage.edges.arcs) < LARGE:
        return False
    phase = stage.phases[0]
    adds = np.asarray(phase.adds)
    both = adds.any() and not adds.all()
    pipelined = not phase.drained and phase.active[0] == phase.active.max() == phase.active.min()
    return bool(both and pipelined and phase.first.any())


def _agree(classes: EdgeClasses, stage: Stage) -> bool:
    """Whether edges of a class have the same latency and cap; bytes fit where rates were found."""
    return classes.agree(stage.latency_s) and classes.agree(stage.cap_Bps)


def sooner_s(nbytes: FloatArray, usual_Bps: FloatArray, ends_Bps: FloatArray) -> FloatArray:
    """By how much pieces arrive sooner that travel while a pipeline fills or drains; seconds."""
    alive = (usual_Bps > 0) & (ends_Bps > 0)  # over a dead link nothing comes sooner
    inverse = [np.divide(1.0, r, out=np.zeros(len(r)), where=alive) for r in (usual_Bps, ends_Bps)]
    gained_s: FloatArray = np.maximum(nbytes * (inverse[0] - inverse[1]), 0.0)
    return gained_s


def joined_stages(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Join successive stages over the same edges."""
    joined: list[Stage] = []
    for stage in stages:
        if joined and stage.edges is joined[-1].edges:
            joined[-1] = replace(joined[-1], phases=joined[-1].phases + stage.phases)
        else:
            joined.append(stage)
    return tuple(joined)

"""Factors on the work of single ranks: jitter by distribution and seed, and slow ranks.

Every factor depends on (seed, step, piece of work, rank) only, so that the same seed gives the same
bits in whatever order a simulator draws, and for a rank alone in its class as among thousands.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from perfmodel.arrays import FloatArray, round_bits
from perfmodel.training.plan.step_plan import StepPlan

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
    _drawn: dict[int, tuple[tuple[int, int], FloatArray]] = field(default_factory=dict, init=False)
    _factors: dict[tuple[str, int, int], float | FloatArray] = field(
        default_factory=dict, init=False
    )
    """Of each class on the present piece of work, or on all of the present step."""

    def __post_init__(self) -> None:
        on_host = {stream.name for stream in self.plan.streams if stream.kind == "host"}
        numbers: dict[str, Iterator[int]] = defaultdict(itertools.count)
        pieces = [(task, next(numbers[task.rank_class])) for task in self.plan.tasks]
        self._piece = [-1 if task.stream in on_host else piece for task, piece in pieces]
        members = [np.asarray(c.ranks, dtype=np.int64) for c in self.plan.classes]
        all_ranks = np.sort(np.concatenate(members))
        self._ranks = len(all_ranks)
        self._by_layer = any(jitter.per == "layer" for jitter in self.jitters)
        self._place = {
            c.name: slice(None)
            if len(part) == len(all_ranks)
            else np.searchsorted(all_ranks, part if len(part) > 1 else part[0])
            for c, part in zip(self.plan.classes, members, strict=True)
        }

    def __call__(self, step: int, index: int) -> float | FloatArray:
        """Return the factor on a task: one for the class, or one for each of its ranks."""
        piece = self._piece[index]
        if piece < 0:
            return 1.0
        name = self.plan.tasks[index].rank_class
        key = (name, step, piece if self._by_layer else 0)
        if key not in self._factors:
            self._factors = {each: of for each, of in self._factors.items() if each[1:] == key[1:]}
            self._factors[key] = self._factor(name, step, piece)
        return self._factors[key]

    def _factor(self, name: str, step: int, piece: int) -> float | FloatArray:
        own = (slow.by for slow in self.slow if slow.rank_class == name and step in slow.steps)
        factor: float | FloatArray = math.prod(own, start=1.0)
        for number, jitter in enumerate(self.jitters):
            factor = factor * self._draw(number, jitter, step, piece)[self._place[name]]
        return factor

    def _draw(self, number: int, jitter: Jitter, step: int, piece: int) -> FloatArray:
        """Return the factors of all ranks; the last ones are cached for the other classes."""
        key = (step, piece if jitter.per == "layer" else 0)
        cached = self._drawn.get(number)
        if cached is None or cached[0] != key:
            cached = self._drawn[number] = (key, jitter.factors(self._ranks, *key))
        return cached[1]

"""Step time and memory of a published step, as `perfmodel run` predicts them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from perfmodel.scenario.sections.parallel import ParallelSection
from perfmodel.studies.run.evidence import Setting, setting_of
from perfmodel.studies.run.resolve.memory_estimate import estimate_memory
from perfmodel.studies.run.resolve.resolved_scenario import ResolvedScenario
from perfmodel.studies.run.result import Uncertainty
from perfmodel.studies.run.steps.retimed_steps import RetimedSteps
from perfmodel.studies.run.steps.simulate_step import ReportedRun
from perfmodel.studies.run.steps.sized_job import (
    SizedJob,
    simulate_reported,
    size_job,
)
from perfmodel.studies.run.steps.uncertainty import simulate_uncertainties, step_interval
from perfmodel.training.memory_use import interval_bytes, unused_bytes
from perfmodel.workload.compute_spread import measured_factors
from reports.validation.strategies.model import Ends, Quantity, StrategyStep
from reports.validation.strategies.stated_step import StatedStep, count, positive, read_step

GB = 1e9
"""Peaks are stated in 10^9 bytes."""
SCALES = (0.25, 4.0)
"""Factors on compute between which that of a measured step is sought."""
LONG_TASKS, MANY_GPUS = 5000, 256
"""Tasks of the plan of a split model, and GPUs, above which its step is simulated once: it is not
scaled, which takes a dozen times as long, and its interval is that of a shorter one."""
SHORT_TASKS, MOST_GPUS = 800, 192
"""Tasks of the plan that a long step is shortened to first, and GPUs above which it gets no
interval."""
DECIDES = 1.1
"""A network that is not named decides a step where the slowest of such machines makes it so many
times as long as the fastest: the error that is aimed at."""
WITHIN = 1e-3
"""How near to the measured step the scaled one is brought."""


@dataclass(frozen=True)
class PredictedStep:
    """A row, ready to be simulated.

    `simulated`: runs by factor on compute, which rows of one setup share.
    """

    stated: StatedStep
    sized: SizedJob
    simulated: dict[float, ReportedRun] = field(default_factory=dict)
    intervals: dict[tuple[float, bool], Ends | None] = field(default_factory=dict)

    @cached_property
    def network_factors(self) -> Ends:
        """Of the step on the fastest and on the slowest network that it may have had.

        A long step is not simulated on them: what it is split over shares nodes.
        """
        if self.is_long:
            return 1.0, 1.0
        others = self.stated.other_networks()
        factors = [predict_step(other).step_s / self.step_s for other in others]
        return min(1.0, *factors, 1.0), max(1.0, *factors, 1.0)

    @property
    def undecided(self) -> str:
        """Why the source states too little to predict the step; empty: it does not."""
        low, high = self.network_factors
        if high <= DECIDES * low:
            return ""
        between = f"{low * self.step_s:.3g} to {high * self.step_s:.3g} s"
        return f"network is not named, and decides the step: {between}"

    @property
    def setting(self) -> Setting:
        """By which an answer is near it."""
        return setting_of(self.sized)

    @cached_property
    def step_s(self) -> float:
        """From datasheets; seconds."""
        return self.with_compute(1.0)

    @property
    def is_long(self) -> bool:
        """Whether it takes too long to be simulated with other numbers, too."""
        is_split = not self.stated.scenario.parallel.is_plain
        if not is_split or self.stated.size.gpus > MANY_GPUS:
            return is_split
        return len(self.sized.plan_for(None).tasks) > LONG_TASKS

    def with_compute(self, by: float) -> float:
        """Return the step with times of layers `by` times as long; seconds."""
        return self._run(by).step_s

    def _run(self, by: float) -> ReportedRun:
        if by not in self.simulated:
            self.simulated[by] = simulate_reported(self.sized.with_compute(by))
        return self.simulated[by]

    def interval(self, by: float = 1.0, *, measured: bool = False) -> Ends | None:
        """80 % interval of the step; None: nothing is known of its network.

        `measured`: compute is scaled to a measured step, of which less is uncertain.
        """
        if self.is_long:
            if (1.0, False) not in self.intervals:
                self.intervals[1.0, False] = self._interval_of_shorter()
            return self.intervals[1.0, False]
        if (by, measured) not in self.intervals:
            sized, reported = self.sized.with_compute(by), self._run(by)
            if measured:
                batch = self.sized.batch
                sized = sized.with_spread(measured_factors(batch, batch))
            parts: tuple[Uncertainty, ...] | None = simulate_uncertainties(
                sized, RetimedSteps(reported, sized.disturbances)
            )
            ends = None
            if parts is not None:
                parts = (*parts, self._unnamed_network(reported.step_s))
                ends = step_interval(reported.step_s, parts)
            self.intervals[by, measured] = ends
        return self.intervals[by, measured]

    def _interval_of_shorter(self) -> Ends | None:
        """Interval by that of the same step with fewer micro-batches, and with twice as many.

        A micro-batch more makes each end of what is uncertain longer by as much as the last ones
        did. None: it is long on so many GPUs, or with that few micro-batches.
        """
        micro_batches = count(self.stated.cells, "accumulate")
        stages = self.stated.scenario.parallel.pipeline.stages
        tasks = len(self.sized.plan_for(None).tasks)
        few = stages * max(1, round(micro_batches * SHORT_TASKS / tasks / stages))
        is_too_long = few * tasks > LONG_TASKS * micro_batches
        if is_too_long or 2 * few > micro_batches or self.stated.size.gpus > MOST_GPUS:
            return None
        lengths = [self._uncertain_step(each) for each in (few, 2 * few)]
        beyond = (micro_batches - few) / few
        names = dict.fromkeys(name for ends in lengths for name in ends)
        (step_s, _), *parts = (
            tuple(
                first + beyond * (second - first)
                for first, second in zip(
                    *(ends.get(name, ends[""]) for ends in lengths), strict=True
                )
            )
            for name in names
        )
        uncertain = [Uncertainty(str(at), *sorted(ends)) for at, ends in enumerate(parts)]
        if not uncertain:
            return None
        low_s, high_s = step_interval(step_s, uncertain)
        return self.step_s * low_s / step_s, self.step_s * high_s / step_s

    def _uncertain_step(self, micro_batches: int) -> dict[str, Ends]:
        """Both ends of each uncertainty of a step with other micro-batches; "": the step, twice."""
        cells = {**self.stated.cells, "accumulate": str(micro_batches)}
        other = predict_step(read_step(cells))
        parts = (
            simulate_uncertainties(
                other.sized, RetimedSteps(other._run(1.0), other.sized.disturbances)
            )
            or ()
        )
        return {
            "": (other.step_s, other.step_s),
            **{part.origin: (part.low_s, part.high_s) for part in parts},
        }

    def _unnamed_network(self, step_s: float) -> Uncertainty:
        """Ends of the step for a network that is not named.

        Any between the fastest and the slowest is taken as likely, in the logarithm of the step:
        the middle eight tenths of it, independent of what else is uncertain.
        """
        fastest, slowest = self.network_factors
        low_s = step_s * fastest**0.9 * slowest**0.1
        return Uncertainty("which network", low_s, step_s * fastest**0.1 * slowest**0.9)

    @cached_property
    def scale(self) -> float | None:
        """Factor on compute with which the step is as long as measured; None: there is none."""
        measured_s = self.stated.measured_s
        if measured_s is None:
            return None
        low, high = SCALES
        factor, step_s = 1.0, self.step_s
        for _ in range(12):
            if abs(step_s / measured_s - 1) < WITHIN:
                return factor
            low, high = (factor, high) if step_s < measured_s else (low, factor)
            factor = float(np.clip(factor * measured_s / step_s, low * 1.0001, high / 1.0001))
            step_s = self.with_compute(factor)
        return factor if abs(step_s / measured_s - 1) < 10 * WITHIN else None

    def memory_bytes(self, kind: str) -> float:
        """Peak of the fullest GPU, of what is allocated or reserved, or all that is in use."""
        return self.memory_with_ends(kind)[0]

    def memory_with_ends(self, kind: str) -> tuple[float, float, float]:
        """Such a peak, and the ends of its interval."""
        job, size = self.sized.job, self.sized.size
        memory = estimate_memory(job, size.gpus, self.sized.batch)
        beside = {
            "allocated": 0.0,
            "reserved": memory.idle_bytes + unused_bytes(memory.total_bytes),
        }.get(kind, memory.reserve_bytes)
        low, high = interval_bytes(beside, 0.0, beside, beside)
        return memory.total_bytes + beside, memory.low_bytes + low, memory.high_bytes + high


def predict_step(stated: StatedStep, before: Iterable[PredictedStep] = ()) -> PredictedStep:
    """Resolve a row.

    `before`: other rows; one of the same setup, measured again, shares its simulations.
    Raises `InputError`: a machine or a training that cannot be.
    """
    for other in before:
        if stated.is_same_setup(other.stated):
            return PredictedStep(stated, other.sized, other.simulated, other.intervals)
    size = stated.size
    inputs = ResolvedScenario(
        stated.scenario, stated.node, stated.workload, stated.share, (), None, "flow", (size,)
    )
    return PredictedStep(stated, size_job(inputs, size))


def base_of(step: PredictedStep, rows: Sequence[PredictedStep]) -> PredictedStep | None:
    """Return the run that compute is scaled to: the smallest of the table that is alike.

    Of several with as few GPUs the one that agrees with the row in most; None: it is the row.
    """
    candidates = [
        (likeness, other)
        for other in rows
        if other.stated.measured_s is not None
        and not other.undecided
        and (likeness := step.stated.likeness(other.stated)) is not None
    ]
    if not candidates:
        return None
    fewest = min(other.stated.size.gpus for _, other in candidates)
    if step.stated.size.gpus == fewest:
        first = next(other for _, other in candidates if other.stated.size.gpus == fewest)
        return None if first is step else first
    smallest = [item for item in candidates if item[1].stated.size.gpus == fewest]
    return max(smallest, key=lambda item: item[0])[1]


def compare_step(step: PredictedStep, base: PredictedStep | None) -> StrategyStep:
    """Put a row's published numbers beside the predicted ones."""
    stated: StatedStep = step.stated
    cells, size = stated.cells, stated.size
    is_long = step.is_long
    factor = None if base is None or is_long or base.is_long else base.scale
    peak = positive(cells, "peak_GB")
    intervals: dict[Quantity, Ends] = {}
    if stated.measured_s is not None and not step.undecided:
        _add(intervals, "step", None if cells["unlike"] else step.interval())
        _add(intervals, "scaled", None if factor is None else step.interval(factor, measured=True))
    return StrategyStep(
        model=stated.model,
        strategy=strategy_of(stated),
        gpu=cells["gpu"],
        gpus=size.gpus,
        batch=step.sized.batch,
        precision=cells["precision"],
        recompute=cells["recompute"],
        published_s=stated.measured_s,
        predicted_s=step.step_s,
        scaled_s=None if factor is None or not stated.measured_s else step.with_compute(factor),
        published_bytes=None if peak is None else peak * GB,
        predicted_bytes=0.0 if peak is None else step.memory_bytes(cells["memory_kind"]),
        memory_kind=cells["memory_kind"],
        unlike=cells["unlike"],
        undecided=step.undecided,
        presumed=cells["presumed"],
        intervals=intervals,
        source=cells["source"],
        note=cells["note"],
        samples=step.sized.batch * count(cells, "accumulate") * stated.replicas,
        degrees=degrees_of(stated.scenario.parallel),
        setting=step.setting,
    )


def _add(intervals: dict[Quantity, Ends], quantity: Quantity, ends: Ends | None) -> None:
    if ends is not None:
        intervals[quantity] = ends


def strategy_of(stated: StatedStep) -> str:
    """Name a strategy as reports group it: one GPU alone has none, HSDP and stages are apart.

    Parallel layouts have the names of what they split, and of their schedule.
    """
    if stated.size.gpus == 1:
        return "one GPU"
    if not stated.scenario.parallel.is_plain:
        return layout_name(stated.scenario.parallel)
    section = stated.scenario.strategy
    names = {"fsdp": f"fsdp{getattr(section, 'version', '')}"}
    name = names.get(section.kind, section.kind)
    stage = getattr(section, "stage", None)
    name = name if stage is None else f"{name}-{stage}"
    return "hsdp" if name.startswith("fsdp") and getattr(section, "shard_gpus", None) else name


def layout_name(section: ParallelSection) -> str:
    """Name what a parallel layout splits: "tp pp interleaved"."""
    names = [name for name, degree in _degrees(section) if degree > 1]
    schedule = [section.pipeline.schedule] if section.pipeline.stages > 1 else []
    return " ".join([*names, *schedule])


def degrees_of(section: ParallelSection) -> str:
    """Degrees of a parallel layout in words: "tp 8, pp 16"; empty: the model is not split."""
    return ", ".join(f"{name} {degree}" for name, degree in _degrees(section) if degree > 1)


def _degrees(section: ParallelSection) -> tuple[tuple[str, int], ...]:
    return (
        ("tp", section.tensor),
        ("cp", section.context.degree),
        ("ep", section.expert),
        ("pp", section.pipeline.stages),
    )

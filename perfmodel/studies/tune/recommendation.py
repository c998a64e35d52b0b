"""What to recommend: nothing that may be slower than PyTorch's default, or hardly quicker.

The default needs no upkeep when the model changes, so that another setting has to earn its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perfmodel.errors import Fault, InputError
from perfmodel.studies.run.prepared import PreparedSize
from perfmodel.studies.run.steps.uncertainty import nearby_machines
from perfmodel.studies.tune.caps import Caps, Window, assign_buckets, round_cap_mb
from perfmodel.studies.tune.evaluator import Evaluator
from perfmodel.studies.tune.model import Choice, Recommendation, TuneResult
from perfmodel.studies.tune.robustness import (
    WITHIN,
    RatedPartition,
    Ratio,
    steps_on_machines,
)
from perfmodel.studies.tune.surrogate import STEP_ROUNDING
from perfmodel.training.ddp.options import MIB, DdpOptions

WORTH = WITHIN
"""Gain below which PyTorch's default is kept: caps within it count as good as the best, too."""


def recommend(
    default: Choice, requested: Choice | None, candidates: Iterable[Choice]
) -> Recommendation:
    """Choose what to paste.

    `requested`: the scenario's own caps, if it has any.
    `candidates`: what was tuned, in the order in which to offer them; the best one comes first.
    """
    worthwhile = [choice for choice in candidates if choice.gains[0] >= WORTH]
    sure = [choice for choice in worthwhile if _is_sure(choice)]
    unsure = min(
        (choice for choice in worthwhile if not _is_sure(choice)),
        key=lambda choice: choice.step_time_s,
        default=None,
    )
    own_s = default.step_time_s if requested is None else requested.step_time_s
    better = [choice for choice in sure if choice.step_time_s < own_s]
    best_s = min((choice.step_time_s for choice in better), default=own_s)
    if requested is not None and own_s <= min(default.step_time_s, best_s * (1 + WORTH)):
        return Recommendation((), requested, unsure)
    better.sort(key=lambda choice: choice.step_time_s > best_s * (1 + STEP_ROUNDING))
    return Recommendation(tuple(dict.fromkeys(better)), None, unsure)


def _is_sure(choice: Choice) -> bool:
    """Whether a setting is quicker than the default anywhere in the interval, noise or not."""
    return min(choice.gains + choice.gains_nearby) > 0.0 and choice.gains[0] > choice.noise


# ---------------------------------------------------------------- what there is to choose from


class Candidates(NamedTuple):
    """Settings under the names that `TuneResult` has for them."""

    default: Choice
    requested: Choice | None
    best_uniform: Choice
    best_list: Choice
    best_integer_list: Choice

    @property
    def tuned(self) -> tuple[Choice, ...]:
        """What may be recommended, in the order in which to offer it."""
        return self.best_uniform, self.best_list, self.best_integer_list


def evaluate_candidates(
    evaluator: Evaluator, cap: float, caps: Caps, integer_caps: Caps, ratios: Sequence[Ratio]
) -> Candidates:
    """Simulate the settings of a result on the likely machine, and rate them on the others.

    `cap`, `caps`, `integer_caps`: what was tuned; MiB.
    `ratios`: of `perfmodel.studies.tune.robustness.compare_machines`.
    """

    def evaluate(options: DdpOptions, cap: float | None = None, caps: Caps | None = None) -> Choice:
        return _evaluate(evaluator, ratios, options, cap, caps)

    own = evaluator.options
    stated = own.bucket_cap_bytes, own.first_bucket_bytes, own.caps_list_bytes
    return Candidates(
        default=evaluate(evaluator.default_options()),
        requested=None if stated == (None, None, None) else evaluate(own, *_own_caps(own)),
        best_uniform=evaluate(evaluator.uniform_options(cap), cap=cap),
        best_list=evaluate(evaluator.list_options(caps), caps=caps),
        best_integer_list=evaluate(evaluator.list_options(integer_caps), caps=integer_caps),
    )


def _gains_nearby(
    prepared: PreparedSize, default: DdpOptions, options: DdpOptions
) -> tuple[float, ...]:
    """Gains where a little more or less of the network may change the order of messages."""
    nearby = nearby_machines(prepared.machine, prepared.sized.fidelity)
    return tuple(
        1.0
        - prepared.step(options, machine).step_time_s / prepared.step(default, machine).step_time_s
        for machine, _ in nearby.values()
    )


def _own_caps(options: DdpOptions) -> tuple[float | None, Caps | None]:
    """Cap for all, or list, as the constructor takes them; MiB."""
    if options.caps_list_bytes is not None:
        return None, tuple(nbytes / MIB for nbytes in options.caps_list_bytes)
    return None if options.bucket_cap_bytes is None else options.bucket_cap_bytes / MIB, None


def _evaluate(
    evaluator: Evaluator,
    ratios: Sequence[Ratio],
    options: DdpOptions,
    cap: float | None,
    caps: Caps | None,
) -> Choice:
    default, outcome = (
        evaluator.simulate(setting) for setting in (evaluator.default_options(), options)
    )
    rated = [
        RatedPartition(assign_buckets(evaluator.workload, setting), simulated.step_time_s)
        for setting, simulated in ((evaluator.default_options(), default), (options, outcome))
    ]
    default_s, steps_s = steps_on_machines(evaluator, rated, ratios)
    return Choice(
        bucket_cap_mb=cap,
        bucket_cap_mb_list=caps,
        step_time_s=outcome.step_time_s,
        exposed_comm_s=outcome.exposed_comm_s,
        first_step_time_s=evaluator.simulate_first_step(options),
        buckets=outcome.buckets,
        gains=tuple(1.0 - step / usual for step, usual in zip(steps_s, default_s, strict=True)),
        gains_nearby=_gains_nearby(evaluator.prepared, evaluator.default_options(), options),
        noise=math.hypot(outcome.noise_s, default.noise_s) / default.step_time_s,
    )


# ---------------------------------------------------------------- minimax regret


@dataclass(frozen=True, slots=True)
class SharedCap:
    """One cap for all scenarios.

    `bucket_cap_mb`: None: PyTorch's default.
    `steps_s`: scenario by scenario; seconds.
    `regrets`: how much longer a step is than with the best cap for that scenario alone, relatively.
    """

    bucket_cap_mb: float | None
    steps_s: tuple[float, ...]
    regrets: tuple[float, ...]

    @property
    def worst_regret(self) -> float:
        """Largest regret over the scenarios."""
        return max(self.regrets)


@dataclass(frozen=True)
class MinimaxCap:
    """The answer of ``perfmodel tune`` for several scenarios.

    `best`: the cap whose largest regret is the least.
    `low_mb`, `high_mb`: caps that do exactly the same everywhere; MiB.
    `default`: PyTorch's own caps.
    """

    each: tuple[TuneResult, ...]
    best: SharedCap
    low_mb: float
    high_mb: float
    default: SharedCap

    @property
    def keep_default(self) -> bool:
        """Whether the cap is not worth leaving the default: in all, or in one scenario."""
        gains = [
            1.0 - best / usual
            for best, usual in zip(self.best.steps_s, self.default.steps_s, strict=True)
        ]
        return max(gains) < WORTH or min(gains) < -STEP_ROUNDING


def choose_minimax_cap(results: Sequence[TuneResult]) -> MinimaxCap:
    """Find one cap for several scenarios.

    `results`: two or more; their curves cover all caps, so that none is missed.
    Raises `InputError`: fewer than two.
    """
    if len(results) < 2:
        raise InputError(Fault("scenarios", f"{len(results)}", "two or more for one setting"))
    ends = sorted({point.low_mb for tuned in results for point in tuned.curve})
    rated = [(rate_cap(results, low), low) for low in ends]
    least = min(shared.worst_regret for shared, _ in rated)
    index = next(
        index
        for index, (shared, _) in enumerate(rated)
        if shared.worst_regret <= least + STEP_ROUNDING
    )
    best_cap, low_mb = rated[index]
    high_mb = ends[index + 1] if index + 1 < len(ends) else float("inf")
    window = Window(round(low_mb * MIB) - 1, high_mb * MIB - 1)
    best = SharedCap(round_cap_mb(window), best_cap.steps_s, best_cap.regrets)
    steps = tuple(tuned.default.step_time_s for tuned in results)
    default = SharedCap(None, steps, _compute_regrets(results, steps))
    return MinimaxCap(tuple(results), best, low_mb, high_mb, default)


def rate_cap(results: Sequence[TuneResult], cap_mb: float) -> SharedCap:
    """Return the steps and regrets of one cap for several scenarios."""
    steps = tuple(tuned.at(cap_mb).step_time_s for tuned in results)
    return SharedCap(cap_mb, steps, _compute_regrets(results, steps))


def _compute_regrets(results: Sequence[TuneResult], steps_s: Sequence[float]) -> tuple[float, ...]:
    return tuple(
        step_s / tuned.least_uniform_s - 1.0 for tuned, step_s in zip(results, steps_s, strict=True)
    )

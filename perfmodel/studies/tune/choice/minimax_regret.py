"""One cap for several clusters, models or sizes: the one whose largest regret is least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.errors import Fault, InputError
from perfmodel.studies.tune.caps import Window, round_cap_mb
from perfmodel.studies.tune.choice.recommendation import WORTH
from perfmodel.studies.tune.model import TuneResult
from perfmodel.training.ddp.options import MIB

ROUNDING = 1e-9


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
        return max(gains) < WORTH or min(gains) < -ROUNDING


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
        index for index, (shared, _) in enumerate(rated) if shared.worst_regret <= least + ROUNDING
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

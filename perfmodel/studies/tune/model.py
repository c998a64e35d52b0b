"""The result of tuning the buckets of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from perfmodel.scenario import Scenario
from perfmodel.studies.run.result import BucketTime, Limit

STEP_ROUNDING = 1e-9
"""Relative difference of steps that is the rounding of sums."""
STEP_TOLERANCE = 5e-4
"""Relative difference of steps that is not worth an odd number, nor a longer search."""
Progress = Callable[[str], None]
"""Called with the next stage, in words."""
MIN_GAIN = 0.01
"""Share of a step below which a gain is not worth leaving PyTorch's default, and up to which the
regret of a cap is as good as none."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting of the caps, simulated.

    `bucket_cap_mb`: one cap for all; None with a list, and for PyTorch's default.
    `step_time_s`, `exposed_comm_s`: of the settled step.
    `first_step_time_s`: of the very first, whose buckets are not yet rebuilt.
    `gains`: how much shorter the step is than with PyTorch's default, as a share of that: on the
        likely machine, then on the quick and the slow end of its interval, where that is known.
    `gains_nearby`: the same with 2 % more and less of bandwidth, and 3 % of delay, where these may
        change the order of messages; else empty.
    `noise`: half width of the 80 % interval of the first gain where steps vary; 0 elsewhere.
    """

    bucket_cap_mb: float | None
    bucket_cap_mb_list: tuple[float, ...] | None
    step_time_s: float
    exposed_comm_s: float
    first_step_time_s: float
    buckets: tuple[BucketTime, ...]
    gains: tuple[float, ...] = (0.0,)
    noise: float = 0.0
    gains_nearby: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to paste, the best first.

    `choices`: each certainly quicker than PyTorch's default by `MIN_GAIN`; empty: keep the default,
        or `own`.
    `own`: the scenario's own caps, where they are as good as any.
    `unsure`: the quickest setting that may be slower than the default somewhere in the interval of
        the network, or whose gain is within the noise; None where all that is worth it is sure.
    """

    choices: tuple[Choice, ...]
    own: Choice | None = None
    unsure: Choice | None = None

    @property
    def keep(self) -> bool:
        """Whether nothing is to be changed."""
        return not self.choices


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A range of uniform caps that make the same buckets, and their step.

    `bucket_cap_mb`: a short number among them; MiB.
    `low_mb`, `high_mb`: the least, and the first one beyond (infinite for the last); MiB.
    `simulated`: whether by the full simulation; else by the surrogate.
    `regrets`: how much longer the step is than with the best cap, relatively: on the likely
        machine, then on the quick and the slow end of its interval, where that is known.
    """

    bucket_cap_mb: float
    low_mb: float
    high_mb: float
    buckets: int
    step_time_s: float
    exposed_comm_s: float
    simulated: bool
    regrets: tuple[float, ...]

    @property
    def worst_regret(self) -> float:
        """Largest regret over the machines."""
        return max(self.regrets)


Spans = tuple[tuple[float, float], ...]
"""From the least cap to the first one beyond (infinite: no limit); MiB."""


@dataclass(frozen=True, slots=True)
class Plateau:
    """Uniform caps that are as good as the best one on the likely machine.

    `within`: largest regret that counts as good.
    """

    within: float
    spans_mb: Spans


@dataclass(frozen=True, slots=True)
class RobustCap(Plateau):
    """The cap with the least largest regret on the likely, quick and slow machine.

    `spans_mb`: caps whose largest regret is at most `within` above the least.
    `bucket_cap_mb`: MiB.
    `worst_regret`: of that cap.
    """

    bucket_cap_mb: float
    worst_regret: float


@dataclass(frozen=True, slots=True)
class Fusion:
    """Horovod with one fusion threshold.

    `threshold_mb`: ``HOROVOD_FUSION_THRESHOLD``; MiB.
    """

    threshold_mb: float
    step_time_s: float
    exposed_comm_s: float
    all_reduces: int


@dataclass(frozen=True, slots=True)
class Horovod:
    """The same job under Horovod's tensor fusion."""

    cycle_s: float
    default: Fusion
    best: Fusion
    curve: tuple[Fusion, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The job that was tuned, and what its answer depends on.

    `has_words`: whether the programs that are told so run on its GPUs.
    """

    scenario: Scenario = field(repr=False)
    workload: str
    machine: str
    gpus: int
    nodes: int
    assumptions: tuple[str, ...]
    provenance: Mapping[str, str]
    has_words: bool = True


@dataclass(frozen=True, kw_only=True)
class TuneResult(Tuned):
    """The answer of ``perfmodel tune``.

    `bottleneck`, `limit`: of the step with PyTorch's default, as `perfmodel run` finds them.
    `default`: PyTorch's own: 1 MiB first, then 25 MiB.
    `requested`: caps of the scenario, where it sets any.
    `best_uniform`, `best_list`, `best_integer_list`: the cap is a round one among those that are as
        good (see `perfmodel.studies.tune.evaluator`).
    `curve`: by growing cap; together they cover all caps.
    `robust`: None where no interval is known.
    `default_regrets`: of PyTorch's default buckets, like those of a `CurvePoint`; negative where
        they are better than every cap for all.
    `lower_bound_s`: no choice of buckets is below it; None where no bound is proven.
    `exact`: whether the list is proven to be the best of all contiguous groups.
    `compute_s`: compute of the device in a step, without slowdown.
    """

    bottleneck: str
    limit: Limit
    default: Choice
    requested: Choice | None
    best_uniform: Choice
    best_list: Choice
    best_integer_list: Choice
    recommended: Recommendation
    curve: tuple[CurvePoint, ...] = field(repr=False)
    plateau: Plateau
    robust: RobustCap | None
    default_regrets: tuple[float, ...]
    lower_bound_s: float | None
    exact: bool
    compute_s: float
    horovod: Horovod | None

    def regret(self, choice: Choice) -> float:
        """How much longer a step is than with the best list, relatively."""
        return choice.step_time_s / self.best_list.step_time_s - 1.0

    @property
    def least_uniform_s(self) -> float:
        """Step of the best cap, which `best_uniform` may round; seconds."""
        return min(
            self.best_uniform.step_time_s,
            *(point.step_time_s for point in self.curve if point.simulated),
        )

    def at(self, cap_mb: float) -> CurvePoint:
        """Return the point of the curve that holds a cap."""
        return next((p for p in self.curve if cap_mb < p.high_mb), self.curve[-1])


# ---------------------------------------------------------------- one cap for several scenarios


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
        return max(gains) < MIN_GAIN or min(gains) < -STEP_ROUNDING

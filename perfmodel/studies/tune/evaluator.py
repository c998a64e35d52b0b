"""The objective of the search: simulates the buckets of a setting, and keeps every outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from perfmodel.memo import grouped, once
from perfmodel.simulate.engine.engine import BY_SENDS
from perfmodel.studies.run.resolve.disturbance import Disturbance
from perfmodel.studies.run.result import BucketTime
from perfmodel.studies.run.steps.output_analysis import SETTLED_STEPS
from perfmodel.studies.run.steps.simulate_step import ReportedRun, simulate_steps, timer_of
from perfmodel.studies.run.steps.sized_job import SizedJob
from perfmodel.studies.tune.caps import (
    Caps,
    GradientOrder,
    Groups,
    UniformPartition,
    as_bytes,
    assign_buckets,
    cap_room,
    integer_cap_mb,
    number,
    order_gradients,
    with_caps,
)
from perfmodel.studies.tune.model import STEP_ROUNDING, STEP_TOLERANCE
from perfmodel.studies.tune.surrogate import (
    AllReduceTimes,
    Bucket,
    StepSurrogate,
    buckets_of_groups,
    build_surrogate,
)
from perfmodel.training.ddp.buckets import bucket_caps
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.workload.model import ITEM_BYTES, Workload


@dataclass(frozen=True, slots=True)
class Outcome:
    """Step time and exposed communication of some buckets by the simulation; seconds.

    `noise_s`: half width of the 80 % interval of the mean step; 0 where steps are all alike.
    """

    step_time_s: float
    exposed_comm_s: float
    buckets: tuple[BucketTime, ...]
    noise_s: float = 0.0


@dataclass
class Evaluator:
    """Evaluates settings of one scenario, by the simulation or by the surrogate.

    `reasons`: why the surrogate may differ from the simulation; empty where it is exact.
    `outcomes`: all buckets that were simulated.
    `surrogate_error`: largest relative difference of the surrogate from the simulation so far.
    """

    sized: SizedJob
    gradients: GradientOrder
    surrogate: StepSurrogate
    allreduce: AllReduceTimes
    reasons: list[str]
    outcomes: dict[Groups, Outcome] = field(default_factory=dict)
    surrogate_error: float = 0.0
    _first_s: dict[tuple[int, ...], float] = field(default_factory=dict)
    _buckets: dict[Groups, list[Bucket]] = field(default_factory=dict)
    _predictions: dict[Groups, tuple[int, tuple[float, float]]] = field(default_factory=dict)

    @property
    def workload(self) -> Workload:
        """Model that is trained."""
        return self.sized.job.workload

    @property
    def options(self) -> DdpOptions:
        """Options of DDP as the scenario sets them."""
        return self.sized.job.ddp_options

    @property
    def workers(self) -> int:
        """All-reduces under way at a time."""
        return self.sized.job.library.workers

    def uniform_options(self, cap_mb: float) -> DdpOptions:
        """Return the options with one cap for all buckets; MiB."""
        return with_caps(self.options, for_all=as_bytes((cap_mb,))[0])

    def list_options(self, caps_mb: tuple[float, ...]) -> DdpOptions:
        """Return the options with a cap per bucket; MiB."""
        return with_caps(self.options, as_bytes(caps_mb))

    def default_options(self) -> DdpOptions:
        """Return the options with PyTorch's default caps."""
        return with_caps(self.options)

    def list_step_s(self, caps_mb: Caps) -> float:
        """Step time of a list of caps by the simulation; seconds."""
        return self.simulate(self.list_options(caps_mb)).step_time_s

    def simulate(self, options: DdpOptions) -> Outcome:
        """Simulate a setting, unless its buckets were before."""
        groups = assign_buckets(self.workload, options)
        if groups not in self.outcomes:
            step = self.sized.step(options)
            self.outcomes[groups] = Outcome(
                step.step_time_s, step.parts.exposed_comm_s, read_reductions(step), step.noise_s
            )
            if not self.reasons:
                self.time_allreduces(groups)
            error = abs(self.predict_step_s(groups) / step.step_time_s - 1.0)
            self.surrogate_error = max(self.surrogate_error, error)
            if error > STEP_ROUNDING and not self.reasons:
                self.reasons.append("the host holds the device up, or ranks differ")
        return self.outcomes[groups]

    def simulate_first_step(self, options: DdpOptions) -> float:
        """Simulate the very first step, unless one with the same initial buckets was; seconds."""
        return once(
            self._first_s, bucket_caps(options)[0], lambda: self.sized.first_step_s(options)
        )

    def time_allreduces(self, groups: Groups) -> int:
        """Compute the all-reduces of some buckets; returns how many were interpolated before."""
        before = self.allreduce.computed_sizes
        for group in groups:
            self.allreduce.compute(self.gradients.size(group))
        return self.allreduce.computed_sizes - before

    def predict_step_s(self, groups: Groups, optimistic: bool = False) -> float:
        """Predict the step time, optimistic: with the least times of all-reduces; seconds."""
        return self.predict(groups, optimistic)[0]

    def predict(self, groups: Groups, optimistic: bool = False) -> tuple[float, float]:
        """Predict step time and exposed communication by the surrogate; seconds."""
        if optimistic:
            return self.surrogate.times(self.buckets(groups), self.allreduce.lower_s)
        computed_sizes, prediction = self._predictions.get(groups, (-1, (0.0, 0.0)))
        if computed_sizes != self.allreduce.computed_sizes:
            prediction = self.surrogate.times(self.buckets(groups), self.allreduce.time_s)
            self._predictions[groups] = (self.allreduce.computed_sizes, prediction)
        return prediction

    def buckets(self, groups: Groups) -> list[Bucket]:
        """Return groups as buckets of the surrogate."""
        return once(self._buckets, groups, lambda: buckets_of_groups(self.surrogate, groups))


def make_evaluator(sized: SizedJob) -> Evaluator:
    """Return the evaluator of a scenario, its surrogate built."""
    job, options = sized.job, sized.job.ddp_options
    gradients, setting = order_gradients(job.workload, options), sized.setup()
    constant = [  # slow ranks or links by the same factor in every step
        each
        for each in sized.disturbances
        if not (each.varies or each.gpu is not None or each.traffic or each.background_job)
    ]
    finest = sized.with_options(with_caps(options, for_all=1.0)).plan_for(None)
    stated, sent = job.scenario.compute.overlap_slowdown, options.sent_item_bytes
    slowdown = sized.machine.topology.gpu.overlap_slowdown if stated is None else stated
    surrogate = build_surrogate(finest, gradients, _around_backward_s(sized, constant), slowdown)
    allreduce = AllReduceTimes(
        timer_of(setting, sized.disturbances),
        sized.allocation.own,
        scale=1.0 if sent is None else sent / ITEM_BYTES[gradients.dtypes[0]],
        factor=0.0 if setting.fidelity == "free" else 1.0,
    )
    allreduce.prepare(min(gradients.nbytes), gradients.sums[-1])
    factors = grouped((rank, each.by) for each in constant for rank in each.ranks)
    conditions = {
        "what happens around the job varies": len(constant) < len(sized.disturbances),
        "every message is simulated": sized.fidelity in BY_SENDS,
        "several all-reduces are under way at a time": job.library.workers > 1,
        "a hook compresses each bucket": options.has_hook,
        "gradients of several dtypes share the list": not gradients.single_dtype,
        "buckets are never rebuilt": gradients.reverse_filled,
        "the host waits for each all-reduce": job.library.host_staged,
    }
    return Evaluator(
        sized,
        gradients,
        surrogate.scaled(max(map(prod, factors.values()), default=1.0)),  # all wait for the slowest
        allreduce,
        [reason for reason, holds in conditions.items() if holds],
    )


def _around_backward_s(sized: SizedJob, constant: Sequence[Disturbance]) -> tuple[float, float]:
    """Return what lies before and after the last backward and its reductions; seconds.

    From the end of a step to the start of the last backward, and from the start of the optimizer
    to the end of the step, of the ranks that come to them last. Waits for the host are among both.
    """
    run = simulate_steps(replace(sized.setup(), fidelity="flow"), constant, SETTLED_STEPS).run
    spans = [s for s in run.timeline.spans if s.step == SETTLED_STEPS - 1]

    def last_start_s(kind: str) -> float:
        last = (kind, sized.job.options.accumulate - 1)
        own = grouped((s.rank_class, s) for s in spans if (s.kind, s.micro_batch) == last)
        return max(each[0].start_s for each in own.values())

    before_s = last_start_s("backward") - run.step_ends_s[-2]
    return before_s, run.step_ends_s[-1] - last_start_s("optimizer")


def read_reductions(stepped: ReportedRun) -> tuple[BucketTime, ...]:
    """Return when the buckets of the last step were reduced."""
    step = stepped.steps - 1
    start_s = (0.0, *stepped.run.step_ends_s)[step]
    first_spans = {
        span.bucket: span
        for span in reversed(stepped.run.timeline.spans)
        if span.step == step and span.kind == "communication" and span.bucket is not None
    }
    return tuple(
        BucketTime(
            index,
            span.nbytes,
            span.ready_s - start_s,
            span.start_s - start_s,
            span.end_s - start_s,
        )
        for index, (_, span) in enumerate(sorted(first_spans.items()))
    )


# ---------------------------------------------------------------- ties

FEWER_TOLERANCE = 3e-3
"""Instead of `STEP_TOLERANCE` where several all-reduces are under way at a time, for fewer buckets.

Assumption: a model of CPUs that reduce while they compute is less sure of what many small buckets
cost than of the rest (in reports/experiments/gloo_ddp the median error is 0.9 % of a step).
"""
MOST_ROUND_CAPS = 6
"""Most caps that are simulated in search of a round one."""


def choose_uniform_cap(evaluator: Evaluator, partitions: Sequence[UniformPartition]) -> float:
    """Return the best simulated uniform cap, or a rounder one that is as good; MiB."""
    several = evaluator.workers > 1
    steps_s = {groups: each.step_time_s for groups, each in evaluator.outcomes.items()}
    simulated = (each for each in partitions if each.groups in steps_s)
    best = min(simulated, key=lambda each: steps_s[each.groups])
    limit_s = steps_s[best.groups] * (1 + (FEWER_TOLERANCE if several else STEP_TOLERANCE))

    def may_be_good(partition: UniformPartition) -> bool:
        """Whether the step is short: simulated, or by the surrogate where that is exact."""
        if partition.groups in steps_s:
            return steps_s[partition.groups] <= limit_s
        return not evaluator.reasons and evaluator.predict_step_s(partition.groups) <= limit_s

    def complexity(partition: UniformPartition) -> tuple[int, int, float]:
        """Fewer buckets where that counts, fewer digits, more room."""
        buckets, window = len(partition.groups) if several else 0, partition.window
        return buckets, len(number(partition.cap_mb)), -cap_room(window.low_mb, window.high_mb)

    for partition in sorted(filter(may_be_good, partitions), key=complexity)[:MOST_ROUND_CAPS]:
        if evaluator.simulate(evaluator.uniform_options(partition.cap_mb)).step_time_s <= limit_s:
            return partition.cap_mb
    return best.cap_mb


def choose_lists(
    evaluator: Evaluator, lists: Sequence[Caps], partitions: Sequence[UniformPartition]
) -> tuple[Caps, Caps]:
    """Return the best list of caps, and the best of whole numbers; MiB."""
    simulated = [partition for partition in partitions if partition.groups in evaluator.outcomes]
    whole = [integer_cap_mb(partition.window) for partition in simulated]
    uniform = [(1.0, 25.0), *((float(cap),) for cap in whole if cap is not None)]
    candidates = [*lists, *uniform, *((partition.cap_mb,) for partition in simulated)]
    integers = [caps for caps in (*lists, *uniform) if all(cap == int(cap) for cap in caps)]
    return _choose_quickest(evaluator, candidates), _choose_quickest(evaluator, integers)


def _choose_quickest(evaluator: Evaluator, lists: Sequence[Caps]) -> Caps:
    steps_s = {caps: evaluator.list_step_s(caps) for caps in lists}
    limit_s = min(steps_s.values()) * (1 + STEP_ROUNDING)
    quickest = (caps for caps, step_s in steps_s.items() if step_s <= limit_s)
    return min(quickest, key=lambda caps: (len(caps), len(str(caps))))

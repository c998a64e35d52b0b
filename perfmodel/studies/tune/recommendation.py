"""What to recommend: nothing that may be slower than PyTorch's default, or hardly quicker.

The default needs no upkeep when the model changes, so that another setting has to earn its place.

First the step and the regret of every uniform cap on the likely machine, and on the quick and the
slow one: the caps as good as the best, and the cap with the least largest regret.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import groupby
from operator import itemgetter

import numpy as np

from perfmodel.errors import refuse_if
from perfmodel.library.corrections import BANDS, CollectiveContext, Corrections
from perfmodel.library.machine import Machine
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.steps.uncertainty import nearby_machines
from perfmodel.studies.tune.caps import (
    Caps,
    Groups,
    UniformPartition,
    Window,
    assign_buckets,
    cap_room,
    number,
    round_cap_mb,
)
from perfmodel.studies.tune.evaluator import Evaluator
from perfmodel.studies.tune.model import (
    MIN_GAIN,
    STEP_ROUNDING,
    STEP_TOLERANCE,
    Choice,
    CurvePoint,
    MinimaxCap,
    Plateau,
    Recommendation,
    RobustCap,
    SharedCap,
    TuneResult,
)
from perfmodel.training.ddp.options import MIB, DdpOptions

COMPARED_SIZES = 5
"""Sizes at which another machine is compared with the likely one."""
TAIL_SHARE = 0.1
"""Share of the draws below the quick and above the slow machine: 80 % lie between."""
TINY_S = 1e-30

Ratio = Callable[[int], float]
"""Time of an all-reduce of some bytes on another machine over that on the likely one."""

CapCost = tuple[float, float, bool]
"""Step and exposed communication in seconds, and whether they were simulated."""

RatedPartition = tuple[Groups, float]
"""Some buckets, and their step on the likely machine; seconds."""


def build_curve(
    evaluator: Evaluator, partitions: Sequence[UniformPartition], ratios: Sequence[Ratio]
) -> tuple[tuple[CurvePoint, ...], tuple[float, ...]]:
    """Return a point for every uniform cap, and the regrets of PyTorch's default.

    `ratios`: of `compare_machines`.
    """
    default = assign_buckets(evaluator.workload, evaluator.default_options())
    outcome = evaluator.simulate(evaluator.default_options())
    # Buffers before forward are exposed as well, which buckets do not change.
    base_s = max(0.0, outcome.exposed_comm_s - evaluator.predict(default)[1])
    costs = [_cost_of(evaluator, partition.groups, base_s) for partition in partitions]
    if evaluator.reasons:
        costs = _scale_as_nearest(evaluator, partitions, costs)
    rated = [(each.groups, cost[0]) for each, cost in zip(partitions, costs, strict=True)]
    steps_s = steps_on_machines(evaluator, [(default, outcome.step_time_s), *rated], ratios)
    # PyTorch's default buckets may be better than every uniform cap.
    best_s = [min(of_machine) for of_machine in zip(*steps_s[1:], strict=True)]
    default_regrets, *regrets = (
        tuple(step_s / least_s - 1.0 for step_s, least_s in zip(row, best_s, strict=True))
        for row in steps_s
    )
    curve = tuple(
        CurvePoint(
            bucket_cap_mb=partition.cap_mb,
            low_mb=partition.window.low_mb,
            high_mb=partition.window.high_mb,
            buckets=len(partition.groups),
            step_time_s=step_s,
            exposed_comm_s=exposed_s,
            simulated=simulated,
            regrets=regret,
        )
        for partition, (step_s, exposed_s, simulated), regret in zip(
            partitions, costs, regrets, strict=True
        )
    )
    return curve, default_regrets


def _cost_of(evaluator: Evaluator, groups: Groups, base_s: float) -> CapCost:
    outcome = evaluator.outcomes.get(groups)
    if outcome is not None:
        return outcome.step_time_s, outcome.exposed_comm_s, True
    step_s, waited_s = evaluator.predict(groups)
    return step_s, waited_s + base_s, False


def curve_error(evaluator: Evaluator, partitions: Sequence[UniformPartition]) -> float:
    """Return the largest relative error that the curve may have where it was not simulated."""
    errors = (
        1.0
        - evaluator.predict_step_s(p.groups, optimistic=True) / evaluator.predict_step_s(p.groups)
        for p in partitions
        if p.groups not in evaluator.outcomes
    )
    return max(errors, default=0.0)


def _scale_as_nearest(
    evaluator: Evaluator, partitions: Sequence[UniformPartition], costs: list[CapCost]
) -> list[CapCost]:
    """Scale predictions by the error of the surrogate at the nearest simulated cap."""
    simulated_at = [at for at, cost in enumerate(costs) if cost[2]]

    def scaled(at: int, cost: CapCost) -> CapCost:
        nearest = min(simulated_at, key=lambda place: abs(place - at))
        factor = costs[nearest][0] / evaluator.predict_step_s(partitions[nearest].groups)
        return factor * cost[0], max(0.0, cost[1] + (factor - 1.0) * cost[0]), False

    return [cost if cost[2] else scaled(at, cost) for at, cost in enumerate(costs)]


def compare_machines(evaluator: Evaluator) -> tuple[Ratio, ...]:
    """Return the time ratios of all-reduces on the quick machine, and on the slow one."""
    others, gradients = evaluator.sized.ensemble.alternatives, evaluator.gradients
    sizes: list[int] = np.unique(
        np.geomspace(min(gradients.nbytes), gradients.sums[-1], COMPARED_SIZES).astype(int)
    ).tolist()
    if len(others) > 2:
        middle, place = sizes[len(sizes) // 2], int(TAIL_SHARE * len(others))
        ranked = sorted(others, key=lambda each: _time_s(evaluator, UncontendedTimer(each), middle))
        others = (ranked[place], ranked[-1 - place])
    return tuple(_compare_machine(evaluator, other, sizes) for other in others)


def _compare_machine(evaluator: Evaluator, machine: Machine, sizes: Sequence[int]) -> Ratio:
    """Compare a machine with the likely one: by its residual alone, or at some sizes."""
    likely, residual = evaluator.sized.machine, machine.measured.residual
    same_hardware = machine.library is likely.library and machine.topology is likely.topology
    measured, size = (likely.measured, machine.measured), evaluator.sized.size
    if same_hardware and measured == (Corrections(), Corrections(residual=residual)):
        smooth = smooth_residual(machine).measured.residual

        def factor(nbytes: int) -> float:
            situation = CollectiveContext(
                "all_reduce", evaluator.allreduce.wire_bytes(nbytes), size.gpus, size.nodes, "", ""
            )
            return 1.0 if smooth is None else smooth(situation)

        return cache(factor)
    logs, timers = np.log(sizes), (UncontendedTimer(machine), evaluator.allreduce.timer)
    times_s = ([_time_s(evaluator, timer, n) for timer in timers] for n in sizes)
    ratios = [time_s / max(usual_s, TINY_S) for time_s, usual_s in times_s]
    return cache(lambda nbytes: float(np.interp(np.log(nbytes), logs, ratios)))


def smooth_residual(machine: Machine) -> Machine:
    """Return a machine whose residual changes gradually from band to band of sizes.

    Intervals are known by band (`perfmodel.library.corrections`). A machine that is slow in
    all bands does not reduce 65 MiB quicker than 63 MiB, as the jump between two bands says, and no
    cap should be recommended because of such a jump.
    """
    residual = machine.measured.residual
    if residual is None:
        return machine
    low, high = (end for _, end in BANDS[:2])
    middle = (low * high) ** 0.5
    middles = (middle * low / high, middle, middle * high / low)

    def factor(situation: CollectiveContext) -> float:
        residuals = [np.log(residual(replace(situation, nbytes=int(n)))) for n in middles]
        size = np.log(max(1, situation.nbytes))
        return float(np.exp(np.interp(size, np.log(middles), residuals)))

    return machine.with_corrections(Corrections(residual=factor))


def _time_s(evaluator: Evaluator, timer: UncontendedTimer, nbytes: int) -> float:
    return timer.best(
        "all_reduce", evaluator.allreduce.wire_bytes(nbytes), evaluator.allreduce.group
    )[1]


def steps_on_machines(
    evaluator: Evaluator, partitions: Sequence[RatedPartition], ratios: Sequence[Ratio]
) -> list[tuple[float, ...]]:
    """Return the steps of each partition on the likely machine and on others; seconds.

    `ratios`: of the other machines. What a step differs by on them is that of the surrogate.
    """

    def scaled(ratio: Ratio) -> Ratio:
        return cache(lambda nbytes: evaluator.allreduce.time_s(nbytes) * ratio(nbytes))

    times_of = list(map(scaled, ratios))
    return [
        (
            step_s,
            *(
                step_s
                + evaluator.surrogate.step_s(evaluator.buckets(groups), time_of)
                - evaluator.predict_step_s(groups)
                for time_of in times_of
            ),
        )
        for groups, step_s in partitions
    ]


def find_plateau(curve: Sequence[CurvePoint]) -> Plateau:
    """Return the caps whose regret on the likely machine is at most `MIN_GAIN` above the least."""
    return Plateau(MIN_GAIN, _merge_spans(curve, [point.regrets[0] for point in curve]))


def find_robust_cap(curve: Sequence[CurvePoint]) -> RobustCap | None:
    """Return the cap with the least largest regret; None if no interval is known."""
    if len(curve[0].regrets) < 2:
        return None
    worst = [point.worst_regret for point in curve]
    limit = min(worst) + STEP_TOLERANCE
    good = (point for point in curve if point.worst_regret <= limit)
    best = min(good, key=lambda p: (len(number(p.bucket_cap_mb)), -cap_room(p.low_mb, p.high_mb)))
    return RobustCap(MIN_GAIN, _merge_spans(curve, worst), best.bucket_cap_mb, best.worst_regret)


def _merge_spans(
    curve: Sequence[CurvePoint], regrets_of: Sequence[float]
) -> tuple[tuple[float, float], ...]:
    """Merge the ranges of neighbouring caps whose regret is at most `MIN_GAIN` above the least."""
    limit = min(regrets_of) + MIN_GAIN
    rated = [(point, regret <= limit) for point, regret in zip(curve, regrets_of, strict=True)]
    runs = ([p for p, _ in run] for is_good, run in groupby(rated, itemgetter(1)) if is_good)
    return tuple((points[0].low_mb, points[-1].high_mb) for points in runs)


# ---------------------------------------------------------------- what to paste


def recommend(
    default: Choice, requested: Choice | None, candidates: Iterable[Choice]
) -> Recommendation:
    """Choose what to paste.

    `requested`: the scenario's own caps, if it has any.
    `candidates`: what was tuned, in the order in which to offer them; the best one comes first.
    """
    worthwhile = [choice for choice in candidates if choice.gains[0] >= MIN_GAIN]
    own_s = (requested or default).step_time_s
    better = [each for each in worthwhile if _is_sure(each) and each.step_time_s < own_s]
    unsure = min(
        (choice for choice in worthwhile if not _is_sure(choice)),
        key=lambda choice: choice.step_time_s,
        default=None,
    )
    best_s = min((choice.step_time_s for choice in better), default=own_s)
    if requested is not None and own_s <= min(default.step_time_s, best_s * (1 + MIN_GAIN)):
        return Recommendation((), requested, unsure)
    better.sort(key=lambda choice: choice.step_time_s > best_s * (1 + STEP_ROUNDING))
    return Recommendation(tuple(dict.fromkeys(better)), None, unsure)


def _is_sure(choice: Choice) -> bool:
    """Whether a setting is quicker than the default anywhere in the interval, noise or not."""
    return min(choice.gains + choice.gains_nearby) > 0.0 and choice.gains[0] > choice.noise


def evaluate_candidates(
    evaluator: Evaluator, cap: float, caps: Caps, integer_caps: Caps, ratios: Sequence[Ratio]
) -> tuple[Choice | None, Choice, Choice, Choice, Choice]:
    """Simulate the settings of a result on the likely machine, and rate them on the others.

    Returns the scenario's own, if it has any, PyTorch's default, and what was tuned.

    `cap`, `caps`, `integer_caps`: what was tuned; MiB.
    `ratios`: of `perfmodel.studies.tune.robustness.compare_machines`.
    """
    own, evaluate = evaluator.options, partial(_evaluate, evaluator, ratios)
    listed = own.bucket_caps is not None
    own_caps = tuple(nbytes / MIB for nbytes in own.bucket_caps or ()) if listed else None
    own_cap = None if own.bucket_cap is None or listed else own.bucket_cap / MIB
    states_any = listed or own.bucket_cap is not None or own.first_bucket is not None
    return (
        evaluate(own, own_cap, own_caps) if states_any else None,
        evaluate(evaluator.default_options()),
        evaluate(evaluator.uniform_options(cap), cap=cap),
        evaluate(evaluator.list_options(caps), caps=caps),
        evaluate(evaluator.list_options(integer_caps), caps=integer_caps),
    )


def _evaluate(
    evaluator: Evaluator,
    ratios: Sequence[Ratio],
    options: DdpOptions,
    cap: float | None = None,
    caps: Caps | None = None,
) -> Choice:
    sized, usual = evaluator.sized, evaluator.default_options()
    default, outcome = evaluator.simulate(usual), evaluator.simulate(options)
    rated = [
        (assign_buckets(evaluator.workload, setting), simulated.step_time_s)
        for setting, simulated in ((usual, default), (options, outcome))
    ]
    default_s, steps_s = steps_on_machines(evaluator, rated, ratios)
    # A little more or less of the network may change the order of messages.
    nearby_s = [
        (sized.step(options, there).step_time_s, sized.step(usual, there).step_time_s)
        for there, _ in nearby_machines(sized).values()
    ]
    return Choice(
        bucket_cap_mb=cap,
        bucket_cap_mb_list=caps,
        step_time_s=outcome.step_time_s,
        exposed_comm_s=outcome.exposed_comm_s,
        first_step_time_s=evaluator.simulate_first_step(options),
        buckets=outcome.buckets,
        gains=tuple(1.0 - step / least for step, least in zip(steps_s, default_s, strict=True)),
        gains_nearby=tuple(1.0 - step_s / least_s for step_s, least_s in nearby_s),
        noise=math.hypot(outcome.noise_s, default.noise_s) / default.step_time_s,
    )


# ---------------------------------------------------------------- minimax regret


def choose_minimax_cap(results: Sequence[TuneResult]) -> MinimaxCap:
    """Find one cap for several scenarios.

    `results`: two or more; their curves cover all caps, so that none is missed.
    Raises `InputError`: fewer than two.
    """
    refuse_if(len(results) < 2, "scenarios", f"{len(results)}", "two or more for one setting")
    ends = sorted({point.low_mb for tuned in results for point in tuned.curve})
    rated = [rate_cap(results, low) for low in ends]
    least = min(shared.worst_regret for shared in rated)
    best = next(at for at, each in enumerate(rated) if each.worst_regret <= least + STEP_ROUNDING)
    low_mb, high_mb = (*ends, math.inf)[best : best + 2]
    shared = replace(
        rated[best], bucket_cap_mb=round_cap_mb(Window(round(low_mb * MIB) - 1, high_mb * MIB - 1))
    )
    return MinimaxCap(tuple(results), shared, low_mb, high_mb, rate_cap(results, None))


def rate_cap(results: Sequence[TuneResult], cap_mb: float | None) -> SharedCap:
    """Return the steps and regrets of one cap for several scenarios; None: PyTorch's default."""
    steps_s = tuple(
        (each.default if cap_mb is None else each.at(cap_mb)).step_time_s for each in results
    )
    regrets = (s / each.least_uniform_s - 1.0 for each, s in zip(results, steps_s, strict=True))
    return SharedCap(cap_mb, steps_s, tuple(regrets))

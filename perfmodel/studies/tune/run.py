"""`tune_scenario`: the best caps of a scenario's gradient buckets."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from perfmodel.scenario import ClusterSize, Scenario, scenario_digest, sizes
from perfmodel.studies.run.evidence import evidence_of
from perfmodel.studies.run.resolve.resolved_scenario import gpus_of, resolve_names
from perfmodel.studies.run.run import name_machine
from perfmodel.studies.run.steps.one_size import simulate_size
from perfmodel.studies.run.steps.sized_job import locate_errors, prepare
from perfmodel.studies.tune.caps import (
    Caps,
    UniformPartition,
    caps_mb,
    find_windows,
    integer_caps_mb,
    list_uniform_partitions,
)
from perfmodel.studies.tune.evaluator import (
    Evaluator,
    choose_lists,
    choose_uniform_cap,
    make_evaluator,
)
from perfmodel.studies.tune.exact import (
    allow_integer_caps,
    lower_bound_s,
    search_by_surrogate,
    time_all_sizes,
)
from perfmodel.studies.tune.model import STEP_ROUNDING, CurvePoint, Horovod, Progress, TuneResult
from perfmodel.studies.tune.recommendation import (
    build_curve,
    compare_machines,
    curve_error,
    evaluate_candidates,
    find_plateau,
    find_robust_cap,
    recommend,
)
from perfmodel.studies.tune.settings_search import tune_horovod
from perfmodel.studies.tune.surrogate import FEW_RANKS
from perfmodel.studies.tune.surrogate_search import (
    make_budget,
    search_by_simulation,
    search_integer_list,
    search_shared_lists,
    select_main_dtype,
    simulate_uniform_caps,
)
from perfmodel.training.strategies import STRATEGIES
from perfmodel.version import __version__

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

MOST_SIZES_ON_FEW, MOST_SIZES_ON_MANY = 300, 16
"""Most all-reduces computed to find the best uniform cap, on few and on many ranks."""
MOST_SIZES_OF_ALL = 150
"""Sizes of groups up to which all are computed: models of a dozen tensors."""
MOST_SIZES_OF_BOUND = 24
"""Most sizes computed to raise the lower bound, on few ranks."""
STEPS_FOR_WHOLE = 2
"""Simulations reserved for lists of whole numbers."""


def tune_scenario(
    scenario: Scenario,
    *,
    profile: Profile | None = None,
    size: ClusterSize | None = None,
    horovod: bool = False,
    progress: Progress | None = None,
) -> TuneResult:
    """Find the best buckets for a scenario.

    Parameters
    ----------
    scenario : Scenario
        With DistributedDataParallel; its own caps are evaluated as well.
    profile : Profile, optional
        Measured numbers instead of datasheets'.
    size : ClusterSize, optional
        Default: the main size of the scenario.
    horovod : bool
        Whether to tune Horovod's fusion threshold for the same job as well.
    progress : callable, optional
        Called with the next stage, in words.

    Raises
    ------
    InputError
        Another strategy, one GPU, or a scenario that does not hold; names file, line and field.
    """
    row = STRATEGIES.get(scenario.strategy.kind)
    scenario.refuse_if(
        row is None or not row.buckets,
        "strategy.kind",
        repr(scenario.strategy.kind),
        "'ddp', which has buckets",
    )
    scenario.refuse_if(
        not scenario.parallel.is_plain,
        "parallel",
        "a model that is split",
        "nothing: buckets of a split model are not searched, each part has its own",
    )
    sized = prepare(scenario, profile=profile, size=size)
    scenario.refuse_if(
        sized.size.gpus < 2,
        "cluster.nodes",
        "1 GPU in all",
        "2 or more: one GPU reduces nothing, so that it has no buckets",
    )
    say = progress or (lambda _: None)
    say("times of all-reduces")
    with locate_errors(sized):
        evaluator = make_evaluator(sized)
    partitions = list_uniform_partitions(evaluator.workload, evaluator.gradients, evaluator.options)
    say(f"{len(partitions)} partitions that one cap can make")
    fusion = tune_horovod(scenario, profile, size) if horovod else None
    for options in (evaluator.default_options(), evaluator.options):
        evaluator.simulate(options)
    lists, exact = (
        ([], False) if evaluator.reasons else _search_lists_by_surrogate(evaluator, partitions)
    )
    if evaluator.reasons:
        say("simulating, because " + ", ".join(evaluator.reasons))
        lists, exact = _search_lists_by_simulation(evaluator, partitions), False
    return _assemble_result(evaluator, partitions, lists, exact, fusion)


def _assemble_result(
    evaluator: Evaluator,
    partitions: Sequence[UniformPartition],
    lists: Sequence[Caps],
    exact: bool,
    horovod: Horovod | None,
) -> TuneResult:
    """Choose among what was simulated, and rate every cap."""
    ratios, sized = compare_machines(evaluator), evaluator.sized
    # The cap comes first: round caps that are simulated for it are candidates for the lists, too.
    cap = choose_uniform_cap(evaluator, partitions)
    caps, integer_caps = choose_lists(evaluator, lists, partitions)
    requested, default, *tuned = evaluate_candidates(evaluator, cap, caps, integer_caps, ratios)
    curve, default_regrets = build_curve(evaluator, partitions, ratios)
    best_uniform, best_list, best_integer_list = tuned
    bound_s = _prove_bound(evaluator, best_list.step_time_s)
    if bound_s is not None and bound_s > best_list.step_time_s * (1 + STEP_ROUNDING):
        bound_s = None  # all-reduces that share a link made each other quicker: nothing is proven
    usual = simulate_size(sized.with_options(evaluator.default_options()), with_first=False)
    return TuneResult(
        scenario=sized.job.scenario,
        workload=evaluator.workload.name,
        machine=name_machine(sized.machine.topology, sized.size),
        gpus=sized.size.gpus,
        nodes=sized.size.nodes,
        has_words=not sized.job.gpu.accelerator,
        bottleneck=usual.bottleneck,
        limit=usual.limit,
        default=default,
        requested=requested,
        best_uniform=best_uniform,
        best_list=best_list,
        best_integer_list=best_integer_list,
        recommended=recommend(default, requested, tuned),
        curve=curve,
        plateau=find_plateau(curve),
        robust=find_robust_cap(curve),
        default_regrets=default_regrets,
        lower_bound_s=bound_s,
        exact=exact,
        compute_s=evaluator.surrogate.work_s,
        horovod=horovod,
        assumptions=assumptions(evaluator, exact, curve, curve_error(evaluator, partitions)),
        provenance={
            "perfmodel": __version__,
            "scenario_sha256": scenario_digest(sized.job.scenario),
            "simulated_settings": str(len(evaluator.outcomes)),
            "all_reduces_worked_out": str(evaluator.allreduce.computed_sizes),
        },
    )


# ---------------------------------------------------------------- where the surrogate is exact


def _search_lists_by_surrogate(
    evaluator: Evaluator, partitions: Sequence[UniformPartition]
) -> tuple[list[Caps], bool]:
    """Return lists to simulate, and whether the first is proven to be the best of all."""
    time_all_sizes(evaluator, MOST_SIZES_OF_ALL)
    gradients, cuts = evaluator.gradients, search_by_surrogate(evaluator)
    assert cuts is not None  # anything is allowed
    windows = find_windows(gradients, gradients.groups(cuts))
    assert windows is not None  # contiguous groups can always be made
    lists = [caps_mb(windows)]
    evaluator.simulate(evaluator.list_options(lists[0]))
    integer_cuts = search_by_surrogate(evaluator, allow_integer_caps(gradients))
    integer_windows = integer_cuts and find_windows(gradients, gradients.groups(integer_cuts))
    if integer_windows and (integer_caps := integer_caps_mb(integer_windows)):
        lists.append(tuple(map(float, integer_caps)))
    _simulate_promising_caps(evaluator, partitions)
    return lists, evaluator.surrogate.slowdown == 1.0 and all(
        map(evaluator.allreduce.is_timed, gradients.group_sizes)
    )


def _simulate_promising_caps(evaluator: Evaluator, partitions: Sequence[UniformPartition]) -> None:
    """Simulate every cap that may be the best one, given the error of interpolated times."""
    is_large, limit_s = evaluator.sized.size.gpus > FEW_RANKS, float("inf")
    sizes_left = MOST_SIZES_ON_MANY if is_large else MOST_SIZES_ON_FEW
    for partition in sorted(
        partitions, key=lambda p: evaluator.predict_step_s(p.groups, optimistic=True)
    ):
        if evaluator.predict_step_s(partition.groups, optimistic=True) >= limit_s:
            continue
        if sizes_left > 0:
            sizes_left -= evaluator.time_allreduces(partition.groups)
        if evaluator.predict_step_s(partition.groups) < limit_s:
            limit_s = evaluator.simulate(
                evaluator.uniform_options(partition.cap_mb)
            ).step_time_s * (1 - STEP_ROUNDING)


# ---------------------------------------------------------------- where it is not exact


def _search_lists_by_simulation(
    evaluator: Evaluator, partitions: Sequence[UniformPartition]
) -> list[Caps]:
    """Return the lists that the search with simulations found."""
    budget = make_budget(
        evaluator, evaluator.sized.step(evaluator.options), _prove_bound(evaluator, float("inf"))
    )
    simulate_uniform_caps(evaluator, partitions, budget)
    simulated = [p for p in partitions if p.groups in evaluator.outcomes]
    simulated.sort(key=lambda p: evaluator.outcomes[p.groups].step_time_s)
    cuts = search_by_simulation(evaluator, budget, simulated[:2])
    caps = select_main_dtype(evaluator).caps(cuts)
    budget.remaining = max(budget.remaining, STEPS_FOR_WHOLE * budget.cost(len(cuts)))
    integer_caps = search_integer_list(evaluator, budget, cuts)
    lists = [caps_mb for caps_mb in (caps, integer_caps) if caps_mb is not None]
    if evaluator.gradients.single_dtype:
        return lists
    starts = [*lists, (1.0, 25.0), *((p.cap_mb,) for p in simulated[:2])]
    shared = sorted(search_shared_lists(evaluator, starts), key=evaluator.list_step_s)
    near = (tuple(float(max(1, f(n))) for n in caps) for caps in shared[:2] for f in (round, ceil))
    return [*lists, *shared, *dict.fromkeys(near)]


# ---------------------------------------------------------------- the result


def _prove_bound(evaluator: Evaluator, best_s: float) -> float | None:
    """Return the lower bound; None where ranks may be quicker than the GPU of the model."""
    sized = evaluator.sized
    varied = any(d.jitter is not None or d.gpu is not None for d in sized.disturbances)
    if varied or sized.fidelity != "flow":
        return None
    sizes = 0 if sized.size.gpus > FEW_RANKS else MOST_SIZES_OF_BOUND
    return lower_bound_s(evaluator.surrogate, evaluator.allreduce, evaluator.workers, best_s, sizes)


def list_sizes(scenario: Scenario) -> tuple[ClusterSize, ...]:
    """Return the sizes of a scenario's scaling curve that have buckets: of two GPUs or more."""
    return tuple(
        size for size in sizes(scenario, gpus_of(resolve_names(scenario)[0])) if size.gpus > 1
    )


# ---------------------------------------------------------------- assumptions


def assumptions(
    evaluator: Evaluator, exact: bool, curve: Sequence[CurvePoint], curve_error: float
) -> tuple[str, ...]:
    """Return the assumptions that the result depends on.

    `exact`: whether the list is proven to be the best.
    `curve_error`: largest relative error that the curve may have where it was not simulated.
    """
    simulated, points = sum(point.simulated for point in curve), len(curve)
    reasons, is_curve_whole = " and ".join(evaluator.reasons), simulated == points
    is_list_estimated, slows = not exact and not reasons, evaluator.surrogate.slowdown > 1
    conditions = {
        "any cap": points == 1,
        "caps": points > 1,
        "whole point": is_curve_whole and points == 1,
        "whole curve": is_curve_whole and points > 1,
        "estimated curve": not is_curve_whole and bool(reasons),
        "interpolated curve": not is_curve_whole and not reasons,
        "proven list": exact,
        "simulated list": not exact and bool(reasons),
        "slowed list": is_list_estimated and slows,
        "interpolated list": is_list_estimated and not slows,
        "reverse": evaluator.gradients.reverse_filled,
        "interval": bool(evaluator.sized.ensemble.alternatives),
    }
    sentences = [
        _SENTENCES[name].format(
            points=points,
            simulated=f"{simulated} of them {'was' if simulated == 1 else 'were'} simulated in "
            "full.",
            surrogate_error=f"{100 * evaluator.surrogate_error:.2g}",
            reasons=reasons,
            sizes=evaluator.allreduce.computed_sizes,
            curve_error=f"{100 * max(curve_error, 1e-4):.2g} %",
        )
        for name, holds in conditions.items()
        if holds
    ]
    return (
        *sentences,
        *_describe_profile(evaluator),
        *(() if evaluator.gradients.single_dtype else (_SENTENCES["shared list"],)),
        f"Steps rest on: {evidence_of(evaluator.sized).summary}.",
    )


_SENTENCES = {
    "any cap": "Whatever the cap, the buckets are the same.",
    "caps": "One cap for all can make {points} different partitions into buckets; the curve has a "
    "point for each.",
    "whole point": "This was simulated in full.",
    "whole curve": "All of them were simulated in full.",
    "estimated curve": "{simulated} The steps of the others are estimates, up to {surrogate_error} "
    "% off where they were checked, because {reasons}: a better cap may be among them, and only "
    "what was simulated is recommended.",
    "interpolated curve": "{simulated} The steps of the others follow, bucket by bucket, from "
    "times of all-reduces of {sizes} sizes; between these times were interpolated, which may put a "
    "step on the curve off by up to {curve_error}. What is recommended was simulated.",
    "proven list": "The list is the best of all groups of neighbouring gradients (dynamic "
    "programming).",
    "simulated list": "The list is the best that was simulated; no cap that was simulated is "
    "better.",
    "slowed list": "The list was found by dynamic programming. All-reduces slow compute down, so "
    "that it is not proven to be the best of all; no cap for all is better.",
    "interpolated list": "The list is the best of all groups of neighbouring gradients (dynamic "
    "programming), as far as interpolated times of all-reduces are right.",
    "reverse": "PyTorch does not rebuild these buckets: they are filled in the order of "
    "registration and launched in the reverse.",
    "interval": "Quicker and slower all-reduces were not simulated: steps with them are those on "
    "the likely machine, longer or shorter by what the all-reduces add bucket by bucket. All sizes "
    "are taken to be quicker or slower together.",
    "shared list": "The caps of a list hold for the first, second ... bucket of each dtype.",
}
"""What may be assumed of caps, of the curve, and of the list."""


def _describe_profile(evaluator: Evaluator) -> tuple[str, ...]:
    """Say which buckets are beyond what the profile was measured with."""
    profile, size = evaluator.sized.ensemble.profile, evaluator.sized.size
    if profile is None:
        return ()
    from perfmodel.calibrate.apply import describe_beyond
    from perfmodel.library.corrections import CollectiveContext

    buckets = (bucket for outcome in evaluator.outcomes.values() for bucket in outcome.buckets)
    return describe_beyond(
        profile,
        (CollectiveContext("all_reduce", each.nbytes, size.gpus, size.nodes) for each in buckets),
    )

"""From a scenario to the buckets it should use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from perfmodel.calibrate import Profile
from perfmodel.scenario import ClusterSize, Scenario, scenario_digest, sizes
from perfmodel.studies.run.prepared import Prepared, prepare
from perfmodel.studies.run.run import resolved
from perfmodel.studies.tune.assumptions import assumptions
from perfmodel.studies.tune.caps import (
    Uniform,
    caps_mb,
    uniform_partitions,
    whole_caps_mb,
    windows_of,
)
from perfmodel.studies.tune.choice.curve import curve_of, unsure
from perfmodel.studies.tune.choice.robustness import plateau_of, robust_of
from perfmodel.studies.tune.choice.tie_breaking import Caps, best_lists, best_uniform
from perfmodel.studies.tune.horovod import horovod_of
from perfmodel.studies.tune.model import Choice, TuneResult
from perfmodel.studies.tune.objective.evaluator import SAME, Evaluator, bench_of
from perfmodel.studies.tune.objective.gradients import Groups
from perfmodel.studies.tune.search.exact import (
    all_sizes_known,
    closed_by_whole,
    list_by_clock,
    work_out_all,
)
from perfmodel.studies.tune.search.lower_bound import lower_bound_s, tighten
from perfmodel.studies.tune.search.mixed_dtypes import shared_lists
from perfmodel.studies.tune.search.surrogate_search import (
    leading,
    list_by_simulation,
    purse_of,
    simulate_uniform,
    whole_list_by_simulation,
)
from perfmodel.topology.templates.build import build_topology
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.strategies import STRATEGIES
from perfmodel.version import __version__

CHEAP_SIZES, DEAR_SIZES = 300, 16
"""All-reduces that are worked out so as not to miss a cap, on few and on many ranks."""
ALL_SIZES = 150
"""Sizes of groups up to which all are worked out: models of a dozen tensors."""
BOUND_SIZES = 24
"""Sizes worked out to raise the lower bound, on few ranks."""
FEW_RANKS = 32
FOR_WHOLE = 2
"""Simulations that are left for lists of whole numbers."""

Progress = Callable[[str], None]


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
        With DistributedDataParallel; whatever it says of caps is compared with.
    profile : Profile, optional
        Measured numbers instead of datasheets'.
    size : ClusterSize, optional
        Default: the size that the scenario asks about.
    horovod : bool
        Whether to tune Horovod's fusion threshold for the same job as well.
    progress : callable, optional
        Told what is done next.

    Raises
    ------
    InputError
        Another strategy, one GPU, or a scenario that does not hold; names file, line and field.
    """
    if not STRATEGIES[scenario.strategy.kind].has_buckets:
        found, allowed = repr(scenario.strategy.kind), "'ddp', which has buckets"
        raise scenario.fault("strategy.kind", found, allowed)
    prepared = prepare(scenario, profile=profile, size=size)
    if prepared.size.gpus < 2:
        allowed = "2 or more: one GPU reduces nothing, so that it has no buckets"
        raise scenario.fault("cluster.nodes", "1 GPU in all", allowed)
    say = progress or (lambda _: None)
    say("times of all-reduces")
    bench = bench_of(prepared)
    uniforms = uniform_partitions(bench.workload, bench.row, bench.options)
    say(f"{len(uniforms)} partitions that one cap can make")
    return _answer(bench, uniforms, horovod, say)


def _answer(
    bench: Evaluator, uniforms: Sequence[Uniform], horovod: bool, say: Progress
) -> TuneResult:
    for options in (bench.default(), bench.options):
        bench.simulate(options)
    lists: list[Caps] = []
    exact = False
    if not bench.reasons:
        lists, exact = _by_clock(bench, uniforms)
    if bench.reasons:
        say("simulating, because " + ", ".join(bench.reasons))
        lists, exact = _by_simulation(bench, uniforms), False
    uniform = best_uniform(bench, uniforms)
    best, whole = best_lists(bench, lists, uniforms)
    curve, usual = curve_of(bench, uniforms)
    best_s = bench.simulate(bench.listed(best)).step_time_s
    prepared = bench.prepared
    bound_s = _bound(bench, best_s)
    if bound_s is not None and bound_s > best_s * (1 + SAME):
        bound_s = None  # messages of several all-reduces helped each other on: nothing is proven
    mine = bench.options
    own = mine.bucket_cap_bytes, mine.first_bucket_bytes, mine.caps_list_bytes
    return TuneResult(
        scenario=bench.scenario,
        workload=bench.workload.name,
        machine=_named(prepared),
        gpus=prepared.size.gpus,
        nodes=prepared.size.nodes,
        default=_choice(bench, bench.default()),
        asked=None if own == (None, None, None) else _choice(bench, mine),
        best_uniform=_choice(bench, bench.uniform(uniform), cap=uniform),
        best_list=_choice(bench, bench.listed(best), caps=best),
        best_integer_list=_choice(bench, bench.listed(whole), caps=whole),
        curve=curve,
        plateau=plateau_of(curve),
        robust=robust_of(curve),
        default_regrets=usual,
        lower_bound_s=bound_s,
        exact=exact,
        compute_s=bench.clock.work_s,
        horovod=horovod_of(bench) if horovod else None,
        assumptions=assumptions(bench, exact, curve, unsure(bench, uniforms)),
        provenance={
            "perfmodel": __version__,
            "scenario_sha256": scenario_digest(bench.scenario),
            "simulated_settings": str(len(bench.tried)),
            "all_reduces_worked_out": str(bench.costs.worked_out),
        },
    )


# ---------------------------------------------------------------- where the recurrence is exact


def _by_clock(bench: Evaluator, uniforms: Sequence[Uniform]) -> tuple[list[Caps], bool]:
    """Lists worth simulating, and whether the first is proven to be the best of all."""
    work_out_all(bench, ALL_SIZES)
    found = list_by_clock(bench)
    assert found is not None  # anything is allowed
    row = bench.row
    lists = [_caps(bench, row.groups(found))]
    bench.simulate(bench.listed(lists[0]))
    whole = list_by_clock(bench, closed_by_whole(row))
    windows = None if whole is None else windows_of(row, row.groups(whole))
    numbers = None if windows is None else whole_caps_mb(windows)
    if numbers is not None:
        lists.append(tuple(float(number) for number in numbers))
    _check_uniform(bench, uniforms)
    return lists, bench.clock.slowdown == 1.0 and all_sizes_known(bench)


def _caps(bench: Evaluator, groups: Groups) -> Caps:
    windows = windows_of(bench.row, groups)
    assert windows is not None  # groups of neighbours can always be made
    return caps_mb(windows)


def _check_uniform(bench: Evaluator, uniforms: Sequence[Uniform]) -> None:
    """Simulate every cap that may be the best one, given what is not known exactly."""
    many = bench.prepared.size.gpus > FEW_RANKS
    left = DEAR_SIZES if many else CHEAP_SIZES
    best_s = float("inf")
    for one in sorted(uniforms, key=lambda each: bench.guess(each.groups, optimism=True)):
        if bench.guess(one.groups, optimism=True) >= best_s * (1 - SAME):
            continue
        if left > 0:
            left -= bench.learn(one.groups)
        if bench.guess(one.groups) < best_s * (1 - SAME):
            best_s = bench.simulate(bench.uniform(one.cap_mb)).step_time_s


# ---------------------------------------------------------------- where it is not


def _by_simulation(bench: Evaluator, uniforms: Sequence[Uniform]) -> list[Caps]:
    """Lists that were found by simulating."""
    sample = bench.prepared.step(bench.options)
    purse = purse_of(bench, sample, _bound(bench, float("inf")))
    simulate_uniform(bench, uniforms, purse)
    known = [one for one in uniforms if one.groups in bench.tried]
    known.sort(key=lambda one: bench.tried[one.groups].step_time_s)
    found = list_by_simulation(bench, purse, known[:2])
    caps = leading(bench).caps(found)
    purse.left = max(purse.left, FOR_WHOLE * purse.cost(len(found)))
    whole = whole_list_by_simulation(bench, purse, found)
    lists = [one for one in (caps, whole) if one is not None]
    return lists if bench.row.single else [*lists, *_shared(bench, lists, known[:2])]


def _shared(bench: Evaluator, lists: Sequence[Caps], uniforms: Sequence[Uniform]) -> list[Caps]:
    """Lists that serve several dtypes, simulated, and what whole numbers near them make."""
    starts = [*lists, (1.0, 25.0), *((one.cap_mb,) for one in uniforms)]
    found = shared_lists(bench, starts)
    found.sort(key=lambda caps: bench.simulate(bench.listed(caps)).step_time_s)
    whole = [tuple(float(max(1, f(cap))) for cap in c) for c in found[:2] for f in (round, ceil)]
    return [*found, *dict.fromkeys(whole)]


# ---------------------------------------------------------------- what is found


def _bound(bench: Evaluator, best_s: float) -> float | None:
    """What nothing can beat; None where parts of the job may be quicker than the model's GPU."""
    sized = bench.prepared.sized
    odd = any(one.jitter is not None or one.gpu is not None for one in sized.happening)
    if odd or sized.fidelity != "flow":
        return None
    if bench.prepared.size.gpus > FEW_RANKS:
        return lower_bound_s(bench.clock, bench.costs, bench.workers)
    return tighten(bench.clock, bench.costs, bench.workers, best_s, BOUND_SIZES)


def _choice(
    bench: Evaluator, options: DdpOptions, cap: float | None = None, caps: Caps | None = None
) -> Choice:
    outcome = bench.simulate(options)
    return Choice(
        bucket_cap_mb=cap,
        bucket_cap_mb_list=caps,
        step_time_s=outcome.step_time_s,
        exposed_comm_s=outcome.exposed_comm_s,
        first_step_time_s=bench.first_step_s(options),
        buckets=outcome.buckets,
    )


def _named(prepared: Prepared) -> str:
    topology, nodes = prepared.machine.topology, prepared.size.nodes
    return topology.name if topology.hosts == nodes else f"{nodes} of {topology.name}"


def sizes_of(scenario: Scenario) -> tuple[ClusterSize, ...]:
    """Return the sizes of a scenario's scaling curve that have buckets: of two GPUs or more."""
    node, _, _ = resolved(scenario)
    return tuple(size for size in sizes(scenario, len(build_topology(node).ranks)) if size.gpus > 1)

"""What the chosen cluster depends on most: one assumption at a time made worse and better."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from perfmodel.errors import PerfmodelError
from perfmodel.scenario import Scenario, UpgradeSection, WhatIf, change_scenario
from perfmodel.studies.plan.candidates import StepRequest
from perfmodel.studies.plan.model import PlanOption, Sensitivity
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.steps.one_size import simulate_size
from perfmodel.studies.run.steps.simulate_step import timer_of
from perfmodel.studies.run.steps.sized_job import SizedJob, size_job
from perfmodel.training.plan.step_plan import Collective
from perfmodel.training.strategies import STRATEGIES
from perfmodel.units import format_bytes, format_time

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

PRICE_SWING = 0.2
"""Prices of clouds differ by more between vendors; this is a discount that is bargained for."""
COMPUTE_SWING = 0.1
"""Half of the width of a usual interval of compute (`workload/compute_spread.yaml`)."""


@dataclass(frozen=True, slots=True)
class Swing:
    """One assumption, with the changes that make it worse and better; None where none does."""

    what: str
    labels: tuple[str, str]
    worse: StepRequest | None
    better: StepRequest | None


def list_swings(scenario: Scenario, best: PlanOption) -> Iterator[Swing]:
    """Yield what is simulated again for the chosen cluster.

    Each costs up to two steps; a search for the best mixture would be one for each, so that plans
    with `strategy.kind: auto` vary failures only.
    """
    plan = scenario.plan
    assert plan is not None
    candidate = next(c for c in plan.candidates if c.name == best.candidate)
    now = StepRequest(candidate, best.nodes)
    if plan.failures is not None:
        mtbf_s = candidate.mtbf_per_node or plan.failures.mtbf_per_node
        ends = [
            replace(
                _changed(now, "failures", {}),
                candidate=candidate.model_copy(update={"mtbf_per_node": factor * mtbf_s}),
            )
            for factor in (0.5, 2.0)
        ]
        yield Swing("failures", ("twice as many", "half as many"), *ends)
    current = change_scenario(scenario, now.changes)
    if current.strategy.kind == "auto":
        return
    by, own = COMPUTE_SWING, current.what_if or WhatIf()
    labels = (f"{100 * by:g} % slower", f"{100 * by:g} % quicker")
    yield _factors(now, "compute", labels, "compute", own.compute, (1 - by, 1 + by))
    if best.nodes > 1:
        labels, rate = ("half as fast", "twice as fast"), own.network_bandwidth
        yield _factors(now, "network", labels, "network_bandwidth", rate, (0.5, 2.0))
        if current.cluster.fabric is not None:
            yield _oversubscription(now, current.cluster.fabric.oversubscription or 1.0)


def _factors(
    now: StepRequest,
    what: str,
    labels: tuple[str, str],
    factor: str,
    own: float,
    times: tuple[float, float],
) -> Swing:
    """Multiply what the scenario and the candidate themselves set."""
    worse, better = (_changed(now, what, {f"what_if.{factor}": own * each}) for each in times)
    return Swing(what, labels, worse, better)


def _oversubscription(now: StepRequest, ratio: float) -> Swing:
    what, field = "oversubscription", "cluster.fabric.oversubscription"
    better = _changed(now, what, {field: 1.0}) if ratio > 1 else None
    labels = (f"{2 * ratio:g} to 1", "1 to 1")
    return Swing(what, labels, _changed(now, what, {field: 2 * ratio}), better)


def _changed(now: StepRequest, what: str, fields: Mapping[str, object]) -> StepRequest:
    """Set fields as a free upgrade, whose training is not simulated."""
    return replace(now, upgrade=UpgradeSection.model_construct(name=what, set=fields))


def measure_swings(
    best: PlanOption,
    swings: Sequence[Swing],
    answer: Callable[[Sequence[StepRequest]], Sequence[PlanOption]],
) -> tuple[Sensitivity, ...]:
    """Return what each assumption makes of time and cost, the largest effect first.

    `answer`: options of requests, in their order.
    """
    requests = [request for swing in swings for request in (swing.worse, swing.better) if request]
    options = iter(answer(requests))
    measured = [*_from_intervals(best)]
    for swing in swings:
        ends = [next(options) if request else best for request in (swing.worse, swing.better)]
        if all(option.status == "ok" for option in ends):
            measured.append(_sensitivity(swing.what, swing.labels, ends))
    return tuple(sorted(measured, key=_effect, reverse=True))


def _sensitivity(what: str, labels: tuple[str, str], ends: Sequence[PlanOption]) -> Sensitivity:
    walls_s, costs = [option.wall_s for option in ends], [option.cost for option in ends]
    worse, better = costs
    priced = None if worse is None or better is None else (worse, better)
    return Sensitivity(what, labels, (walls_s[0], walls_s[1]), priced)


def _from_intervals(best: PlanOption) -> Iterator[Sensitivity]:
    """Yield what needs no simulation: the prediction's own interval, and the price."""
    training, bill = best.training, best.bill
    if training is not None and training.wall_interval_s is not None:
        quick_s, slow_s = training.wall_interval_s
        ends = None if bill is None or bill.interval is None else bill.interval
        costs = None if ends is None else (ends[1], ends[0])
        labels = ("slow end", "quick end")
        yield Sensitivity("the prediction (80 % interval)", labels, (slow_s, quick_s), costs)
    if bill is not None and bill.machines and bill.total is not None:
        by = PRICE_SWING * bill.machines
        labels = (f"{100 * PRICE_SWING:g} % more", f"{100 * PRICE_SWING:g} % less")
        costs = (bill.total + by, bill.total - by)
        yield Sensitivity("price of the machines", labels, (best.wall_s, best.wall_s), costs)


def _effect(each: Sensitivity) -> float:
    """Widest relative swing, of cost where it is known and of time; what is free swings nothing."""
    ends = [each.wall_s] + ([] if each.cost is None else [each.cost])
    return max(abs(worse - better) / (max(worse, better) or 1.0) for worse, better in ends)


# ---------------------------------------------------------------- dips of efficiency

DIP = 0.05
"""Efficiency that has to be missing beside a larger size, before a reader wonders."""
FASTER = 1.02
"""Times as quick as another algorithm makes a step before it is worth naming."""

_ALGORITHMS = {"ring": "Ring", "tree": "Tree"}
"""Algorithms that a user can ask for by NCCL_ALGO, as NCCL writes them."""

MiB = 2**20

Size = tuple[str, int]
"""A candidate and its nodes."""


@dataclass(frozen=True, slots=True)
class CommonCollective:
    """The kind of collective that takes most of a step's communication.

    `nbytes`: mean of its messages.
    """

    op: str
    algorithm: str
    nbytes: float
    time_s: float


def explain_dips(
    options: Sequence[PlanOption],
    scenarios: Mapping[Size, Scenario | None],
    profile: Profile | None,
) -> Iterator[str]:
    """Yield a sentence for each option that is much less efficient than a larger one."""
    for option, larger in _dips(options):
        own, other = (scenarios[each.candidate, each.nodes] for each in (option, larger))
        assert option.step is not None
        assert larger.step is not None
        assert own is not None  # it has a step
        assert other is not None
        low, high = (f"{100 * (e.step.efficiency or 0):.0f} %" for e in (option, larger) if e.step)
        text = (
            f"{option.candidate} is less efficient on {option.nodes:,} nodes ({low}) than on "
            f"{larger.nodes:,} ({high})"
        )
        reason = _other_algorithm(own, other, profile)
        if not reason:
            reason = (
                f"its limit there is {option.step.bottleneck}; on more {larger.step.bottleneck}"
            )
        yield f"{text}: {reason}."


def _dips(options: Sequence[PlanOption]) -> Iterator[tuple[PlanOption, PlanOption]]:
    """Options with the next larger one of the candidate, where that is much more efficient."""
    stepped = [each for each in options if each.step and each.step.efficiency is not None]
    for option, larger in pairwise(stepped):
        assert option.step is not None
        assert larger.step is not None
        more = (larger.step.efficiency or 0.0) - (option.step.efficiency or 0.0)
        if option.candidate == larger.candidate and option.nodes < larger.nodes and more >= DIP:
            yield option, larger


def _other_algorithm(smaller: Scenario, larger: Scenario, profile: Profile | None) -> str:
    """Say which algorithm makes the difference, and what the other would; "" where none does."""
    if STRATEGIES[smaller.strategy.kind].loops is not None:
        return ""  # its workers have no step of collectives in common
    try:
        sized = _sized(smaller, profile)
        own, other = _common_collective(sized), _common_collective(_sized(larger, profile))
        if own is None or other is None or own.algorithm == other.algorithm:
            return ""
        library = "NCCL" if smaller.library.name == "nccl" else smaller.library.name
        text = (
            f"there {library} prefers a {own.algorithm.replace('_', ' ')} ({_described(own)}), on "
            f"more nodes a {other.algorithm.replace('_', ' ')} ({_described(other)})"
        )
        return text + _if_named(smaller, other.algorithm, profile)
    except PerfmodelError:
        return ""


def _described(collective: CommonCollective) -> str:
    op, size = collective.op.replace("_", "-"), format_bytes(round(collective.nbytes / MiB) * MiB)
    return f"{size} of {op} in {format_time(collective.time_s)}"


def _if_named(scenario: Scenario, algorithm: str, profile: Profile | None) -> str:
    """Say how long the step is where the user names the algorithm, if that is shorter."""
    env = scenario.library.env
    if scenario.library.name != "nccl" or algorithm not in _ALGORITHMS or "NCCL_ALGO" in env:
        return ""
    name = _ALGORITHMS[algorithm]
    by_name = change_scenario(scenario, {"library.env": {**env, "NCCL_ALGO": name}})
    before_s, after_s = (
        simulate_size(_sized(each, profile), with_first=False, with_limits=False).step_time_s
        for each in (scenario, by_name)
    )
    if before_s < FASTER * after_s:
        return ""
    return (
        f"; with NCCL_ALGO={name} a step would take {format_time(after_s)} instead of "
        f"{format_time(before_s)} by this model, which is not NCCL's own estimate: worth measuring"
    )


def _sized(scenario: Scenario, profile: Profile | None) -> SizedJob:
    inputs = resolve_scenario(scenario, profile, None)
    return size_job(inputs, inputs.sizes[-1])


def _common_collective(sized: SizedJob) -> CommonCollective | None:
    """The operation and algorithm that take most time of a step; None without collectives."""
    plan, timer = sized.plan_for(None), timer_of(sized.setup(), sized.steady_disturbances)
    groups = {each.name: max(each.groups, key=len) for each in plan.communicators}
    total_s: defaultdict[tuple[str, str], float] = defaultdict(float)
    total_bytes, counts = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for work in (task.work for task in plan.tasks if isinstance(task.work, Collective)):
        group = groups[work.communicator]
        if len(group) < 2:
            continue
        lowered, time_s = timer.best(work.op, work.nbytes, group, work.root)
        key = str(work.op), lowered.schedule.algorithm
        total_s[key] += time_s * work.times
        total_bytes[key] += work.nbytes * work.times
        counts[key] += work.times
    if not counts:
        return None
    most = max(total_s, key=lambda each: total_s[each])
    return CommonCollective(*most, total_bytes[most] / counts[most], total_s[most] / counts[most])

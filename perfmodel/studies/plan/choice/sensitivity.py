"""What the chosen cluster depends on most: one assumption at a time made worse and better."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from perfmodel.scenario import Scenario, UpgradeSection, WhatIf, change_scenario
from perfmodel.studies.plan.candidates import StepRequest
from perfmodel.studies.plan.model import PlanOption, Sensitivity

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

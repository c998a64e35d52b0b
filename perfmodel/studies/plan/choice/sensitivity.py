"""What the chosen cluster depends on most: one assumption at a time made worse and better."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfmodel.scenario import CandidateSection, Scenario, UpgradeSection
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
    if plan.failures is not None:
        mtbf_s = plan.failures.mtbf_per_node
        field, labels = "plan.failures.mtbf_per_node", ("twice as many", "half as many")
        ends = ({field: f"{mtbf_s / 2} s"}, {field: f"{mtbf_s * 2} s"})
        yield _swing("failures", labels, candidate, best.nodes, ends)
    if scenario.strategy.kind == "auto":
        return
    by = COMPUTE_SWING
    rates = ({"what_if.compute": 1 - by}, {"what_if.compute": 1 + by})
    labels = (f"{100 * by:g} % slower", f"{100 * by:g} % quicker")
    yield _swing("compute", labels, candidate, best.nodes, rates)
    if best.nodes > 1:
        rates = ({"what_if.network_bandwidth": 0.5}, {"what_if.network_bandwidth": 2.0})
        labels = ("half as fast", "twice as fast")
        yield _swing("network", labels, candidate, best.nodes, rates)
        yield from _oversubscription(candidate, best.nodes)


def _oversubscription(candidate: CandidateSection, nodes: int) -> Iterator[Swing]:
    if candidate.fabric is None:
        return
    now = candidate.fabric.oversubscription or 1.0
    field = "cluster.fabric.oversubscription"
    better = {field: 1.0} if now > 1 else None
    labels = (f"{2 * now:g} to 1", "1 to 1")
    yield _swing("oversubscription", labels, candidate, nodes, ({field: 2 * now}, better))


def _swing(
    what: str,
    labels: tuple[str, str],
    candidate: CandidateSection,
    nodes: int,
    ends: Sequence[Mapping[str, object] | None],
) -> Swing:
    requests = [
        None
        if fields is None
        else StepRequest(candidate, nodes, UpgradeSection.model_construct(name=what, set=fields))
        for fields in ends
    ]
    return Swing(what, labels, *requests)


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
    """Widest relative swing, of cost where it is known and of time."""
    ends = [each.wall_s] + ([] if each.cost is None else [each.cost])
    return max(abs(worse - better) / max(worse, better) for worse, better in ends)

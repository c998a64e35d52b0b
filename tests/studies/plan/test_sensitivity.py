"""What the chosen cluster depends on: each swing is the plan answered under that assumption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from perfmodel.report.plan_figures import draw_throughput, draw_tornado
from perfmodel.scenario import Scenario, change_scenario
from perfmodel.studies.plan import plan_scenario
from perfmodel.studies.plan.decisions import Swing, list_swings, measure_swings
from perfmodel.studies.plan.model import PlanOption, PlanResult, Sensitivity


def swing(plan: PlanResult, what: str) -> Sensitivity:
    return next(each for each in plan.sensitivities if each.what == what)


def answered(scenario: Scenario, plan: PlanResult, changes: dict[str, object]) -> PlanOption:
    """The chosen cluster, when the whole plan is asked under other assumptions."""
    best = plan.best
    assert best is not None
    assert scenario.plan is not None
    (candidate,) = [
        c for c in scenario.origin.content["plan"]["candidates"] if c["name"] == best.candidate
    ]
    alone = {"plan.candidates": [candidate | {"nodes": [best.nodes]}], "plan.upgrades": []}
    (option,) = plan_scenario(change_scenario(scenario, alone | changes), jobs=1).options
    return option


@pytest.mark.slow
def test_failures_and_compute_are_what_the_plan_says_with_them(
    planned: tuple[Scenario, PlanResult],
) -> None:
    scenario, plan = planned
    often = answered(scenario, plan, {"plan.failures.mtbf_per_node": "5 d"})
    assert swing(plan, "failures").wall_s[0] == pytest.approx(often.wall_s)
    assert swing(plan, "failures").cost is not None
    slow = answered(scenario, plan, {"what_if.compute": 0.9})
    compute = swing(plan, "compute")
    assert compute.wall_s[0] == pytest.approx(slow.wall_s)
    assert compute.cost is not None
    assert compute.cost[0] == pytest.approx(slow.cost)


def test_prices_and_the_interval_need_no_simulation(
    planned: tuple[Scenario, PlanResult],
) -> None:
    _, plan = planned
    best = plan.best
    assert best is not None
    assert best.bill is not None
    assert best.training is not None
    price = swing(plan, "price of the machines")
    assert best.bill.machines is not None
    assert price.cost == pytest.approx(
        (best.bill.total + 0.2 * best.bill.machines, best.bill.total - 0.2 * best.bill.machines)
    )
    assert price.wall_s == (best.wall_s, best.wall_s)
    interval = swing(plan, "the prediction (80 % interval)")
    assert interval.wall_s == tuple(reversed(best.training.wall_interval_s or ()))


def test_worse_is_never_better(planned: tuple[Scenario, PlanResult]) -> None:
    _, plan = planned
    best = plan.best
    assert best is not None
    for each in plan.sensitivities:
        assert each.wall_s[0] >= best.wall_s * (1 - 1e-9) >= each.wall_s[1] * (1 - 2e-9), each.what
        assert each.cost is not None
        assert each.cost[0] >= each.cost[1]
    effects = [abs(each.cost[0] - each.cost[1]) for each in plan.sensitivities if each.cost]
    assert effects[0] == max(effects)


def test_a_search_is_not_repeated_for_every_assumption(
    planned: tuple[Scenario, PlanResult],
) -> None:
    scenario, plan = planned
    assert plan.best is not None
    kinds = [each.what for each in list_swings(scenario, plan.best)]
    assert kinds[:2] == ["failures", "compute"]
    training = {"global_batch": 256, "scaling": "strong"}
    searched = change_scenario(scenario, {"strategy": {"kind": "auto"}, "training": training})
    assert [each.what for each in list_swings(searched, plan.best)] == ["failures"]


def test_what_is_made_worse_and_better_is_what_its_label_says(
    planned: tuple[Scenario, PlanResult], option: Callable[..., PlanOption]
) -> None:
    scenario, _ = planned
    two_nodes = option(1.0, 1.0, 16, name="bought")
    swings = {swing.what: swing for swing in list_swings(scenario, two_nodes)}
    network = swings["network"]
    assert network.labels == ("half as fast", "twice as fast")
    for request, by in ((network.worse, 0.5), (network.better, 2.0)):
        assert request is not None
        assert request.changes["what_if.network_bandwidth"] == by
    spine = swings["oversubscription"]
    assert spine.labels == ("2 to 1", "1 to 1")
    assert spine.better is None  # it has none that could be taken away
    assert spine.worse is not None
    assert spine.worse.changes["cluster.fabric.oversubscription"] == 2.0


def test_the_figures_show_the_numbers_of_the_plan(planned: tuple[Scenario, PlanResult]) -> None:
    _, plan = planned
    best = plan.best
    assert best is not None
    assert best.step is not None
    assert best.step.interval_s is not None
    worse, better = draw_tornado(plan).data
    for trace, end in ((worse, 0), (better, 1)):
        ends = [trace.base + length for length in trace.x]
        assert ends == pytest.approx([each.cost[end] for each in plan.sensitivities if each.cost])
    band, line = (
        trace
        for at, trace in enumerate(draw_throughput(plan).data)
        if at // 2 == [*dict.fromkeys(o.candidate for o in plan.usable)].index(best.candidate)
    )
    quick_s, slow_s = best.step.interval_s
    at = line.x.index(best.gpus)
    samples = best.step.global_batch
    assert line.y[at] == pytest.approx(samples / best.step.step_time_s)
    assert band.y[at] == pytest.approx(samples / quick_s)
    assert band.y[len(band.y) - 1 - at] == pytest.approx(samples / slow_s)


def test_swings_are_of_what_the_candidate_itself_sets(
    planned: tuple[Scenario, PlanResult],
) -> None:
    """Its own failures, factors and network; not those of a plan without them."""
    scenario, plan = planned
    best = plan.best
    assert best is not None
    best = replace(best, candidate="own", nodes=2)
    own = {
        "name": "own",
        "node": "v100-x8-25g",
        "nodes": [2],
        "mtbf_per_node": "4 d",
        "fabric": "leaf-spine",
        "set": {"what_if.network_bandwidth": 4, "cluster.fabric.oversubscription": 8},
    }
    changes = {"plan.candidates": [own], "plan.upgrades": [], "what_if": {"compute": 2}}
    swings = {each.what: each for each in list_swings(change_scenario(scenario, changes), best)}

    def fields(what: str) -> list[object]:
        swing = swings[what]
        upgrades = [end.upgrade for end in (swing.worse, swing.better) if end is not None]
        return [value for upgrade in upgrades if upgrade for value in upgrade.set.values()]

    ends = swings["failures"].worse, swings["failures"].better
    assert [end and end.candidate.mtbf_per_node for end in ends] == [2 * 86400, 8 * 86400]
    assert fields("compute") == pytest.approx([1.8, 2.2])
    assert fields("network") == [2.0, 8.0]
    assert fields("oversubscription") == [16.0, 1.0]
    assert swings["oversubscription"].labels == ("16 to 1", "1 to 1")


def test_the_chosen_cluster_may_be_free(option: Callable[..., PlanOption]) -> None:
    best = option(10.0, 0.0, interval=(8.0, 12.0))
    slower = Swing("compute", ("", ""), None, None)
    (interval, same) = measure_swings(best, [slower], lambda _: ())
    assert interval.cost == (0.0, 0.0)
    assert same.wall_s == (10.0, 10.0)


def test_both_ends_are_to_be_seen_where_they_lie_on_one_side(
    planned: tuple[Scenario, PlanResult],
) -> None:
    _, plan = planned
    assert plan.best is not None
    assert plan.best.cost is not None
    times = (1.0, 1.0)
    both = Sensitivity("both", ("", ""), times, (0.9 * plan.best.cost, 0.8 * plan.best.cost))
    usual = Sensitivity("usual", ("", ""), times, (1.1 * plan.best.cost, 0.8 * plan.best.cost))
    worse, better = draw_tornado(replace(plan, sensitivities=(both, usual))).data
    assert better.width[0] < worse.width[0]
    assert better.width[1] == worse.width[1]

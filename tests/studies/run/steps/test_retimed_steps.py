"""Ends of intervals and what-ifs, timed again, against simulations of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from perfmodel.scenario import load_scenario
from perfmodel.scenario.sections.variants import WhatIf
from perfmodel.simulate.engine.retiming import have_same_order
from perfmodel.studies.run.resolve.what_if import apply_what_if
from perfmodel.studies.run.steps import retimed_steps, sized_job
from perfmodel.studies.run.steps.output_analysis import SETTLED_STEPS
from perfmodel.studies.run.steps.retimed_steps import MOST_MET, RetimedSteps
from perfmodel.studies.run.steps.simulate_step import SimulationSetup, simulate_steps
from perfmodel.studies.run.steps.sized_job import SizedJob, first_step_s, prepare, simulate_reported
from perfmodel.training.plan.step_plan import (
    Collective,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
)
from tests.simulate.random_machines import random_machine
from tests.simulate.reference.test_plan_processes import COMMUNICATORS, RANKS

ALONE = ("bert-large-v100-25g", "llama2-7b-fsdp-h100", "gpt2-xl-pcie-no-p2p", "straggler")
MEETING = {"long-context-llama3-8b": (), "mixtral-8x7b-fabrics": ("strategy.accumulate=4",)}
WHAT_IFS = (
    {"network_bandwidth": "infinite"},
    {"network_latency": 0.0, "node_latency": 0.0, "launch": 0.0},
    {"nvlink_bandwidth": 0.5, "network_bandwidth": 0.7},
)


def setups(sized: SizedJob) -> list[SimulationSetup]:
    """Both ends of compute and host, another overlap, other links, and no communication."""
    own = sized.setup()
    machines = [apply_what_if(WhatIf.model_validate(each), own.machine) for each in WHAT_IFS]
    return [
        *sized.setups_with(sized.with_compute, sized.compute, sized.compute_spread),
        *sized.setups_with(sized.with_host, sized.host, (0.5, 2.0)),
        replace(own, slowdown=1.3),
        replace(own, fidelity="free"),
        *map(own.on, machines),
    ]


def compare(name: str, within: float, changes: Sequence[str] = ()) -> RetimedSteps:
    sized = prepare(load_scenario(name, changes))
    reported, steady = simulate_reported(sized), sized.steady_disturbances
    again, others = RetimedSteps(reported, steady), setups(sized)
    simulated_s = [reported.simulate_again(steady, each) for each in others]
    assert [*map(again.end_s, others)] == pytest.approx(simulated_s, rel=within)
    return again


@pytest.mark.parametrize("name", ALONE)
def test_a_run_without_meetings_is_timed_again_exactly(name: str) -> None:
    again = compare(name, 1e-9)
    assert again.met == pytest.approx(0, abs=1e-9)
    base = again.base
    assert again.step_s(base.setup, again.disturbances).is_exact


def test_plans_with_other_tasks_are_simulated() -> None:
    """Horovod fuses what is ready at its next cycle: with quicker layers it sends other buckets."""
    changes = ["strategy={kind: horovod}", "cluster.nodes=2", "scale=null"]
    sized = prepare(load_scenario("bert-large-v100-25g", changes))
    base, steady = simulate_reported(sized), sized.steady_disturbances
    again = RetimedSteps(base, steady)
    others = sized.setups_with(sized.with_compute, sized.compute, (0.5, 1.5))
    assert len(others[0].plan_for(None).tasks) != len(base.plan.tasks)
    simulated_s = [base.simulate_again(steady, each) for each in others]
    assert [*map(again.end_s, others)] == pytest.approx(simulated_s, rel=1e-9)
    assert not again.step_s(others[0], steady).is_exact


def test_as_many_tasks_with_other_buckets_have_another_order() -> None:
    plan = prepare(load_scenario("bert-large-v100-25g")).plan_for(None)
    at, task, work = next(
        (at, task, task.work)
        for at, task in enumerate(plan.tasks)
        if isinstance(task.work, Collective)
    )
    larger = replace(task, work=replace(work, nbytes=work.nbytes + 2))
    later = replace(task, after=(*task.after[:-1], task.after[-1] - 1))
    works = [
        replace(each, work=Compute(each.work.duration_s * 2))
        if isinstance(each.work, Compute)
        else each
        for each in plan.tasks
    ]
    assert have_same_order(plan, replace(plan, tasks=tuple(works)))
    for other in (larger, later):
        tasks = (*plan.tasks[:at], other, *plan.tasks[at + 1 :])
        assert not have_same_order(plan, replace(plan, tasks=tasks))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama2-7b-fsdp-h100", ("cluster.nodes=2", "scale=null")),
        ("resnet50-dgx-a100", ("cluster.nodes=2", "scale=null")),
        ("gpt3-175b-1024-a100", ("parallel.pipeline.stages=4", "cluster.nodes=32")),
        ("long-context-llama3-8b", ()),
    ],
)
def test_a_run_begins_with_the_first_step(name: str, changes: tuple[str, ...]) -> None:
    """FSDP's first step is one as all others, and a pipeline's; that of DDP has other buckets.

    Where context is split collectives meet, but those of a step no others than each other.
    """
    sized = prepare(load_scenario(name, changes))
    again = RetimedSteps(simulate_reported(sized), ())
    assert first_step_s(sized, again) == pytest.approx(first_step_s(sized), rel=1e-12)


def test_a_first_step_that_was_delayed_is_simulated() -> None:
    """Communication of the second step delays some of the first: by 2e-4 of it."""
    sized = prepare(load_scenario("lost-nic-3d"))
    again = RetimedSteps(simulate_reported(sized), sized.steady_disturbances)
    assert first_step_s(sized, again) == first_step_s(sized)
    assert again.base.run.step_ends_s[0] > (1 + 1e-4) * first_step_s(sized)


def test_communication_that_meets_with_the_other_numbers_only_is_not_exact() -> None:
    """Of two streams, with work between them that keeps them apart until it is quick."""
    calls = [Collective("all_reduce", nbytes, "all", str(nbytes)) for nbytes in (10**6, 10**5)]
    streams = (Stream("compute", "compute"), Stream("comm", "comm"), Stream("other", "comm"))

    def plan(work_s: float) -> StepPlan:
        tasks = (
            Task("first", "communication", "a", "comm", calls[0], (), (2,)),
            Task("work", "forward", "a", "compute", Compute(work_s), (), (0, 2)),
            Task("second", "communication", "a", "other", calls[1], (1,)),
        )
        return StepPlan(
            "two streams", (RankClass("a", range(RANKS)),), streams, COMMUNICATORS, tasks, 1
        )

    machine = random_machine(3, RANKS, mesh=True)
    apart = SimulationSetup(machine, lambda _: plan(1.0), "flow", None, 0.0, {})
    near = replace(apart, plan_for=lambda _: plan(1e-9))
    again = RetimedSteps(simulate_steps(apart, (), SETTLED_STEPS), ())
    assert not again.is_met
    assert again.step_s(apart, ()).is_exact
    found = again.step_s(near, ())
    assert not found.is_exact
    simulated_s = simulate_steps(near, (), SETTLED_STEPS).step_s
    assert found.step_s < 0.99 * simulated_s
    assert [*map(again.end_s, [apart, near])] == pytest.approx(
        [again.base.step_s, simulated_s], rel=1e-9
    )


def test_one_step_simulated_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a plan of many tasks, whose first step is longer than the later ones."""
    monkeypatch.setattr(sized_job, "MANY_TASKS", 1)
    monkeypatch.setattr(retimed_steps, "MOST_MET", -1.0)
    changes = ["cluster.nodes=2", "scale=null", "training.batch_per_gpu=1"]
    sized = prepare(load_scenario("resnet50-dgx-a100", changes))
    base = simulate_reported(sized)
    assert abs(base.run.step_ends_s[0] / base.step_s - 1) > 1e-2
    again, steady = RetimedSteps(base, sized.steady_disturbances), sized.steady_disturbances
    others = setups(sized)[:2]
    simulated_s = [base.simulate_again(steady, each) for each in others]
    assert [*map(again.end_s, others)] == pytest.approx(simulated_s, rel=2e-3)


STRATEGIES = (
    "{kind: ddp, hook: fp16, accumulate: 2}",
    "{kind: ddp, hook: {kind: powersgd}}",
    "{kind: fsdp, reshard_after_forward: false}",
    "{kind: horovod}",
    "{kind: local_sgd}",
    "{kind: megatron, use_distributed_optimizer: true, overlap_grad_reduce: true}",
    "{kind: onebit}",
    "{kind: priority}",
    "{kind: zero, stage: 1}",
    "{kind: zero, stage: 2}",
    "{kind: zero, stage: 3}",
    "{kind: zero_redundancy}",
)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("batch", [1, 32])
def test_every_strategy_is_timed_again_as_it_is_simulated(strategy: str, batch: int) -> None:
    """On slow hosts as well as on quick ones, with ranks that are slower than others."""
    changes = (
        f"strategy={strategy}",
        f"training.batch_per_gpu={batch}",
        "model={name: resnet18}",
        "cluster.nodes=2",
        "scale=null",
        "events=[{slow: {ranks: [1], by: 1.3}}]",
    )
    again = compare("resnet50-dgx-a100", 1e-9, changes)
    assert again.met < MOST_MET
    sized = prepare(load_scenario("resnet50-dgx-a100", changes))
    assert first_step_s(sized, again) == pytest.approx(first_step_s(sized), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", MEETING)
def test_collectives_that_meet_move_ends_by_less_than_a_thousandth(name: str) -> None:
    again = compare(name, 1e-3, MEETING[name])
    assert 1e-6 < again.met < MOST_MET
    assert not again.step_s(again.base.setup, again.disturbances).is_exact


@pytest.mark.parametrize("name", ["two-jobs", "jitter"])
def test_what_varies_is_not_timed_again(name: str) -> None:
    sized = prepare(load_scenario(f"scenarios/{name}.yaml"))
    assert RetimedSteps(simulate_reported(sized), sized.disturbances).met == float("inf")

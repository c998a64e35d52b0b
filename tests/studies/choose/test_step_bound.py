"""No simulated step is shorter than its bounds, whatever the layout."""

from __future__ import annotations

import random

import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import change_scenario, load_scenario
from perfmodel.studies.choose.layouts import list_layouts, prepare_jobs
from perfmodel.studies.choose.plan_path import longest_path_s
from perfmodel.studies.choose.search import choose_layout
from perfmodel.studies.choose.step_bound import StepBounds
from perfmodel.studies.run.steps.sized_job import simulate_reported
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
)

SCENARIO = """# Which parallel layout?
perfmodel: 1
model:
  transformer: {hidden: 2048, layers: 8, heads: 16, kv_heads: 8, vocab: 32000}
  dtype: bf16
  sequence_length: 4096
compute: {precision: bf16, optimizer: adamw}
strategy:
  kind: auto
  tensor: [1, 2, 4]
  context: [1, 2]
  pipeline: [1, 2, 4]
  chunks: 2
  micro_batch: [1, 2]
  recompute: [none, selective, full]
  sharding:
    - {kind: ddp}
    - {kind: fsdp}
    - {kind: zero, stage: 3}
    - {kind: megatron, use_distributed_optimizer: true, overlap_grad_reduce: true}
cluster: {node: dgx-h100, nodes: 2, fabric: rail-optimised}
training: {global_batch: 16}
"""
EXPERTS = {"model.transformer.experts": {"count": 8, "top_k": 2}, "strategy.expert": [1, 4]}
SLOW_NETWORK = {"cluster": {"node": "v100-x8-25g", "nodes": 2, "fabric": {"kind": "one-switch"}}}


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    path = tmp_path_factory.mktemp("bounds") / "layouts.yaml"
    path.write_text(SCENARIO)
    return load_scenario(str(path))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"parallel.overlap": "asynchronous"},
        EXPERTS,
        {**SLOW_NETWORK, "compute.precision": "fp16", "model.dtype": "fp16"},
    ],
)
def test_no_step_of_a_random_layout_is_shorter_than_its_bounds(scenario, changes):
    question = change_scenario(scenario, changes)
    jobs = prepare_jobs(question, None, None)
    size, workload = jobs.base.size, jobs.inputs.workload
    layouts, _ = list_layouts(question, jobs.section, size, workload)
    bounds, nearest = StepBounds(question.compute.precision, jobs.make), []
    for layout in random.Random(7).sample(layouts, 10):
        try:
            listed_s, sized = bounds.lower_bound_s(layout), jobs.make(layout)
            planned_s, step_s = bounds.plan_s(sized), simulate_reported(sized).step_s
        except InputError:  # a schedule that these micro-batches do not allow
            continue
        assert max(listed_s, planned_s) <= step_s * (1 + 1e-9), layout
        nearest.append(max(listed_s, planned_s) / step_s)
    assert max(nearest) > 0.9  # they are worth something


def plan_of(*tasks, classes=1):
    ranks = tuple(RankClass(f"stage {n}", (n,)) for n in range(classes))
    streams = (Stream("compute", "compute"), Stream("comm", "comm"))
    return StepPlan("own", ranks, streams, (Communicator("all", (range(classes),)),), tasks, 1)


def reduce_of(stage, **waits):
    work = Collective("all_reduce", 8, "all", "gradients")
    return Task("reduce", "communication", f"stage {stage}", "comm", work, **waits)


@pytest.mark.parametrize(("waits", "cycle_s"), [({"after_previous": (1,)}, 3.0), ({}, 1.0)])
def test_a_step_takes_what_the_next_one_waits_for(waits, cycle_s):
    """One second of kernels and two of a collective, one after the other or side by side."""
    forward = Task("forward", "forward", "stage 0", "compute", Compute(1.0), **waits)
    assert longest_path_s(plan_of(forward, reduce_of(0, after=(0,))), [1.0, 2.0]) == cycle_s


def test_classes_that_meet_wait_for_the_last():
    """The first class reaches the collective after 1 s, the second after 5 s; it takes 2 s."""
    first, last = (
        Task("forward", "forward", f"stage {n}", "compute", Compute(0.0), after_previous=(2 + n,))
        for n in range(2)
    )
    plan = plan_of(first, last, reduce_of(0, after=(0,)), reduce_of(1, after=(1,)), classes=2)
    assert longest_path_s(plan, [1.0, 5.0, 2.0, 2.0]) == 7.0


@pytest.mark.slow
def test_a_search_without_time_ends_with_the_first_and_what_is_left_to_gain(scenario):
    question = change_scenario(scenario, {"strategy.pipeline": 1, "strategy.buckets": False})
    hasty, patient = choose_layout(question, seconds=0.0), choose_layout(question)
    assert hasty.simulated == 1
    assert patient.unproven == 0
    quickest_s = patient.winner.step_time_s
    assert hasty.winner.step_time_s * (1 - hasty.unproven) <= quickest_s * (1 + 1e-9)
    assert (
        hasty.bounded == patient.bounded + patient.simulated + patient.too_big - 1 - hasty.too_big
    )

"""Greatest values of fp8: how many all-reduces, of which size, and what waits for them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from perfmodel.scenario.strategies.ddp import DdpStrategy
from perfmodel.scenario.strategies.deepspeed import ZeroStrategy
from perfmodel.scenario.strategies.sharded import FsdpStrategy, MegatronStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.training.megatron import buffer_buckets
from perfmodel.training.memory_use import Setup, add_float8_copies
from perfmodel.training.plan.amax_reductions import AMAXES, add_amax_reductions
from perfmodel.training.plan.step_plan import Collective, StepPlan
from perfmodel.training.strategies import STRATEGIES
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.kernels.float8_layers import Float8, float8_weights
from perfmodel.workload.roofline import layer_times
from perfmodel.workload.zoo import build_model

BLOCKS, MODULES = 16, 4
"""Of Llama 3.2 1B; its products as Transformer Engine has them: qkv, o, gate and up, down."""

DELAYED = Float8()
SECTIONS = [
    DdpStrategy(kind="ddp"),
    DdpStrategy(kind="ddp", accumulate=3),
    FsdpStrategy(kind="fsdp", param_dtype="bf16", accumulate=2),
    FsdpStrategy(kind="fsdp", version=1, forward_prefetch=True),
    ZeroStrategy(kind="zero", stage=1),
    ZeroStrategy(kind="zero", stage=3, accumulate=2),
    MegatronStrategy(
        kind="megatron",
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        accumulate=2,
    ),
]


@cache
def request_of(ranks: int, float8: Float8) -> StepRequest:
    model = build_model("llama3.2-1b", dtype="bf16", sequence_length=512)
    times = layer_times(model, load_gpu("h100-sxm5-80gb"), batch=1, precision="fp8", float8=float8)
    return StepRequest(model, times, ranks, 1, float8=float8)


def plan_of(section, float8=DELAYED, ranks=8) -> tuple[StepPlan, StepPlan]:
    """A plan without the all-reduces, and with them."""
    strategy, request = STRATEGIES[section.kind], request_of(ranks, float8)
    plan = strategy.plan(request, strategy.options(section))
    return plan, add_amax_reductions(plan, request, float8)


def agreements(plan: StepPlan) -> list[tuple[str, int, str | None]]:
    return [
        (task.name.split()[-1], task.work.nbytes, task.work.dtype)
        for task in plan.tasks
        if isinstance(task.work, Collective) and task.work.communicator == AMAXES
    ]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda each: f"{each.kind} {each.accumulate}")
def test_each_pass_of_a_micro_batch_ends_with_one(section):
    plain, plan = plan_of(section)
    check_plan(plan)
    values = BLOCKS * MODULES
    both = [("forward", 4 * 3 * values, "fp32"), ("backward", 4 * 2 * values, "fp32")]
    assert agreements(plan) == both * section.accumulate
    assert len([t for t in plan.tasks if t.name.startswith("scales of")]) == 2 * section.accumulate
    names = [task.name for task in plain.tasks]
    assert [task.name for task in plan.tasks if task.name in set(names)] == names


@pytest.mark.parametrize("section", SECTIONS, ids=lambda each: f"{each.kind} {each.accumulate}")
def test_what_follows_waits_for_them_and_everything_else_for_the_same_as_before(section):
    plain, plan = plan_of(section)
    for index, task in enumerate(plan.tasks):
        if isinstance(task.work, Collective) and task.work.communicator == AMAXES:
            scales = next(t for t in plan.tasks[index:] if t.name.startswith("scales of"))
            assert scales.after == (index,)
            assert scales.stream == "compute"  # in whose order all later layers run
    kept = [(plan.tasks[index], index) for index in range(len(plan.tasks))]
    kept = [pair for pair in kept if "scales of" not in pair[0].name and AMAXES not in pair[0].name]
    moved = {index: number for number, (_, index) in enumerate(kept)}
    for (task, _), before in zip(kept, plain.tasks, strict=True):
        assert tuple(moved[each] for each in task.after) == before.after
        earlier = tuple(moved[each] for each in task.after_previous)
        assert earlier == before.after_previous


def test_order_of_passes_and_all_reduces():
    _, plan = plan_of(SECTIONS[1])
    on_gpu = [t for t in plan.tasks if t.kind in ("forward", "backward") or t.stream == AMAXES]
    for task, following in pairwise(on_gpu):
        if task.kind in ("forward", "backward") and following.kind != task.kind:
            assert following.stream == AMAXES
            assert following.name.endswith(task.kind)


@pytest.mark.parametrize(
    "float8",
    [Float8(reduce_amax=False), Float8(recipe="current"), Float8("torchao", "tensorwise")],
)
def test_other_recipes_agree_on_nothing(float8):
    plain, plan = plan_of(SECTIONS[0], float8)
    assert agreements(plan) == []
    updates = len(plan.tasks) > len(plain.tasks)
    assert updates == (float8.recipe == "delayed")  # each rank still updates its scales


def test_one_gpu_agrees_with_nobody():
    _, plan = plan_of(SECTIONS[0], ranks=1)
    assert agreements(plan) == []


def test_parameters_in_fp8_are_gathered_in_a_buffer_of_their_own():
    model = request_of(8, Float8()).workload
    narrow = float8_weights(model, Float8())
    options = MegatronStrategy(
        kind="megatron", use_distributed_optimizer=True, overlap_grad_reduce=True
    )
    *first, last = buffer_buckets(model, options, 8, narrow)
    trained = [tensor for bucket in (*first, last) for tensor in bucket.tensors]
    assert sorted(trained) == sorted(model.ready_order)
    assert all(set(bucket.tensors) <= narrow for bucket in first)
    assert all(bucket.narrow_elements == bucket.elements for bucket in first)
    weights = sum(model.tensors[index].numel for index in narrow)
    assert sum(bucket.narrow_elements for bucket in (*first, last)) == weights  # all divide by 128
    for bucket in (*first, last):
        spans = zip(bucket.tensors, bucket.starts, strict=True)
        ends = [start + model.tensors[tensor].numel for tensor, start in spans]
        assert all(
            end <= after
            for end, after in zip(ends, (*bucket.starts[1:], bucket.elements), strict=True)
        )


def test_gathers_of_parameters_in_fp8_halve_the_bytes_of_weights():
    section = SECTIONS[-1]
    wide, _ = plan_of(section)
    narrow, _ = plan_of(section, Float8(fp8_param_gather=True))
    check_plan(narrow)
    model = request_of(8, Float8()).workload
    weights = sum(model.tensors[index].numel for index in float8_weights(model, Float8()))

    def gathered(plan):
        return sum(
            task.work.nbytes
            for task in plan.tasks
            if isinstance(task.work, Collective) and task.work.op == "all_gather"
        )

    assert gathered(wide) - gathered(narrow) == pytest.approx(weights, rel=1e-3)


def test_fp8_copies_of_weights_and_histories_take_memory():
    model = request_of(8, Float8()).workload
    weights = sum(model.tensors[index].numel for index in float8_weights(model, Float8()))
    rule = STRATEGIES["megatron"].memory
    options = MegatronStrategy(kind="megatron", use_distributed_optimizer=True)
    setup = Setup(model, "bf16", "adamw", 8, 1, options, float8=Float8(), float8_copies=2)
    use = rule(setup)
    history = 4 * 1024 * 5 * BLOCKS * MODULES
    added = add_float8_copies(setup, use).total_bytes - use.total_bytes
    assert added == 2 * weights + history  # and their transposes
    params = replace(setup, float8=Float8(fp8_param_gather=True))
    assert add_float8_copies(params, use).total_bytes - use.total_bytes == history  # 1 + 1 for 2
    assert add_float8_copies(replace(setup, float8=None), use) == use

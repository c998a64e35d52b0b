"""ZeRO and Megatron: bytes against published formulas, times against closed forms and bounds.

Published: Rajbhandari et al. 2019 (arXiv 1910.02054), section 7: a rank sends (d-1)/d of the
gradients and of the parameters in stages 1 and 2, and of the gradients and twice the parameters in
stage 3. DeepSpeed's default in stages 1 and 2 sends each gradient twice, as it all-reduces them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perfmodel.errors import InputError
from perfmodel.scenario.strategies.deepspeed import ZeroStrategy
from perfmodel.scenario.strategies.sharded import FsdpStrategy, MegatronStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.fsdp.step_plan import fsdp_plan
from perfmodel.training.megatron import (
    buffer_buckets,
    megatron_memory,
    megatron_plan,
    owned_elements,
)
from perfmodel.training.memory_use import Setup
from perfmodel.training.plan.step_plan import Collective, StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.training.zero.fetches import trace_fetches
from perfmodel.training.zero.sharded_states import partition
from perfmodel.training.zero.strategy import zero_memory, zero_plan
from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload
from perfmodel.workload.zoo import build_model

Times = Callable[..., LayerTimes]
Run = Callable[..., list[tuple[float, float]]]

SIZES = [256, 4096, 64, 8192, 512]
"""All of them divide by all numbers of ranks below, so that nothing is padded."""

NO_COPIES = {"copy_Bps": 1e30}
FREED_AT_ONCE = {
    "stage3_param_persistence_threshold": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
}


def model(sizes: list[int], dtype: str = "fp32") -> Workload:
    tensors = tuple(ParameterTensor(f"l{i}.weight", (n,), dtype) for i, n in enumerate(sizes))
    layers = tuple(Layer(f"l{i}", (i,)) for i in range(len(sizes)))
    return Workload("some", tensors, layers)


def request(times_of: Times, workload: Workload, ranks: int, **changed: Any) -> StepRequest:
    return StepRequest(workload, times_of(workload, **NO_COPIES, **changed), ranks, 1)


def untimed(workload: Workload, ranks: int) -> StepRequest:
    """For properties of what is sent."""
    layers = len(workload.layers)
    zeros, kernels = np.zeros(layers), np.ones(layers, int)
    times = LayerTimes(zeros, zeros, kernels, kernels, 0.0, 0.0, 1, 1e12, "none")
    return StepRequest(workload, times, ranks, 1)


def works(plan: StepPlan) -> list[Collective]:
    return [task.work for task in plan.tasks if isinstance(task.work, Collective)]


def sent_bytes(plan: StepPlan, ranks: int) -> float:
    """Bytes that a rank sends on average, by rings, without single numbers such as norms."""
    shares = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "reduce": 1, "broadcast": 1}
    large = [work for work in works(plan) if work.nbytes > 8]
    return sum(shares[work.op] * work.nbytes for work in large) * (ranks - 1) / ranks


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_stages_send_what_is_published(ranks: int, dtype: str, times_of: Times) -> None:
    workload = model(SIZES, dtype)
    asked = request(times_of, workload, ranks)
    whole = workload.nbytes * (ranks - 1) / ranks
    for stage in (1, 2):
        to_owners = ZeroStrategy(kind="zero", stage=stage, use_multi_rank_bucket_allreduce=False)  # type: ignore[arg-type]
        assert sent_bytes(zero_plan(asked, to_owners), ranks) == 2 * whole
        default = ZeroStrategy(kind="zero", stage=stage)  # type: ignore[arg-type]
        assert sent_bytes(zero_plan(asked, default), ranks) == 3 * whole
    freed = ZeroStrategy(kind="zero", stage=3, **FREED_AT_ONCE)  # type: ignore[arg-type]
    assert sent_bytes(zero_plan(asked, freed), ranks) == 3 * whole
    fsdp = fsdp_plan(asked, FsdpStrategy(kind="fsdp", wrap="layer"))
    assert sent_bytes(fsdp, ranks) == 3 * whole
    held = ZeroStrategy(kind="zero", stage=3, stage3_param_persistence_threshold=0)
    assert sent_bytes(zero_plan(asked, held), ranks) == 2 * whole  # small enough to stay whole


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("fp32", [False, True])
def test_megatron_sends_gradients_and_parameters_once(
    ranks: int, fp32: bool, times_of: Times
) -> None:
    workload = model([128 * ranks, 256 * ranks], "bf16")
    options = MegatronStrategy(
        kind="megatron",
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        bucket_size=200,
        overlap_param_gather=True,
        grad_reduce_in_fp32=fp32,
    )
    plan = megatron_plan(request(times_of, workload, ranks), options)
    expected = workload.parameters * ((4 if fp32 else 2) + 2) * (ranks - 1) / ranks
    assert sent_bytes(plan, ranks) == expected


@pytest.mark.parametrize("ranks", [1, 2])
def test_megatron_keeps_gradients_in_a_buffer_of_their_own_width(ranks: int) -> None:
    """However few ranks there are (megatron/core/distributed/param_and_grad_buffer.py)."""
    workload = model([256, 512], "bf16")
    setup = Setup(workload, "bf16", "adamw", ranks, 1)
    narrow, wide = (
        megatron_memory(
            replace(setup, options=MegatronStrategy(kind="megatron", grad_reduce_in_fp32=fp32))
        )
        for fp32 in (False, True)
    )
    assert narrow.gradients_bytes == 2 * workload.parameters
    assert wide.gradients_bytes == 4 * workload.parameters
    assert narrow.states_bytes == (2 + 2 + 12) * workload.parameters


@pytest.mark.parametrize(("stage", "reductions"), [(1, 1), (2, 3), (3, 3)])
def test_micro_batches_that_communicate(stage: Any, reductions: int, times_of: Times) -> None:
    """Stage 1 reduces once a step, the others in each micro-batch (``allreduce_gradients``)."""
    options = ZeroStrategy(kind="zero", stage=stage, accumulate=3)
    plan = zero_plan(request(times_of, model(SIZES), 4), options)
    large = [work for work in works(plan) if work.nbytes > 8]
    assert sum(work.op in ("all_reduce", "reduce_scatter") for work in large) == reductions


def seconds(work: Collective) -> float:
    """A latency and a bandwidth."""
    return 1e-4 + work.nbytes / 1e6


def length(plan: StepPlan, run_plan: Run) -> float:
    check_plan(plan)
    return max(end for _, end in run_plan(plan, seconds))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_without_overlap_everything_adds_up(stage: Any, times_of: Times, run_plan: Run) -> None:
    more = FREED_AT_ONCE if stage == 3 else {}
    options = ZeroStrategy(kind="zero", stage=stage, overlap_comm=False, **more)
    asked = request(times_of, model(SIZES), 4)
    plan = zero_plan(asked, options)
    computed = 5 * 1e-3 + 5 * 2e-3 + 1e-3 / 4
    assert length(plan, run_plan) == pytest.approx(computed + sum(map(seconds, works(plan))))


@pytest.mark.parametrize("gathers", [False, True])
def test_megatron_without_overlap_adds_up(gathers: bool, times_of: Times, run_plan: Run) -> None:
    asked = request(times_of, model(SIZES), 4)
    plan = megatron_plan(
        asked, MegatronStrategy(kind="megatron", use_distributed_optimizer=gathers)
    )
    updated = 1e-3 / 4 if gathers else 1e-3
    share = (
        sum(
            bucket.elements
            for bucket in buffer_buckets(
                asked.workload,
                MegatronStrategy(kind="megatron", use_distributed_optimizer=gathers),
                4,
            )
        )
        / asked.workload.parameters
    )
    computed = 5 * 1e-3 + 5 * 2e-3 + updated * share
    assert length(plan, run_plan) == pytest.approx(computed + sum(map(seconds, works(plan))))


OVERLAPPING = [
    (zero_plan, ZeroStrategy(kind="zero", stage=1, overlap_comm=True, reduce_bucket_size=4000)),
    (zero_plan, ZeroStrategy(kind="zero", stage=2, overlap_comm=True, reduce_bucket_size=4000)),
    (
        zero_plan,
        ZeroStrategy(
            kind="zero",
            stage=3,
            stage3_param_persistence_threshold=100,
            reduce_bucket_size=4000,
            stage3_max_reuse_distance=0,
            stage3_prefetch_bucket_size=300,
        ),
    ),
    (
        megatron_plan,
        MegatronStrategy(
            kind="megatron",
            use_distributed_optimizer=True,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
            bucket_size=4000,
        ),
    ),
]


@pytest.mark.parametrize(("plan_of", "options"), OVERLAPPING)
def test_overlap_stays_between_the_bounds(
    plan_of: Callable[..., StepPlan], options: Any, times_of: Times, run_plan: Run
) -> None:
    plan = plan_of(request(times_of, model(SIZES), 4), options)
    sent = sum(map(seconds, works(plan)))
    computed = 5 * 1e-3 + 5 * 2e-3 + 1e-3 / 4
    took = length(plan, run_plan)
    assert max(sent, computed) <= took < sent + 1.2 * computed - 1e-3


def test_two_reductions_of_stage_2_are_in_progress_at_most(times_of: Times, run_plan: Run) -> None:
    """Backward waits for the bucket before the one that it sends (``average_tensor``)."""
    sizes = [1000, 1000, 1000, 1000]
    options = ZeroStrategy(kind="zero", stage=2, overlap_comm=True, reduce_bucket_size=1000)
    plan = zero_plan(request(times_of, model(sizes), 4), options)
    spans = run_plan(plan, lambda work: 1.0)
    sent = [spans[i] for i, task in enumerate(plan.tasks) if task.name.startswith("all-reduce b")]
    starts = [spans[i][0] for i, task in enumerate(plan.tasks) if task.kind == "backward"]
    assert starts[2] < sent[0][1] <= starts[3] < sent[1][1]


def test_the_first_gather_of_megatron_is_not_hidden(times_of: Times, run_plan: Run) -> None:
    """Its forward hooks send a bucket when the one before it has arrived."""
    options = MegatronStrategy(
        kind="megatron",
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        bucket_size=4000,
    )
    plan = megatron_plan(request(times_of, model(SIZES), 4), options)
    spans = run_plan(plan, lambda work: 1e-4)
    first = next(i for i, task in enumerate(plan.tasks) if task.kind == "forward")
    gathers = [i for i, task in enumerate(plan.tasks) if task.name.startswith("gather bucket")]
    assert spans[first][0] >= spans[gathers[0]][1]
    assert spans[gathers[1]][0] < spans[first][1]
    assert plan.tasks[gathers[0]].after_previous != ()


sizes_of_models = st.lists(st.integers(1, 3000), min_size=1, max_size=12)


@pytest.mark.hypothesis
@given(
    sizes=sizes_of_models,
    ranks=st.integers(2, 9),
    bucket=st.integers(1, 5000),
    robin=st.booleans(),
    jointly=st.booleans(),
    stage=st.sampled_from([1, 2]),
)
def test_every_gradient_reaches_its_owner_once(
    sizes: list[int],
    ranks: int,
    bucket: int,
    robin: bool,
    jointly: bool,
    stage: Any,
) -> None:
    workload = model(sizes)
    options = ZeroStrategy(
        kind="zero",
        stage=stage,
        reduce_bucket_size=bucket,
        round_robin_gradients=robin,
        use_multi_rank_bucket_allreduce=jointly,
    )
    plan = zero_plan(untimed(workload, ranks), options)
    check_plan(plan)
    reduced = [work for work in works(plan) if work.op in ("all_reduce", "reduce")][:-1]
    assert sum(work.nbytes for work in reduced) == workload.nbytes
    layout = partition(workload, options, ranks)
    owned = [0] * ranks
    for tensor, numel in enumerate(sizes):
        for rank, part in layout.owners(tensor, numel):
            owned[rank] += part
    assert max(owned) <= layout.part_elements < sum(sizes) / ranks + 2
    if not jointly:
        roots = [sum(w.nbytes for w in reduced if w.root == rank) // 4 for rank in range(ranks)]
        assert roots == owned


@pytest.mark.hypothesis
@given(
    sizes=sizes_of_models,
    ranks=st.integers(2, 9),
    prefetch=st.integers(0, 4000),
    live=st.integers(0, 6000),
    reuse=st.integers(0, 6000),
    threshold=st.integers(0, 2000),
    accumulate=st.integers(1, 3),
)
def test_stage_3_gathers_what_it_needs(
    sizes: list[int],
    ranks: int,
    prefetch: int,
    live: int,
    reuse: int,
    threshold: int,
    accumulate: int,
) -> None:
    workload = model(sizes)
    options = ZeroStrategy(
        kind="zero",
        stage=3,
        stage3_prefetch_bucket_size=prefetch,
        stage3_max_live_parameters=live,
        stage3_max_reuse_distance=reuse,
        stage3_param_persistence_threshold=threshold,
        accumulate=accumulate,
    )
    plan = zero_plan(untimed(workload, ranks), options)
    check_plan(plan)
    padded = [-(-size // ranks) * ranks * 4 for size in sizes]
    large = sum(n for n, size in zip(padded, sizes, strict=True) if size > threshold)
    gathered = sum(work.nbytes for work in works(plan) if work.op == "all_gather")
    small = sum(padded) - large
    assert accumulate * large <= gathered - small <= 2 * accumulate * large
    reduced = sum(work.nbytes for work in works(plan) if work.op == "reduce_scatter")
    assert reduced == accumulate * sum(padded)


@pytest.mark.hypothesis
@given(sizes=sizes_of_models, ranks=st.integers(1, 9), bucket=st.integers(1, 5000))
def test_megatron_buffers_hold_each_element_once(sizes: list[int], ranks: int, bucket: int) -> None:
    workload = model(sizes)
    options = MegatronStrategy(
        kind="megatron",
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        bucket_size=bucket,
    )
    buckets = buffer_buckets(workload, options, ranks)
    assert [t for each in buckets for t in each.tensors] == list(reversed(range(len(sizes))))
    assert all(each.elements % ranks == 0 and each.elements % 128 == 0 for each in buckets)
    owned = [0] * ranks
    for each in buckets:
        for tensor, start in zip(each.tensors, each.starts, strict=True):
            for element in range(start, start + sizes[tensor]):
                owned[element * ranks // each.elements] += 1
    assert owned_elements(workload, buckets, ranks).tolist() == owned


@pytest.mark.parametrize(
    ("plan_of", "options", "field"),
    [
        (
            zero_plan,
            ZeroStrategy(kind="zero", stage=3, zero_hpz_partition_size=3),
            "zero_hpz_partition_size",
        ),
        (
            megatron_plan,
            MegatronStrategy(
                kind="megatron",
                use_distributed_optimizer=True,
                num_distributed_optimizer_instances=3,
            ),
            "num_distributed_optimizer_instances",
        ),
    ],
)
def test_groups_that_do_not_divide_the_ranks_are_refused(
    plan_of: Callable[..., StepPlan], options: Any, field: str, times_of: Times
) -> None:
    with pytest.raises(InputError, match=rf"{field}.*3.*a divisor of the 4 GPUs"):
        plan_of(request(times_of, model(SIZES), 4), options)


def test_sizes_below_their_least_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"(?s)reduce_bucket_size.*greater than 0"):
        ZeroStrategy(kind="zero", reduce_bucket_size=0)
    with pytest.raises(ValidationError, match=r"(?s)bucket_size.*greater than 0"):
        MegatronStrategy(kind="megatron", bucket_size=0)


def test_host_and_device_wait_for_the_norm(times_of: Times) -> None:
    """DeepSpeed reads it on the host before it updates anything."""
    asked = request(times_of, model(SIZES), 4, launch_s=1e-5)
    plan = zero_plan(asked, ZeroStrategy(kind="zero", stage=2, overlap_comm=True))
    norm = next(i for i, task in enumerate(plan.tasks) if task.name == "gradient norm")
    update = next(task for task in plan.tasks if task.name == "issue optimizer")
    assert norm in update.after


@pytest.mark.parametrize(("plan_of", "options"), OVERLAPPING)
def test_the_update_waits_for_every_reduction(
    plan_of: Callable[..., StepPlan], options: Any, times_of: Times, run_plan: Run
) -> None:
    plan = plan_of(request(times_of, model(SIZES), 4), options)
    spans = run_plan(plan, lambda work: 1.0)
    names = [task.name for task in plan.tasks]
    counted = next(i for i, name in enumerate(names) if name.startswith("count "))
    reductions = [i for i, task in enumerate(plan.tasks[:counted]) if task.bucket is not None]
    assert spans[counted][0] >= max(spans[i][1] for i in reductions)
    assert spans[names.index("optimizer")][0] >= spans[counted][1] + 1.0


def test_megatron_runs_layers_whose_parameters_have_arrived(times_of: Times, run_plan: Run) -> None:
    options = MegatronStrategy(
        kind="megatron",
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        bucket_size=100,
    )
    plan = megatron_plan(request(times_of, model(SIZES), 4), options)
    spans = run_plan(plan, lambda work: 1.0)
    starts = [spans[i][0] for i, task in enumerate(plan.tasks) if task.kind == "forward"]
    assert [int(start) for start in starts] == [1, 2, 2, 3, 4]  # the third shares the second's


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_host_waits_at_the_end_of_each_backward_of_stage_3(
    accumulate: int, times_of: Times
) -> None:
    asked = request(times_of, model(SIZES), 4, launch_s=1e-6)
    plan = zero_plan(asked, ZeroStrategy(kind="zero", stage=3, accumulate=accumulate))
    ends = [i for i, task in enumerate(plan.tasks) if task.name == "copy out bucket 0"]
    waiting = [task for task in plan.tasks if task.kind == "issue" and set(task.after) & set(ends)]
    assert len(ends) == len(waiting) == accumulate


@pytest.mark.parametrize(
    ("options", "buffers"),
    [
        (ZeroStrategy(kind="zero", stage=1), 1),
        (ZeroStrategy(kind="zero", stage=2, overlap_comm=True), 2),
        (ZeroStrategy(kind="zero", stage=2, overlap_comm=False), 1),
    ],
)
def test_buffers_of_gradients_are_allocated_whole(options: ZeroStrategy, buffers: int) -> None:
    use = zero_memory(Setup(model(SIZES, "bf16"), "bf16", "adamw", 4, 1, options=options))
    assert use.buckets_bytes == buffers * 500_000_000 * 2
    parameters = 2 * sum(SIZES)
    own = parameters / 4
    assert use.gradients_bytes == (own if options.stage == 2 else own + parameters)
    assert use.optimizer_bytes == 12 * sum(SIZES) / 4


def test_a_step_flattens_the_own_gradients_and_casts_them() -> None:
    """22 bytes a parameter: 2 of it, 2 and 2 and 4 of its gradient, and 12 of its states.

    20 billion of them over 8 GPUs and one replica fill 67 of 80 GB (bigscience-workshop/bigscience,
    train/tr11-176B-ml/chronicles-prequel.md), of which CUDA and NCCL take 1 to 3.
    """
    workload = model([1000] * 6, "bf16")
    for stage, ranks in ((1, 1), (1, 4), (2, 4)):
        options = ZeroStrategy(kind="zero", stage=stage, reduce_bucket_size=1)
        use = zero_memory(Setup(workload, "bf16", "adamw", ranks, 1, options=options))
        own, whole = 6000 / ranks, 6000
        held = use.total_bytes - use.temporary_bytes
        step = 2 * whole + (2 + 6 + 12) * own
        assert use.total_bytes == pytest.approx(max(held, step), abs=100)
        assert use.temporary_bytes + use.idle_bytes == 6 * own
    assert 60e9 < 22 * (8 * 12 * 14400**2 + 250_680 * 14400) / 8 < 66e9
    options = ZeroStrategy(kind="zero", stage=1)
    wide = zero_memory(Setup(model([8000]), "fp32", "adamw", 4, 1, options=options))
    assert wide.idle_bytes + wide.temporary_bytes == 4 * 2000


def test_stage_3_holds_what_is_whole_at_once() -> None:
    """One layer of six without prefetch; with it, one more for each module that asks ahead.

    Those are the layer, and at the turn from forward to backward the whole model and the layer.
    """
    workload = model([1000] * 6)
    for prefetch, live in ((0, 1000), (1, 4000)):
        options = ZeroStrategy(
            kind="zero",
            stage=3,
            stage3_param_persistence_threshold=0,
            stage3_max_reuse_distance=0,
            stage3_prefetch_bucket_size=prefetch,
        )
        use = zero_memory(Setup(workload, "fp32", "sgd", 4, 1, options=options))
        assert trace_fetches(workload, options)[1] == live
        assert use.parameters_bytes == use.gradients_bytes == 4 * 1500
        assert use.gathered_bytes == 4 * (live + prefetch)


def test_beside_the_bucket_of_stage_3_is_room_for_the_largest_gradient() -> None:
    options = ZeroStrategy(kind="zero", stage=3, reduce_bucket_size=500)
    use = zero_memory(Setup(model([10, 1000]), "fp32", "sgd", 4, 1, options=options))
    assert use.buckets_bytes == 4 * (500 + 1000)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"stage3_max_live_parameters": 10**7},
        {"stage3_max_reuse_distance": 0},
        {"stage3_prefetch_bucket_size": 0},
        {"zero_hpz_partition_size": 8},
    ],
)
def test_micro_batches_repeat_from_the_third_on(changes: dict[str, Any]) -> None:
    """Memory follows three of them, however many a step has."""
    few, many = (
        trace_fetches(
            build_model("gpt2"), ZeroStrategy(kind="zero", stage=3, accumulate=number, **changes)
        )
        for number in (3, 9)
    )
    assert few[1] == many[1]
    kinds = [[(each.kind, each.tensors) for each in batch] for batch in many[0]]
    assert all(batch == kinds[2] for batch in kinds[3:])

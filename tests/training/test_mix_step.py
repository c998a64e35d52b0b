"""A parallel layout's step: what the data-parallel strategy's settings become in its stages."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.scenario.strategies.sharded import MegatronStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.megatron import megatron_plan
from perfmodel.training.parallel_layout import ParallelLayout, mix_step
from perfmodel.training.pipeline.pipeline_plan import TIED
from perfmodel.training.plan.step_plan import Collective, StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload import load_workload
from perfmodel.workload.memory.recompute import NO_RECOMPUTE
from perfmodel.workload.model import LayerTimes, Workload
from perfmodel.workload.shard import Shard

REPLICAS, STAGES, MICRO_BATCHES = 4, 2, 8


@pytest.fixture(scope="module")
def model() -> Workload:
    return load_workload("gpt2", dtype="bf16", sequence_length=64)


def plan_of(
    model: Workload, schedule: str, dtype: str | None = None, replicas: int = REPLICAS
) -> StepPlan:
    layers = len(model.layers)
    times = LayerTimes(
        np.full(layers, 1e-3),
        np.full(layers, 2e-3),
        *[np.zeros(layers, dtype=np.int64)] * 2,
        0.0,
        1e-3,
        1,
        1e12,
        "none",
        weight_gradient_s=np.full(layers, 1e-3),
    )
    return mix_step(
        ParallelLayout(shard=model.shard, stages=STAGES, schedule=schedule),
        StepRequest(model, times, replicas, 1),
        lambda part, count: megatron_plan(
            part, MegatronStrategy(kind="megatron", accumulate=count)
        ),
        MICRO_BATCHES,
        "bf16",
        NO_RECOMPUTE,
        None,
        tied_dtype=dtype,
    )


@pytest.mark.parametrize(("schedule", "holders"), [("1f1b", REPLICAS), ("dualpipe", 2 * REPLICAS)])
def test_all_holders_of_a_part_average_its_gradients(
    model: Workload, schedule: str, holders: int
) -> None:
    """DualPipe keeps each part on two stages, so that twice as many ranks reduce it."""
    plan = plan_of(model, schedule)
    check_plan(plan)
    assert plan.samples == REPLICAS * MICRO_BATCHES
    sizes = {each.name: {len(group) for group in each.groups} for each in plan.communicators}
    reduced = {
        work.communicator
        for work in (task.work for task in plan.tasks if isinstance(task.work, Collective))
        if work.op == "all_reduce" and work.nbytes > 1 << 20 and work.communicator != TIED
    }
    assert reduced
    assert all(sizes[name] == {holders} for name in reduced)


@pytest.mark.parametrize(("dtype", "item_bytes"), [(None, 2), ("fp32", 4)])
def test_a_tied_embedding_is_added_up_in_the_dtype_of_reductions(
    model: Workload, dtype: str | None, item_bytes: int
) -> None:
    works = (task.work for task in plan_of(model, "1f1b", dtype).tasks)
    (tied,) = {w for w in works if isinstance(w, Collective) and w.communicator == TIED}
    table = next(tensor for tensor in model.tensors if tensor.name == "wte.weight")
    assert tied.nbytes == item_bytes * table.numel


def test_a_tensor_group_may_have_more_ranks_than_hold_a_part() -> None:
    """Both stages that hold a part of DualPipe's are two ranks; their tensor groups have four."""
    share = load_workload(
        "bert-base",
        dtype="fp16",
        sequence_length=64,
        shard=Shard(tensor=4, vocabulary_multiple=128),
    )
    plan = plan_of(share, "dualpipe", replicas=1)
    groups = {each.groups for each in plan.communicators if each.name.startswith("tensor")}
    assert groups == {((0, 1, 2, 3), (4, 5, 6, 7))}

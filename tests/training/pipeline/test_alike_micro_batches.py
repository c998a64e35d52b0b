"""Micro-batches between a pipeline's first and last are planned once: as if each were planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from perfmodel.scenario.strategies.deepspeed import ZeroStrategy
from perfmodel.scenario.strategies.sharded import FsdpStrategy, MegatronStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.training import parallel_layout
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.fsdp.step_plan import fsdp_plan
from perfmodel.training.megatron import megatron_plan
from perfmodel.training.parallel_layout import ParallelLayout, mix_step
from perfmodel.training.plan.step_plan import Collective, StepPlan, Task
from perfmodel.training.strategy import StepRequest
from perfmodel.training.zero.strategy import zero_plan
from perfmodel.workload import load_workload
from perfmodel.workload.memory.recompute import NO_RECOMPUTE
from perfmodel.workload.model import LayerTimes
from perfmodel.workload.shard import Shard

Make = Callable[[StepRequest, int], StepPlan]

STAGES, MICRO_BATCHES = 2, 10
MADE: list[int] = []
"""Micro-batches of the plans of parts that were made."""


def megatron(**options: object) -> Make:
    return lambda request, count: megatron_plan(
        request, MegatronStrategy(kind="megatron", accumulate=count, **options)
    )


def zero(stage: int) -> Make:
    return lambda request, count: zero_plan(
        request, ZeroStrategy(kind="zero", stage=stage, accumulate=count)
    )


MAKES: dict[str, Make] = {
    "megatron": megatron(),
    "distributed optimizer": megatron(
        use_distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True
    ),
    "ddp": lambda request, count: ddp_plan(request, DdpOptions(accumulate=count)),
    "zero 1": zero(1),
    "zero 2": zero(2),
    "fsdp": lambda request, count: fsdp_plan(
        request,
        FsdpStrategy(
            kind="fsdp",
            accumulate=count,
            sync="last",
            reshard_after_forward=False,
            reshard_after_backward=False,
        ),
    ),
}
ONCE = MAKES.keys() - {"zero 2"}
"""Strategies that reduce nothing between the first and the last micro-batch."""


def plan_of(make: Make, schedule: str, **layout: object) -> StepPlan:
    model = load_workload(
        "gpt2",
        dtype="bf16",
        sequence_length=64,
        shard=Shard(tensor=2, sequence_parallel=True, vocabulary_multiple=128),
    )
    layers = len(model.layers)
    times = LayerTimes(
        np.linspace(1e-3, 2e-3, layers),
        np.full(layers, 2e-3),
        *[np.full(layers, 3, dtype=np.int64)] * 2,
        1e-5,
        1e-3,
        1,
        1e12,
        "none",
        weight_gradient_s=np.full(layers, 1e-3),
    )
    MADE.clear()

    def noted(request: StepRequest, count: int) -> StepPlan:
        MADE.append(count)
        return make(request, count)

    return mix_step(
        ParallelLayout(shard=model.shard, stages=STAGES, schedule=schedule, **layout),  # type: ignore[arg-type]
        StepRequest(model, times, 4, 1),
        noted,
        MICRO_BATCHES,
        "bf16",
        NO_RECOMPUTE,
        None,
    )


def numbered(plan: StepPlan) -> StepPlan:
    """The plan with its collectives numbered as they come."""
    keys: dict[tuple[str, str], str] = {}

    def renamed(task: Task) -> Task:
        work = task.work
        if not isinstance(work, Collective):
            return task
        key = keys.setdefault((work.communicator, work.key), str(len(keys)))
        return replace(task, work=replace(work, key=key))

    return replace(plan, tasks=tuple(map(renamed, plan.tasks)))


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize(
    ("schedule", "layout"),
    [
        ("gpipe", {}),
        ("1f1b", {}),
        ("1f1b", {"overlap_p2p": True}),
        ("interleaved", {"chunks": 2}),
        ("zb_h1", {}),
        ("zb_v", {}),
        ("dualpipe", {}),
    ],
)
def test_a_plan_is_that_of_all_its_micro_batches(
    monkeypatch: pytest.MonkeyPatch, name: str, schedule: str, layout: dict[str, object]
) -> None:
    few = plan_of(MAKES[name], schedule, **layout)
    check_plan(few)
    assert (max(MADE) == parallel_layout.SHOWN) == (name in ONCE)
    monkeypatch.setattr(parallel_layout, "can_show_more", lambda _: False)
    whole = plan_of(MAKES[name], schedule, **layout)
    assert max(MADE) > parallel_layout.SHOWN
    assert numbered(few) == numbered(whole)


@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_passes_that_wait_for_others_are_all_planned(kind: str) -> None:
    """A pass of the second micro-batch waits for the first one's, as a strategy might have it."""

    def chained(request: StepRequest, count: int) -> StepPlan:
        plan = MAKES["megatron"](request, count)
        first, second = (
            next(i for i, t in enumerate(plan.tasks) if (t.kind, t.micro_batch) == (kind, at))
            for at in (0, 1)
        )
        tasks = list(plan.tasks)
        tasks[second] = replace(tasks[second], after=(*tasks[second].after, first))
        return replace(plan, tasks=tuple(tasks))

    check_plan(plan_of(chained, "1f1b"))
    assert max(MADE) == MICRO_BATCHES

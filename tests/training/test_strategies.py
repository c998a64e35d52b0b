"""The table of strategies has a row for each kind that a scenario may name, and rows agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from perfmodel.scenario.strategies.strategy import StrategySection
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.ddp.buckets import Iteration
from perfmodel.training.memory_use import Setup, with_micro_batches
from perfmodel.training.plan.step_plan import Compute
from perfmodel.training.strategies import STRATEGIES
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import LayerTimes
from perfmodel.workload.zoo import build_model

SECTIONS = {
    get_args(section.model_fields["kind"].annotation)[0]: section
    for section in get_args(get_args(StrategySection)[0])
}

SHARDS_PARAMETERS = {"fsdp"}


def test_a_row_has_steps_or_loops() -> None:
    assert all((row.plan is None) != (row.loops is None) for row in STRATEGIES.values())


def test_each_kind_of_section_has_a_row() -> None:
    """But for "auto", which is searched: a scenario with one of the others answers it."""
    assert SECTIONS.keys() == STRATEGIES.keys() | {"auto"}


def times_of(layers: int) -> LayerTimes:
    return LayerTimes(
        forward_s=np.full(layers, 1e-3),
        backward_s=np.full(layers, 2e-3),
        forward_kernels=np.full(layers, 3),
        backward_kernels=np.full(layers, 6),
        launch_s=0.0,
        optimizer_s=1e-3,
        optimizer_kernels=10,
        copy_Bps=1e12,
        source="test",
    )


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("kind", [kind for kind, row in STRATEGIES.items() if row.plan])
def test_rows_answer_for_every_kind(kind: str, ranks: int) -> None:
    strategy, section = STRATEGIES[kind], SECTIONS[kind](kind=kind)
    options = strategy.options(section)
    model = build_model("resnet18")
    times = times_of(len(model.layers))
    assert strategy.plan is not None
    plan = strategy.plan(
        StepRequest(
            workload=model,
            times=times,
            ranks=ranks,
            batch_per_gpu=8,
            iteration="steady",
            item_bytes=4,
            comm_workers=1,
            blocking_wait=False,
            kernel_s=0.0,
            segments=16,
            host_s=0.0,
        ),
        options,
    )
    check_plan(plan)
    assert plan.samples == ranks * 8 * section.accumulate
    for each, layer_s in (("forward", 1e-3), ("backward", 2e-3)):  # of one rank, too
        works = [task.work for task in plan.tasks if task.kind == each]
        run_s = sum(work.duration_s for work in works if isinstance(work, Compute))
        assert run_s >= 0.999 * section.accumulate * len(model.layers) * layer_s
    use = strategy.memory(Setup(model, "fp32", "sgd", ranks, 8, options=options))
    whole = model.nbytes + model.buffer_bytes
    share = ranks if kind in SHARDS_PARAMETERS else 1
    assert whole / share <= use.parameters_bytes < 1.01 * whole / share
    if strategy.buckets is not None:
        buckets = strategy.buckets(model, options)
        assert sorted(i for bucket in buckets for i in bucket.tensors) == sorted(model.ready_order)


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize(
    ("kind", "options", "differs"),
    [
        ("megatron", {"use_distributed_optimizer": True}, False),
        *(("zero", {"stage": stage}, False) for stage in (1, 2, 3)),
        ("fsdp", {}, False),
        ("fsdp", {"sync_module_states": True, "version": 1}, True),
        ("ddp", {}, True),
    ],
)
def test_a_first_step_differs_where_a_strategy_says_so(
    kind: str, options: dict[str, Any], differs: bool, ranks: int
) -> None:
    strategy, model = STRATEGIES[kind], build_model("resnet18")
    own = strategy.options(SECTIONS[kind](kind=kind, accumulate=2, **options))
    assert strategy.plan is not None
    assert strategy.first_differs(own) == differs
    request = StepRequest(model, times_of(len(model.layers)), ranks, 8)
    first, later = (
        strategy.plan(replace(request, iteration=iteration), own).tasks
        for iteration in get_args(Iteration)
    )
    assert (first == later) == (not differs or ranks == 1)


@pytest.mark.parametrize("kind", ["ddp", "megatron", "fsdp", "zero", "horovod", "priority"])
def test_any_options_can_have_other_micro_batches(kind: str) -> None:
    """As each way of DualPipe has half of them, whatever holds a strategy's options."""
    section = SECTIONS[kind](kind=kind, accumulate=8)
    options = STRATEGIES[kind].options(section)
    assert with_micro_batches(options, 4).accumulate == 4
    assert options.accumulate == 8


@pytest.mark.parametrize("kind", [kind for kind, row in STRATEGIES.items() if row.plan])
def test_a_pipeline_sets_the_micro_batches_of_its_parts(kind: str) -> None:
    """Those that decide them themselves are refused in pipelines: rounds of local steps."""
    options = SECTIONS[kind](kind=kind)
    count = with_micro_batches(options, 6).accumulate
    assert count == (options.accumulate if kind == "local_sgd" else 6)

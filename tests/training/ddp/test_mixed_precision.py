"""DDP's mixed precision: what waits for which cast, and what a GPU keeps meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from perfmodel.scenario.strategies.ddp import CastHook, DdpStrategy, MixedPrecisionSection
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.ddp.strategy import DDP, ddp_memory
from perfmodel.training.memory_use import Setup
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload

Times = Callable[..., LayerTimes]
Run = Callable[..., list[tuple[float, float]]]
WIDE = MixedPrecisionSection(param_dtype="bf16", reduce_dtype="fp32")


@pytest.fixture
def toy() -> Workload:
    """Three layers of 1, 2 and 4 million fp32; buckets of 12 MB are {third}, {second, first}."""
    tensors = tuple(ParameterTensor(f"w{i}", (mega * 10**6,)) for i, mega in enumerate((1, 2, 4)))
    return Workload("toy", tensors, tuple(Layer(f"layer{i}", (i,)) for i in range(3)))


def plan_of(workload: Workload, times: LayerTimes, options: DdpOptions, **asked: Any) -> StepPlan:
    plan = ddp_plan(StepRequest(workload, times, 4, 8, **asked), options)
    check_plan(plan)
    return plan


def spans_ms(plan: StepPlan, run_plan: Run) -> dict[str, tuple[float, float]]:
    spans = np.array(run_plan(plan, lambda work: work.nbytes * 1e-9)) * 1e3
    return {task.name: tuple(span) for task, span in zip(plan.tasks, spans, strict=True)}


def test_a_step_by_hand(toy: Workload, times_of: Times, run_plan: Run) -> None:
    """Kernels read and write 8 MB per ms; an all-reduce takes 1 ms per MB."""
    times = times_of(
        toy,
        forward_s=np.array([1e-3, 2e-3, 3e-3]),
        backward_s=np.array([2e-3, 4e-3, 6e-3]),
        copy_Bps=4e9,
    )
    plan = plan_of(toy, times, DdpOptions(bucket_cap=12e6, mixed_precision=WIDE))
    wanted = {
        "cast layer0": (0, 0.75),
        "cast layer1": (0.75, 2.25),
        "cast layer2": (2.25, 5.25),
        "forward layer0": (0.75, 1.75),
        "forward layer1": (2.25, 4.25),
        "forward layer2": (5.25, 8.25),
        "backward layer2": (8.25, 14.25),
        "copy in layer2": (14.25, 16.25),
        "compress bucket 0": (16.25, 19.25),
        "all-reduce bucket 0": (19.25, 35.25),
        "backward layer1": (19.25, 23.25),
        "copy in layer1": (23.25, 24.25),
        "backward layer0": (24.25, 26.25),
        "copy in layer0": (26.25, 26.75),
        "compress bucket 1": (26.75, 29),
        "all-reduce bucket 1": (35.25, 47.25),
        "divide and cast bucket 0": (35.25, 42.25),
        "divide and cast bucket 1": (47.25, 52.5),
        "copy out bucket 0": (52.5, 56.5),
        "copy out bucket 1": (56.5, 59.5),
        "optimizer": (59.5, 60.5),
    }
    spans = spans_ms(plan, run_plan)
    assert set(spans) == set(wanted)
    for name, span in wanted.items():
        assert spans[name] == pytest.approx(span), name


def test_views_are_copied_only_where_buckets_were_converted(toy: Workload, times_of: Times) -> None:
    for reduced, copies in (("bf16", 0), ("fp32", 2)):
        mixed = MixedPrecisionSection(param_dtype="bf16", reduce_dtype=reduced)
        options = DdpOptions(gradient_as_bucket_view=True, mixed_precision=mixed)
        plan = plan_of(toy, times_of(toy), options)
        names = [task.name for task in plan.tasks]
        assert sum(name.startswith("copy out") for name in names) == copies
        assert sum(name.startswith("compress") for name in names) == copies


def test_where_a_wait_blocks_the_thread_backward_waits_for_each_bucket(
    toy: Workload, times_of: Times, run_plan: Run
) -> None:
    options = DdpOptions(bucket_cap=12e6, mixed_precision=MixedPrecisionSection(param_dtype="bf16"))
    times = times_of(toy, launch_s=1e-6)
    ends = {
        blocks: spans_ms(plan_of(toy, times, options, blocking_wait=blocks), run_plan)
        for blocks in (False, True)
    }
    assert ends[True]["backward layer1"][0] > ends[True]["all-reduce bucket 0"][1]
    assert ends[False]["backward layer1"][0] < ends[False]["all-reduce bucket 0"][1]


def test_memory_by_hand(toy: Workload) -> None:
    """Fullest in the first layer: copies and gradients of the second bucket, 6 MB of each."""
    setup = Setup(
        toy,
        "bf16",
        "adamw",
        4,
        8,
        activations_bytes=10e6,
        options=DdpOptions(bucket_cap=12e6, mixed_precision=WIDE),
    )
    use = ddp_memory(setup)
    assert (use.parameters_bytes, use.gradients_bytes, use.buckets_bytes) == (28e6, 28e6, 42e6)
    assert use.gathered_bytes + use.activations_bytes == 10e6 + 6e6 + 6e6 + 16e6 - 28e6
    assert use.idle_bytes == (14e6 - 6e6) + (28e6 - 16e6)
    assert DDP.held_dtype(setup.options) == "bf16"


@pytest.mark.parametrize(
    ("field", "value"),
    [("hook", CastHook(kind="fp16")), ("accumulate", 2), ("find_unused_parameters", True)],
)
def test_what_torch_fails_at_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=f"'mixed_precision' without .*'{field}'"):
        DdpOptions(mixed_precision=WIDE, **{field: value})
    text = value.kind if isinstance(value, CastHook) else value
    section = {"mixed_precision": {"param_dtype": "bf16"}, field: text}
    with pytest.raises(ValidationError, match="'mixed_precision' without 'hook'"):
        DdpStrategy.model_validate(section)

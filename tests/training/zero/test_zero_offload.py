"""ZeRO-Offload: bytes over the way to the host, time on its CPUs, memory, refusals."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from perfmodel.errors import InputError
from perfmodel.scenario.strategies.deepspeed import OffloadOptimizer, ZeroStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.memory_use import Setup
from perfmodel.training.plan.step_plan import Collective, Compute, StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.training.zero.strategy import ZERO, zero_plan
from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload

LINK_BPS, MEMORY_BPS, RANKS, ELEMENTS = 1e9, 2e9, 4, 1_000_000

TO_CPU = OffloadOptimizer()


@pytest.fixture
def request_of(times_of: Any) -> Any:
    """Two layers in bf16, of half a million elements each."""

    def make(**changes: Any) -> StepRequest:
        tensors = tuple(ParameterTensor(f"w{i}", (ELEMENTS // 2,), "bf16") for i in range(2))
        workload = Workload("two", tensors, tuple(Layer(f"layer{i}", (i,)) for i in range(2)))
        times: LayerTimes = times_of(workload, copy_Bps=1e30)
        asked = {"host_link_Bps": LINK_BPS, "host_memory_Bps": MEMORY_BPS, "optimizer": "adamw"}
        return StepRequest(workload, times, RANKS, 1, **(asked | changes))

    return make


def host_seconds(plan: StepPlan) -> dict[str, float]:
    """Time of copies to and from the host, and of its CPUs."""
    names = {"to host": "down", "optimizer on CPUs": "CPUs", "parameters up": "up"}
    seconds = dict.fromkeys(names.values(), 0.0)
    for task in plan.tasks:
        for text, name in names.items():
            if text in task.name and isinstance(task.work, Compute):
                seconds[name] += task.work.duration_s
    return seconds


@pytest.mark.parametrize(
    ("stage", "accumulate", "down"),
    [
        (1, 1, 4),  # fp32 once
        (1, 3, 4),
        (2, 1, 4),
        (2, 3, 4 + 3 * 2 + 2 * 2),  # and down each time, up from the second on, in bf16
        (3, 1, 4 + 2 * 2),  # down and up in bf16
        (3, 3, 4 + 3 * 2 * 2),
    ],
)
def test_bytes_per_element_of_a_part(
    request_of: Any, stage: Any, accumulate: int, down: int
) -> None:
    fields: dict[str, Any] = {"stage3_param_persistence_threshold": 0} if stage == 3 else {}
    options = ZeroStrategy(
        kind="zero",
        stage=stage,
        accumulate=accumulate,
        offload_optimizer=OffloadOptimizer(),
        **fields,
    )
    plan = zero_plan(request_of(), options)
    check_plan(plan)
    part = ELEMENTS / RANKS
    seconds = host_seconds(plan)
    assert seconds["down"] * LINK_BPS / part == pytest.approx(down)
    assert seconds["up"] * LINK_BPS / part == pytest.approx(2)
    # gradients scaled (8), Adam's pass (4 + 8 + 16), parameters converted (4 + 2)
    assert seconds["CPUs"] * MEMORY_BPS / part == pytest.approx(42)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_calls_are_those_without_it(request_of: Any, stage: Any) -> None:
    plans = [
        zero_plan(
            request_of(),
            ZeroStrategy(
                kind="zero",
                stage=stage,
                offload_optimizer=OffloadOptimizer() if offloaded else None,
            ),
        )
        for offloaded in (False, True)
    ]
    calls = [[t.work for t in plan.tasks if isinstance(t.work, Collective)] for plan in plans]
    assert [replace(work, key="") for work in calls[0]] == [
        replace(work, key="") for work in calls[1]
    ]


def test_the_host_is_done_before_parameters_are_gathered(request_of: Any, run_plan: Any) -> None:
    plan = zero_plan(request_of(), ZeroStrategy(kind="zero", stage=2, offload_optimizer=TO_CPU))
    ends = {task.name: span for task, span in zip(plan.tasks, run_plan(plan), strict=True)}
    order = [
        "own gradients to host",
        "optimizer on CPUs",
        "copy parameters up",
        "gather parameters",
    ]
    for before, after in itertools.pairwise(order):
        assert ends[before][1] <= ends[after][0]


@pytest.mark.parametrize("stage", [2, 3])
def test_a_gpu_alone_offloads_everything(request_of: Any, stage: Any) -> None:
    options = ZeroStrategy(kind="zero", stage=stage, offload_optimizer=TO_CPU)
    seconds = host_seconds(zero_plan(replace(request_of(), ranks=1), options))
    assert seconds["CPUs"] * MEMORY_BPS / ELEMENTS == pytest.approx(42)
    setup = Setup(request_of().workload, "bf16", "adamw", 1, 1, options=options)
    assert ZERO.memory(setup).optimizer_bytes == 0


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_states_leave_the_gpu(request_of: Any, stage: Any) -> None:
    model = request_of().workload
    uses = [
        ZERO.memory(
            Setup(
                model,
                "bf16",
                "adamw",
                RANKS,
                1,
                activations_bytes=0.0,
                options=ZeroStrategy(kind="zero", stage=stage, offload_optimizer=offload),
            )
        )
        for offload in (None, TO_CPU)
    ]
    assert uses[0].optimizer_bytes == pytest.approx(12 * ELEMENTS / RANKS, rel=0.01)
    assert uses[1].optimizer_bytes == 0
    assert uses[1].parameters_bytes == uses[0].parameters_bytes
    own, largest = 2 * ELEMENTS / RANKS, 2 * ELEMENTS / 2
    gradients = {1: 2 * ELEMENTS + largest, 2: largest, 3: 0}
    assert uses[1].gradients_bytes == gradients[stage]
    assert uses[0].gradients_bytes == {1: 2 * ELEMENTS + own, 2: own, 3: own}[stage]


def test_what_is_not_modelled_is_refused(request_of: Any) -> None:
    offload = ZeroStrategy(kind="zero", stage=2, offload_optimizer=TO_CPU)
    with pytest.raises(InputError, match=r"offload_optimizer: found device: cpu"):
        zero_plan(request_of(host_link_Bps=None), offload)
    section = {"kind": "zero", "offload_optimizer": {"pin_memory": False}}
    with pytest.raises(ValidationError, match="pin_memory"):
        ZeroStrategy.model_validate(section)

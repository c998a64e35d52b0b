"""Plans with float8 training of torchao issue what torchao and `fully_shard` called.

The calls were recorded once (record_libraries.py), as torchao is not installed with the tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.fsdp.step_plan import fsdp_plan
from perfmodel.training.fsdp.strategy import fsdp_memory
from perfmodel.training.memory_use import Setup
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.kernels.float8_layers import Float8
from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload
from tests.training.recorded.run_cases import Call, planned_calls

CASES = json.loads(Path(__file__).with_name("torchao.json").read_text(encoding="utf-8"))["cases"]
WIDTH, BLOCKS, INPUTS, OUTPUTS = 32, 3, 16, 48  # as torchao_cases.py, which imports torchao


def workload() -> Workload:
    """The model of torchao_cases.py."""
    tensors: list[ParameterTensor] = []
    layers: list[Layer] = []

    def add(name: str, flops: float, **shapes: tuple[int, ...]) -> None:
        first = len(tensors)
        tensors.extend(ParameterTensor(f"{name}.{part}", shape) for part, shape in shapes.items())
        layers.append(Layer(name, tuple(range(len(tensors) - 1, first - 1, -1)), flops, 1.0))

    add("embed", 1.0, weight=(WIDTH, INPUTS), bias=(WIDTH,))
    for block in range(BLOCKS):
        add(f"blocks.{block}.norm", 0.0, weight=(WIDTH,), bias=(WIDTH,))
        add(f"blocks.{block}.up", 1.0, weight=(3 * WIDTH, WIDTH), bias=(3 * WIDTH,))
        add(f"blocks.{block}.down", 1.0, weight=(WIDTH, 3 * WIDTH), bias=(WIDTH,))
    add("head", 1.0, weight=(OUTPUTS, WIDTH))
    return Workload("toy", tuple(tensors), tuple(layers))


def options_of(case: dict[str, Any]) -> FsdpStrategy:
    return FsdpStrategy(
        kind="fsdp",
        param_dtype="bf16",
        reduce_dtype="fp32",
        accumulate=case["accumulate"],
        shard_gpus=case["shard_gpus"],
    )


def plan_of(case: dict[str, Any], ranks: int) -> StepPlan:
    model = workload()
    layers = len(model.layers)
    times = LayerTimes(
        np.full(layers, 1e-3),
        np.full(layers, 2e-3),
        np.ones(layers, int),
        np.ones(layers, int),
        5e-6,
        1e-3,
        3,
        1e12,
        "equal",
    )
    float8 = Float8("torchao", **case["fields"])
    return fsdp_plan(StepRequest(model, times, ranks, 1, float8=float8), options_of(case))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_plans_issue_what_torchao_called(name: str, ranks: int) -> None:
    case = CASES[name]
    plan = plan_of(case, ranks)
    check_plan(plan)
    called = [Call(*row) for row in case["calls"][str(ranks)]]
    assert planned_calls(plan) == [call.issued for call in called]


def test_whole_units_take_half_of_what_they_did() -> None:
    """Weights of a block are 6,144 of its 6,336 parameters: one byte each instead of two."""
    wide, narrow = (
        fsdp_memory(
            Setup(
                # gradients' shards stay from the first micro-batch: units that are whole decide
                workload(),
                "bf16",
                "adamw",
                2,
                1,
                options_of(case).model_copy(update={"accumulate": 2}),
                float8=Float8("torchao", **case["fields"]),
            )
        )
        for case in (CASES["tensorwise"], CASES["precomputed"])
    )
    assert narrow.gathered_bytes < wide.gathered_bytes
    assert narrow.states_bytes == wide.states_bytes

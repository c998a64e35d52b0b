"""Megatron-FSDP: the plan issues what Megatron-Core's real modules called, and holds as much.

The calls were recorded once (record_libraries.py), as the library is not installed with the tests.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.fsdp.budgets import communication_unit, inputs_kept, window
from perfmodel.training.fsdp.step_plan import fsdp_plan
from perfmodel.training.fsdp.strategy import FSDP
from perfmodel.training.fsdp.units import sized_units
from perfmodel.training.memory_use import Setup
from perfmodel.training.strategy import StepRequest
from perfmodel.workload import load_workload
from perfmodel.workload.model import Workload
from tests.training.recorded.run_cases import Call, planned_calls
from tests.training.recorded.toy_workload import request

FILE = Path(__file__).with_name("megatron_fsdp.json")
CASES: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["cases"]


def options_of(case: dict[str, Any]) -> FsdpStrategy:
    fields = dict(case["fields"])
    reduced = "fp32" if fields.pop("grad_reduce_in_fp32", False) else None
    return FsdpStrategy(
        kind="fsdp",
        version="megatron",
        accumulate=case["accumulate"],
        reduce_dtype=reduced,
        **fields,
    )


def request_of(case: dict[str, Any], ranks: int) -> StepRequest:
    """The toy model in the dtype of the case."""
    toy = request(ranks)
    tensors = tuple(replace(tensor, dtype=case["dtype"]) for tensor in toy.workload.tensors)
    return replace(toy, workload=replace(toy.workload, tensors=tensors))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_plans_issue_what_the_library_called(name: str, ranks: int) -> None:
    case = CASES[name]
    plan = fsdp_plan(request_of(case, ranks), options_of(case))
    check_plan(plan)
    called = [Call(*row) for row in case["calls"][str(ranks)]]
    assert planned_calls(plan) == [call.issued for call in called]


# ---------------------------------------------------------------- budgets


def llama(name: str = "llama3-8b") -> Workload:
    return load_workload(name, dtype="bf16", sequence_length=1024)


def megatron(**fields: Any) -> FsdpStrategy:
    return FsdpStrategy(kind="fsdp", version="megatron", **fields)


def ahead_of(options: FsdpStrategy, place: int, *, backward: bool = False) -> list[str]:
    """Units that are gathered ahead where a block is reached."""
    units = sized_units(llama(), options, 8)
    (unit,) = (each for each in units if each.name == f"model.layers.{place}")
    return [
        each.name.rpartition(".")[2] for each in window(options, units, unit, backward=backward)
    ]


def test_half_of_the_unit_is_gathered_ahead() -> None:
    """A block of Llama 3 8B has 218 million elements: three make half of 10^9 full, the default."""
    assert ahead_of(megatron(), 4) == ["4", "5", "6", "7"]
    assert ahead_of(megatron(), 4, backward=True) == ["4", "3", "2", "1"]
    assert ahead_of(megatron(suggested_communication_unit_size=1), 4) == ["4"]
    assert ahead_of(megatron(suggested_communication_unit_size=2), 4) == ["4", "5"]
    assert ahead_of(megatron(suggested_communication_unit_size=440_000_000), 4) == ["4", "5", "6"]
    assert ahead_of(megatron(fsdp_double_buffer=True), 4) == ["4", "5"]


def test_blocks_larger_than_half_of_it_are_gathered_one_ahead() -> None:
    """``max`` of 10^9 and two blocks (megatron_fsdp.py): one of Llama 3.1 405B has 3.2 * 10^9."""
    options, model = megatron(), llama("llama3.1-405b")
    units = sized_units(model, options, 8)
    block = next(each for each in units if not each.is_root)
    numel = sum(tensor.numel for tensor in block.parameters)
    assert communication_unit(options, units) == 2 * numel
    assert len(window(options, units, block, backward=False)) == 2


def test_layers_wait_where_reductions_hold_more_than_the_unit() -> None:
    """A queue of more elements than it is emptied first; a double buffer has one other unit."""
    for options, kept in (
        (megatron(), 5),  # 4 x 218 million are less than 10^9, and the fifth is begun beside them
        (megatron(suggested_communication_unit_size=100_000_000), 1),
        (megatron(fsdp_double_buffer=True), 2),
    ):
        units = sized_units(llama(), options, 8)
        assert inputs_kept(options, units, units[0]) == kept


def test_what_is_gathered_ahead_takes_memory() -> None:
    """Of 70B, whose blocks have 856 million elements: none, one and two ahead.

    Gradients of as many blocks are whole until their reduction is waited for.
    """
    model, held = llama("llama3-70b"), []
    for size in (1, 10**9, 2 * 10**9):
        options = megatron(suggested_communication_unit_size=size)
        setup = Setup(model, "bf16", "adamw", 64, 1, options=options)
        assert FSDP.memory is not None
        held.append(FSDP.memory(setup).gathered_bytes)
    weights_and_gradients = 2 * (2 * 856e6)
    assert held[1] - held[0] == pytest.approx(weights_and_gradients, rel=0.01)
    assert held[2] - held[1] == pytest.approx(weights_and_gradients, rel=0.01)


@pytest.mark.parametrize(
    "fields",
    [
        {"forward_prefetch": 1},
        {"reshard_after_forward": False},
        {"sync": "last"},
        {"shard_gpus": 2},
        {"reduce_buffers": 2},
    ],
)
def test_fields_of_pytorch_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="megatron"):
        megatron(**fields)
    with pytest.raises(ValueError, match="version 2"):
        FsdpStrategy(kind="fsdp", suggested_communication_unit_size=2)

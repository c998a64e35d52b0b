"""1-bit optimizers: calls and bytes of DeepSpeed's own, published volumes, rounds and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perfmodel.errors import InputError
from perfmodel.scenario.strategies.deepspeed import OneBitStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.memory_use import Setup
from perfmodel.training.onebit import (
    ONEBIT,
    add_compressed_reduction,
    onebit_memory,
    onebit_plan,
    padded_elements,
)
from perfmodel.training.plan.builder import TaskList
from perfmodel.training.plan.step_plan import Collective, Compute, StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.zoo import build_model
from reports.oracle.closed_forms import form
from tests.training.recorded.run_cases import Call, planned_calls
from tests.training.recorded.toy_workload import request

RECORDED = Path(__file__).parent / "recorded" / "onebit.json"
CASES: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))["cases"]


def asked(dtype: str, ranks: int, **changes: Any) -> StepRequest:
    toy = request(ranks, **changes)
    tensors = tuple(replace(tensor, dtype=dtype) for tensor in toy.workload.tensors)
    return replace(toy, workload=replace(toy.workload, tensors=tensors))


def options_of(case: dict[str, Any]) -> OneBitStrategy:
    steps = case["fields"].get("local_steps", 1)
    return OneBitStrategy(
        kind="onebit", optimizer=case["optimizer"], local_steps=steps, accumulate=steps
    )


def collectives(plan: StepPlan) -> list[Collective]:
    return [task.work for task in plan.tasks if isinstance(task.work, Collective)]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_plans_issue_what_deepspeed_called(name: str, ranks: int) -> None:
    case = CASES[name]
    plan = onebit_plan(asked(case["dtype"], ranks), options_of(case))
    check_plan(plan)
    assert planned_calls(plan) == [Call(*row).issued for row in case["calls"][str(ranks)]]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_memory_equals_the_tensors_that_deepspeed_keeps(name: str, ranks: int) -> None:
    case = CASES[name]
    model = asked(case["dtype"], ranks).workload
    use = onebit_memory(Setup(model, "fp16", "adam", ranks, 2, options=options_of(case)))
    held = case["bytes"][str(ranks)]
    master = 4 * model.parameters if case["dtype"] == "fp16" else 0
    assert use.buckets_bytes == held["errors"]
    assert use.optimizer_bytes == held["states"] + master


@given(elements=st.integers(1, 10**9), ranks=st.integers(2, 4096))
def test_parts_are_whole_bytes_and_padding_is_least(elements: int, ranks: int) -> None:
    padded = padded_elements(elements, ranks)
    assert padded % (8 * ranks) == 0
    assert padded >= elements
    assert padded - elements < 8 * ranks * ranks


def test_bert_large_sends_a_sixteenth_of_fp16_gradients() -> None:
    """Volume of the compression stage against fp16 all-reduces (arXiv 2102.02888: 16 times)."""
    model = build_model("bert-large", dtype="fp16")
    toy = request(64)
    sized = replace(toy, workload=model, times=_times_of(model, toy))
    sent = {}
    for iteration in ("first", "steady"):
        works = collectives(
            onebit_plan(replace(sized, iteration=iteration), OneBitStrategy(kind="onebit"))
        )
        sent[iteration] = sum(form(w.op, _algorithm(w), 64, w.nbytes).sent_bytes for w in works)
    assert sent["first"] / sent["steady"] == pytest.approx(16, rel=0.001)


def _times_of(model: Any, toy: StepRequest) -> Any:
    import numpy as np

    count = len(model.layers)
    ones = np.ones(count, int)
    seconds = np.full(count, 1e-4)
    return replace(
        toy.times,
        forward_s=seconds,
        backward_s=seconds,
        forward_kernels=ones,
        backward_kernels=ones,
    )


def _algorithm(work: Collective) -> Any:
    return "pairwise" if work.op == "all_to_all" else "ring"


def test_the_warm_up_reduces_whole_gradients_after_backward() -> None:
    plan = onebit_plan(asked("fp16", 4, iteration="first"), OneBitStrategy(kind="onebit"))
    (work,) = collectives(plan)
    model = asked("fp16", 4).workload
    assert (work.op, work.nbytes, work.dtype) == ("all_reduce", 2 * model.parameters, "fp16")
    at = next(index for index, task in enumerate(plan.tasks) if task.work is work)
    backward = [index for index, task in enumerate(plan.tasks) if task.kind == "backward"]
    assert max(backward) < at


def test_a_round_of_local_steps_exchanges_once_and_updates_each_time() -> None:
    options = OneBitStrategy(kind="onebit", optimizer="zero_one_adam", local_steps=3, accumulate=6)
    plan = onebit_plan(asked("fp16", 4), options)
    check_plan(plan)
    assert len(collectives(plan)) == 4
    assert sum(task.name == "optimizer" for task in plan.tasks) == 3
    assert plan.samples == 6 * 4
    backward = sum(
        t.work.duration_s
        for t in plan.tasks
        if t.kind == "backward" and isinstance(t.work, Compute)
    )
    single = onebit_plan(asked("fp16", 4), OneBitStrategy(kind="onebit", accumulate=2))
    once = sum(
        t.work.duration_s
        for t in single.tasks
        if t.kind == "backward" and isinstance(t.work, Compute)
    )
    assert backward == pytest.approx(3 * once)


@pytest.mark.parametrize("optimizer", ["adam", "zero_one_adam", "lamb"])
def test_an_update_reads_and_writes_each_parameter(optimizer: Any) -> None:
    made = asked("fp32", 4)
    plan = onebit_plan(made, OneBitStrategy(kind="onebit", optimizer=optimizer))
    (update,) = (t.work for t in plan.tasks if t.name == "update" and isinstance(t.work, Compute))
    copied_bytes = 4 * made.workload.parameters  # a copy reads and writes, too
    assert update.duration_s >= copied_bytes / made.times.copy_Bps


def test_what_deepspeed_does_not_train_is_refused() -> None:
    with pytest.raises(InputError, match=r"model\.dtype: found parameters in bf16"):
        onebit_plan(asked("bf16", 4), OneBitStrategy(kind="onebit"))
    for fields in (
        {"local_steps": 2, "accumulate": 2},
        {"optimizer": "zero_one_adam", "local_steps": 2, "accumulate": 3},
    ):
        with pytest.raises(ValidationError, match="local_steps"):
            OneBitStrategy.model_validate({"kind": "onebit", **fields})
    assert "100,000 steps" in ONEBIT.remarks(OneBitStrategy(kind="onebit"))[0]


def compressed_times(ranks: int, elements: int = 1 << 20) -> dict[str, float]:
    """Seconds of each kind of work that the compressed reduction of a buffer computes."""
    tasks = TaskList(0.0, 0.0, 1e9)
    add_compressed_reduction(tasks, ranks, elements, "m", {}, ())
    return {t.name: t.work.duration_s for t in tasks.tasks if isinstance(t.work, Compute)}


def test_a_rank_compresses_once_all_and_once_its_part() -> None:
    """Of 2 ranks each takes signs of half of the averages, of 4 of a quarter: a quarter less."""
    two, four = compressed_times(2), compressed_times(4)
    assert two["average m"] - four["average m"] == pytest.approx(two["compress m"] / 4, rel=0.01)
    assert two["decompress m"] == pytest.approx(four["decompress m"])

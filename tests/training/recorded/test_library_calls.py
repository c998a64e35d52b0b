"""ZeRO and Megatron-Core: the plan issues what the real libraries called, and keeps as many bytes.

The calls were recorded once (record_libraries.py), as neither library is installed with the tests.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.scenario.strategies.deepspeed import ZeroStrategy
from perfmodel.scenario.strategies.sharded import MegatronStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.training.megatron import buffer_buckets, owned_elements
from perfmodel.training.memory_use import MemoryUse, Setup
from perfmodel.training.plan.builder import TaskList
from perfmodel.training.plan.step_plan import Compute
from perfmodel.training.strategies import STRATEGIES
from perfmodel.training.strategy import updating_share
from perfmodel.workload.memory.optimizer_states import layer_wise_shares
from tests.training.recorded.run_cases import Call, planned_calls
from tests.training.recorded.toy_workload import request

SECTIONS = {"zero": ZeroStrategy, "megatron": MegatronStrategy}
FILES = {"zero": "deepspeed", "megatron": "megatron"}
WITHOUT_EFFECT = ("allgather_bucket_size", "allgather_partitions")
"""Fields of DeepSpeed that a scenario does not have: its calls are the same with and without."""


def load(kind: str) -> dict[str, Any]:
    path = Path(__file__).with_name(f"{FILES[kind]}.json")
    cases: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return cases


CASES = [(kind, name, ranks) for kind in SECTIONS for name in load(kind) for ranks in (2, 4)]


def options_of(kind: str, case: dict[str, Any]) -> Any:
    fields = {name: value for name, value in case["fields"].items() if name not in WITHOUT_EFFECT}
    sent = {"communication_data_type": case["sent"]} if case.get("sent") else {}
    section = SECTIONS[kind](kind=kind, accumulate=case["accumulate"], **fields, **sent)
    return STRATEGIES[kind].options(section)


def request_of(case: dict[str, Any], ranks: int) -> Any:
    """The toy model in the dtype of the case."""
    toy = request(ranks)
    tensors = tuple(replace(tensor, dtype=case["dtype"]) for tensor in toy.workload.tensors)
    if case.get("optimizer") == "muon":  # whose names DeepSpeed reads: only "embed" keeps it away
        *others, head = tensors
        tensors = (*others, replace(head, name="blocks.3.head.weight"))
    model, gpu = replace(toy.workload, tensors=tensors), load_gpu("h100-sxm5-80gb")
    return replace(toy, workload=model, optimizer=case.get("optimizer", "adamw"), gpu=gpu)


@pytest.mark.parametrize(("kind", "name", "ranks"), CASES)
def test_plans_issue_what_the_library_called(kind: str, name: str, ranks: int) -> None:
    case = load(kind)[name]
    plan = STRATEGIES[kind].plan(request_of(case, ranks), options_of(kind, case))
    check_plan(plan)
    called = [Call(*row) for row in case["calls"][str(ranks)]]
    assert planned_calls(plan) == [call.issued for call in called if call.group_ranks > 1]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", load("zero"))
def test_memory_equals_the_tensors_that_deepspeed_keeps(name: str, ranks: int) -> None:
    case = load("zero")[name]
    use = memory_of("zero", case, ranks)
    held = case["bytes"][str(ranks)]
    assert use.optimizer_bytes == held["master"] + held["optimizer"]
    copies = case["fields"].get("zero_hpz_partition_size", 1)
    second = held["parameters"] * ranks / copies if copies > 1 else 0  # freed at the end of a step
    assert use.parameters_bytes == held["parameters"] + held.get("whole parameters", 0) + second
    if case["fields"]["stage"] == 3:
        assert use.gradients_bytes == held["gradients"]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", load("megatron"))
def test_memory_equals_the_buffers_that_megatron_keeps(name: str, ranks: int) -> None:
    case = load("megatron")[name]
    use = memory_of("megatron", case, ranks)
    held = case["bytes"][str(ranks)]
    options, model = options_of("megatron", case), request_of(case, ranks).workload
    shards = options.shard_ranks(ranks)
    buckets = buffer_buckets(model, options, ranks)
    owned = owned_elements(model, buckets, shards)
    assert owned.sum() == model.parameters
    first = owned[0]
    if options.layer_wise_distributed_optimizer:
        shares = layer_wise_shares(model, ranks)
        assert sorted(chain.from_iterable(shares)) == sorted(model.ready_order)
        owned = np.array([sum(model.tensors[index].numel for index in own) for own in shares])
        first = held["optimizer"] // 8  # two states of fp32
        assert first in owned
    assert use.optimizer_bytes == (held["optimizer"] + held["master"]) * owned.max() / first
    assert use.parameters_bytes == held["parameters"]
    assert use.gradients_bytes == held["gradients"]


def memory_of(kind: str, case: dict[str, Any], ranks: int) -> MemoryUse:
    model = request_of(case, ranks).workload
    optimizer = case.get("optimizer", "adamw")
    setup = Setup(model, case["dtype"], optimizer, ranks, 2, options=options_of(kind, case))
    return STRATEGIES[kind].memory(setup)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_copies_what_the_others_updated(ranks: int) -> None:
    """It joins its own tensors, gathers all, and copies each of the others to its place."""
    case = load("megatron")["layer-wise"]
    asked = request_of(case, ranks)
    model = asked.workload
    own = layer_wise_shares(model, ranks)[0]
    elements = sum(model.tensors[index].numel for index in own)
    plan = STRATEGIES["megatron"].plan(asked, options_of("megatron", case))
    took_s = {
        task.name: task.work.duration_s for task in plan.tasks if isinstance(task.work, Compute)
    }
    copies = TaskList.of(asked)
    own_s = updating_share(asked, ranks, layer_wise=True).times.optimizer_s
    assert took_s["join parameters"] == copies.copy_s(4 * elements, 1)
    others = len(model.ready_order) - len(own)
    assert took_s["copy parameters"] == copies.copy_s(4 * (model.parameters - elements), others)
    assert took_s["optimizer"] == own_s + copies.copy_s(8 * elements, 2)

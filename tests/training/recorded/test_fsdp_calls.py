"""Fully sharded plans issue the collectives that PyTorch issues."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.fsdp.step_plan import fsdp_plan
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import Layer, Workload
from tests.training.recorded.fsdp_cases import ALSO_ON_FOUR
from tests.training.recorded.run_cases import Call, planned_calls, run_cases
from tests.training.recorded.toy_workload import request

LINEAR = ("embed", "head", "blocks.*.up", "blocks.*.down")
FROZEN = ("embed", "blocks.0", "blocks.1.up")


def options_1(**changes: Any) -> FsdpStrategy:
    return FsdpStrategy(kind="fsdp", version=1, **changes)


def options_2(**changes: Any) -> FsdpStrategy:
    return FsdpStrategy(kind="fsdp", version=2, **changes)


NESTED: dict[str, Any] = {"wrap": ("blocks.*", *LINEAR)}
MIXED: dict[str, Any] = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
KEPT: dict[str, Any] = {"reshard_after_forward": False}
THREE: dict[str, Any] = {"accumulate": 3}
LAST: dict[str, Any] = {"accumulate": 3, "sync": "last"}

OPTIONS = {
    "fsdp1": options_1(),
    "fsdp1, no reshard": options_1(**KEPT),
    "fsdp1, prefetch post": options_1(backward_prefetch="post"),
    "fsdp1, prefetch none": options_1(backward_prefetch="none"),
    "fsdp1, forward prefetch": options_1(forward_prefetch=1),
    "fsdp1, no limit": options_1(limit_all_gathers=False),
    "fsdp1, orig params": options_1(use_orig_params=True),
    "fsdp1, orig params, bf16": options_1(use_orig_params=True, param_dtype="bf16"),
    "fsdp1, bf16": options_1(**MIXED),
    "fsdp1, bf16 alone": options_1(param_dtype="bf16"),
    "fsdp1, reduce bf16": options_1(reduce_dtype="bf16"),
    "fsdp1, accumulate": options_1(**THREE),
    "fsdp1, no_sync": options_1(**LAST),
    "fsdp1, no reshard, accumulate": options_1(**KEPT, **THREE),
    "fsdp1, no reshard, no_sync": options_1(**KEPT, **LAST),
    "fsdp1, clip": options_1(clip_norm=True),
    "fsdp1, offload": options_1(offload=True),
    "fsdp1, sync states": options_1(sync_module_states=True),
    "fsdp1, leaves": options_1(wrap="layer"),
    "fsdp1, nested": options_1(**NESTED),
    "fsdp1, size": options_1(wrap="size", wrap_elements=1000),
    "fsdp1, model": options_1(wrap="model"),
    "fsdp1, frozen": options_1(use_orig_params=True),
    "fsdp1, leaves, post": options_1(wrap="layer", backward_prefetch="post"),
    "fsdp1, nested, forward prefetch": options_1(**NESTED, forward_prefetch=1),
    "fsdp1, hybrid": options_1(shard_gpus=2),
    "fsdp1, hybrid, no reshard": options_1(shard_gpus=2, **KEPT),
    "fsdp1, hybrid, no_sync": options_1(shard_gpus=2, **LAST),
    "fsdp1, hybrid, sync states": options_1(shard_gpus=2, sync_module_states=True),
    "fsdp1, hybrid, bf16": options_1(shard_gpus=2, param_dtype="bf16"),
    "fsdp2": options_2(),
    "fsdp2, no reshard": options_2(**KEPT),
    "fsdp2, reshard root": options_2(reshard_root=True),
    "fsdp2, bf16": options_2(**MIXED),
    "fsdp2, bf16 alone": options_2(param_dtype="bf16"),
    "fsdp2, reduce bf16": options_2(reduce_dtype="bf16"),
    "fsdp2, fp16": options_2(param_dtype="fp16"),
    "fsdp2, forward prefetch": options_2(forward_prefetch=2),
    "fsdp2, backward prefetch": options_2(backward_prefetch=2),
    "fsdp2, accumulate": options_2(**THREE),
    "fsdp2, sync last": options_2(**LAST),
    "fsdp2, sync last, whole": options_2(**LAST, reshard_after_backward=False),
    "fsdp2, no reshard, sync last": options_2(**KEPT, **LAST),
    "fsdp2, sync last, bf16": options_2(**MIXED, **LAST),
    "fsdp2, clip": options_2(clip_norm=True),
    "fsdp2, offload": options_2(offload=True),
    "fsdp2, leaves": options_2(wrap="layer"),
    "fsdp2, nested": options_2(**NESTED),
    "fsdp2, model": options_2(wrap="model"),
    "fsdp2, nested, reshard root": options_2(**NESTED, reshard_root=True),
    "fsdp2, two inputs kept": options_2(reduce_buffers=2),
    "fsdp2, frozen": options_2(),
    "fsdp2, frozen, leaves": options_2(wrap="layer"),
    "fsdp2, hybrid": options_2(shard_gpus=2),
    "fsdp2, hybrid, average last": options_2(shard_gpus=2, accumulate=3, sync="shards"),
    "fsdp2, hybrid, sync last": options_2(shard_gpus=2, **LAST),
    "fsdp2, hybrid, clip": options_2(shard_gpus=2, clip_norm=True),
    "fsdp2, regather": options_2(reshard_after_forward=2),
    "fsdp2, regather, root": options_2(reshard_after_forward=2, reshard_root=True),
}
ONLY_4_RANKS = ("hybrid", "regather")


@pytest.fixture(scope="module", params=[2, 4])
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, dict[str, list[Call]]]:
    folder = tmp_path_factory.mktemp("calls")
    return request.param, run_cases("tests.training.recorded.fsdp_cases", request.param, folder)


def freeze(workload: Workload) -> Workload:
    """Train all tensors but those whose name begins as in `FROZEN`."""
    tensors = workload.tensors

    def trained(layer: Layer) -> Layer:
        kept = [index for index in layer.tensors if not tensors[index].name.startswith(FROZEN)]
        return replace(layer, tensors=tuple(kept))

    return replace(workload, layers=tuple(map(trained, workload.layers)))


def plan_of(name: str, ranks: int) -> StepPlan:
    asked: StepRequest = request(ranks)
    if "frozen" in name:
        asked = replace(asked, workload=freeze(asked.workload))
    if "sync states" in name:
        asked = replace(asked, iteration="first")
    plan = fsdp_plan(asked, OPTIONS[name])
    check_plan(plan)
    return plan


def test_a_plan_issues_the_calls_of_a_real_step(
    recorded: tuple[int, dict[str, list[Call]]],
) -> None:
    ranks, cases = recorded
    only_on_four = {name for name in OPTIONS if any(text in name for text in ONLY_4_RANKS)}
    on_two = set(OPTIONS) - only_on_four
    assert set(cases) == (on_two if ranks == 2 else only_on_four | set(ALSO_ON_FOUR))
    differ = {}
    for name, calls in cases.items():
        step = "setup", "step 0" if "sync states" in name else "step 1"
        real = [
            call.issued
            for call in calls
            if call.phase == step[1] or (call.phase, call.op) == ("setup", "broadcast")
        ]
        planned = planned_calls(plan_of(name, ranks))
        if planned != real:
            differ[name] = planned, real
    assert not differ

"""Plans of DistributedDataParallel issue the collectives that PyTorch issues."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from perfmodel.scenario.strategies.ddp import (
    AveragingLevel,
    CastHook,
    LocalSgdStrategy,
    MixedPrecisionSection,
    PowerSgdHook,
    QuantizationHook,
)
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.ddp.options import DdpOptions, cap_bytes
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.local_sgd import local_sgd_plan
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import Buffers
from tests.training.recorded.ddp_cases import SMALL_CAP_MB
from tests.training.recorded.run_cases import Call, planned_calls, run_cases
from tests.training.recorded.toy_workload import INPUTS, request

SMALL = cap_bytes(SMALL_CAP_MB)
STATISTICS = (Buffers("fp32", 2, 2 * 4 * INPUTS), Buffers("int64", 1, 8))
UNUSED = DdpOptions(find_unused_parameters=True)
JOIN = DdpOptions(join=True)


def power_sgd(**fields: Any) -> DdpOptions:
    return DdpOptions(hook=PowerSgdHook(kind="powersgd", **fields))


MIXED = MixedPrecisionSection(param_dtype="bf16")
OPTIONS: dict[str, DdpOptions] = {
    "ddp": DdpOptions(),
    "small buckets": DdpOptions(bucket_cap=SMALL),
    "cap list": DdpOptions(bucket_caps=(cap_bytes(0.001), SMALL, cap_bytes(0.01))),
    "unused": UNUSED,
    "unused, skipped": UNUSED,
    "static": DdpOptions(static_graph=True),
    "views": DdpOptions(gradient_as_bucket_view=True),
    "batched copy": DdpOptions(batched_grad_copy=True),
    "buffers": DdpOptions(),
    "buffers not broadcast": DdpOptions(broadcast_buffers=False),
    "buffers not synced": DdpOptions(broadcast_buffers=False),
    "init not synced": DdpOptions(),
    "accumulated": DdpOptions(accumulate=3),
    "joined": JOIN,
    "joined, buffers": JOIN,
    "joined, throws": JOIN.model_copy(update={"throw_on_early_termination": True}),
    "allreduce": DdpOptions(hook=CastHook(kind="allreduce")),
    "fp16": DdpOptions(hook=CastHook(kind="fp16")),
    "powersgd": power_sgd(rank=2),
    "powersgd, cold": power_sgd(warm_start=False, use_error_feedback=False),
    "powersgd, all whole": power_sgd(min_compression_rate=1000.0),
    "powersgd, batched": power_sgd(rank=4, batch_tensors_with_same_shape=True),
    **{
        kind: DdpOptions(bucket_cap=SMALL, hook=QuantizationHook(kind=kind))
        for kind in ("quantization_pertensor", "quantization_perchannel")
    },
    "powersgd, fp16": power_sgd(wrapper="fp16"),
    "mixed": DdpOptions(mixed_precision=MIXED),
    "mixed, small buckets": DdpOptions(bucket_cap=SMALL, mixed_precision=MIXED),
    "mixed, reduced wide": DdpOptions(
        mixed_precision=MIXED.model_copy(update={"reduce_dtype": "fp32"})
    ),
    "mixed, views": DdpOptions(
        gradient_as_bucket_view=True,
        mixed_precision=MIXED.model_copy(update={"reduce_dtype": "fp16"}),
    ),
    "mixed, static": DdpOptions(
        static_graph=True, find_unused_parameters=True, mixed_precision=MIXED
    ),
    "mixed, buffers": DdpOptions(mixed_precision=MIXED.model_copy(update={"buffer_dtype": "bf16"})),
    "mixed, own buffers": DdpOptions(
        mixed_precision=MIXED.model_copy(update={"buffer_dtype": "fp32"})
    ),
}
AVERAGING = {
    "post-local SGD": LocalSgdStrategy(kind="local_sgd", period=2, warmup_steps=2, gradient_gpus=2),
    "local gradients": LocalSgdStrategy(kind="local_sgd", period=2),
    "periodic": LocalSgdStrategy(kind="local_sgd", period=2),
    "hierarchical": LocalSgdStrategy(
        kind="local_sgd", period=4, levels=(AveragingLevel(period=2, gpus=2),), gradient_gpus=2
    ),
}
WITH_STATISTICS = {
    "buffers",
    "buffers not broadcast",
    "buffers not synced",
    "accumulated",
    "joined, buffers",
    "run out",
    "mixed, buffers",
    "mixed, own buffers",
}
LAST, FIRST = ("step 3 forward", "step 3 backward"), ("step 0 forward", "step 0 backward")


@pytest.fixture(scope="module", params=[2, 4])
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, dict[str, list[Call]]]:
    folder = tmp_path_factory.mktemp("calls")
    return request.param, run_cases("tests.training.recorded.ddp_cases", request.param, folder)


def asked(name: str, ranks: int, **changes: Any) -> StepRequest:
    """A step of the model of a case."""
    of_toy = request(ranks, **changes)
    if name not in WITH_STATISTICS:
        return of_toy
    return replace(of_toy, workload=replace(of_toy.workload, buffers=STATISTICS))


def issued(plan: StepPlan) -> list[tuple[str, int, int, str | None]]:
    check_plan(plan)
    return planned_calls(plan)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_a_settled_step_issues_the_calls_of_a_real_one(
    recorded: tuple[int, dict[str, list[Call]]], name: str
) -> None:
    ranks, cases = recorded
    phases = {"step 3"} if name == "accumulated" else {*LAST}
    real = [call.issued for call in cases[name] if call.phase in phases]
    assert real
    assert issued(ddp_plan(asked(name, ranks), OPTIONS[name])) == real


@pytest.mark.parametrize("name", OPTIONS)
def test_a_first_step_issues_the_calls_of_a_real_one(
    recorded: tuple[int, dict[str, list[Call]]], name: str
) -> None:
    ranks, cases = recorded
    phases = {"step 0"} if name == "accumulated" else {*FIRST}
    real = [call.issued for call in cases[name] if call.phase in phases]
    assert issued(ddp_plan(asked(name, ranks, iteration="first"), OPTIONS[name])) == real


def test_a_rank_without_inputs_shadows_the_others(
    recorded: tuple[int, dict[str, list[Call]]],
) -> None:
    ranks, cases = recorded
    options = UNUSED.model_copy(update={"join": True, "joined_gpus": 1})
    plan = ddp_plan(asked("run out", ranks), options)
    check_plan(plan)
    after = [call.issued for call in cases["run out"] if call.phase == "joined"]
    for each in plan.classes:
        own = replace(plan, tasks=tuple(t for t in plan.tasks if t.rank_class == each.name))
        # two steps of the others, then the end: the count, the last joiner and its model
        assert 2 * planned_calls(own) == after[: len(after) - 4], each.name
    assert plan.samples == ranks - 1


def test_a_process_group_of_two(recorded: tuple[int, dict[str, list[Call]]]) -> None:
    ranks, cases = recorded
    if ranks == 2:
        return
    real = [call.issued for call in cases["two of all"] if call.phase in {*LAST}]
    plan = ddp_plan(request(4), DdpOptions(process_group_gpus=2))
    assert issued(plan) == real
    assert plan.communicators[0].groups == (range(2), range(2, 4))


@pytest.mark.parametrize("name", AVERAGING)
def test_a_round_of_local_sgd_issues_the_calls_of_real_steps(
    recorded: tuple[int, dict[str, list[Call]]], name: str
) -> None:
    """Rounds begin at a step whose number the period divides."""
    ranks, cases = recorded
    if name not in cases:
        return
    options = AVERAGING[name]
    steps = tuple(f"step {4 + at} " for at in range(options.accumulate))
    if name == "periodic":
        steps = ("step 2 ", "step 3 ")
    real = [call.issued for call in cases[name] if call.phase.startswith(steps)]
    assert len(real) >= 1
    assert issued(local_sgd_plan(request(ranks), options)) == real


def test_the_warm_up_of_local_sgd_reduces_gradients_of_all(
    recorded: tuple[int, dict[str, list[Call]]],
) -> None:
    ranks, cases = recorded
    plan = local_sgd_plan(request(ranks, iteration="first"), AVERAGING["post-local SGD"])
    real = [call.issued for call in cases["post-local SGD"] if call.phase.startswith("step 0 ")]
    assert issued(plan) == real


def test_every_case_is_compared(recorded: tuple[int, dict[str, list[Call]]]) -> None:
    _, cases = recorded
    others = {"run out", "two of all"}
    assert set(cases) - set(AVERAGING) - others == set(OPTIONS)

"""Plans of experts under ``fully_shard`` issue the collectives that PyTorch issues."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.fsdp.step_plan import fsdp_plan
from perfmodel.training.parallel_layout import ParallelLayout, mix_step
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.workload.memory.recompute import NO_RECOMPUTE
from perfmodel.workload.shard import Shard
from tests.training.recorded.run_cases import Call, planned_calls, run_cases
from tests.training.recorded.toy_workload import EXPERTS, expert_share, request

RANKS = 4
HALF = FsdpStrategy(kind="fsdp", param_dtype="bf16", reduce_dtype="fp32")

OPTIONS = {
    "of 2": (2, EXPERTS, FsdpStrategy(kind="fsdp")),
    "of 2, bf16": (2, EXPERTS, HALF),
    "of 2, no reshard": (2, EXPERTS, FsdpStrategy(kind="fsdp", reshard_after_forward=False)),
    "of 2, accumulate": (2, EXPERTS, FsdpStrategy(kind="fsdp", accumulate=3)),
    "of 2, fewer than ranks": (2, 2, FsdpStrategy(kind="fsdp")),
    "of all": (RANKS, 4, FsdpStrategy(kind="fsdp")),
    "of all, bf16": (RANKS, 4, HALF),
}
"""Ranks that share experts, experts of a layer, and how all is sharded."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Call]]:
    folder = tmp_path_factory.mktemp("calls")
    return run_cases("tests.training.recorded.expert_cases", RANKS, folder)


def plan_of(name: str) -> StepPlan:
    degree, experts, options = OPTIONS[name]
    asked = request(RANKS, expert_share(experts // degree), expert_copies=RANKS // degree)
    plan = mix_step(
        ParallelLayout(Shard(expert=degree, library="torch")),
        asked,
        lambda part, count: fsdp_plan(part, options.model_copy(update={"accumulate": count})),
        options.accumulate,
        "bf16" if "bf16" in name else "fp32",
        NO_RECOMPUTE,
        None,
    )
    check_plan(plan)
    return plan


@pytest.mark.parametrize("name", OPTIONS)
def test_a_plan_issues_the_calls_of_a_real_step(recorded: dict[str, list[Call]], name: str) -> None:
    real = [call.issued for call in recorded[name] if call.phase == "step 1"]
    assert planned_calls(plan_of(name)) == real

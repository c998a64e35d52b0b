"""Recomputation adds no collective: a unit that is whole in backward is recomputed while it is."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.fsdp.step_plan import fsdp_plan
from tests.training.recorded.run_cases import Call, planned_calls, run_cases
from tests.training.recorded.toy_workload import request


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Call]]:
    folder = tmp_path_factory.mktemp("calls")
    return run_cases("tests.training.recorded.recompute_cases", 2, folder)


@pytest.mark.slow
def test_steps_with_recomputed_blocks(cases: dict[str, list[Call]]) -> None:
    real = {
        name: [call.issued for call in calls if call.phase.startswith("step 1")]
        for name, calls in cases.items()
    }
    assert (
        planned_calls(fsdp_plan(request(2), FsdpStrategy(kind="fsdp", version=1))) == real["fsdp1"]
    )
    assert planned_calls(fsdp_plan(request(2), FsdpStrategy(kind="fsdp"))) == real["fsdp2"]
    ddp = ddp_plan(request(2), DdpOptions(bucket_cap=4096))
    rebuilt = [call.issued for call in cases["ddp"] if call.phase == "step 2 backward"]
    assert [call for call in planned_calls(ddp) if call[0] == "all_reduce"] == rebuilt


def gathers(calls: list[Call]) -> int:
    return sum(call.op == "all_gather" for call in calls)


def test_version_1_gathers_units_within_a_recomputed_block_again(
    cases: dict[str, list[Call]],
) -> None:
    """Which is why the scenario refuses it; version 2 gathers each of them once."""
    backward = {
        name: gathers([call for call in calls if call.phase == "step 1 backward"])
        for name, calls in cases.items()
    }
    assert backward["fsdp2, several units in a block"] == 9
    assert backward["fsdp1, several units in a block"] > 9

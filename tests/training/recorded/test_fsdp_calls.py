"""Fully sharded plans issue the collectives that PyTorch issues."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from perfmodel.training.sharded.fsdp import fsdp_plan
from perfmodel.training.sharded.options import FsdpOptions
from tests.training.recorded.run_cases import Call, planned_calls, run_cases
from tests.training.recorded.toy import request

OPTIONS = {
    "fsdp1": FsdpOptions(version=1),
    "fsdp1, no reshard": FsdpOptions(version=1, reshard_after_forward=False),
    "fsdp2": FsdpOptions(),
    "fsdp2, no reshard": FsdpOptions(reshard_after_forward=False),
    "fsdp2, bf16": FsdpOptions(param_dtype="bf16", reduce_dtype="fp32"),
    "fsdp1, hybrid": FsdpOptions(version=1, shard_ranks=2),
    "fsdp2, hybrid": FsdpOptions(shard_ranks=2),
}


@pytest.fixture(scope="module", params=[2, 4])
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, dict[str, list[Call]]]:
    folder = tmp_path_factory.mktemp("calls")
    return request.param, run_cases("tests.training.recorded.fsdp_cases", request.param, folder)


def test_a_plan_issues_the_calls_of_a_real_step(
    recorded: tuple[int, dict[str, list[Call]]],
) -> None:
    ranks, cases = recorded
    assert len(cases) == (5 if ranks == 2 else 7)
    for name, calls in cases.items():
        real = [call.issued for call in calls if call.phase.startswith("step 1")]
        assert planned_calls(fsdp_plan(request(ranks), OPTIONS[name])) == real, name

"""ZeroRedundancyOptimizer: the plan issues what PyTorch called, and parameters are dealt out so."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch compiles some of it by a way that it deprecates
    from torch.distributed.optim import ZeroRedundancyOptimizer

from perfmodel.scenario.strategies.ddp import ZeroRedundancyStrategy  # noqa: E402
from perfmodel.testing.check_plan import check_plan  # noqa: E402 (after the skip)
from perfmodel.training.ddp.strategy import (  # noqa: E402
    partition_parameters,
    zero_redundancy_plan,
)
from perfmodel.workload.model import ParameterTensor  # noqa: E402
from tests.training.recorded.run_cases import Call, planned_calls, run_cases  # noqa: E402
from tests.training.recorded.toy_workload import request as step_request  # noqa: E402


@pytest.fixture(scope="module", params=[2, 4])
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, dict[str, list[Call]]]:
    ranks: int = request.param
    folder: Path = tmp_path_factory.mktemp("calls")
    return ranks, run_cases("tests.training.recorded.zero_redundancy_cases", ranks, folder)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "views"), [("each parameter", False), ("bucket views", True)])
def test_plans_issue_what_pytorch_called(
    recorded: tuple[int, dict[str, list[Call]]], name: str, views: bool
) -> None:
    ranks, calls = recorded
    plan = zero_redundancy_plan(
        step_request(ranks),
        ZeroRedundancyStrategy(kind="zero_redundancy", parameters_as_bucket_view=views),
    )
    check_plan(plan)
    called = [call.issued for call in calls[name] if call.phase.startswith("step 2")]
    assert planned_calls(plan) == called


@pytest.mark.hypothesis
@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=40), ranks=st.integers(1, 9))
def test_parameters_are_dealt_out_as_by_pytorch(sizes: list[int], ranks: int) -> None:
    parameters = [torch.nn.Parameter(torch.empty(size, device="meta")) for size in sizes]
    optimizer = ZeroRedundancyOptimizer.__new__(ZeroRedundancyOptimizer)
    optimizer._partition_parameters_cache = []
    optimizer.param_groups = [{"params": parameters}]
    optimizer.world_size = ranks
    place = {id(parameter): index for index, parameter in enumerate(parameters)}
    dealt = optimizer._partition_parameters()
    tensors = [ParameterTensor(f"p{index}", (size,)) for index, size in enumerate(sizes)]
    assert partition_parameters(tensors, ranks) == tuple(
        tuple(place[id(each)] for group in groups for each in group["params"]) for groups in dealt
    )

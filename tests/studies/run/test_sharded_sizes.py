"""Fully sharded training from the scenario to its answer: sizes of a curve, dtypes of layers."""

from __future__ import annotations

import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import Result


def result_of(strategy: str, gpus: str = "[16]") -> Result:
    return curve_of(f"kind: fsdp{strategy}", gpus)


def curve_of(strategy: str, gpus: str = "[4, 16]") -> Result:
    settings = ["cluster.nodes=2", f"scale.gpus={gpus}", f"strategy={{{strategy}}}"]
    return run_scenario(load_scenario("resnet50-dgx-a100", settings))


@pytest.mark.usefixtures("steps_alone")
def test_all_gpus_of_a_size_below_a_shard_group_share() -> None:
    small, large = result_of(", shard_gpus: 8", "[4, 16]").points
    (whole,) = (point for point in result_of("", "[4, 16]").points if point.gpus == 4)
    assert small.step_time_s == whole.step_time_s
    assert small.memory.parameters_bytes == whole.memory.parameters_bytes
    assert {use.op for use in small.communication} == {"all_gather", "reduce_scatter"}
    assert "all_reduce" in {use.op for use in large.communication}


def test_a_shard_group_larger_than_the_cluster_is_refused() -> None:
    with pytest.raises(InputError, match=r"strategy\.shard_gpus: found 32; .* at most the 16 GPUs"):
        result_of(", shard_gpus: 32")


GROUPS = (
    "kind: zero, stage: 3, zero_hpz_partition_size: {}",
    "kind: megatron, use_distributed_optimizer: true, num_distributed_optimizer_instances: {}",
    "kind: ddp, process_group_gpus: {}",
    "kind: local_sgd, period: 4, gradient_gpus: {}",
    "kind: local_sgd, period: 4, levels: [{{period: 2, gpus: {}}}]",
)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", GROUPS)
def test_smaller_sizes_of_a_curve_share_all_of_any_group(strategy: str) -> None:
    small = next(point for point in curve_of(strategy.format(16)).points if point.gpus == 4)
    whole = next(point for point in curve_of(strategy.format(4)).points if point.gpus == 4)
    assert small.step_time_s == whole.step_time_s
    assert small.memory.total_bytes == whole.memory.total_bytes
    with pytest.raises(InputError, match=r"found 32; allowed: at most the 16 GPUs"):
        curve_of(strategy.format(32))


def test_layers_cast_no_weights_that_are_gathered_in_their_dtype() -> None:
    """Autocast would make a copy of each weight, in time and in memory."""
    narrow, own = result_of(", param_dtype: fp16").main, result_of("").main
    assert narrow.breakdown_s["forward"] < own.breakdown_s["forward"]
    copies_bytes = 2 * 23e6  # of ResNet-50's weights but for the last, whose backward is first
    kept_bytes = own.memory.activations_bytes - narrow.memory.activations_bytes
    assert kept_bytes > copies_bytes

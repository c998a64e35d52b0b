"""Names of strategies that are called otherwise here are answered with what to write."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import make_scenario
from perfmodel.scenario.strategies.strategy import _OTHER_NAMES


def scenario_with(strategy: Any, **compute: Any) -> Any:
    return make_scenario(
        {
            "model": {"name": "resnet18"},
            "compute": {"precision": "fp32"} | compute,
            "cluster": {"node": "dgx-a100"},
            "training": {"batch_per_gpu": 4},
            "strategy": strategy,
        }
    )


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("HSDP", "'fsdp' with 'shard_gpus'"),
        ({"kind": "zero-3"}, "'zero' with 'stage: 3'"),
        ({"kind": "ZeRO_Infinity"}, "'offload_param'"),
        ({"kind": "p3"}, "'partition_size: 200 kB'"),
        ({"kind": "ddp", "hook": "post_local_sgd"}, "'strategy.kind: local_sgd'"),
    ],
)
def test_other_names_are_answered(strategy: Any, words: str) -> None:
    with pytest.raises(InputError) as failed:
        scenario_with(strategy)
    (fault,) = failed.value.faults
    assert fault.field.startswith("strategy")
    assert words in fault.allowed


@pytest.mark.parametrize(
    "strategy",
    [
        {"kind": "priority", "partition_size": "200 kB", "credit": "200 kB"},
        {"kind": "local_sgd", "warmup_steps": 10},
        {"kind": "zero", "stage": 3, "offload_param": {}, "offload_optimizer": {}},
    ],
)
def test_what_the_answers_say_can_be_written(strategy: Any) -> None:
    assert scenario_with(strategy, optimizer="adamw").strategy.kind == strategy["kind"]


def test_no_own_name_is_taken_for_another() -> None:
    for kind in ("ddp", "fsdp", "zero", "priority", "onebit", "local_sgd"):
        assert kind.replace("_", "") not in _OTHER_NAMES
        assert scenario_with(kind).strategy.kind == kind

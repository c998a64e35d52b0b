"""Speed of ``perfmodel tune`` (``pytest -m benchmarks``); no time is asserted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfmodel.scenario import load_scenario
from perfmodel.studies.tune.run import tune_scenario

pytestmark = pytest.mark.benchmarks

LLAMA = ("model.name=llama2-7b", "training.batch_per_gpu=1", "compute.channels_last=false")


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("bucket-size-slow-ethernet", ()),
        ("resnet50-dgx-a100", ()),
        ("resnet50-dgx-a100", LLAMA),
        ("bucket-size-slow-ethernet", LLAMA),
    ],
    ids=["resnet50-8", "resnet50-256", "llama2-7b-256", "llama2-7b-8"],
)
def test_tune(benchmark: Callable[..., object], name: str, overrides: tuple[str, ...]) -> None:
    """All of it after import: costs, the curve, lists, their simulation."""
    scenario = load_scenario(name, ["scale=null", *overrides])
    assert benchmark(lambda: tune_scenario(scenario)) is not None

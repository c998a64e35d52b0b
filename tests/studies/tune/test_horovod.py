"""Horovod's threshold for a job of DDP: the same answers as of a scenario with Horovod."""

from __future__ import annotations

import pytest

from perfmodel.scenario import load_scenario
from perfmodel.studies.run.steps.sized_job import prepare
from perfmodel.studies.tune.run import tune_scenario


def test_a_threshold_matters_on_a_slow_network() -> None:
    scenario = load_scenario("bucket-size-slow-ethernet", ["scale=null"])
    tuned = tune_scenario(scenario, horovod=True).horovod
    assert tuned is not None
    fusions = {fusion.threshold_mb: fusion for fusion in tuned.curve}
    assert fusions[0.0].all_reduces == 161
    assert fusions[0.0].step_time_s > 1.2 * tuned.best.step_time_s
    assert tuned.default.threshold_mb == 128
    assert tuned.best.step_time_s == min(fusion.step_time_s for fusion in tuned.curve)


@pytest.mark.slow
def test_it_is_the_step_of_the_scenario_with_horovod() -> None:
    sets = ["scale=null", "model.name=resnet18", "cluster.nodes=2"]
    scenario = load_scenario("bucket-size-slow-ethernet", [*sets, "strategy.hook=fp16"])
    tuned = tune_scenario(scenario, horovod=True).horovod
    assert tuned is not None
    changes = ["strategy.kind=horovod", "strategy.compression=fp16"]
    same = prepare(load_scenario("bucket-size-slow-ethernet", [*sets, *changes])).step()
    assert tuned.default.step_time_s == same.step_time_s
    assert tuned.default.exposed_comm_s == same.parts.exposed_comm_s

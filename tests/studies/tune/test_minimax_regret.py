"""One cap for several scenarios: the least of the largest regrets, against every cap."""

from __future__ import annotations

import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import load_scenario
from perfmodel.studies.tune.model import TuneResult
from perfmodel.studies.tune.recommendation import choose_minimax_cap, rate_cap
from perfmodel.studies.tune.run import list_sizes, tune_scenario


@pytest.fixture(scope="module")
def each() -> list[TuneResult]:
    """Two models and two networks that want unlike caps."""
    slow = load_scenario("bucket-size-slow-ethernet", ["scale=null", "model.name=resnet18"])
    quick = load_scenario("resnet50-dgx-a100", ["scale=null", "cluster.nodes=2"])
    return [tune_scenario(slow), tune_scenario(quick)]


@pytest.mark.slow
def test_no_cap_has_a_smaller_largest_regret(each: list[TuneResult]) -> None:
    found = choose_minimax_cap(each)
    caps = {point.bucket_cap_mb for tuned in each for point in tuned.curve}
    worst = [
        max(tuned.at(cap).step_time_s / tuned.least_uniform_s - 1.0 for tuned in each)
        for cap in caps
    ]
    assert found.best.worst_regret == pytest.approx(min(worst), abs=1e-9)
    assert rate_cap(each, found.best.bucket_cap_mb or 0.0).regrets == pytest.approx(
        found.best.regrets, abs=1e-12
    )
    assert found.low_mb <= (found.best.bucket_cap_mb or 0.0) < found.high_mb


def test_the_default_is_rated_as_well(each: list[TuneResult]) -> None:
    found = choose_minimax_cap(each)
    assert found.default.steps_s == tuple(tuned.default.step_time_s for tuned in each)


@pytest.mark.slow
def test_all_sizes_of_a_scenario() -> None:
    scenario = load_scenario("bucket-size-slow-ethernet", ["model.name=resnet18"])
    sizes = list_sizes(scenario)
    found = choose_minimax_cap([tune_scenario(scenario, size=size) for size in sizes])
    assert [tuned.gpus for tuned in found.each] == [2, 4, 8]
    assert found.best.worst_regret <= found.default.worst_regret + 1.0


def test_one_scenario_needs_no_compromise(each: list[TuneResult]) -> None:
    with pytest.raises(InputError, match="two or more"):
        choose_minimax_cap(each[:1])

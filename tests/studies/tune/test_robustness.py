"""The same caps on the quick and the slow machine, against simulating them there."""

from __future__ import annotations

import math

import pytest

from perfmodel.scenario import load_scenario
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.steps.sized_job import prepare
from perfmodel.studies.tune.caps import as_bytes, with_caps
from perfmodel.studies.tune.evaluator import make_evaluator
from perfmodel.studies.tune.model import MIN_GAIN, CurvePoint
from perfmodel.studies.tune.recommendation import (
    compare_machines,
    find_plateau,
    find_robust_cap,
    smooth_residual,
)
from perfmodel.studies.tune.run import tune_scenario

SMALL = ["scale=null", "model.name=resnet18"]


@pytest.mark.slow
def test_regrets_are_those_of_the_simulation_there() -> None:
    scenario = load_scenario("bucket-size-slow-ethernet", SMALL)
    found = tune_scenario(scenario)
    prepared = prepare(scenario)
    options = prepared.job.options
    chosen = found.curve[::16]
    assert all(len(point.regrets) == 3 for point in found.curve)
    for at, there in enumerate(map(smooth_residual, prepared.ensemble.alternatives), 1):
        steps = [
            prepared.step(
                with_caps(options, for_all=as_bytes((p.bucket_cap_mb,))[0]), there
            ).step_time_s
            for p in chosen
        ]
        ratio = [
            (1 + point.regrets[at]) / step_s for point, step_s in zip(chosen, steps, strict=True)
        ]
        assert ratio == pytest.approx([ratio[6]] * len(ratio), rel=1e-2)
        assert min(point.regrets[at] for point in found.curve) == 0.0


def test_draws_of_a_profile_make_a_quick_and_a_slow_machine() -> None:
    evaluator = make_evaluator(prepare(load_scenario("resnet18-loopback-gloo", ["scale=null"])))
    drawn = [UncontendedTimer(machine) for machine in evaluator.sized.ensemble.alternatives]
    quick, slow = compare_machines(evaluator)
    nbytes = 5_000_000
    likely_s = evaluator.allreduce.timer.best("all_reduce", nbytes, range(2))[1]
    seen = sorted(one.best("all_reduce", nbytes, range(2))[1] / likely_s for one in drawn)
    assert len(seen) == 20
    assert seen[0] <= quick(nbytes) <= slow(nbytes) <= seen[-1]
    assert slow(nbytes) > quick(nbytes)


def point(low: float, high: float, *compute_regrets: float) -> CurvePoint:
    return CurvePoint(low, low, high, 1, 1.0, 0.0, True, compute_regrets)


def test_a_plateau_holds_what_is_good_on_the_likely_machine() -> None:
    curve = [point(1, 2, 0.0, 0.6), point(2, 3, 0.01, 0.0), point(3, math.inf, 0.011, 0.0)]
    assert find_plateau(curve).spans_mb == ((1, 3),)


def test_a_robust_cap_loses_least_wherever_the_truth_lies() -> None:
    curve = [
        point(1, 2, 0.0, 0.6),
        point(2, 3, 0.0, 0.03),
        point(3, 4, 0.005, 0.021),
        point(4, 5, 0.02, 0.02),
        point(5, 6, 0.04, 0.0),
        point(6, math.inf, 0.029, 0.01),
    ]
    found = find_robust_cap(curve)
    assert found is not None
    assert found.bucket_cap_mb == 4
    assert found.worst_regret == 0.02
    assert found.within == MIN_GAIN == 0.01
    assert found.spans_mb == ((2, 5), (6, math.inf))


def test_of_equally_good_caps_the_one_with_most_room_is_named() -> None:
    found = find_robust_cap(
        [point(1, 1.1, 0.0, 0.0), point(3, 5, 0.0, 0.0004), point(5, 5.1, 0.0, 0.0)]
    )
    assert found is not None
    assert found.bucket_cap_mb == 3


def test_without_an_interval_nothing_is_called_robust() -> None:
    assert find_robust_cap([point(1, math.inf, 0.0)]) is None


@pytest.mark.parametrize("edge", [2**18, 2**26])
def test_a_slow_machine_does_not_reduce_more_bytes_in_less_time(edge: int) -> None:
    """The interval of 64 MiB ends where a narrower one begins; no machine has such a step."""
    prepared = prepare(load_scenario("bucket-size-slow-ethernet", SMALL))
    slow = UncontendedTimer(smooth_residual(prepared.ensemble.alternatives[1]))
    raw = UncontendedTimer(prepared.ensemble.alternatives[1])
    sizes = [edge - 65_536, edge + 65_536]
    times = [slow.best("all_reduce", nbytes, range(8))[1] for nbytes in sizes]
    assert times[0] < times[1]
    middle = 4 * 2**20
    assert slow.best("all_reduce", middle, range(8))[1] == pytest.approx(
        raw.best("all_reduce", middle, range(8))[1], rel=1e-6
    )


@pytest.mark.slow
def test_the_default_is_rated_as_it_is_simulated() -> None:
    scenario = load_scenario("bucket-size-slow-ethernet", SMALL)
    found = tune_scenario(scenario)
    prepared = prepare(scenario)
    here = found.default.step_time_s / found.least_uniform_s - 1.0
    assert found.default_regrets[0] == pytest.approx(here, abs=1e-4)
    point = found.at(found.best_uniform.bucket_cap_mb or 0.0)
    options = with_caps(prepared.job.options, for_all=as_bytes((point.bucket_cap_mb,))[0])
    for at, there in enumerate(map(smooth_residual, prepared.ensemble.alternatives), 1):
        usual_s = prepared.step(machine=there).step_time_s
        ratio = usual_s / prepared.step(options, there).step_time_s
        said = (1 + found.default_regrets[at]) / (1 + point.regrets[at])
        assert said == pytest.approx(ratio, rel=1e-2)

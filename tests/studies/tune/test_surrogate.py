"""Times of all-reduces that are read off, against those that are worked out."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.scenario import load_scenario
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.steps.sized_job import prepare
from perfmodel.studies.tune.evaluator import make_evaluator
from perfmodel.studies.tune.model import STEP_ROUNDING
from perfmodel.studies.tune.surrogate import AllReduceTimes


@pytest.fixture(scope="module")
def timer() -> UncontendedTimer:
    return UncontendedTimer(
        prepare(load_scenario("bucket-size-slow-ethernet", ["scale=null"])).machine
    )


def test_times_are_read_off_on_both_sides_of_a_jump(timer: UncontendedTimer) -> None:
    """NCCL goes from trees to rings at some KiB, where times more than double.

    With each warp more that has its part of a short message to pass on, a tree gets quicker by up
    to 0.3 %, which no bound between sizes knows of.
    """
    allreduce = AllReduceTimes(timer, range(8))
    allreduce.prepare(256, 100_000_000)
    few = allreduce.computed_sizes
    for size in np.geomspace(256, 100_000_000, 70):
        nbytes = int(size) // 4 * 4
        exact = timer.best("all_reduce", nbytes, range(8))[1]
        assert allreduce.time_s(nbytes) == pytest.approx(exact, rel=1e-2)
        assert allreduce.lower_s(nbytes) <= exact * (1 + 3e-3)
    assert allreduce.computed_sizes == few < 40


def test_what_was_worked_out_is_not_read_off(timer: UncontendedTimer) -> None:
    allreduce = AllReduceTimes(timer, range(8))
    allreduce.prepare(1000, 10_000_000)
    exact = allreduce.compute(3_333_332)
    assert exact == timer.best("all_reduce", 3_333_332, range(8))[1]
    assert allreduce.time_s(3_333_332) == allreduce.lower_s(3_333_332) == exact
    few = allreduce.computed_sizes
    for nbytes in (3_333_332, 5_000_000):
        allreduce.compute(nbytes)
    assert allreduce.computed_sizes == few + 1


def test_a_hook_halves_the_bytes(timer: UncontendedTimer) -> None:
    whole, half = (
        AllReduceTimes(timer, range(8)),
        AllReduceTimes(timer, range(8), scale=0.5),
    )
    assert half.compute(8_000_000) == whole.compute(4_000_000)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_check_of_scaled_gradients_lies_outside_of_the_recurrence(precision: str) -> None:
    """In fp16 the host reads whether gradients are finite: it holds up every step alike."""
    changes = [f"compute.precision={precision}", "scale=null"]
    evaluator = make_evaluator(prepare(load_scenario("bucket-size-slow-ethernet", changes)))
    for cap_mb in (1.0, 13.0, 100.0):
        evaluator.simulate(evaluator.uniform_options(cap_mb))
    assert not evaluator.reasons
    assert evaluator.surrogate_error < STEP_ROUNDING

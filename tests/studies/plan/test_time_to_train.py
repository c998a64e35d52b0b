"""Samples, steps and wall time against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.scenario import (
    CandidateSection,
    FailureSection,
    TargetSection,
)
from perfmodel.studies.plan.model import Step, Upkeep
from perfmodel.studies.plan.time_to_train import (
    describe_target,
    expected_wall_s,
    samples_at,
    steps_for,
    train,
    upkeep_of,
)

HOUR, DAY = 3600.0, 86400.0


def test_steps_go_through_all_samples():
    assert steps_for(1000, 100) == 10
    assert steps_for(1001, 100) == 11
    assert steps_for(1, 4096) == 1


# McCandlish et al. 2018: at the critical batch half of the examples are wasted; ten times it, 11.
def test_a_batch_beyond_the_critical_one_needs_more_samples():
    target = TargetSection(samples=1e6, critical_batch=1000)
    assert samples_at(target, 1e6, 1000) == 2e6
    assert samples_at(target, 1e6, 10_000) == 11e6
    at_reference = TargetSection(samples=1e6, critical_batch=1000, reference_batch=1000)
    assert samples_at(at_reference, 1e6, 1000) == 1e6
    assert samples_at(TargetSection(samples=1e6), 1e6, 10**6) == 1e6


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**7))
def test_time_and_samples_trade_as_the_paper_says(batch, critical, samples):
    """(S / S_min - 1) (E / E_min - 1) = 1 with S_min = E_min / B_crit."""
    target = TargetSection(samples=samples, critical_batch=critical)
    examples = samples_at(target, samples, batch)
    steps, fewest = examples / batch, samples / critical
    assert (steps / fewest - 1) * (examples / samples - 1) == pytest.approx(1.0, rel=1e-6)


def test_targets_in_words():
    assert describe_target(TargetSection(epochs=90.0, dataset=1_281_167)) == (
        "90 epochs of 1.28117 million samples"
    )
    assert describe_target(TargetSection(samples=2e12)) == "2 trillion samples"


# ---------------------------------------------------------------- training

STEP = Step(0.5, (0.4, 0.7), 200.0, 100, 0.0, "compute", 1e9, True)
TARGET = TargetSection(samples=720_000)


def test_a_training_without_failures_is_its_steps():
    found = train(STEP, TARGET, 720_000.0, None)
    assert found.steps == 7200
    assert found.wall_s == found.work_s == HOUR
    assert found.wall_interval_s == pytest.approx((0.8 * HOUR, 1.4 * HOUR))
    assert found.goodput == 1


def test_failures_come_from_all_nodes_and_checkpoints_from_their_size():
    failures = FailureSection(mtbf_per_node="100 d", storage_bandwidth="1 GB/s", restart="10 min")
    one = CandidateSection(name="a", node="n", nodes=[10])
    kept = upkeep_of(failures, one, 10, 0.5, 60e9)
    assert kept.mtbf_s == 10 * DAY
    assert kept.write_s == pytest.approx(60.0)
    # Daly by hand: sqrt(2 * 60 * 864000) = 10182.3; d / 2M = 3.472e-5;
    # 10182.3 (1 + 5.893e-3 / 3 + 3.9e-6) - 60 = 10142.4 s
    assert kept.interval_s == pytest.approx(10142.4, abs=0.5)
    assert kept.checkpoint_steps == pytest.approx(20285, abs=1)
    given = failures.model_copy(update={"checkpoint_every": 1000.2, "checkpoint_size": 5e9})
    kept = upkeep_of(given, one, 10, 0.5, 60e9)
    assert (kept.interval_s, kept.checkpoint_steps, kept.write_s) == (1000.0, 2000, 5.0)


def test_a_candidate_may_fail_in_its_own_way():
    failures = FailureSection(mtbf_per_node="100 d", checkpoint_write="1 s", restart="1 s")
    one = CandidateSection(name="a", node="n", nodes=[2], mtbf_per_node="10 d")
    assert upkeep_of(failures, one, 2, 1.0, 0.0).mtbf_s == 5 * DAY


def test_goodput_is_work_over_wall_time():
    upkeep = Upkeep(2 * HOUR, 30.0, 300.0, 600.0)
    found = train(STEP, TARGET, 720_000.0, upkeep, runs=100, seed=1)
    assert found.wall_s == pytest.approx(expected_wall_s(HOUR, upkeep))
    assert found.goodput == pytest.approx(HOUR / found.wall_s)
    assert found.wall_interval_s[0] < found.wall_s < found.wall_interval_s[1]
    assert abs(found.simulated.mean_s - found.wall_s) < 5 * found.simulated.error_s


def test_a_training_that_never_ends_says_so():
    said = train(STEP, TARGET, 720_000.0, Upkeep(60.0, 300.0, 600.0, 600.0))
    assert isinstance(said, str)
    assert "more than 100 times as long" in said
    assert "one comes every 1 min on average, a checkpoint takes 5 min and a restart 10 min" in said


def test_failures_without_number_are_not_simulated_one_by_one():
    upkeep = Upkeep(0.1, 0.001, 0.001, 0.01)  # some 37,000 in an hour
    found = train(STEP, TARGET, 720_000.0, upkeep, runs=100, seed=1)
    assert found.simulated is None
    assert found.wall_interval_s == pytest.approx(
        (0.8 * found.wall_s, 1.4 * found.wall_s), rel=1e-3
    )


def test_luck_widens_the_interval():
    upkeep = Upkeep(2 * HOUR, 30.0, 300.0, 600.0)
    narrow = train(STEP, TARGET, 720_000.0, upkeep)
    wide = train(STEP, TARGET, 720_000.0, upkeep, runs=2000, seed=1)
    assert wide.wall_interval_s[0] < narrow.wall_interval_s[0]
    assert wide.wall_interval_s[1] > narrow.wall_interval_s[1]
    exact = train(
        replace(STEP, interval_s=(0.5, 0.5)), TARGET, 720_000.0, upkeep, runs=2000, seed=1
    )
    seen = exact.simulated
    assert exact.wall_interval_s == pytest.approx((seen.low_s, seen.high_s), rel=0.01)
    unknown = train(replace(STEP, interval_s=None), TARGET, 720_000.0, upkeep, runs=9)
    assert unknown.wall_interval_s is None

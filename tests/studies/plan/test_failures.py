"""Checkpoints and failures: Young and Daly by their papers, by theory, and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import lambertw

from perfmodel.scenario import CandidateSection, FailureSection
from perfmodel.studies.plan.model import Upkeep
from perfmodel.studies.plan.time_to_train import (
    daly_s,
    expected_wall_s,
    simulate_walls,
    summarise,
    upkeep_of,
    widen_by_luck,
    young_s,
)

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
CLUSTER = CandidateSection(name="a", node="n", nodes=[1])


# Captions of figures 3 to 5 of Daly 2006: dumps of 5 min, and the interval that its model predicts.
@pytest.mark.parametrize(
    ("mtbf_s", "minutes", "half_a_digit"),
    [(24 * HOUR, 117, 0.5), (6 * HOUR, 57, 0.5), (15 * MINUTE, 9.1, 0.05)],
)
def test_daly_is_what_his_paper_says(mtbf_s, minutes, half_a_digit):
    assert abs(daly_s(5 * MINUTE, mtbf_s) / MINUTE - minutes) <= half_a_digit


def test_daly_where_writing_takes_longer_than_failures_let_it():
    assert daly_s(30 * MINUTE, 15 * MINUTE) == 15 * MINUTE
    assert daly_s(HOUR, 15 * MINUTE) == 15 * MINUTE


def test_young_by_hand():
    assert young_s(8.0, 100.0) == 40.0  # sqrt(2 * 8 * 100)


def test_a_job_of_many_nodes_fails_more_often():
    # Llama 3 (arXiv 2407.21783, section 3.3.4): 419 unexpected interruptions in 54 days on 16,384
    # GPUs, 8 to a node; "one failure every three hours" as the press had it.
    per_node_s = 54 * DAY * 2048 / 419
    assert per_node_s / DAY == pytest.approx(264, abs=0.5)
    failures = FailureSection(
        mtbf_per_node=f"{per_node_s!r} s", checkpoint_write="1 s", restart="1 s"
    )
    upkeep = upkeep_of(failures, CLUSTER, 2048, 1.0, 0.0)
    assert upkeep.mtbf_s / HOUR == pytest.approx(3.1, abs=0.05)


def test_wall_time_by_hand():
    # One interval of 1 with a dump of 1, mean time between failures 2, restart 2 ln 2, so that
    # M e^(R/M) = 4, and 4 (e - 1) for each of 10 intervals.
    upkeep = Upkeep(mtbf_s=2.0, write_s=1.0, restart_s=2 * math.log(2), interval_s=1.0)
    assert expected_wall_s(10.0, upkeep) == pytest.approx(40 * (math.e - 1))
    # Half an interval more: 4 (e^0.75 - 1) for it.
    assert expected_wall_s(10.5, upkeep) == pytest.approx(40 * (math.e - 1) + 4 * math.expm1(0.75))


def test_without_failures_only_checkpoints_are_added():
    upkeep = Upkeep(mtbf_s=1e15, write_s=10.0, restart_s=600.0, interval_s=100.0)
    assert expected_wall_s(1000.0, upkeep) == pytest.approx(1100.0)


def test_beyond_counting_is_infinite():
    assert expected_wall_s(1e9, Upkeep(1.0, 1.0, 1.0, 1e4)) == math.inf


regimes = st.fixed_dictionaries(
    {
        "mtbf_s": st.floats(10 * MINUTE, 30 * DAY),
        "write": st.floats(1e-3, 0.3),
        "restart": st.floats(0.0, 0.5),
    }
).map(
    lambda d: (d["mtbf_s"], d["write"] * d["mtbf_s"], d["restart"] * d["mtbf_s"])
)  # dumps of a thousandth to a third of the time between failures


@given(regimes)
def test_daly_is_nearly_the_best_interval_there_is(regime):
    mtbf_s, write_s, restart_s = regime
    work_s = 1000 * mtbf_s

    def wall_s(interval_s):
        # the model's own sum for whole intervals, so that what is left over plays no part
        per_s = mtbf_s * math.exp(restart_s / mtbf_s) / interval_s
        return per_s * math.expm1((interval_s + write_s) / mtbf_s) * work_s

    # d/dt of it is zero where (t/M - 1) e^(t/M - 1) = -e^(-d/M - 1): Lambert's function.
    best = mtbf_s * (1 + lambertw(-math.exp(-1 - write_s / mtbf_s)).real)
    found = minimize_scalar(wall_s, bounds=(1e-3 * mtbf_s, 3 * mtbf_s), method="bounded")
    assert found.fun == pytest.approx(wall_s(best), rel=1e-6)
    assert wall_s(daly_s(write_s, mtbf_s)) <= 1.002 * wall_s(best)
    assert wall_s(daly_s(write_s, mtbf_s)) <= wall_s(young_s(write_s, mtbf_s)) * (1 + 1e-9)


def step_by_step(work_s, upkeep, seed, run, runs):
    """The same training once more, a checkpoint at a time and by the clock."""
    draws = np.random.default_rng(seed)
    fails_s = draws.exponential(upkeep.mtbf_s, runs)[run]
    now_s = saved_s = 0.0
    failures, broken = 0, False
    while saved_s < work_s - 1e-9 * upkeep.interval_s:
        piece_s = min(upkeep.interval_s, work_s - saved_s)
        takes_s = (upkeep.restart_s if broken else 0.0) + piece_s + upkeep.write_s
        if now_s + takes_s <= fails_s:
            now_s, saved_s, broken = now_s + takes_s, saved_s + piece_s, False
        else:
            now_s, failures, broken = fails_s, failures + 1, True
            fails_s += draws.exponential(upkeep.mtbf_s, runs)[run]
    return now_s, failures


@settings(max_examples=40, deadline=None)
@given(regimes, st.floats(0.3, 30.0), st.floats(0.5, 2.0))
def test_the_simulation_is_the_training_told_step_by_step(regime, intervals, longer):
    mtbf_s, write_s, restart_s = regime
    upkeep = Upkeep(mtbf_s, write_s, restart_s, longer * daly_s(write_s, mtbf_s))
    work_s = intervals * upkeep.interval_s
    walls_s, failures = simulate_walls(work_s, upkeep, runs=5, seed=3)
    told = [step_by_step(work_s, upkeep, 3, run, 5) for run in range(5)]
    np.testing.assert_allclose(walls_s, [wall for wall, _ in told], rtol=1e-9)
    assert failures.tolist() == [count for _, count in told]


@settings(max_examples=25, deadline=None)
@given(regimes, st.floats(1.0, 8.0), st.floats(0.5, 2.0))
def test_formula_and_simulation_agree_within_statistical_error(regime, failures, longer):
    mtbf_s, write_s, restart_s = regime
    upkeep = Upkeep(mtbf_s, write_s, restart_s, longer * daly_s(write_s, mtbf_s))
    work_s = failures * mtbf_s  # a failure or more in each, so that the error can be told
    expected_s = expected_wall_s(work_s, upkeep)
    found = summarise(*simulate_walls(work_s, upkeep, runs=4000, seed=11))
    assert abs(found.mean_s - expected_s) <= 5 * found.error_s + 1e-9 * expected_s
    assert found.low_s <= found.mean_s * (1 + 1e-9)
    assert found.low_s >= work_s * (1 - 1e-12)
    # Failures come all the time, so their mean is the wall time over the time between them.
    assert found.failures == pytest.approx(expected_s / mtbf_s, rel=0.1)


def test_the_simulation_finds_the_interval_that_daly_gives():
    # Figure 4 of Daly 2006: failures every 6 h, 500 h of work, restarts of 10 min, dumps of 5 min.
    write_s, mtbf_s, work_s = 5 * MINUTE, 6 * HOUR, 500 * HOUR
    tried = [daly_s(write_s, mtbf_s) * factor for factor in (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)]
    means = [
        simulate_walls(work_s, Upkeep(mtbf_s, write_s, 10 * MINUTE, t), runs=150, seed=5)[0].mean()
        for t in tried
    ]
    best = int(np.argmin(means))
    assert tried[best] == pytest.approx(57 * MINUTE, rel=0.26), "one of the three in the middle"
    assert means[3] <= 1.01 * means[best]
    assert means[0] > 1.05 * means[3] < means[-1] / 1.05, "the scan has two slopes"


def test_the_spread_is_wider_when_failures_are_rarer_and_bigger():
    calm = summarise(*simulate_walls(DAY, Upkeep(100 * DAY, 60, 600, HOUR), runs=100, seed=0))
    assert calm.low_s == pytest.approx(DAY + 24 * 60), "eight of ten see no failure"
    assert calm.failures < 0.1


def test_the_same_seed_gives_the_same_bits_and_another_others():
    upkeep = Upkeep(DAY, 60.0, 600.0, 2 * HOUR)
    first, again, other = (
        simulate_walls(30 * DAY, upkeep, runs=4, seed=seed)[0] for seed in (1, 1, 2)
    )
    assert first.tolist() == again.tolist() != other.tolist()


def test_luck_and_step_time_by_hand():
    calm = np.full(1000, 100.0)  # no luck: the ends are those of the step time
    assert widen_by_luck(calm, 0.9, 1.5) == pytest.approx((90.0, 150.0), rel=0.01)
    lucky = np.random.default_rng(0).lognormal(0.0, 0.3, 100_000)  # 80 % within e^(+-1.2816 0.3)
    wide = math.exp(1.28155 * 0.3)
    assert widen_by_luck(lucky, 1.0, 1.0) == pytest.approx((1 / wide, wide), rel=0.01)
    # Of two independent normal errors the widths add by their squares: 0.3 and 0.4 make 0.5.
    both = widen_by_luck(lucky, math.exp(-1.28155 * 0.4), math.exp(1.28155 * 0.4))
    assert both == pytest.approx((math.exp(-1.28155 * 0.5), math.exp(1.28155 * 0.5)), rel=0.01)


@given(
    st.floats(1.0, 1e6),
    st.floats(1e3, 1e7),
    st.floats(0.0, 1e3),
    st.floats(0.0, 1e3),
    st.floats(1.0, 1e5),
    st.floats(1.01, 10.0),
)
def test_more_failures_never_finish_sooner(work_s, mtbf_s, write_s, restart_s, interval_s, more):
    def wall_s(**changes):
        given = {"mtbf_s": mtbf_s, "write_s": write_s, "restart_s": restart_s}
        return expected_wall_s(work_s, Upkeep(**{**given, "interval_s": interval_s, **changes}))

    base = wall_s()
    assert base >= work_s * (1 - 1e-9)
    assert wall_s(mtbf_s=mtbf_s / more) >= base * (1 - 1e-12)
    assert wall_s(write_s=write_s * more) >= base * (1 - 1e-12)
    assert wall_s(restart_s=restart_s * more) >= base * (1 - 1e-12)


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e3))
def test_checkpoints_come_after_whole_steps(interval_s, step_s):
    failures = FailureSection(
        mtbf_per_node="1 d",
        checkpoint_write="1 s",
        restart="1 s",
        checkpoint_every=f"{interval_s!r} s",
    )
    upkeep = upkeep_of(failures, CLUSTER, 1, step_s, 0.0)
    assert upkeep.checkpoint_steps >= 1
    assert upkeep.interval_s == upkeep.checkpoint_steps * step_s
    assert abs(upkeep.interval_s - interval_s) <= max(step_s, 0.5 * step_s + 1e-9 * interval_s)

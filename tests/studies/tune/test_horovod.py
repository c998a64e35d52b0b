"""Horovod's fusion by its own words: what is handed over within a cycle, up to the threshold."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.scenario import load_scenario
from perfmodel.studies.tune.horovod import CYCLE_S, fuse_groups, strip_buckets
from perfmodel.studies.tune.objective.gradients import GradientOrder
from perfmodel.studies.tune.objective.surrogate import StepSurrogate
from perfmodel.studies.tune.run import tune_scenario


def surrogate_of(nbytes: Sequence[int], handed_s: Sequence[float]) -> StepSurrogate:
    count = len(nbytes)
    gradients = GradientOrder(
        tuple(range(count)), tuple(nbytes), ("fp32",) * count, reverse_filled=False
    )
    ready = tuple(0.002 * (at + 1) for at in range(count))
    return StepSurrogate(
        gradients, 0.1, ready, ready[-1], (0.0,) * count, 0.01, 1.0,
        forward_s=0.1, in_s=(0.0005,) * count, host_s=tuple(handed_s),
    )  # fmt: skip


def test_what_is_handed_over_in_a_cycle_is_fused() -> None:
    surrogate = surrogate_of([10, 10, 10, 10], [0.2e-3, 0.9e-3, 1.1e-3, 5.0e-3])
    assert fuse_groups(surrogate, 100, CYCLE_S) == [[0, 1], [2], [3]]


def test_the_threshold_bounds_a_buffer_and_smaller_ones_fill_it() -> None:
    """70 and 20 fit in 100; 50 does not, and opens the next buffer."""
    surrogate = surrogate_of([70, 50, 20, 10, 60], [0.0] * 4 + [0.1e-3])
    assert fuse_groups(surrogate, 100, CYCLE_S) == [[0, 2, 3], [1], [4]]


def test_a_threshold_of_zero_fuses_nothing() -> None:
    assert fuse_groups(surrogate_of([5, 5], [0.1e-3, 0.1e-3]), 0, CYCLE_S) == [[0], [1]]


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=20),
    st.integers(0, 300),
    st.floats(1e-5, CYCLE_S),
)
def test_each_gradient_is_reduced_once_and_no_buffer_overflows(
    nbytes: list[int], threshold: int, first_s: float
) -> None:
    handed = list(itertools.accumulate(3e-4 for _ in nbytes))
    groups = fuse_groups(surrogate_of(nbytes, handed), threshold, first_s)
    assert sorted(itertools.chain(*groups)) == list(range(len(nbytes)))
    for group in groups:
        assert len(group) == 1 or sum(nbytes[position] for position in group) <= threshold


def test_ddps_copies_are_not_horovods() -> None:
    surrogate = strip_buckets(surrogate_of([1, 1, 1], [0.0, 0.0, 0.0]))
    assert surrogate.ready_s == pytest.approx((0.0015, 0.003, 0.0045))
    assert surrogate.backward_s == pytest.approx(0.0045)


def test_a_threshold_matters_on_a_slow_network() -> None:
    scenario = load_scenario("bucket-size-slow-ethernet", ["scale=null"])
    found = tune_scenario(scenario, horovod=True).horovod
    assert found is not None
    steps = {one.threshold_mb: one for one in found.curve}
    assert steps[0.0].all_reduces == 161
    assert steps[0.0].step_time_s > 1.2 * found.best.step_time_s
    assert found.default.threshold_mb == 128
    assert found.best.step_time_s == min(one.step_time_s for one in found.curve)

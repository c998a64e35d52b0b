"""The slowest of several GPUs: order statistics of a normal distribution."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload.compute_spread import (
    gpu_speeds,
    largest_of,
    slowest_factor,
    slowest_factors,
    spread_of,
)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, 0.0),
        (2, 1 / math.sqrt(math.pi)),
        (3, 1.5 / math.sqrt(math.pi)),
        (5, 1.16296447),
        (10, 1.53875273),
        (20, 1.86747506),
        (100, 2.50759364),
        (1000, 3.24143577),
    ],
)
def test_expectation_of_the_largest(count: int, expected: float) -> None:
    """Exact for two and three; the others from tables of order statistics (Tippett 1925; Harter
    1961)."""
    assert largest_of(count) == pytest.approx(expected, abs=1e-8)


def test_draws_agree() -> None:
    draws = np.random.default_rng(7).normal(1.0, 0.02, (20_000, 16)).max(axis=1)
    assert slowest_factor(16, 0.02) == pytest.approx(draws.mean(), abs=3e-4)
    low, high = slowest_factors(16, 0.02)
    assert [low, high] == pytest.approx(np.quantile(draws, [0.1, 0.9]), abs=1.5e-3)


@given(st.integers(1, 300_000), st.just(0.0) | st.floats(1e-6, 0.2))
def test_more_gpus_are_never_quicker(ranks: int, spread: float) -> None:
    here, more = slowest_factor(ranks, spread), slowest_factor(ranks + 1, spread)
    assert 1 <= here <= more
    assert (here == 1) == (ranks == 1 or spread == 0)
    assert slowest_factor(ranks, 2 * spread) - 1 == pytest.approx(2 * (here - 1), abs=1e-15)
    low, high = slowest_factors(ranks, spread)
    assert low <= here <= high


def test_one_gpu_is_as_uncertain_as_its_model() -> None:
    z80 = NormalDist().inv_cdf(0.9)
    assert slowest_factors(1, 0.03) == pytest.approx((1 - 0.03 * z80, 1 + 0.03 * z80))


def test_processes_on_cpus_are_alike() -> None:
    """Their times are measured on the machine that all of them share."""
    assert spread_of(load_gpu("cpu-process")) == 0
    assert spread_of(load_gpu("t4")) == gpu_speeds() > 0
    assert spread_of(load_gpu("cpu-process"), 0.1) == spread_of(load_gpu("t4"), 0.1) == 0.1
    assert spread_of(load_gpu("t4"), 0.0) == 0

"""Draws of a profile stay within what quantities can be, however wide its intervals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.calibrate.apply import draw_fit
from perfmodel.calibrate.parameters import LARGEST_LOGARITHM, Value
from perfmodel.calibrate.profile import Fit, RunSpread

DEVIATIONS = st.floats(0, LARGEST_LOGARITHM)

VALUES = (
    Value(parameter="step", where="ring", value="40 us", interval=("1 us", "1 s")),
    Value(parameter="bandwidth", where="nvlink", value="2 GB/s", interval=("1 GB/s", "3 GB/s")),
    Value(parameter="rate", where="ring", value="x 0.5", interval=("x 0.1", "x 2")),
)


@given(DEVIATIONS, DEVIATIONS, DEVIATIONS, st.floats(1, 100), st.integers(0, 2**32))
def test_draws_end_where_quantities_do(deviation, scatter, spread, freedom, seed):
    count = len(VALUES)
    covariance = tuple(map(tuple, (deviation**2 * np.eye(count)).tolist()))
    runs = RunSpread(times=spread, rates=spread, freedom=freedom, source="a test")
    fit = Fit(
        rows="library",
        method="by hand",
        values=VALUES,
        covariance=covariance,
        scatter=scatter,
        run_spread=runs,
    )
    for value in draw_fit(fit, np.random.default_rng(seed), new_run=True).values:
        least, most = (1e-9, 1e9) if value.value.startswith("x ") else value.key.limits
        assert least <= value.si <= most * (1 + 1e-6)


@pytest.mark.parametrize("log", [-np.inf, -1e6, -1.0, 0.0, 1.0, 1e6, np.inf])
def test_within_the_limits_a_draw_is_the_value_times_the_exponential(log):
    expected = np.clip(40e-6 * np.exp(np.clip(log, -99, 99)), 1e-21, 3.16e9)
    assert VALUES[0].scaled(log).si == pytest.approx(float(expected), rel=2e-3)

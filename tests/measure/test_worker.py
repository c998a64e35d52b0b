"""Times of a collective and numbers of repeats; no torch needed."""

import numpy as np
import pytest

from perfmodel.measure.job import MeasurementJob
from perfmodel.measure.worker import (
    MOST_REPEATS,
    TIMING_PASSES,
    choose_repeats,
    compute_collective_times,
)

SIZES = (1024, 4096)


def job(**changes):
    known = {"backend": "gloo", "algorithm": "ring", "collective": "all_reduce", "ranks": 4}
    return MeasurementJob(**(known | {"sizes": SIZES} | changes))


def test_a_collective_takes_from_the_last_start_to_the_last_end():
    spans = np.array([[[1.0, 5.0], [10.0, 11.0]], [[2.0, 4.0], [10.5, 12.0]]])
    assert compute_collective_times(spans, shared_clock=True) == [3.0, 1.5]
    assert compute_collective_times(spans, shared_clock=False) == [4.0, 1.5]


def test_repeats_keep_to_the_budget():
    costs = [0.001, 0.004, 0.1, 0.4]
    counts = choose_repeats(job(budget_s=20.0), costs)
    assert sum(c * n for c, n in zip(costs, counts, strict=True)) == pytest.approx(20, rel=0.15)
    assert counts == sorted(counts, reverse=True)
    assert all(count % TIMING_PASSES == 0 for count in counts)
    assert choose_repeats(job(budget_s=1e9), costs) == [MOST_REPEATS] * 4
    assert choose_repeats(job(repeats=3), costs) == [3] * 4

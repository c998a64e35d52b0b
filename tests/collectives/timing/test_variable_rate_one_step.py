"""Single sends at rates that change: the same as the recurrence, and as sums by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.collectives.algorithms import linear
from perfmodel.collectives.timing.recurrence_steps import LinkRates
from perfmodel.collectives.timing.unrolled import prepare_phases
from perfmodel.collectives.timing.variable_rate import Clocks, OneStep


@given(st.integers(2, 6), st.integers(0, 2**32 - 1), st.integers(0, 8))
def test_changes_act_as_on_the_recurrence(ranks: int, seed: int, changes: int) -> None:
    rng = np.random.default_rng(seed)
    phases = linear.gather(ranks, 4 * ranks * 1000).phases
    assert len(phases) == phases[0].repeat == 1
    edges = len(phases[0].src)
    begin_s, rate, late = (
        rng.uniform(0, 5, edges),
        rng.uniform(50, 500, edges),
        rng.uniform(0, 3, edges),
    )
    quick = OneStep(phases[0], begin_s, rate, late)
    slow = Clocks(prepare_phases(phases, 1), begin_s, LinkRates(-np.inf, rate, late))
    for now_s in np.sort(rng.uniform(0, 60, changes)):
        rate = rng.uniform(50, 500, edges) * (rng.random(edges) > 0.2)
        late = rng.uniform(0, 3, edges)
        quick.change(float(now_s), rate, late)
        slow.change(float(now_s), rate, late)
        assert quick.ends().wire_s == pytest.approx(slow.ends().wire_s, rel=1e-9)
        np.testing.assert_allclose(quick.ends().landed_s, slow.ends().landed_s, rtol=1e-9)
    assert quick.ends().wire_s == pytest.approx(slow.ends().wire_s, rel=1e-9)


def test_bytes_that_are_sent_stay_sent() -> None:
    """1000 bytes: 3 s at 100 B/s from second 2 on, nothing for 4 s, the rest at 350 B/s."""
    phase = linear.send(2, 1000).phases[0]
    one = OneStep(phase, np.array([2.0]), np.array([100.0]), np.array([0.5]))
    assert one.ends().wire_s == 12.0
    one.change(5.0, np.array([0.0]), np.array([0.5]))
    assert one.ends().wire_s == np.inf
    assert one.left() == pytest.approx([0.7])
    one.change(9.0, np.array([350.0]), np.array([1.5]))
    assert one.ends().wire_s == pytest.approx(11.0)
    assert one.ends().landed_s == pytest.approx([12.5])
    one.change(12.0, np.array([1.0]), np.array([9.0]))  # too late for what has left
    assert one.ends().landed_s == pytest.approx([12.5])

"""Edges of rings that stand for others: times are those of every edge, and folds are found once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.collectives.algorithms import ring
from perfmodel.collectives.timing import compiled_loops
from perfmodel.collectives.timing import variable_rate as ring_folds
from perfmodel.collectives.timing.compiled_loops import Loops
from perfmodel.collectives.timing.recurrence_steps import LinkRates
from perfmodel.collectives.timing.unrolled import UnrolledPhases, prepare_phases
from perfmodel.collectives.timing.variable_rate import Clocks

RANKS, RINGS = 8, 4
LOOPS = compiled_loops.load()
Rows = tuple[np.ndarray, np.ndarray]


def course() -> UnrolledPhases:
    orders = [list(range(RANKS))] * RINGS
    return prepare_phases(ring.all_reduce(RANKS, RINGS * RANKS * 40_000, orders=orders).phases, 3)


def drawn(rng: np.random.Generator, period: int, unlike: int) -> Rows:
    """Rates and latencies that come back after `period` edges, on `unlike` kinds of ring."""
    rate, late = rng.uniform(1e9, 9e9, (unlike, period)), rng.uniform(0, 1e-5, (unlike, period))
    times = RANKS // period
    kinds = np.arange(RINGS) % unlike
    return np.tile(rate[kinds], times).ravel(), np.tile(late[kinds], times).ravel()


def ends(
    course: UnrolledPhases, paces: list[tuple[float, Rows]], loops: Loops | None = None
) -> tuple[float, np.ndarray]:
    clocks = Clocks(course, np.zeros(RANKS * RINGS), LinkRates(-np.inf, *paces[0][1]), loops)
    for at_s, (rate, late) in paces[1:]:
        clocks.change(at_s, rate, late)
        assert clocks.least_wire_s() <= clocks.ends().wire_s * (1 + 1e-12)
    return clocks.ends().wire_s, clocks.ends().landed_s


@given(
    kinds=st.lists(
        st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, RINGS)), min_size=1, max_size=6
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_edges_that_stand_for_others_end_when_each_of_them_does(
    kinds: list[tuple[int, int]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    times_s = np.sort(rng.uniform(0, 4 * RANKS * 2e-5, len(kinds)))
    rows = [drawn(rng, *kind) for kind in kinds]
    paces = list(zip(times_s.tolist(), rows, strict=True))
    several = course()
    for _ in range(2):  # the second time over what was found before
        folded, compiled = ends(several, paces), ends(several, paces, LOOPS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ring_folds, "are_alike", lambda *_: False)
            patch.setattr(ring_folds, "period_of", lambda rows, _: rows.shape[1])
            whole = ends(course(), paces)
        for wire_s, landed_s in (folded, compiled):  # from a fold to each edge, in mid-transfer
            assert wire_s == pytest.approx(whole[0], rel=1e-12)
            assert landed_s == pytest.approx(whole[1], rel=1e-12)


def test_a_fold_has_what_is_unlike_and_is_found_once() -> None:
    rng, several = np.random.default_rng(7), course()
    alike, met = drawn(rng, 2, 1), drawn(rng, 4, 2)
    begin_s = np.zeros(RANKS * RINGS)
    first = ring_folds.fold(several, (*alike, begin_s))
    second = ring_folds.fold(several, met, first)
    assert (first.size, second.size) == (2, 8)
    assert ring_folds.fold(several, (*alike, begin_s)) is first
    assert ring_folds.fold(several, met, first) is second
    assert ring_folds.fold(several, alike, second) is second  # what was unlike stays so
    other = ring_folds.fold(several, drawn(rng, 8, 1), second)
    assert other.size == 2 * RANKS
    assert other.is_finer(second)
    assert not first.is_finer(second)


def test_only_so_many_folds_are_kept() -> None:
    rng, several = np.random.default_rng(7), course()
    for _ in range(2 * ring_folds.MOST_FOLDS):
        ring_folds.fold(several, drawn(rng, 8, RINGS), None)
    assert len(several.folds) <= ring_folds.MOST_FOLDS

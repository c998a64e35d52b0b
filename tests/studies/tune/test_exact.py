"""The search for the best groups against all groups there are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.studies.tune.caps import Cuts, GradientOrder
from perfmodel.studies.tune.exact import best_cuts, improve
from perfmodel.studies.tune.surrogate import StepSurrogate, buckets_of_cuts

AllCuts = Callable[[int], Iterator[Cuts]]
SECONDS = st.floats(0, 0.05)
NONE = st.just(1.0)


@st.composite
def surrogates(
    draw: st.DrawFn, most: int = 10, slowdown: Any = NONE, copies: bool = True
) -> StepSurrogate:
    n = draw(st.integers(1, most))
    nbytes = tuple(draw(st.lists(st.integers(1, 1000), min_size=n, max_size=n)))
    work = draw(st.lists(SECONDS, min_size=n, max_size=n))
    ready = tuple(itertools.accumulate(work))
    times = [0.0, 0.001, 0.01] if copies else [0.0]
    out = tuple(draw(st.lists(st.sampled_from(times), min_size=n, max_size=n)))
    gradients = GradientOrder(tuple(range(n)), nbytes, ("fp32",) * n, reverse_filled=False)
    tail = draw(SECONDS)
    return StepSurrogate(gradients, 0.1, ready, ready[-1] + tail, out, 0.01, draw(slowdown))


def cost_by(table: dict[int, float], least: float, slope: float) -> Callable[[int], float]:
    """Times that may jump anywhere: no regularity is taken for granted."""
    return lambda nbytes: table.get(nbytes % 7, least) + slope * nbytes


@st.composite
def costs(draw: st.DrawFn) -> Callable[[int], float]:
    table = draw(st.dictionaries(st.integers(0, 6), st.floats(1e-4, 0.05), max_size=4))
    return cost_by(table, draw(st.floats(1e-4, 0.02)), draw(st.floats(0, 5e-5)))


def read(cost: Callable[[int], float]) -> Callable[[Any], Any]:
    return lambda sizes: np.array([cost(int(size)) for size in sizes])


def step_s(surrogate: StepSurrogate, cuts: Cuts, cost: Callable[[int], float]) -> float:
    return surrogate.step_s(buckets_of_cuts(surrogate, cuts), cost)


def least_s(surrogate: StepSurrogate, cost: Callable[[int], float], all_cuts: AllCuts) -> float:
    return min(step_s(surrogate, cuts, cost) for cuts in all_cuts(len(surrogate.gradients)))


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(surrogates(most=11), costs())
def test_without_slowdown_nothing_is_better(
    all_cuts: AllCuts, surrogate: StepSurrogate, cost: Any
) -> None:
    found = best_cuts(surrogate, read(cost))[0]
    assert abs(step_s(surrogate, found, cost) / least_s(surrogate, cost, all_cuts) - 1) < 1e-12


@settings(max_examples=80, deadline=None)
@given(surrogates(most=10, slowdown=st.floats(1.0, 1.5)), costs())
def test_with_slowdown_nothing_is_better_by_a_percent(
    all_cuts: AllCuts, surrogate: StepSurrogate, cost: Any
) -> None:
    ways = best_cuts(surrogate, read(cost), keep=8)[:4]
    found = improve(
        min(ways, key=lambda c: step_s(surrogate, c, cost)), lambda c: step_s(surrogate, c, cost)
    )
    assert step_s(surrogate, found, cost) <= 1.01 * least_s(surrogate, cost, all_cuts)


@settings(max_examples=60, deadline=None)
@given(surrogates(most=9, slowdown=st.floats(1.1, 2.0), copies=False), costs())
def test_without_copies_slowed_compute_is_exact_too(
    all_cuts: AllCuts, surrogate: StepSurrogate, cost: Any
) -> None:
    """Labels know when compute that all-reduces slow down is done; only copies they take short."""
    found = best_cuts(surrogate, read(cost), keep=512)[0]
    assert abs(step_s(surrogate, found, cost) / least_s(surrogate, cost, all_cuts) - 1) < 1e-12


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(surrogates(most=9), costs(), st.data())
def test_only_what_is_allowed_is_chosen(
    all_cuts: AllCuts, surrogate: StepSurrogate, cost: Any, data: st.DataObject
) -> None:
    n = len(surrogate.gradients)
    flags = data.draw(st.lists(st.booleans(), min_size=n * (n + 1), max_size=n * (n + 1)))
    allowed = np.array(flags).reshape(n, n + 1)

    def fits(cuts: Cuts) -> bool:
        return all(allowed[a, b] for a, b in zip((0, *cuts), cuts, strict=False))

    found = best_cuts(surrogate, read(cost), allowed=allowed)
    fitting = [cuts for cuts in all_cuts(n) if fits(cuts)]
    assert bool(found) == bool(fitting)
    if fitting:
        assert fits(found[0])
        least = min(step_s(surrogate, cuts, cost) for cuts in fitting)
        assert abs(step_s(surrogate, found[0], cost) / least - 1) < 1e-12


def test_a_case_that_can_be_worked_out_by_hand() -> None:
    """Ready at 1, 2, 3 s; 1 s + 0.1 s per byte: apart 1, 2.x ... ends 4.2; last alone is best."""
    gradients = GradientOrder((0, 1, 2), (1, 1, 1), ("fp32",) * 3, reverse_filled=False)
    surrogate = StepSurrogate(gradients, 0.0, (1.0, 2.0, 3.0), 3.0, (0.0,) * 3, 0.0, 1.0)

    def cost(nbytes: int) -> float:
        return 1.0 + 0.1 * nbytes

    # 3 alone: starts at max(3, end before). {1} {2} {3}: 2.1, 3.2, 4.3. {1 2} {3}: 3.2, 4.3.
    # {1} {2 3}: 2.1, 4.2. {1 2 3}: 4.3.
    assert best_cuts(surrogate, read(cost))[0] == (1, 3)
    assert step_s(surrogate, (1, 3), cost) == 4.2


def test_slower_compute_is_worked_out_by_hand() -> None:
    """Twice as slow beside an all-reduce: 1 s of work, all-reduce of 3 s from 1 on, 2 s of work.

    Of these 2 s of work 1.5 are done by 4 s, the rest at 4.5; then the second all-reduce.
    """
    gradients = GradientOrder((0, 1), (3, 1), ("fp32",) * 2, reverse_filled=False)
    surrogate = StepSurrogate(gradients, 0.0, (1.0, 3.0), 3.0, (0.0, 0.0), 0.5, 2.0)
    assert step_s(surrogate, (1, 2), float) == 4.5 + 1.0 + 0.5
    assert step_s(surrogate, (2,), float) == 3.0 + 4.0 + 0.5

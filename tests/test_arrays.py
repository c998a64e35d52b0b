"""Numbering and order of whole numbers, against NumPy's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel import arrays
from perfmodel.arrays import digest, distinct, first_of_each, same_for_all, stable_order
from perfmodel.collectives.timing.path_classes import classify

codes = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 1 << 40)), max_size=30)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 500), max_size=30))
def test_distinct_numbers_ascend(numbers: list[int]) -> None:
    assert distinct(np.array(numbers, dtype=np.int64)).tolist() == sorted(set(numbers))


@settings(max_examples=30, deadline=None)
@given(codes)
def test_first_of_each_code_and_its_place(numbers: list[int]) -> None:
    """Small codes by a table, others by a sort."""
    values = np.array(numbers, dtype=np.int64)
    first, of = first_of_each(values)
    _, expected, places = np.unique(values, return_index=True, return_inverse=True)
    assert (first.tolist(), of.tolist()) == (expected.tolist(), places.tolist())


@pytest.mark.parametrize("bits", [3, 16, 20, 32, 40])
@pytest.mark.parametrize("least", [0, -70_000])
def test_equal_numbers_stay_in_their_order(
    bits: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "SMALL_TABLE", 0)
    numbers = np.random.default_rng(bits).integers(0, 1 << bits, 2000) + least
    expected = np.argsort(numbers, kind="stable")
    np.testing.assert_array_equal(stable_order(numbers), expected)


def test_hashes_with_the_same_last_bits_are_different_classes() -> None:
    hashes = np.array([5, 5 + (1 << 40), 9, 5, 5 + (1 << 40)], dtype=np.uint64)
    classes = classify(hashes)
    np.testing.assert_array_equal(hashes[classes.sample][classes.of], hashes)
    assert len(classes.sample) == 3


def test_digests_tell_values_and_bounds_of_arrays_apart() -> None:
    """One value for all takes the memory of one, and is read as one."""
    numbers = np.arange(6)
    assert digest(numbers) == digest(np.arange(12)[:6]) == digest(np.repeat(numbers, 2)[::2])
    columns = ((numbers,), (numbers[:4], numbers[4:]), (numbers + 0.0,), ())
    same = [(same_for_all(numbers[1], count),) for count in (6, 7)]
    assert len({digest(*each) for each in (*columns, *same)}) == 6

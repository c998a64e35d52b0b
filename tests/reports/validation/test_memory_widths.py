"""Intervals of peak memory: by hand, and as they ship."""

from __future__ import annotations

import math

import pytest

from perfmodel.files import read_yaml
from perfmodel.training.memory_use import interval_bytes
from reports.validation.entries.entry import read_entries
from reports.validation.memory_widths import (
    FILE,
    OWN,
    Peak,
    first_peaks,
    recorded_peaks,
    share_inside,
    spread_of,
)
from reports.validation.widths import needed_widths


def peak(table: str, factor: float) -> Peak:
    """Known states of 8 GB, and 2 GB predicted beside them."""
    return Peak(table, 8e9 + factor * 2e9, 10e9, 8e9)


def test_a_factor_is_of_what_lies_beside_known_states() -> None:
    assert peak("a", 1.5).factor == pytest.approx(1.5)
    assert peak("a", 1.5).error == pytest.approx(10 / 11 - 1)
    assert peak("a", -1.0).factor == 0.0


def test_every_table_weighs_the_same_and_is_left_out_of_its_own_ends() -> None:
    alike = [peak(table, 1.0) for table in "abcd"]
    many = [*alike, *(peak("e", 3.0) for _ in range(9))]
    assert spread_of(many)[1] == pytest.approx(3.0, abs=0.5)
    assert share_inside(alike) == 1.0
    assert share_inside(many) == pytest.approx(4 / 5)


def test_both_widths_add_up_as_squares() -> None:
    spread = read_yaml(FILE)
    low, high = interval_bytes(10e9, 8e9, 10e9, 10e9)
    for end, factor in ((low, spread["low"]), (high, spread["high"])):
        beside = math.log(0.8 + 0.2 * factor)
        assert math.log(end / 10e9) ** 2 == pytest.approx(beside**2 + spread["frameworks"] ** 2)
    assert low < 10e9 < high


def test_states_alone_are_as_sure_as_frameworks_are() -> None:
    low, high = interval_bytes(8e9, 8e9, 8e9, 8e9)
    width = read_yaml(FILE)["frameworks"]
    assert (low, high) == pytest.approx((8e9 * math.exp(-width), 8e9 * math.exp(width)))


def test_first_predictions_need_about_the_width_that_ships() -> None:
    by_table, by_line = needed_widths(first_peaks(read_entries()))
    assert by_line < read_yaml(FILE)["frameworks"] < by_table


@pytest.mark.slow
def test_the_shipped_ends_are_those_of_recorded_peaks() -> None:
    """And seven tenths of the tables' peaks lie inside ends that none of their own made."""
    peaks = list(recorded_peaks())
    spread = read_yaml(FILE)
    assert (spread["low"], spread["high"]) == spread_of(peaks)
    assert share_inside(peaks) >= 0.7
    for table, most in ((OWN, 0.01), ("simumax-b200", 0.01), ("megatron-tests", 0.02)):
        errors = sorted(abs(peak.error) for peak in peaks if peak.table == table)
        assert errors[len(errors) // 2] < most

"""How wide bars have to be for strangers: by hand, and as they ship."""

from __future__ import annotations

import math

import pytest

from perfmodel.files import read_yaml
from perfmodel.library.corrections import BANDS, factors_by_band, familiarity, load_spread
from perfmodel.topology.templates.build import build_topology
from reports.validation.entries.entry import Prediction, read_entries
from reports.validation.widths import FILE, reach, widening


def line(measured: float, table: str = "a", band: str = "buckets") -> Prediction:
    """A prediction of 1 s between 0.5 and 2 s."""
    name = ("collective", "TCP", table, f"{measured}", "time", "s")
    return Prediction(*name, 1.0, 0.5, 2.0, measured, band)


def test_reach_is_counted_from_the_prediction_to_the_end_of_its_side() -> None:
    assert reach(line(2.0)) == pytest.approx(1.0)
    assert reach(line(0.5)) == pytest.approx(1.0)
    assert reach(line(8.0)) == pytest.approx(3.0)
    assert reach(line(0.25)) == pytest.approx(2.0)


def test_eight_tenths_are_held_each_table_weighing_the_same() -> None:
    """Nine lines of a table that needs 3 count as much as one of a table that needs nothing."""
    others = [line(1.0, table, band) for table in "abcd" for band, _ in BANDS]
    few = [*others, *(line(8.0, "e") for _ in range(9))]
    assert widening(few)["buckets"] == pytest.approx(1.0), "four of five tables lie inside"
    many = [*few, *(line(8.0, "f") for _ in range(9))]
    assert widening(many) == {"latency": 1.0, "buckets": pytest.approx(3.0), "bandwidth": 1.0}


def test_the_shipped_powers_are_those_of_the_ledger() -> None:
    shipped = read_yaml(FILE)
    assert {band: shipped[band] for band, _ in BANDS} == widening(
        entry.prediction for entry in read_entries() if entry.origin.version == "0.13.0"
    )


def test_intervals_of_collectives_are_wider_by_these_powers() -> None:
    topology, powers = build_topology("dgx-h100"), read_yaml(FILE)
    spread = load_spread()
    for band, (low, high) in factors_by_band(topology, "all_reduce").items():
        ends = spread.factors[familiarity(spread, topology, "all_reduce")][band]
        assert math.log(low) == pytest.approx(powers[band] * math.log(ends[0]))
        assert math.log(high) == pytest.approx(powers[band] * math.log(ends[1]))
    assert powers["buckets"] > 1.2

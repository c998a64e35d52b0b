"""How wide bars have to be for strangers: by hand, and as they ship."""

from __future__ import annotations

import math

import pytest

from perfmodel.files import read_yaml
from perfmodel.library.corrections import BANDS, factors_by_band, familiarity, load_spread
from perfmodel.topology.templates.build import build_topology
from reports.validation.entries.entry import Prediction, read_entries
from reports.validation.widths import FILE, beyond, margins


def line(
    measured: float, table: str = "a", band: str = "buckets", group: str = "TCP"
) -> Prediction:
    """A prediction of 1 s between 0.5 and 2 s."""
    name = ("collective", group, table, f"{measured}", "time", "s")
    return Prediction(*name, 1.0, 0.5, 2.0, measured, band)


def test_what_lies_beyond_is_counted_from_the_end_of_its_side() -> None:
    assert beyond(line(2.0)) == pytest.approx(0.0)
    assert beyond(line(8.0)) == pytest.approx(math.log(4))
    assert beyond(line(0.25)) == pytest.approx(math.log(2))
    assert beyond(line(1.0)) < 0


def test_eight_tenths_are_held_each_table_weighing_the_same() -> None:
    """Nine lines of a table that needs 4 count as much as one of a table that needs nothing."""
    others = [
        line(1.0, table, band, group)
        for table in "abcd"
        for band, _ in BANDS
        for group in ("TCP", "NVLink")
    ]
    few = [*others, *(line(8.0, "e") for _ in range(9))]
    assert margins(few)["software"]["buckets"] == 1.0, "four of five tables lie inside"
    many = [*few, *(line(8.0, "f") for _ in range(9))]
    ones = {"latency": 1.0, "buckets": 1.0, "bandwidth": 1.0}
    assert margins(many) == {"hardware": ones, "software": ones | {"buckets": pytest.approx(4.0)}}


def test_the_shipped_margins_are_those_of_the_ledger() -> None:
    shipped = read_yaml(FILE)
    assert {name: shipped[name] for name in ("hardware", "software")} == margins(
        entry.prediction for entry in read_entries() if entry.origin.version == "0.13.0"
    )


@pytest.mark.parametrize(("template", "of"), [("dgx-h100", "hardware"), ("aws-p5", "software")])
def test_intervals_of_collectives_are_wider_by_these_margins(template: str, of: str) -> None:
    topology = build_topology(template, hosts=2, fabric="rail-optimised")
    spread, shipped = load_spread(), read_yaml(FILE)[of]
    for band, (low, high) in factors_by_band(topology, "all_reduce").items():
        ends = spread.factors[familiarity(spread, topology, "all_reduce")][band]
        assert low == pytest.approx(ends[0] / shipped[band])
        assert high == pytest.approx(ends[1] * shipped[band])


def test_what_software_moves_has_wider_margins() -> None:
    """Of 13 strangers those over EFA, TCP, TCPX and Omni-Path lay farthest off (the ledger)."""
    shipped = read_yaml(FILE)
    assert all(shipped["software"][band] > shipped["hardware"][band] >= 1 for band, _ in BANDS)

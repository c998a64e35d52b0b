"""How wide bars have to be for strangers: by hand, and as they ship."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from perfmodel.files import read_yaml
from perfmodel.library.corrections import BANDS, factors_by_band, familiarity, load_spread
from perfmodel.topology.templates.build import build_topology
from perfmodel.workload import compute_spread
from reports.validation.entries.entry import Entry, Origin, Prediction, read_entries
from reports.validation.entries.sweeps import QUANTITIES
from reports.validation.widths import (
    FILE,
    POWERS,
    beyond,
    margins,
    needed_widths,
    predicted_again,
    whole_steps,
    width_beside,
)


def line(
    measured: float,
    table: str = "a",
    band: str = "buckets",
    group: str = "TCP",
    quantity: str = "time",
) -> Prediction:
    """A prediction of 1 s between 0.5 and 2 s."""
    name = ("collective", group, table, f"{measured}", quantity, "s")
    return Prediction(*name, 1.0, 0.5, 2.0, measured, band)


def test_what_lies_beyond_is_counted_from_the_end_of_its_side() -> None:
    assert beyond(line(2.0)) == pytest.approx(0.0)
    assert beyond(line(8.0)) == pytest.approx(math.log(4))
    assert beyond(line(0.25)) == pytest.approx(math.log(2))
    assert beyond(line(1.0)) < 0


def test_ends_that_were_widened_by_a_power_are_taken_back() -> None:
    """0.5 to 2 s by a power of 2 were 0.71 to 1.41 s before."""
    assert beyond(line(2.0), 2.0) == pytest.approx(math.log(2) / 2)


ONES = {band: 1.0 for band, _ in BANDS}
QUIET = [
    line(1.0, table, band, group, quantity)
    for table in "abcd"
    for band, _ in BANDS
    for group in ("TCP", "EFA", "RoCE", "NVLink")
    for quantity in QUANTITIES.values()
]
"""Lines that lie inside, in four tables of every class."""


def found(lines: list[Prediction], version: str = "0.13.0") -> Mapping[str, Mapping[str, float]]:
    return margins([Entry(Origin(version, "", ""), each) for each in lines])


def test_eight_tenths_are_held_each_table_weighing_the_same() -> None:
    """Nine lines of a table that needs 4 count as much as one of a table that needs nothing."""
    few = [*QUIET, *(line(8.0, "e") for _ in range(9))]
    assert found(few)["software"]["buckets"] == 1.0, "four of five tables lie inside"
    many = [*few, *(line(8.0, "f") for _ in range(9))]
    expected = dict.fromkeys(("hardware", "roce", "efa", "software", "profile"), ONES)
    assert found(many) == expected | {"software": ONES | {"buckets": pytest.approx(4.0)}}


def test_profiles_have_margins_of_their_own() -> None:
    profiled = [line(8.0, table, quantity="time with a profile") for table in "ef"]
    assert found([*QUIET, *profiled])["profile"] == ONES | {"buckets": pytest.approx(4.0)}
    assert found([*QUIET, *profiled])["software"] == ONES


def test_what_was_predicted_by_another_mechanism_does_not_count() -> None:
    many = [*QUIET, *(line(8.0, table, group="PCIe") for table in "ef")]
    assert found(many)["hardware"] == ONES
    assert margins([Entry(Origin("0.13.0", "", ""), each) for each in QUIET], many[-2:])[
        "hardware"
    ] == ONES | {"buckets": pytest.approx(4.0)}


def test_the_shipped_margins_are_those_of_the_ledger() -> None:
    entries, shipped = read_entries(), read_yaml(FILE)
    known = [entry for entry in entries if entry.origin.version in POWERS]
    assert {name: shipped[name] for name in shipped if name != "source"} == margins(
        known, predicted_again(known)
    )


@pytest.mark.parametrize(
    ("template", "of"),
    [
        ("dgx-h100", "hardware"),
        ("gcp-a3-ultra", "roce"),
        ("aws-p5", "efa"),
        ("gcp-a3-high", "software"),
    ],
)
def test_intervals_of_collectives_are_wider_by_these_margins(template: str, of: str) -> None:
    topology = build_topology(template, hosts=2, fabric="rail-optimised")
    spread, shipped = load_spread(), read_yaml(FILE)[of]
    for band, (low, high) in factors_by_band(topology, "all_reduce").items():
        ends = spread.factors[familiarity(spread, topology, "all_reduce")][band]
        assert low == pytest.approx(ends[0] / shipped[band])
        assert high == pytest.approx(ends[1] * shipped[band])


def test_what_software_moves_has_wider_margins() -> None:
    """Strangers' buckets over TCP, TCPX and Omni-Path lie farthest off (the ledger)."""
    shipped = read_yaml(FILE)
    assert all(shipped["software"][band] >= shipped["hardware"][band] >= 1 for band, _ in BANDS)
    assert shipped["software"]["buckets"] > shipped["hardware"]["buckets"]


def test_the_shipped_width_of_whole_steps_holds_eight_tenths_of_strangers() -> None:
    """Between what tables ask for that weigh the same, and lines that do."""
    lines = whole_steps(read_entries())
    assert len(lines) > 200
    by_table, by_line = needed_widths(lines)
    width = read_yaml(Path(compute_spread.__file__).parent / "compute_spread.yaml")["frameworks"]
    assert by_table <= width["whole"] <= by_line
    held = sum(width_beside(each) <= width["whole"] for each in lines) / len(lines)
    assert 0.75 <= held <= 0.85


def test_steps_of_accelerators_and_split_models_ask_for_no_width_of_whole_ones() -> None:
    tables = {each.table for each in whole_steps(read_entries())}
    assert "llmc-a100" in tables
    assert not {"maxtext-v4", "intel-gaudi2", "aws-b300"} & tables

"""A profile that no fit has made is refused by its field, before any number of it is used."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.calibrate import Profile, read_profile
from perfmodel.calibrate.profile import LARGEST_LOGARITHM
from perfmodel.errors import InputError
from perfmodel.files import validate_document

POINT = {
    "run": 0,
    "op": "all_reduce",
    "ranks": 4,
    "hosts": 1,
    "nbytes": 1024,
    "algorithm": "ring",
    "protocol": "ring",
    "measured_s": 1e-3,
    "fitted_s": 1.1e-3,
    "own": 0.1,
    "share": 1.0,
}
DOCUMENT: dict[str, Any] = {
    "perfmodel": 2,
    "kind": "profile",
    "name": "mine",
    "topology": "cpu-loopback",
    "library": "gloo",
    "date": "2026-01-02",
    "source": [],
    "fits": [
        {
            "rows": "library",
            "method": "by hand",
            "covariance": [[0.01]],
            "points": [POINT],
            "slopes": [[-1.0]],
            "files": ["a.json"],
            "odd": [1.0],
            "settings": [{}],
            "values": [
                {
                    "parameter": "bandwidth",
                    "where": "memory",
                    "value": "3 GB/s",
                    "interval": ["2 GB/s", "4 GB/s"],
                }
            ],
        }
    ],
}


def refusal(**changes: Any) -> str:
    document = copy.deepcopy(DOCUMENT)
    document["fits"][0] |= changes
    with pytest.raises(InputError) as refused:
        validate_document(Profile, document, "p.yaml")
    (fault,) = refused.value.faults
    assert fault.field.startswith("fits.0")
    return str(fault)


def test_a_profile_as_a_fit_makes_it_is_read() -> None:
    assert validate_document(Profile, DOCUMENT).fits[0].runs == 1


@given(st.floats(min_value=LARGEST_LOGARITHM, max_value=1e20, exclude_min=True), st.booleans())
def test_slopes_beyond_any_machine(slope: float, negative: bool) -> None:
    assert "slopes from -100 to 100" in refusal(slopes=[[-slope if negative else slope]])
    assert "a covariance of at most 10000" in refusal(covariance=[[slope * LARGEST_LOGARITHM]])


@given(st.integers(1, 10**6))
def test_points_of_runs_that_are_not_there(run: int) -> None:
    point = POINT | {"run": run}
    assert f"points name runs 0 to {run}" in refusal(points=[point])
    for name in ("files", "odd", "settings"):
        kept: dict[str, Any] = {each: [] for each in ("files", "odd", "settings")}
        message = refusal(points=[point], **kept | {name: DOCUMENT["fits"][0][name]})
        assert "settings, as files" in message or f"{run + 1} {name}" in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slopes": []}, "1 rows of slopes, as points, of 1, as values"),
        ({"slopes": [[1.0, 2.0]]}, "1 rows of slopes, as points, of 1, as values"),
        ({"covariance": []}, "covariance with 1 rows and columns, as values"),
        ({"covariance": [[1.0, 0.0]]}, "covariance with 1 rows and columns, as values"),
        ({"files": ["a.json"], "settings": [{}, {}]}, "1 settings, as files"),
        ({"points": [POINT | {"measured_s": 0.0}]}, "greater than or equal to 0.000000000001"),
        ({"points": [POINT | {"fitted_s": 1e12}]}, "less than or equal to 1000000000"),
        ({"points": [POINT | {"own": 101.0}]}, "less than or equal to 100"),
        ({"points": [POINT | {"run": -1}]}, "greater than or equal to 0"),
    ],
)
def test_parts_that_do_not_fit_together(changes: dict[str, Any], words: str) -> None:
    assert words in refusal(**changes)


@pytest.mark.parametrize(
    ("value", "interval", "words"),
    [
        ("x 1e10", ["x 1e9", "x 1e11"], "a factor from 1e-09 to 1e+09"),
        ("x 1e-10", ["x 1e-11", "x 1e-9"], "a factor from 1e-09 to 1e+09"),
        ("x nan", ["x 1", "x 2"], "more than zero"),
        ("5 GB/s", ["2 GB/s", "4 GB/s"], "an interval around '5 GB/s', from low to high"),
        ("0 GB/s", ["0 GB/s", "4 GB/s"], "more than zero"),
    ],
)
def test_values_that_no_fit_has_found(value: str, interval: list[str], words: str) -> None:
    number = DOCUMENT["fits"][0]["values"][0] | {"value": value, "interval": interval}
    assert words in refusal(values=[number])


def test_a_file_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("perfmodel: 2\nkind: profile\nfits: []\n")
    with pytest.raises(InputError) as refused:
        read_profile(path)
    assert {fault.file for fault in refused.value.faults} == {str(path)}
    assert "fits" in {fault.field for fault in refused.value.faults}

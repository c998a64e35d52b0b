"""``result.xlsx``: what a program for spreadsheets reads back of an answer."""

from __future__ import annotations

import io
import json
from importlib.util import find_spec
from pathlib import Path

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.report.common.spreadsheet import spreadsheet

DOCUMENT = {
    "workload": "=1+1",
    "currency": "USD",
    "samples_per_s": 12.5,
    "interval_s": [1.0, 2.0],
    "fits": True,
    "unknown": None,
    "options": [
        {"name": "a", "cost": {"total": 10, "energy_kWh": 3.5}, "waits": [{"at_s": 1}]},
        {"name": "b", "cost": None, "links": ["x", "y"], "pairs": [[1, 2], [3, 4]]},
    ],
    "assumptions": ["All is well.", "x" * 40_000],
    "sources": {"power": "https://example.org"},
    "provenance": {"seed": "0"},
}


def sheets(content: bytes) -> dict[str, list[tuple[object, ...]]]:
    book = openpyxl.load_workbook(io.BytesIO(content))
    return {sheet.title: list(sheet.iter_rows(values_only=True)) for sheet in book}


def test_numbers_are_numbers_and_heads_have_units() -> None:
    content = spreadsheet(DOCUMENT)
    assert content is not None
    assert content == spreadsheet(DOCUMENT), "the same answer is the same file"
    found = sheets(content)
    assert list(found) == ["answers", "options", "assumptions", "sources"]
    assert found["answers"] == [
        ("what", "unit", "value"),
        ("workload", None, "=1+1"),
        ("currency", None, "USD"),
        ("samples", "1/s", 12.5),
        ("interval low", "s", 1),
        ("interval high", "s", 2),
        ("fits", None, True),
    ]
    assert found["options"] == [
        ("name", "cost total [USD]", "cost energy [kWh]", "cost [USD]", "links", "pairs"),
        ("a", 10, 3.5, None, None, None),
        ("b", None, None, None, "x; y", "[1, 2]; [3, 4]"),
    ]
    assert found["assumptions"][1] == ("assumptions", "All is well.")
    assert found["sources"][1:] == [("seed", "0"), ("power", "https://example.org")]
    cells = openpyxl.load_workbook(io.BytesIO(content))["answers"]
    assert cells["C2"].data_type == "s", "text is no formula"


LEAVES = st.none() | st.booleans() | st.integers(-10, 10) | st.floats(-1, 1) | st.text(max_size=5)
KEYS = st.sampled_from(["a", "b_s", "cost", "interval_s", "rows"])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
)


@given(st.dictionaries(KEYS, VALUES))
def test_any_document_is_written(document: dict[str, object]) -> None:
    content = spreadsheet(document)
    assert content is not None
    assert {"answers", "assumptions", "sources"} <= set(sheets(content))


@pytest.mark.slow
def test_a_report_has_one_unless_its_package_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "resnet50-dgx-a100", "--set", "cluster.nodes=1", "--set", "scale.gpus=[1, 8]"]
    done = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "with")])
    assert done.exit_code == 0, done.output
    found = sheets((tmp_path / "with" / "result.xlsx").read_bytes())
    result = json.loads((tmp_path / "with" / "result.json").read_text())
    assert {"answers", "curve", "assumptions", "sources"} <= set(found)
    heads, *sizes = found["curve"]
    at = heads.index("step time [s]")
    steps_s = [size["step_time_s"] for size in result["curve"]]
    assert [row[at] for row in sizes] == pytest.approx(steps_s, rel=1e-12)  # 16 digits
    assert {row[0]: row[2] for row in found["answers"]}["memory"] == result["memory_bytes"]
    rests_on, named = result["evidence"]["nearest"], (result["sources"], result["provenance"])
    assert len(found["sources"]) == 1 + len(rests_on) + sum(map(len, named))
    assert {row[1] for row in found["sources"]} >= {each["source"] for each in rests_on}

    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "xlsxwriter" else find_spec(name)
    )
    done = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "without")])
    assert done.exit_code == 0, done.output
    assert "pip install 'perfmodel[xlsx]'" in done.stderr
    assert not (tmp_path / "without" / "result.xlsx").exists()
    assert (tmp_path / "without" / "report.html").exists()

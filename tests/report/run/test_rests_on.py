"""What an answer rests on stands in its text, JSON, page and spreadsheet, and says the same."""

from __future__ import annotations

import io

import openpyxl
import pytest

import perfmodel as pm
from perfmodel.report.common.spreadsheet import spreadsheet
from perfmodel.report.run.page import write_report
from perfmodel.scenario.load import make_scenario
from perfmodel.studies.run.evidence import Evidence, Near
from perfmodel.studies.sweep.store import answer

FIELDS = {
    "model": {"name": "resnet50"},
    "compute": {"precision": "tf32", "optimizer": "sgd-momentum"},
    "cluster": {"node": "dgx-a100"},
    "training": {"batch_per_gpu": 256},
}


@pytest.fixture(scope="module")
def result():
    return pm.run(FIELDS)


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_the_text_has_one_line(result) -> None:
    near = result.main.evidence.nearest[0]
    (line,) = (each for each in plain(result.to_text()).splitlines() if "Rests on" in each)
    assert line.startswith("Rests on: measured near here (")
    assert near.record in line
    assert f"off by {100 * abs(near.error):.0f} %" in line
    assert line.endswith(near.source)


def test_json_and_spreadsheet_have_the_records(result) -> None:
    document = result.to_json()
    said = document["evidence"]
    assert said["grade"] == "measured near here"
    assert 1 <= len(said["nearest"]) <= 3
    assert set(said["nearest"][0]) == {"record", "error", "rows", "apart", "source"}
    assert said["uncovered"] == said["stated"] == []
    book = openpyxl.load_workbook(io.BytesIO(spreadsheet(document)))
    rows = {tuple(row) for row in book["sources"].iter_rows(values_only=True)}
    for near in said["nearest"]:
        assert (f"record: {near['record']}", near["source"]) in rows
    assert ("evidence grade", None, "measured near here") in {
        tuple(row) for row in book["answers"].iter_rows(values_only=True)
    }


def test_the_page_says_it_beside_the_interval(result, tmp_path) -> None:
    page = plain(write_report(result, tmp_path / "out").read_text("utf-8"))
    header = page[page.index("80 % interval") :][:2000]
    assert "Rests on: measured near here" in header
    assert result.main.evidence.nearest[0].source in page


def test_sides_of_a_comparison_and_answers_of_sweeps_have_it(result) -> None:
    compared = pm.compare(
        FIELDS, {**FIELDS, "cluster": {"node": "8 x mi355x"}, "compute": {"precision": "bf16"}}
    )
    grades = [side["evidence"]["grade"] for side in compared.to_json()["sides"]]
    assert grades == ["measured near here", "data sheet only"]
    (row,) = (
        each for each in plain(compared.to_text()).splitlines() if each.startswith("rests on")
    )
    assert grades[0] in row
    assert grades[1] in row
    assert answer(make_scenario(FIELDS)).rests_on == result.main.evidence.summary


def test_summaries_say_what_is_apart_and_beyond() -> None:
    near = Near("gpt on 8 a, NVLink, ddp", -0.071, 2, ("network", "gpus"), "a page")
    assert Evidence("between records", (near,)).summary == (
        "between records (nearest: gpt on 8 a, NVLink, ddp: off by 7 %; differs in network, "
        "number of GPUs)"
    )
    beyond = Evidence("beyond anything recorded", (near,), ("gpus",), ("network",))
    assert beyond.summary == (
        "beyond anything recorded: number of GPUs (nearest: gpt on 8 a, NVLink, ddp: "
        "off by 7 %; differs in network, number of GPUs); network by your own measurement"
    )

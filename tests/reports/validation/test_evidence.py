"""The records that ship are those of the reports, and grades say how far off they are."""

from __future__ import annotations

import csv
import json
from itertools import pairwise

import pytest

from perfmodel.studies.run.evidence import FILE, load_records
from reports.validation.entries.entry import read_entries
from reports.validation.evidence import VALIDATION, evidence_csv, grade_scores


@pytest.fixture(scope="module")
def document():
    return json.loads(VALIDATION.read_text("utf-8"))


@pytest.mark.slow
def test_the_file_is_what_the_reports_say(document) -> None:
    said = "python -m reports.validation.evidence remakes it"
    assert FILE.read_text("utf-8") == evidence_csv(document, read_entries()), said


def test_every_compared_step_is_in_a_record(document) -> None:
    """Counted in the report itself: rows with a predicted and a measured step."""
    trainings = [r for r in document["trainings"]["rows"] if r["predicted_samples_per_s"]]
    strategies = [
        row
        for row in document["strategies"]["rows"]
        if row["step_s"] and row["predicted_s"] and not row["undecided"]
    ]
    in_view = [each for each in load_records() if each.setting.samples and not each.first]
    assert sum(each.rows for each in in_view) == len(trainings) + len(strategies)


def test_an_error_is_that_of_the_report(document) -> None:
    row = next(r for r in document["strategies"]["rows"] if r["gpu"] == "gh200-96gb")
    record = next(
        each
        for each in load_records()
        if (each.table, each.model, each.first) == (row["table"], row["model"], "")
    )
    assert record.error == pytest.approx(row["predicted_s"] / row["step_s"] - 1, abs=1e-4)
    assert record.inside == (
        row["intervals"]["step"][0] <= row["step_s"] <= row["intervals"]["step"][1]
    )
    assert record.source == row["source"]


def test_first_predictions_are_those_of_the_ledger() -> None:
    """Of 0.15.0, whose rows are all here; Megatron-Bridge's of 0.13.0 are not."""
    lines = [each for each in read_entries() if each.prediction.kind == "step"]
    of_version = [each for each in lines if each.origin.version == "0.15.0"]
    records = [each for each in load_records() if each.first == "0.15.0"]
    assert sum(each.rows for each in records) == len(of_version) == 111


def test_what_is_graded_worse_was_farther_off() -> None:
    """As far as there are records: near ones, and those between."""
    for first in (False, True):
        scores = grade_scores(load_records(), first=first)
        near, between = scores["measured near here"], scores["between records"]
        assert near.records > 50
        assert between.records > 50
        assert between.median > 1.2 * near.median
        assert between.p90 > 1.2 * near.p90
        assert between.width > 1.2 * near.width, "intervals follow without the grade"
        assert abs(between.inside - near.inside) < 0.08, "so they hold about as many"


def test_cells_are_safe_and_whole() -> None:
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert all(a != b for a, b in pairwise(rows))

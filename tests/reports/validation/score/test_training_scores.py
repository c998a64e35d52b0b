"""Scores of published trainings on made-up runs whose right answers are known by hand."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from reports.validation.pages.training_tables import (
    by_table_table,
    coverage_table,
    fitted_note,
    group_table,
    scored,
    training_headline,
)
from reports.validation.run import Validation, to_json
from reports.validation.score.training_scores import (
    by_group,
    by_table,
    entries_of,
    row_json,
    score_runs,
    trainings_json,
)
from reports.validation.trainings.model import Dataset, TrainingRun


def run(error: float, **fields: object) -> TrainingRun:
    """A run of 8 GPUs that scales perfectly, and whose efficiency is predicted with an error."""
    usual = {
        "model": "m",
        "gpu": "g",
        "nodes": 1,
        "gpus": 8,
        "batch": 4,
        "precision": "fp32",
        "network": "NVLink",
        "published": 800.0,
        "predicted": 800.0 * (1 + error),
        "base_gpus": 1,
        "base": (100.0, 100.0),
        "scaled": 800.0 * (1 + error / 2),
    }
    return TrainingRun(**(usual | fields))  # type: ignore[arg-type]


def single(error: float, **fields: object) -> TrainingRun:
    alone = {"gpus": 1, "network": "one GPU", "base_gpus": None, "base": None, "scaled": None}
    return run(error, **(alone | fields))


def dataset(name: str, *runs: TrainingRun) -> Dataset:
    return Dataset(name, name, [r.case for r in runs if not r.unlike], {}, runs)


TABLES = (
    dataset("large", *[run(0.1, network="TCP", nodes=2) for _ in range(9)], single(-0.2)),
    dataset("small", run(-0.5, precision="fp16"), run(0.3, unlike="another head")),
)
"""Nine runs 10 % too optimistic over TCP, and in another table one 50 % too low over NVLink."""


def test_every_table_weighs_the_same() -> None:
    """Nine errors of 10 % and one of 50 %: of half of the weight each, not of nine tenths."""
    whole = score_runs(entries_of(TABLES), "efficiency")
    assert whole is not None
    assert (whole.tables, whole.runs) == (2, 10)
    assert whole.median_abs_error == pytest.approx((0.1 + 0.5) / 2)  # half of the weight each
    assert whole.p90_abs_error == pytest.approx(0.5)
    assert whole.bias == pytest.approx((0.1 - 0.5) / 2)
    three = (*TABLES, dataset("third", run(0.2)))
    assert score_runs(entries_of(three), "efficiency").bias == pytest.approx(0.1)  # type: ignore[union-attr]


def test_each_measure_by_network_and_precision() -> None:
    groups = by_group(entries_of(TABLES))
    assert groups["one_gpu"]["all"]["all"].bias == pytest.approx(-0.2)
    assert set(groups["efficiency"]["network"]) == {"TCP", "NVLink", "several nodes"}
    assert groups["efficiency"]["network"]["several nodes"].runs == 9
    assert set(groups["many_gpus"]["precision"]) == {"fp32", "fp16"}
    assert groups["scaled"]["network"]["TCP"].median_abs_error == pytest.approx(0.05)
    assert "network" not in groups["one_gpu"]


def test_what_is_unlike_counts_with_compute_scaled_alone() -> None:
    small = by_table(TABLES)["small"]
    assert small["scaled"]["all"].runs == 2
    assert small["efficiency"]["all"].runs == small["many_gpus"]["all"].runs == 1
    row = row_json("small", TABLES[1].runs[1])
    assert row["predicted_samples_per_s"] is None
    assert row["predicted_efficiency"] is None
    assert row["efficiency"] == pytest.approx(1.0)
    assert row["scaled_samples_per_s"] == pytest.approx(920.0)


def test_nothing_to_score() -> None:
    assert score_runs([], "efficiency") is None
    assert by_group([]) == {}
    assert trainings_json([]) == {"measures": {}, "tables": {}, "rows": []}


def test_json_has_a_row_for_every_run() -> None:
    validation = Validation("x", (), {}, TABLES)
    answer = to_json(validation)["trainings"]
    assert [row["table"] for row in answer["rows"]] == ["large"] * 10 + ["small"] * 2
    assert answer["rows"][0]["network"] == "TCP"
    assert answer["rows"][9]["network"] is None
    assert answer["measures"]["efficiency"]["all"]["all"]["tables"] == 2
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer


def cells(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{MINUS SIGN}", "-")


def test_tables_of_the_report() -> None:
    validation = Validation("x", (), {}, TABLES)
    groups = {row[0]: [cells(cell) for cell in row[1:]] for row in group_table(validation).rows}
    assert groups["TCP"] == [
        "1",
        "9",
        "-",
        "10 % / 10 %, +10 %",
        "10 % / 10 %, +10 %",
        "5.0 % / 5.0 %, +5.0 %",
    ]
    assert groups["all"][:3] == ["2", "12", "20 % / 20 %, -20 %"]
    tables = {row[0]: row for row in by_table_table(validation).rows}
    assert set(tables) == {"large", "large, between nodes", "small"}
    assert scored(None) == "-"
    assert group_table(Validation("x", (), {})).rows == []


def test_the_sentence_names_networks_and_one_gpu() -> None:
    text = cells(training_headline(Validation("x", (), {}, TABLES)))
    assert "(2 tables) is off by 30 % in the median and 50 % at the 90th percentile" in text
    assert "NVLink 50 %, 50 %; TCP 10 %, 10 %" in text
    single_gpu = "throughput of one GPU (1 table that nothing was fitted to) by 20 % and 20 %"
    assert text.endswith(single_gpu)
    fitted = dataclasses.replace(TABLES[0], fitted=True)
    assert "of one GPU" not in training_headline(Validation("x", (), {}, (fitted, TABLES[1])))
    assert "in large." in fitted_note(Validation("x", (), {}, (fitted, TABLES[1])))
    assert fitted_note(Validation("x", (), {}, TABLES)) == ""
    assert training_headline(Validation("x", (), {})) == ""


def test_how_many_lie_inside_and_how_wide_intervals_are() -> None:
    """Of one table half are inside, of the other none; a run without an interval does not count."""
    inside = {"efficiency": (0.9, 1.1)}  # published: 1
    outside = {"efficiency": (1.05, 1.3)}
    tables = (
        dataset("a", run(0.0, intervals=inside), run(0.1, intervals=outside), run(0.2)),
        dataset("b", run(0.1, intervals={"efficiency": (0.5, 0.9)})),
    )
    score = score_runs(entries_of(tables), "efficiency")
    assert score is not None
    # weights of a third each in the first table, one in the second
    assert score.inside == pytest.approx((1 / 3) / (2 / 3 + 1))
    assert score.width == pytest.approx(math.log(0.9 / 0.5))
    alone = score_runs(entries_of(TABLES), "efficiency")
    assert alone is not None
    assert alone.inside is alone.width is None
    rows = coverage_table(Validation("x", (), {}, tables)).rows
    assert [cells(cell) for cell in rows[0]] == ["all", "-", "-", "20 %, 80 % wide", "-"]
    assert coverage_table(Validation("x", (), {}, TABLES)).rows == []

"""The documents of a plan: JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from perfmodel.errors import InputError
from perfmodel.studies.plan.export import CSV_COLUMNS, plan_csv, to_json


def test_json_and_csv_say_the_same(planned):
    _, plan = planned
    document = json.loads(json.dumps(to_json(plan), allow_nan=False))
    rows = list(csv.DictReader(io.StringIO(plan_csv(plan))))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert len(rows) == len(document["options"]) == 6
    for row, option in zip(rows, document["options"], strict=True):
        assert row["candidate"] == option["candidate"]
        if option["status"] == "ok":
            assert float(row["wall_s"]) == option["training"]["wall_s"]
            assert float(row["cost"]) == option["cost"]["total"]
            kept = option["training"]
            assert 0 < kept["young_s"] - kept["daly_s"] < kept["checkpoint_write_s"]
            assert float(row["cost_high"]) == option["cost"]["interval"][1]
            assert float(row["simulated_mean_s"]) == option["training"]["simulated"]["mean_s"]
        else:
            assert row["cost"] == ""
    assert document["answers"]["cheapest"]["candidate"] in {"rented", "bought"}
    assert sum(option["pareto"] for option in document["options"]) == len(plan.answers.pareto)


def test_numbers_that_are_not_finite_are_refused(planned):
    _, plan = planned
    with pytest.raises(InputError, match="deadline_s"):
        to_json(replace(plan, deadline_s=float("inf")))

"""The documents of a plan: JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import pickle
from dataclasses import replace

import pytest

from perfmodel.errors import InputError
from perfmodel.studies.plan.export import CSV_COLUMNS, plan_csv, probability_in_time, to_json


@pytest.mark.slow
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


def test_the_probability_of_a_deadline_is_that_of_the_interval(planned):
    """Nine of ten trainings end before the high end of an 80 % interval, one before the low one."""
    _, plan = planned
    option = next(each for each in plan.options if each.training is not None)
    training = replace(option.training, wall_s=100.0, wall_interval_s=(80.0, 150.0))
    known = replace(option, training=training)
    odds = [probability_in_time(known, at) for at in (80.0, 100.0, 150.0)]
    assert odds == pytest.approx([0.1, 0.5, 0.9])
    assert probability_in_time(known, 90.0) < probability_in_time(known, 95.0)
    sure = replace(option, training=replace(training, wall_interval_s=(100.0, 100.0)))
    assert [probability_in_time(sure, at) for at in (99.0, 100.0, 101.0)] == [0.0, 1.0, 1.0]
    assert probability_in_time(known, None) is None
    unknown = replace(option, training=replace(training, wall_interval_s=None))
    assert probability_in_time(unknown, 90.0) is None


def test_a_plan_is_the_same_after_pickling(planned):
    _, plan = planned
    assert to_json(pickle.loads(pickle.dumps(plan))) == to_json(plan)

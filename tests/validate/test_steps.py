"""Recorded steps of a user's own scenarios beside predictions: ``steps.csv``."""

import json

import pytest
from typer.testing import CliRunner

from perfmodel.api.functions import run as predict
from perfmodel.cli.app import app
from perfmodel.errors import Fault, InputError
from perfmodel.report.validation import write_validation
from perfmodel.validate.run import read_steps, to_json, validate

ROWS = """id,scenario,cluster.nodes,strategy.bucket_cap,step_s,peak_GB,source
two,resnet50-dgx-a100,2,,0.1,20,me
,resnet50-dgx-a100,4,50 MiB,0.2,,
"""


def folder(root, rows=ROWS):
    (root / "steps.csv").write_text(rows)
    return root


@pytest.mark.slow
def test_steps_and_peaks_are_those_of_the_scenario_with_the_fields_of_the_row(tmp_path):
    found = to_json(validate(folder(tmp_path)))
    two = predict("resnet50-dgx-a100", scale=None, cluster__nodes=2).main
    changed = {"cluster.nodes": 4, "strategy.bucket_cap": "50 MiB"}
    four = predict("resnet50-dgx-a100", changed, scale=None).main
    named = [(step["id"], step["quantity"], step["predicted"]) for step in found["steps"]]
    assert named == [
        ("two", "step_s", two.step_time_s),
        ("two", "peak_GB", two.memory.total_bytes / 1e9),
        ("row 2", "step_s", four.step_time_s),
    ]
    assert found["steps"][0]["interval"] == list(two.interval_s)
    assert found["steps"][0]["error"] == pytest.approx(two.step_time_s / 0.1 - 1)
    errors = sorted(abs(step["error"]) for step in found["steps"] if step["quantity"] == "step_s")
    assert found["median_abs_error"] == pytest.approx(sum(errors) / 2)
    assert found["data"].endswith(", 2 steps")


def test_a_scenario_beside_the_table_comes_first(tmp_path):
    content = "# How long?\nperfmodel: 1\nmodel: {name: resnet50}\ncompute: {precision: bf16}\n"
    content += "cluster: {node: dgx-a100, nodes: 1}\ntraining: {batch_per_gpu: 64}\n"
    (tmp_path / "own.yaml").write_text(content)
    folder(tmp_path, "scenario,step_s\nown.yaml,0.1\n")
    (step,) = read_steps(tmp_path / "steps.csv")
    assert step.scenario.training.batch_per_gpu == 64


def test_every_fault_comes_with_its_row(tmp_path):
    rows = "scenario,cluster.nodes,step_s\nresnet50-dgx-a100,x,0.1\nresnet51,2,\n"
    done = CliRunner().invoke(app, ["validate", "--data", str(folder(tmp_path, rows))])
    assert done.exit_code == 2
    assert "steps.csv:2: cluster.nodes: found 'x'" in done.output
    assert "steps.csv:3: step_s or peak_GB: found nothing" in done.output
    assert "steps.csv:3: scenario: found 'resnet51'" in done.output


def test_a_wrong_number_is_told_once(tmp_path):
    rows = "scenario,step_s\nresnet50-dgx-a100,0\n"
    done = CliRunner().invoke(app, ["validate", "--data", str(folder(tmp_path, rows))])
    assert done.exit_code == 2
    assert "steps.csv:2: step_s: found '0'" in done.output
    assert "found nothing" not in done.output


def test_each_step_stands_beside_its_interval(tmp_path):
    found = validate(folder(tmp_path, "scenario,step_s\nresnet50-dgx-a100,0.2\n"))
    assert found.data.endswith(", 1 step")
    (step,) = found.steps
    write_validation(found, tmp_path / "out")
    page = (tmp_path / "out" / "validation.md").read_text()
    assert f"{step.interval[0]:.4g} \N{EN DASH} {step.interval[1]:.4g}" in page
    assert "\N{MINUS SIGN}4" in page  # about half as long as 0.2 s
    assert "not counted" not in page


def test_what_cannot_be_predicted_is_named(tmp_path, monkeypatch):
    def refuse(*_arguments, **_named):
        raise InputError(Fault("model", "none", "one"))

    monkeypatch.setattr("perfmodel.validate.run.run_scenario", refuse)
    found = validate(folder(tmp_path))
    assert not found.steps
    assert set(found.unmatched) == {"two", "row 2"}
    write_validation(found, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "validation.json").read_text()) == to_json(found)
    assert "not predicted: two: model" in (tmp_path / "out" / "validation.md").read_text()

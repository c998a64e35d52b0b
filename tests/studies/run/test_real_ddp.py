"""Real steps of DDP over Gloo by the user's own path: a scenario says what the validation does.

The validation (`reports.validation.trainings.testbed`) predicts rows of recorded runs; here the
same rows are written as a scenario with files of parameters, times and a host, as a user would.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from perfmodel.files import read_yaml
from perfmodel.files.csv_rows import read_table
from perfmodel.scenario import load_scenario
from perfmodel.studies.run.run import run_scenario
from perfmodel.studies.run.steps.sized_job import prepare
from perfmodel.topology.templates.build import build_topology
from reports.validation.run import records_folder
from reports.validation.trainings.shaped_links import measured_links, shaped_of
from reports.validation.trainings.testbed import models_of, predicted_s

FOLDER = records_folder() / "testbed"
ROWS = list(csv.DictReader((FOLDER / "ddp_iters.csv").read_text().splitlines()))
NODE = (Path(__file__).parents[3] / "topologies" / "shaped-ethernet.yaml").read_text()
STRATEGY = {"fp16": ", hook: fp16"}


def chosen(**wanted: str) -> dict[str, str]:
    return next(row for row in ROWS if all(row[name] == value for name, value in wanted.items()))


def scenario_of(row: dict[str, str], folder: Path) -> Path:
    """Write a row of the table as a user would ask it: the shipped template with other numbers."""
    shaped = shaped_of(row, measured_links(read_table(FOLDER / "linkcal.csv", [])), 2)
    node = NODE.replace("bandwidth: 500 Mbit/s", f"bandwidth: {shaped.rate_Bps:.3f} B/s")
    node = node.replace("efficiency: 0.989", "efficiency: 1.0")
    node = node.replace("latency: 12 us", f"latency: {shaped.one_way_s / 2 * 1e6:.4f} us")
    node = node.replace("burst: 18528 B", f"burst: {shaped.burst_bytes:.0f} B")
    (folder / "host.yaml").write_text(node)
    workload, times = models_of(read_table(FOLDER / "models.csv", []))[row["model"]]
    parameters = ["name,numel,layer"]
    for layer in workload.layers:
        parameters += [
            f"{workload.tensors[at].name},{workload.tensors[at].numel},{layer.name}"
            for at in layer.tensors
        ]
    (folder / "model.csv").write_text("\n".join(parameters))
    timed = zip(workload.layers, times.forward_s, times.backward_s, strict=True)
    layers = [f"{layer.name},{forward},{backward}" for layer, forward, backward in timed]
    (folder / "times.csv").write_text("\n".join(["name,forward_s,backward_s", *layers]))
    cap = row["bucket_cap_mb"]
    strategy = {"def": "", "inf": ", bucket_cap: 1000 MiB"}.get(cap, f", bucket_cap: {cap} MiB")
    strategy += STRATEGY.get(row["mode"], "")
    strategy += f", accumulate: {row['accum']}"
    strategy += f", gradient_as_bucket_view: {'true' if row['grad_view'] == '1' else 'false'}"
    path = folder / "scenario.yaml"
    path.write_text(
        "# How long is a step on shaped links?\n"
        "perfmodel: 1\nmodel: {file: model.csv}\n"
        "compute: {source: file, times: times.csv, precision: fp32, optimizer: sgd}\n"
        f"strategy: {{kind: ddp{strategy}}}\n"
        f"cluster: {{node: host.yaml, nodes: {row['n']}, fabric: one-switch}}\n"
        "training: {batch_per_gpu: 1}\n"
        f"library: {{name: gloo, workers: {row['gloo_threads']}}}\n"
    )
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
@pytest.mark.parametrize(
    "wanted",
    [
        {"scenario": "base", "model": "mlp8", "bucket_cap_mb": "def", "n": "2"},
        {"scenario": "base", "bucket_cap_mb": "0.25", "n": "4", "rate_mbit": "1000.0"},
        {"scenario": "latency", "bucket_cap_mb": "0.05", "n": "4", "rate_mbit": "500.0"},
        {"scenario": "latency", "bucket_cap_mb": "inf", "n": "2", "rate_mbit": "1000.0"},
        {"scenario": "one_gloo_thread", "delay_us": "1000", "bucket_cap_mb": "0.25"},
        {"scenario": "fp16", "bucket_cap_mb": "0.5"},
        {"scenario": "accumulation", "accum": "4"},
        {"scenario": "grad_view", "bucket_cap_mb": "inf"},
    ],
    ids=str,
)
def test_a_scenario_says_what_the_validation_says(wanted: dict[str, str], tmp_path: Path) -> None:
    """To 1 %: `perfmodel run`, and the step that `perfmodel tune` counts, which are the same.

    Numbers are rounded in the files; who comes first to a core of those that come together may
    hang on that.
    """
    row = chosen(**wanted)
    links = measured_links(read_table(FOLDER / "linkcal.csv", []))
    models = models_of(read_table(FOLDER / "models.csv", []))
    validated_s = predicted_s(row, models[row["model"]], links, {})
    scenario = load_scenario(scenario_of(row, tmp_path))
    found_s = run_scenario(scenario).points[-1].step_time_s
    assert found_s == pytest.approx(validated_s, rel=1e-2)
    assert prepare(scenario).step().step_time_s == found_s
    assert found_s == pytest.approx(float(row["iter_ms_med"]) / 1e3, rel=0.03)


@pytest.mark.slow
def test_a_straggler_and_a_slow_link_as_events(tmp_path: Path) -> None:
    """`slow` also slows down what the process does beside sleeping: half a per cent here."""
    links = measured_links(read_table(FOLDER / "linkcal.csv", []))
    models = models_of(read_table(FOLDER / "models.csv", []))
    slow = chosen(scenario="straggler", straggler="2:1.5", bucket_cap_mb="0.5")
    path = scenario_of(slow, tmp_path)
    path.write_text(path.read_text() + "events:\n  - slow: {ranks: [2], by: 1.5}\n")
    found_s = run_scenario(load_scenario(path)).points[-1].step_time_s
    validated_s = predicted_s(slow, models[slow["model"]], links, {})
    assert found_s == pytest.approx(validated_s, rel=0.01)
    up = chosen(slow_host="2:up250", bucket_cap_mb="1")
    path = scenario_of(up, tmp_path)
    (rate_Bps,) = {one for _, _, one in shaped_of(up, links, 2).slow}
    path.write_text(
        path.read_text() + "events:\n"
        f'  - degrade: {{link: "n2/nic0 -> fabric/switch0", to: {rate_Bps:.1f} B/s}}\n'
    )
    found_s = run_scenario(load_scenario(path)).points[-1].step_time_s
    validated_s = predicted_s(up, models[up["model"]], links, {})
    assert found_s == pytest.approx(validated_s, rel=1e-3)


def test_the_host_s_time_can_be_said(tmp_path: Path) -> None:
    """Two processes on two cores: a millisecond more for the host is one more for the step."""
    row = chosen(scenario="base", model="mlp8", bucket_cap_mb="def", n="2")
    path = scenario_of(row, tmp_path)
    step_s = {}
    for host in ("0.35 ms", "1.35 ms"):
        scenario = load_scenario(path, [f"library.host_step={host}"])
        step_s[host] = run_scenario(scenario).points[-1].step_time_s
    assert step_s["1.35 ms"] - step_s["0.35 ms"] == pytest.approx(1e-3, rel=1e-6)


def test_the_template_ships_with_a_bucket_and_cores() -> None:
    topology = build_topology("shaped-ethernet", hosts=2, fabric="one-switch")
    document = read_yaml(Path(__file__).parents[3] / "topologies" / "shaped-ethernet.yaml")
    assert topology.sockets.burst_bytes == float(document["sockets"]["burst"].split()[0])
    assert topology.sockets.cores == document["sockets"]["cores"]

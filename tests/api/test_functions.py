"""What people type in Python: names, paths, objects, fields; results show themselves."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from typer.testing import CliRunner

import perfmodel as pm
from perfmodel.api.agents import Diagnose, answer
from perfmodel.cli.app import build_app
from perfmodel.scenario import change_scenario, load_scenario
from perfmodel.studies.run import run_scenario
from tests.validate.fault_cases import A100, lost, machine_of
from tests.validate.test_diagnose import log_of

WHOLE: dict[str, Any] = {
    "model": {"name": "resnet18"},
    "compute": {"precision": "fp32"},
    "cluster": {"node": "ethernet-10g", "nodes": 2, "fabric": "one-switch"},
    "training": {"batch_per_gpu": 16},
}


@pytest.fixture(scope="module")
def result() -> Any:
    return pm.run(WHOLE)


@pytest.mark.slow
def test_all_ways_to_ask_give_one_answer(result: Any, tmp_path: Path) -> None:
    file = tmp_path / "asked.yaml"
    text = json.dumps({"perfmodel": 1, **WHOLE, "training": {"batch_per_gpu": 8}})
    file.write_text(f"# How long?\n{text}\n")
    step_s = result.main.step_time_s
    loaded = load_scenario(file)
    changed = change_scenario(loaded, {"training.batch_per_gpu": 16})
    assert run_scenario(changed).main.step_time_s == step_s
    fields = {"training.batch_per_gpu": 16}
    assert pm.run(file, fields).main.step_time_s == step_s
    assert pm.run(str(file), training__batch_per_gpu=np.int64(16)).main.step_time_s == step_s
    assert pm.run(loaded, fields).main.step_time_s == step_s
    assert pm.run(loaded).main.step_time_s < step_s
    dotted = {**WHOLE, "training": {}, "training.batch_per_gpu": 16}
    del dotted["training"]
    assert pm.run(dotted).main.step_time_s == step_s
    sections = {name: value for name, value in dotted.items() if "." not in name}
    with pytest.raises(pm.PerfmodelError, match="training"):
        pm.run(sections)


@pytest.mark.slow
def test_a_field_given_in_python_resizes_the_curve_as_a_flag_does() -> None:
    asked = pm.run("resnet50-dgx-a100", cluster__nodes=1)
    assert [point.gpus for point in asked.points] == [1, 2, 4, 8]
    assert "16" in " ".join(asked.assumptions)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pm.run(3.5), r"scenario: found a float, 3\.5; allowed: a name such as"),
        (lambda: pm.run(None), r"scenario: found None"),
        (lambda: pm.run("resnet50-dgx-a10"), "did you mean 'resnet50-dgx-a100'"),
        (lambda: pm.run(WHOLE, 4), r"fields: found an int, 4; allowed: a mapping of dotted"),
        (lambda: pm.run(WHOLE, profile=4), "profile: found an int, 4; allowed: a name, a path"),
        (lambda: pm.run(WHOLE, cluster_nodes=4), "cluster_nodes: found an unknown field"),
        (lambda: pm.run(WHOLE, cluster__nodes="four"), r"^cluster\.nodes: found 'four'"),
        (pm.compare, "scenarios: found none"),
        (lambda: pm.compare(WHOLE, 7), r"scenario: found an int, 7"),
        (lambda: pm.sweep([7]), "scenario: found an int, 7"),
        (lambda: pm.sweep(WHOLE, grid={"strategy.nothing": [1]}), r"sweep\.grid|strategy\.nothing"),
        (lambda: pm.plan(WHOLE), "plan: found nothing"),
        (lambda: pm.topology(4), "topology: found a int"),
        (lambda: pm.topology("dgx-a100", nodes=2), "fabric: found nothing for 2 hosts"),
        (lambda: pm.topology("dgx-a100", nodes=0), "^nodes: found 0"),
        (lambda: pm.collective("dgx-a100", sizes=[None]), r"sizes\.0: found None"),
        (lambda: pm.collective("dgx-a100", sizes=["1 MX"]), r"sizes\.0"),
        (lambda: pm.collective("dgx-a100", sizes=[]), "sizes: found none"),
        (lambda: pm.collective("dgx-a100", library="mpi", version="2.23.4"), "^version: found"),
        (lambda: pm.collective("dgx-a100", nodes=2, fabric=5), "fabric: found a int"),
        (lambda: pm.topology("dgx-a100", nodes="2"), "^nodes: found '2'; allowed: a whole"),
        (lambda: pm.collective("dgx-a100", op="allreduce"), "did you mean 'all_reduce'"),
        (lambda: pm.collective(pm.topology("dgx-a100"), nodes=2), "nodes: found a value"),
    ],
)
def test_a_wrong_type_or_name_says_what_was_expected(call: Any, message: str) -> None:
    with pytest.raises(pm.PerfmodelError) as caught:
        call()
    assert re.search(message, str(caught.value)), caught.value
    assert "--set" not in str(caught.value)


@pytest.mark.slow
def test_a_result_shows_itself(result: Any, tmp_path: Path) -> None:
    assert isinstance(result, pm.Result)
    assert len(repr(result)) < 300
    assert "\n" not in repr(result)
    frame = result.to_frame()
    low, high = frame.loc[0, ["low_s", "high_s"]]
    assert low < frame.loc[0, "step_time_s"] < high
    assert (low, high) == result.main.interval_s
    assert isinstance(result.plot(), go.Figure)
    assert all(isinstance(result.plot(kind), go.Figure) for kind in ("breakdown", "topology"))
    with pytest.raises(pm.PerfmodelError, match="kind: found 'pie'; allowed: one of"):
        result.plot("pie")
    shown = result._repr_html_()
    assert shown.count("<table>") == 1
    assert "images/s" in shown
    page = result.to_html(tmp_path / "page.html")
    assert page.read_text().startswith("<!doctype html>")
    trace = json.loads(result.to_perfetto(tmp_path / "step.json").read_text())
    assert len(trace["traceEvents"]) > len(result.timeline.spans)
    assert pickle.loads(pickle.dumps(result)).main == result.main


@pytest.mark.slow
def test_a_comparison_takes_variations_labels_and_lists() -> None:
    hook = {"strategy.hook": "fp16"}
    pair = pm.compare({"=A1": WHOLE, "None": hook})
    assert list(pair.to_frame().index) == ["=A1", "None"]  # as given, not as a spreadsheet has it
    pair = pm.compare(WHOLE, hook)
    assert [side.label for side in pair.sides] == ["scenario", "strategy.hook=fp16"]
    same = pm.compare({"plain": WHOLE, "narrow": hook})
    assert [side.label for side in same.sides] == ["plain", "narrow"]
    assert same.differences[0].step == pair.differences[0].step
    assert list(same.to_frame().index) == ["plain", "narrow"]
    assert isinstance(pair.plot(), go.Figure)
    assert "<table>" in pair._repr_html_()
    assert len(repr(pair)) < 500


def test_a_sweep_and_a_collective_show_intervals(tmp_path: Path) -> None:
    swept = pm.sweep(WHOLE, grid={"training.batch_per_gpu": [8, 16]}, jobs=1)
    frame = swept.to_frame()
    assert (frame["low_s"] < frame["step_time_s"]).all()
    assert isinstance(swept.plot(), go.Figure)
    assert swept.to_html(tmp_path / "sweep.html").exists()
    assert repr(swept).startswith("<Sweep: Quickest of 2: ")
    times = pm.collective("dgx-a100", sizes=["1 MiB", 2**26], op="all-reduce")
    assert [row["nbytes"] for row in times] == [2**20, 2**26]
    assert (times.to_frame()["low_s"] < times.to_frame()["time_s"]).all()
    assert isinstance(times.plot(), go.Figure)
    assert "all-reduce on 8 GPUs" in repr(times)
    assert times._repr_html_().count("<tr") == 3


def test_a_log_is_judged_as_by_the_command_and_by_the_tool(tmp_path: Path) -> None:
    log, machine = tmp_path / "nccl.log", machine_of(*A100)
    log.write_text(log_of(*lost("n1/nic3")(machine)), "utf-8")
    flags = ["--topology", "dgx-a100", "--fabric", "rail-optimised"]
    printed = CliRunner().invoke(build_app(["diagnose"]), ["diagnose", str(log), *flags, "--json"])
    asked = {"topology": "dgx-a100", "fabric": "rail-optimised"}
    found = pm.diagnose(log, **asked)
    assert "nic_down" in found[0].suspects[0].names
    assert json.loads(json.dumps(found.to_json())) == json.loads(printed.stdout)
    assert "A NIC of one host is down" in found.to_text()
    text, document = answer("diagnose", Diagnose(log=str(log), **asked), lambda *_: None)
    assert (text, document) == (found.to_text(), found.to_json())
    with pytest.raises(pm.PerfmodelError, match="nodes: found 16 ranks on 3"):
        pm.diagnose(log, **asked, nodes=3)


def test_sizes_may_come_in_any_order() -> None:
    times = pm.collective("dgx-a100", sizes=["1 GiB", np.int64(1024), "1 MiB"])
    assert [row["nbytes"] for row in times] == [2**30, 2**10, 2**20]
    assert [list(line.x) for line in times.plot().data if line.mode == "lines"][-1] == [
        2**10,
        2**20,
        2**30,
    ]


def test_a_topology_is_called_and_imported_from() -> None:
    machine = pm.topology("dgx-a100", nodes=2, fabric="rail-optimised")
    assert len(machine.ranks) == 16
    assert len(repr(machine)) < 100
    from perfmodel.topology.model import Topology

    assert isinstance(machine, Topology)
    assert callable(pm.topology)

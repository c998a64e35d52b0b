"""Faults and paths by the file, line or flag of a field."""

from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import (
    load_scenario,
)


def faults(path, *overrides):
    with pytest.raises(InputError) as caught:
        load_scenario(path, overrides)
    return [(f.field, f.line, f.found, f.allowed) for f in caught.value.faults]


def test_later_faults_can_name_the_line_or_the_flag(scenario_file):
    path = scenario_file()
    scenario = load_scenario(path, ["model.name=resnet5"])
    assert scenario.origin.locate("cluster.node") == (path, 9)
    assert scenario.origin.locate("cluster.fabric.kind") == (path, 12)
    assert scenario.origin.locate("library.name") == (path, None)
    assert (
        str(scenario.fault("cluster.node", "x", "y"))
        == f"{path}:9: cluster.node: found x; allowed: y"
    )
    assert str(scenario.fault("model.name", "x", "y")) == "--set model.name: found x; allowed: y"


def test_paths_are_relative_to_the_file(edited, scenario_file, tmp_path, monkeypatch):
    (tmp_path / "layers.csv").write_text("x")
    path = scenario_file(edited("name: resnet50", "file: layers.csv"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    scenario = load_scenario(path)
    assert scenario.origin.resolve("model.file", "layers.csv") == tmp_path / "layers.csv"
    assert faults(path, "model.file=layers.csv")[0][0] == "--set model.file"  # relative to here


def test_messages_about_shipped_files_name_no_folder_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = load_scenario("resnet50-dgx-a100")
    assert shipped.origin.fault("cluster.node", "x", "y").file == "resnet50-dgx-a100.yaml"
    own = tmp_path / "own.yaml"
    own.write_text(Path(shipped.origin.file).read_text())
    assert load_scenario(own).origin.fault("cluster.node", "x", "y").file == str(own)

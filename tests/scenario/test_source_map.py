"""Faults and paths by the file, line or flag of a field."""

import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import (
    load_scenario,
)

GOOD = """\
# How long is a step?
perfmodel: 1
model: {name: resnet50}
compute: {precision: fp16}
strategy:
  kind: ddp
  bucket_cap: 25 MiB
cluster:
  node: dgx-a100
  nodes: 4
  gpus_per_node: 8
  fabric: rail-optimised
training:
  batch_per_gpu: 64
scale: {gpus: [1, 2, 8, 16, 32]}
"""


@pytest.fixture
def scenario_file(tmp_path):
    def write(text=GOOD, name="mine.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def faults(path, *overrides):
    with pytest.raises(InputError) as caught:
        load_scenario(path, overrides)
    return [(f.field, f.line, f.found, f.allowed) for f in caught.value.faults]


def edited(old, new):
    assert old in GOOD
    return GOOD.replace(old, new)


def test_later_faults_can_name_the_line_or_the_flag(scenario_file):
    path = scenario_file()
    scenario = load_scenario(path, ["model.name=resnet5"])
    assert scenario.locate("cluster.node") == (path, 9)
    assert scenario.locate("cluster.fabric.kind") == (path, 12)
    assert scenario.locate("library.name") == (path, None)
    assert (
        str(scenario.fault("cluster.node", "x", "y"))
        == f"{path}:9: cluster.node: found x; allowed: y"
    )
    assert str(scenario.fault("model.name", "x", "y")) == "--set model.name: found x; allowed: y"


def test_paths_are_relative_to_the_file(scenario_file, tmp_path, monkeypatch):
    (tmp_path / "layers.csv").write_text("x")
    path = scenario_file(edited("name: resnet50", "file: layers.csv"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    scenario = load_scenario(path)
    assert scenario.origin.resolve("model.file", "layers.csv") == tmp_path / "layers.csv"
    assert faults(path, "model.file=layers.csv")[0][0] == "--set model.file"  # relative to here

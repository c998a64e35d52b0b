"""`cluster.node` as a mapping, and flags on its fields."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import change_scenario, load_scenario, scenario_digest
from perfmodel.studies.run.resolve.resolved_scenario import resolve_names
from perfmodel.studies.sweep.run import list_files

TEXT = """# How fast with one NIC?
perfmodel: 1
model: {name: resnet18}
compute: {precision: tf32}
cluster:
  node:
    extends: mine.yaml
    nics: {count: 1}
  nodes: 2
  fabric: one-switch
training: {batch_per_gpu: 32}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.yaml").write_text(
        "perfmodel: 1\nkind: node\ngpus: 2 x rtx-4090\nnic: 10 GbE\n"
    )
    path = tmp_path / "question.yaml"
    path.write_text(TEXT)
    return path


def rate_Bps(path: Path, *flags: str) -> float:
    node = resolve_names(load_scenario(path, flags))[0]
    return next(node.links[spec.port].bandwidth for spec in node.nodes if spec.port)


def test_a_node_is_composed_beside_its_scenario(file: Path) -> None:
    assert rate_Bps(file) == 1.25e9
    assert rate_Bps(file, "cluster.node.nics.rate=200Gbit/s") == 25e9


def test_a_flag_changes_a_named_node() -> None:
    scenario = load_scenario("resnet50-dgx-a100", ["cluster.node.nics.rate=100Gbit/s"])
    node = resolve_names(scenario)[0]
    assert node.links["infiniband"].bandwidth == 12.5e9
    again = change_scenario(scenario, {"cluster.node.nics.count": 2})
    assert sum(spec.kind == "nic" for spec in resolve_names(again)[0].nodes) == 2
    assert scenario_digest(again) != scenario_digest(scenario)


def test_its_files_are_part_of_the_key(file: Path) -> None:
    names = [path.name for field, path in list_files(load_scenario(file)) if "node" in field]
    assert names == ["mine.yaml"]


def test_faults_name_field_and_line(file: Path) -> None:
    file.write_text(TEXT.replace("count: 1}", "count: 0, colour: red}"))
    with pytest.raises(InputError) as raised:
        load_scenario(file)
    assert {(f.field, f.line) for f in raised.value.faults} == {
        ("cluster.node.nics.count", 8),
        ("cluster.node.nics.colour", 8),
    }
    file.write_text(TEXT.replace("count: 1}", "kind: pigeon}"))
    with pytest.raises(InputError) as raised:
        resolve_names(load_scenario(file, ["cluster.node.pcie=gen9"]))
    assert {(f.field, f.line) for f in raised.value.faults} == {
        ("cluster.node.nics.kind", 8),
        ("--set cluster.node.pcie", None),
    }

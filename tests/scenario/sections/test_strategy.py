"""Section ``strategy``."""

import pytest

from perfmodel.scenario import (
    DataParallelStrategy,
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


def test_strategies_are_told_apart_by_kind(scenario_file):
    path = scenario_file(
        GOOD.replace("  kind: ddp\n  bucket_cap: 25 MiB\n", "  kind: data_parallel\n")
        .replace("nodes: 4", "nodes: 1")
        .replace("8, 16, 32]", "8]")
    )
    assert isinstance(load_scenario(path).strategy, DataParallelStrategy)

"""nn.DataParallel says what device 0 does more than the others; elsewhere all do the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.report.common import quantities
from perfmodel.report.run.text import run_markdown, to_json
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import Result

TEXT = """# What does device 0 do?
perfmodel: 1
model: {name: resnet18}
compute: {precision: fp32, optimizer: adam}
strategy: {kind: data_parallel}
cluster: {node: dgx1-v100, gpus_per_node: 4}
training: {batch_per_gpu: 16}
"""


def answered(tmp_path: Path, *overrides: str) -> Result:
    path = tmp_path / "question.yaml"
    path.write_text(TEXT)
    return run_scenario(load_scenario(str(path), overrides))


def test_device_0_runs_the_optimizer_and_its_copies(tmp_path: Path) -> None:
    result = answered(tmp_path)
    point, spot = result.main, result.main.hot_spot
    assert spot is not None
    assert spot.gpu == "n0/gpu0"
    parts = point.breakdown_s
    assert spot.busy_s == pytest.approx(point.compute_s)
    # all run forward, backward and copy gradients; device 0 copies parameters and runs the rest
    assert spot.busy_s - spot.others_busy_s == pytest.approx(
        parts["optimizer"] + parts["copies"] / 2, rel=0.1
    )
    assert spot.only_there_bytes == 3 * point.memory.gradients_bytes  # two states, one sum
    # parameters leave it and gradients come back, beside samples and results, once a step
    assert 2 < spot.link_bytes / point.memory.gradients_bytes < 3
    assert spot.others_link_bytes > 0
    assert "n0/gpu0 is the hot spot" in quantities.hot_spot(point)
    assert "is the hot spot" in run_markdown(result)
    assert to_json(result)["hot_spot"]["busy_s"] == spot.busy_s


def test_nobody_is_a_hot_spot_where_all_do_the_same(tmp_path: Path) -> None:
    result = answered(tmp_path, "strategy={kind: ddp}")
    assert result.main.hot_spot is None
    assert quantities.hot_spot(result.main) == ""
    slow = answered(tmp_path, "strategy={kind: ddp}", "events=[{slow: {ranks: [1], by: 2}}]")
    assert slow.main.hot_spot is None

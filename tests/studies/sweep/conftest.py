"""A scenario of a hand-made model with a sweep of six variants."""

from __future__ import annotations

from pathlib import Path

import pytest

TEXT = """# Which cap?
perfmodel: 1
model: {file: model.csv}
compute: {source: file, times: times.csv, precision: fp32}
cluster: {node: ethernet-10g, nodes: 2, fabric: one-switch}
training: {batch_per_gpu: 8}
sweep: {grid: {strategy.bucket_cap: [1 MiB, 2 MiB], what_if.compute: [1, 2, 3]}}
"""


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    (tmp_path / "model.csv").write_text("name,shape,dtype\na.weight,1000000,fp32\n")
    (tmp_path / "times.csv").write_text("name,forward,backward\na,1 ms,2 ms\n")
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT)
    return path

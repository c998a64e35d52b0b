"""A scenario without fault, and files of it and of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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


@pytest.fixture(scope="session")
def good() -> str:
    """Text of a scenario without fault."""
    return GOOD


@pytest.fixture(scope="session")
def edited() -> Callable[[str, str], str]:
    """Return that text with a part of it replaced."""

    def edit(old: str, new: str) -> str:
        assert old in GOOD
        return GOOD.replace(old, new)

    return edit


@pytest.fixture
def scenario_file(tmp_path: Path) -> Callable[..., str]:
    """Write a scenario to a file, and say where."""

    def write(text: str = GOOD, name: str = "mine.yaml") -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write

"""Small models whose tensors and times are written down, on small clusters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from perfmodel.scenario import Scenario, load_scenario
from perfmodel.studies.tune.caps import Cuts

collect_ignore = ["ddp_of_snippets.py"]
"""A program that a test starts; it needs torch, which the test may have to do without."""

TEXT = """# Which buckets for a model made by hand?
perfmodel: 1
model: {{file: model.csv}}
compute: {{source: file, times: times.csv, precision: fp32, overlap_slowdown: {slowdown}}}
strategy: {{broadcast_buffers: false}}
cluster: {{node: {node}, nodes: {nodes}, fabric: one-switch}}
training: {{batch_per_gpu: 1}}
library: {{name: {library}}}
"""

Made = Callable[..., Scenario]


def write_scenario(
    folder: Path,
    elements: Sequence[int],
    backward_ms: Sequence[float],
    *overrides: str,
    dtypes: Sequence[str] = (),
    **words: Any,
) -> Scenario:
    """A chain of layers of one tensor each, given from the first to the last."""
    known = {"node": "ethernet-10g", "nodes": 4, "library": "plain", "slowdown": 1.0} | words
    kinds = dtypes or ["fp32"] * len(elements)
    rows = [
        f"l{at}.weight,{n},{kind}" for at, (n, kind) in enumerate(zip(elements, kinds, strict=True))
    ]
    (folder / "model.csv").write_text("\n".join(["name,shape,dtype", *rows]) + "\n")
    times = [f"l{at},{0.5 * ms} ms,{ms} ms" for at, ms in enumerate(backward_ms)]
    (folder / "times.csv").write_text("\n".join(["name,forward,backward", *times]) + "\n")
    path = folder / "made.yaml"
    path.write_text(TEXT.format(**known))
    return load_scenario(path, overrides)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Write a scenario with a model made by hand."""
    return lambda *args, **words: write_scenario(tmp_path, *args, **words)


@pytest.fixture(scope="session")
def all_cuts() -> Callable[[int], Iterator[Cuts]]:
    """All partitions of gradients into contiguous groups."""

    def found(gradients: int) -> Iterator[Cuts]:
        for ends in itertools.product((False, True), repeat=gradients - 1):
            yield (*(at + 1 for at, end in enumerate(ends) if end), gradients)

    return found

"""Bytes of parameters, gradients and optimizer states equal those of real sharded modules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("torch")

from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.training.fsdp.strategy import rank_shards
from perfmodel.training.fsdp.units import sized_units
from perfmodel.workload.model import Workload
from perfmodel.workload.zoo import build_model
from tests.training.recorded.toy_workload import workload

ROOT = Path(__file__).parents[3]


VERSIONS: tuple[Literal[1, 2], ...] = (1, 2)
ASKED: list[tuple[str, Literal[1, 2], int]] = [
    *(("toy", version, ranks) for version in VERSIONS for ranks in (3, 8)),
    ("resnet18", 1, 8),
    ("resnet18", 2, 6),
    ("llama2-7b", 2, 64),
]
"""Model, version and ranks. One process measures all, as importing PyTorch takes longest."""


def real_bytes() -> list[list[dict[str, Any]]]:
    """Bytes of rank 0 of each of `ASKED`, from a process whose other ranks are a fake group."""
    command = [sys.executable, "-P", "-m", "tests.training.recorded.shard_worker"]
    done = subprocess.run(
        [*command, *(",".join(map(str, each)) for each in ASKED)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def planned_bytes(model: Workload, options: FsdpStrategy, ranks: int, optimizer: str) -> list[int]:
    return list(rank_shards(sized_units(model, options, ranks), options, optimizer))


def test_shards_are_those_of_real_modules() -> None:
    for (name, version, ranks), cases in zip(ASKED, real_bytes(), strict=True):
        model = workload() if name == "toy" else build_model(name)
        assert len(cases) == (9 if version == 1 else 3)
        for case in cases:
            options = FsdpStrategy(kind="fsdp", version=version, **case["options"])
            planned = planned_bytes(model, options, ranks, case["optimizer"])
            assert planned == case["bytes"], (name, version, ranks, case)

"""Muon where ranks have rows of matrices: calls that PyTorch's DTensor issues for its products."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from perfmodel.workload.memory.optimizer_states import calls_of_matrices
from perfmodel.workload.model import Layer, ParameterTensor, Workload
from tests.training.recorded.muon_cases import SHAPES
from tests.training.recorded.run_cases import run_cases


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_calls_are_those_of_pytorch(ranks: int, tmp_path: Path) -> None:
    recorded = run_cases("tests.training.recorded.muon_cases", ranks, tmp_path)
    for name, shape in SHAPES.items():
        tensor = ParameterTensor("layers.0.weight", shape)
        matrix = Workload("a matrix", (tensor,), (Layer("layers.0", (0,)),))
        planned = Counter[tuple[str, int, int, str]]()
        for _, op, elements, times in calls_of_matrices(matrix, "muon"):
            planned[op, 2 * elements, ranks, "bf16"] += times
        called = Counter(call.issued for call in recorded[name] if call.phase == "optimizer")
        assert planned == called, name

"""SimpleFSDP: calls of PyTorch's compiler are those of FSDP2 whose units are its buckets."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.training.fsdp.step_plan import fsdp_plan
from tests.training.recorded.run_cases import planned_calls, run_cases
from tests.training.recorded.toy_workload import BLOCKS, INPUTS, WIDTH, request

UNITS = ("embed", "blocks.*", "head")
KEPT, TWICE = "whole until backward", "gathered twice"


def padded_bytes(rows: int, columns: int, ranks: int) -> int:
    return 4 * -(-rows // ranks) * ranks * columns


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_calls_are_those_of_the_compiler(ranks: int, tmp_path: Path) -> None:
    recorded = run_cases("tests.training.recorded.compiled_shard_cases", ranks, tmp_path)
    for name, cases in recorded.items():
        options = FsdpStrategy(kind="fsdp", wrap=UNITS, reshard_after_forward=name == TWICE)
        planned = planned_calls(fsdp_plan(request(ranks), options))
        if name == TWICE:
            # its backward gathers what backward uses: no embedding, and no biases of linear layers
            embed = padded_bytes(WIDTH, INPUTS, ranks) + padded_bytes(WIDTH, 1, ranks)
            last = max(at for at, call in enumerate(planned) if call[:2] == ("all_gather", embed))
            del planned[last]
            biases = padded_bytes(3 * WIDTH, 1, ranks) + padded_bytes(WIDTH, 1, ranks)
            for at in [at for at, call in enumerate(planned) if call[0] == "all_gather"][-BLOCKS:]:
                op, nbytes, *others = planned[at]
                planned[at] = (op, nbytes - biases, *others)
        called = [call.issued for call in cases if call.phase == "step 1"]
        assert called == planned, name

"""Ring attention moves what torch's rings move."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo.text_decoder import gpt, gpt_shape
from tests.training.recorded import context_cases
from tests.training.recorded.run_cases import DTYPES, run_cases

RING_OP = {"send_recv": "all_to_all"}
"""torch sends around a ring with an all-to-all of which all but one part are empty."""


@pytest.mark.parametrize("ranks", [2, 4])
def test_attention_calls_what_rings_of_torch_call(ranks: int, tmp_path: Path) -> None:
    width = context_cases.HEADS * context_cases.HEAD
    shape = gpt_shape(1, width, context_cases.HEADS, context_cases.TOKENS, 64)
    recorded = run_cases("tests.training.recorded.context_cases", ranks, tmp_path)
    for name, kind in (("ring", "ring"), ("all_gather", "all_gather")):
        shard = Shard(context=ranks, context_kind=kind, library="torch")  # type: ignore[arg-type]
        model = gpt("toy", dtype="fp32", sequence_length=16, shape=shape, shard=shard)
        (layer,) = (layer for layer in model.layers if layer.kind == "attention")
        planned = [
            (
                call.phase,
                RING_OP.get(call.op, call.op),
                4 * context_cases.BATCH * call.elements,
                call.ranks,
                "fp32",
            )
            for call in layer.calls
            for _ in range(call.times)
        ]
        real = [
            (call.phase.split()[-1], call.op, call.nbytes, call.group_ranks, DTYPES[call.dtype])
            for call in recorded[name]
            if call.phase != "setup"
        ]
        # which of a block and a gradient goes first makes no difference: they have one size
        assert sorted(planned) == sorted(real)

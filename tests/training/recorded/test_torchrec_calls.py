"""Tables that ranks share out: a model's layers call what TorchRec was recorded to call.

Recorded once (record_libraries.py), as neither TorchRec nor FBGEMM is installed with the tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import perfmodel as pm
from perfmodel.errors import InputError
from perfmodel.workload.model import ELEMENT_BYTES, ITEM_BYTES
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo.dlrm import dlrm
from tests.training.recorded.run_cases import DTYPES

CASES: dict[str, Any] = json.loads(
    Path(__file__).with_name("torchrec.json").read_text(encoding="utf-8")
)["cases"]
BYTES = {**ITEM_BYTES, "int64": 8}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", CASES)
def test_shared_tables_call_what_torchrec_calls(kind: str, ranks: int) -> None:
    """All but how many sizes of what follows there are: three a rank, whatever the batch."""
    case = CASES[kind]
    model = dlrm(
        "recorded",
        dtype="fp32",
        rows=case["rows"],
        bottom=(13, case["width"]),
        top=(1,),
        shard=Shard(expert=ranks, tables=kind),  # type: ignore[arg-type]
    )
    sizes, *recorded = case["calls"][str(ranks)]
    assert sizes == ["all_to_all", 3 * ranks * 8, ranks, "int64", "forward"]
    first, *planned = (
        [
            call.op,
            case["samples"] * call.elements * BYTES[call.dtype or "fp32"],
            call.ranks,
            call.dtype,
            call.phase,
        ]
        for layer in model.layers
        for call in layer.calls
    )
    assert (first[0], *first[2:]) == (sizes[0], *sizes[2:])
    assert planned == [
        [op, nbytes, of, DTYPES.get(dtype, dtype), phase]
        for op, nbytes, of, dtype, phase in recorded
    ]


@pytest.mark.parametrize("kind", CASES)
def test_ranks_hold_all_tables_once(kind: str) -> None:
    """Of tables of 64 to 256 rows the fullest of two ranks has 320 rows, or half of each."""
    rows = CASES[kind]["rows"]
    model = dlrm(
        "shared",
        dtype="fp32",
        rows=rows,
        bottom=(13, 64),
        top=(1,),
        shard=Shard(expert=2, tables=kind),  # type: ignore[arg-type]
    )
    held = sum(tensor.numel for tensor in model.tensors if tensor.name.startswith("emb_l"))
    assert held == sum(rows) * 64 / 2
    updated = {model.tensors[index].name for index in model.ready_order}
    assert not any(name.startswith("emb_l") for name in updated)  # by their own kernel instead


@pytest.mark.parametrize(
    ("kind", "elements"),
    [
        ("table", 2 * 2 * 2 * 64),  # two tables, for both ranks, read and written
        ("row", 4 * (1 + 2) * 64),  # four: own rows read, sums of both ranks' bags written
        ("column", 4 * 2 * 2 * 32),  # half of each, for both ranks
    ],
)
def test_ranks_look_up_what_all_of_them_ask_for(kind: str, elements: int) -> None:
    model = dlrm(
        "shared",
        dtype="fp32",
        rows=CASES[kind]["rows"],
        bottom=(13, 64),
        top=(1,),
        shard=Shard(expert=2, tables=kind),  # type: ignore[arg-type]
    )
    tables = [layer for layer in model.layers if layer.name.startswith("emb_l")]
    assert sum(layer.vector_bytes for layer in tables) == ELEMENT_BYTES * elements
    assert not any(layer.weight_elements for layer in tables)  # no gradient of a table


SCENARIO: dict[str, Any] = {
    "perfmodel": 1,
    "model": {"name": "dlrm-criteo-1tb"},
    "compute": {"precision": "fp32", "optimizer": "sgd"},
    "strategy": {"kind": "ddp"},
    "cluster": {"node": "dgx-a100"},
    "training": {"batch_per_gpu": 2048},
    "scale": {"gpus": [8]},
}


@pytest.mark.parametrize("kind", CASES)
def test_a_step_with_shared_tables_fits_and_sends_them_no_gradients(kind: str) -> None:
    answer = pm.run(SCENARIO, {"parallel": {"expert": 8, "tables": kind}})
    memory, layout = answer.main.memory, answer.main.parallel_layout
    assert memory.total_bytes < 40 * 2**30 < 4 * 24_036_595_969
    assert layout is not None
    sent = {use.dimension: use.sent_bytes for use in layout.dimensions}
    dense = 4 * 2_400_000
    assert sent["data"] < 2 * dense
    assert sent["expert"] > 2048 * 26 * 128


def test_tables_are_shared_over_nodes() -> None:
    wide = {"cluster": {"node": "dgx-a100", "nodes": 2, "fabric": "rail-optimised"}}
    answer = pm.run(
        SCENARIO, wide | {"parallel": {"expert": 16, "tables": "row"}, "scale": {"gpus": [16]}}
    )
    layout = answer.main.parallel_layout
    assert layout is not None
    (tables,) = (use for use in layout.dimensions if use.dimension == "expert")
    assert (tables.ranks, "infiniband" in tables.links) == (16, True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"parallel": {"tables": "row"}}, "'expert' of 2 or more"),
        ({"parallel": {"expert": 8, "tables": "row"}, "strategy": "fsdp"}, "nothing with .*fsdp"),
        (
            {"parallel": {"expert": 128, "tables": "column"}, "cluster.nodes": 16}
            | {"cluster.fabric": "rail-optimised", "scale": {"gpus": [128]}}
            | {"model": {"name": "dlrm-criteo-kaggle"}},
            "expert: found 128; allowed: 1 to 16, the columns",
        ),
        ({"parallel": {"expert": 8}}, "1, or strategy.kind: megatron or fsdp"),
        ({"parallel": {"expert": 8, "tables": "row"}, "model": {"name": "gpt2"}}, "no tables of"),
    ],
)
def test_tables_that_cannot_be_shared_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        pm.run(SCENARIO, changes)

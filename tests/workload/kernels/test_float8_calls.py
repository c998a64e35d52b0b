"""Which gathers of a tensor group send fp8: Transformer Engine's and torchao's, by recipe."""

from __future__ import annotations

import pytest

from perfmodel.scenario.sections.model import AdaptersSection
from perfmodel.workload.kernels.float8_layers import Float8, narrow_calls
from perfmodel.workload.layer_calls import LayerCall
from perfmodel.workload.model_changes import add_adapters
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo import build_model

GATHERS = {"inputs": ("qkv_proj", "gate_up_proj"), "gradients": ("o_proj", "down_proj")}


def _narrow(
    recipe: str, library: str = "transformer_engine", *, adapted: bool = False
) -> dict[str, list[LayerCall]]:
    shard = Shard(tensor=4, sequence_parallel=True)
    model = build_model("llama3-8b", dtype="bf16", sequence_length=1024, shard=shard)
    if adapted:
        model = add_adapters(model, AdaptersSection(rank=16, targets=("qkv_proj", "o_proj")))
    float8 = Float8(library=library, recipe=recipe)  # type: ignore[arg-type]
    return {
        layer.name: [call for call in layer.calls if call.dtype == "fp8"]
        for layer in narrow_calls(model, float8).layers
    }


@pytest.mark.parametrize("recipe", ["delayed", "current", "mxfp8", "blockwise"])
def test_inputs_are_gathered_in_fp8(recipe: str) -> None:
    calls = {name: found for name, found in _narrow(recipe).items() if found}
    assert {call.op for found in calls.values() for call in found} == {"all_gather"}
    inputs = [found for name, found in calls.items() if name.endswith(GATHERS["inputs"])]
    assert len(inputs) == 64  # of 32 blocks
    assert {tuple(call.phase for call in found) for found in inputs} == {("forward", "backward")}


@pytest.mark.parametrize(("recipe", "count"), [("delayed", 64), ("mxfp8", 0), ("blockwise", 0)])
def test_gradients_are_where_one_copy_serves_both_products(recipe: str, count: int) -> None:
    """Scales of blocks: both products read another copy, which are as many bytes as bf16."""
    calls = _narrow(recipe)
    found = [each for name, each in calls.items() if each and name.endswith(GATHERS["gradients"])]
    assert len(found) == count
    assert {call.phase for each in found for call in each} <= {"backward"}


def test_rows_of_torchao_are_cast_after_the_gather() -> None:
    assert not any(_narrow("rowwise", "torchao").values())
    assert any(_narrow("tensorwise", "torchao").values())


def test_what_an_adapter_reads_is_gathered_wide() -> None:
    calls = _narrow("delayed", adapted=True)
    assert not calls["model.layers.3.self_attn.qkv_proj"]
    assert {call.phase for call in calls["model.layers.3.self_attn.o_proj"]} == {"backward"}
    assert {call.phase for call in calls["model.layers.3.mlp.gate_up_proj"]} == {"forward"}

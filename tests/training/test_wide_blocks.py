"""Blocks that stay in bf16 at both ends of a model: over all stages, as in Megatron-Core."""

from __future__ import annotations

from perfmodel.training.parallel_layout import ParallelLayout
from perfmodel.training.pipeline.stage_workload import cut_model
from perfmodel.workload.kernels.float8_layers import Float8, float8_layers, name_wide_blocks
from perfmodel.workload.memory.blocks import block_of
from perfmodel.workload.zoo import build_model


def test_stages_have_the_ends_of_the_model() -> None:
    """32 blocks on 4 stages, 2 and 1 of them in bf16: 7 linear layers in each of 29 blocks."""
    model = build_model("llama3-8b", dtype="bf16", sequence_length=1024)
    float8 = name_wide_blocks(model, Float8(recipe="current", start_in_bf16=2, end_in_bf16=1))
    assert float8.wide_blocks == {"model.layers.0", "model.layers.1", "model.layers.31"}
    assert len(float8_layers(model, float8)) == 7 * 29
    parallel_layout = ParallelLayout(stages=4, schedule="1f1b")
    parts = cut_model(model, parallel_layout.pipeline_schedule(4), parallel_layout.partition)
    narrow = [
        {block_of(part.layers[place].name) for place in float8_layers(part, float8)}
        for part, *_ in parts
    ]
    assert [len(blocks) for blocks in narrow] == [6, 8, 8, 7]


def test_more_ends_than_blocks_are_left_to_be_refused() -> None:
    model = build_model("llama3-8b", dtype="bf16", sequence_length=1024)
    float8 = Float8(recipe="current", start_in_bf16=16, end_in_bf16=16)
    assert name_wide_blocks(model, float8) == float8
    assert name_wide_blocks(model, Float8()) == Float8()

"""Parts of a model: as many blocks as Megatron-Core gives each, nothing lost, times kept."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.training.pipeline.pass_actions import PipelineSchedule
from perfmodel.training.pipeline.schedules import make_schedule
from perfmodel.training.pipeline.stage_workload import (
    PartitionOptions,
    block_counts,
    handed_bytes,
    model_parts,
    part_layers,
)
from perfmodel.workload.kernels.shapes import MatrixProduct
from perfmodel.workload.model import LayerTimes, Workload
from perfmodel.workload.roofline import layer_times
from perfmodel.workload.zoo import build_model
from tests.conftest import PLAIN_GPU
from tests.training.pipeline.record_megatron_orders import FILE, LAYER_CASES, name_of

LayerCase = tuple[int, int, int, int | None, int | None, bool, bool]


def schedule_of(stages: int, chunks: int) -> PipelineSchedule:
    return make_schedule("looped_bfs" if chunks > 1 else "1f1b", stages, 2 * stages, chunks)


@pytest.mark.parametrize("case", LAYER_CASES, ids=name_of)
def test_blocks_are_those_of_megatron(case: LayerCase) -> None:
    layers, stages, chunks, first, last, embed, loss = case
    schedule = schedule_of(stages, chunks)
    counts = block_counts(layers, schedule, PartitionOptions(None, first, last, embed, loss))
    by_stage = [[counts[schedule.part(s, c)] for c in range(chunks)] for s in range(stages)]
    recorded = json.loads(FILE.read_text(encoding="utf-8"))["layers"]
    assert by_stage == recorded[name_of(case)]


def times_of(workload: Workload) -> LayerTimes:
    return layer_times(workload, PLAIN_GPU, batch=2, precision="bf16", optimizer="adamw")


@pytest.fixture(scope="module")
def gpt() -> Workload:
    return build_model("gpt2", dtype="bf16", sequence_length=64)


@given(st.sampled_from([(2, 1), (3, 1), (2, 2), (12, 1), (3, 4)]))
@settings(max_examples=5)
def test_parts_hold_the_whole_model_once(gpt: Workload, sizes: tuple[int, int]) -> None:
    """But for the embedding, which the first part and, as its head, the last part have."""
    times = times_of(gpt)
    parts = model_parts(gpt, times, schedule_of(*sizes))
    layers = [layer.name for part in parts for layer in part.workload.layers]
    assert layers == [layer.name for layer in gpt.layers]
    table = gpt.tensors[0]
    assert sum(part.workload.parameters for part in parts) == gpt.parameters + table.numel
    ends = (parts[0], parts[-1])
    assert [[p.workload.tensors[t].name for t in p.shared] for p in ends] == [["wte.weight"]] * 2
    assert not any(part.shared for part in parts[1:-1])
    for name in ("forward_s", "backward_s", "forward_kernels", "weight_gradient_s"):
        joined = np.concatenate([getattr(part.times, name) for part in parts])
        assert (joined == getattr(times, name)).all()
    trained = [len(part.workload.ready_order) for part in parts]
    assert trained == [len(part.workload.tensors) for part in parts]
    head = parts[-1].workload
    assert head.tensors[head.layers[-1].tensors[0]].name == "wte.weight"
    assert sum(p.times.optimizer_s for p in parts) == pytest.approx(
        times.optimizer_s * (gpt.parameters + table.numel) / gpt.parameters
    )
    assert parts[0].workload.output_elements == parts[1].workload.input_elements == 64 * 768


def test_untied_heads_are_shared_with_nobody() -> None:
    llama = build_model("llama2-7b", dtype="bf16", sequence_length=32)
    parts = model_parts(llama, times_of(llama), schedule_of(4, 1))
    assert not any(part.shared for part in parts)
    assert sum(part.workload.parameters for part in parts) == llama.parameters


def test_one_part_is_the_model(gpt: Workload) -> None:
    times = times_of(gpt)
    (part,) = model_parts(gpt, times, schedule_of(1, 1))
    assert part.workload is gpt
    assert part.times is times


def test_stream_is_tokens_times_width(gpt: Workload) -> None:
    """Narayanan et al. 2021, section 3.2: b s h elements a micro-batch; in fp32 under autocast."""
    wide = build_model("gpt2", dtype="fp32", sequence_length=64)
    for model, item_bytes in ((gpt, 2), (wide, 4)):
        parts = model_parts(model, times_of(model), schedule_of(2, 1))
        assert handed_bytes(parts, "bf16", 4) == (4 * 64 * 768 * item_bytes,)


def test_stages_of_a_residual_network_hand_on_its_maps_of_features() -> None:
    """He et al. 2015, table 1: 56 x 56 x 256 after conv2_x, 28 x 28 x 512 after conv3_x."""
    resnet = build_model("resnet101", dtype="fp32", image_size=224)
    schedule = schedule_of(4, 1)
    options = PartitionOptions(blocks_per_part=(3, 4, 23, 3))
    parts = model_parts(resnet, times_of(resnet), schedule, options)
    maps = (56 * 56 * 256, 28 * 28 * 512, 14 * 14 * 1024)
    assert handed_bytes(parts, "fp32", 2) == tuple(2 * 4 * elements for elements in maps)
    assert handed_bytes(parts, "fp16", 2) == tuple(2 * 2 * elements for elements in maps)
    assert [part.workload.input_elements for part in parts[1:]] == list(maps)
    assert sum(part.workload.parameters for part in parts) == resnet.parameters


def test_a_model_of_two_streams_is_not_cut() -> None:
    t5 = build_model("t5-base", dtype="fp32", sequence_length=64)
    with pytest.raises(InputError, match="does not state what flows between its blocks"):
        model_parts(t5, times_of(t5), schedule_of(2, 1))


def test_weight_gradients_are_a_product_of_the_two_of_backward(gpt: Workload) -> None:
    times = times_of(gpt)
    assert times.weight_gradient_s is not None
    assert (times.weight_gradient_s <= times.backward_s).all()
    for layer, weight_s in zip(gpt.layers, times.weight_gradient_s, strict=True):
        assert (weight_s > 0) == isinstance(layer.matrix, MatrixProduct)
    blocks = slice(1, -1)
    share = times.weight_gradient_s[blocks].sum() / times.backward_s[blocks].sum()
    assert 0.2 < share < 0.5


@pytest.mark.parametrize(
    ("options", "stages", "text"),
    [
        (PartitionOptions(), 13, "parallel.pipeline.stages: found 13 x 1 chunks; allowed: at most"),
        (
            PartitionOptions(),
            5,
            "stages: found 5 parts of the model; allowed: parts that divide 12",
        ),
        (
            PartitionOptions(loss_as_block=True),
            4,
            "allowed: parts that divide 13 with loss_as_block",
        ),
        (PartitionOptions((4, 4)), 3, "blocks_per_part: found [4, 4]; allowed: 3 whole numbers"),
        (PartitionOptions((6, 0, 6)), 3, "blocks_per_part: found [6, 0, 6]"),
        (PartitionOptions(None, 3), 3, "first_stage_blocks: found 3 in the first; allowed"),
        (PartitionOptions(None, 3, 3, True), 3, "embedding_as_block: found true; allowed: false"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(
    gpt: Workload, options: PartitionOptions, stages: int, text: str
) -> None:
    with pytest.raises(InputError) as caught:
        part_layers(gpt, schedule_of(stages, 1), options)
    assert text in str(caught.value)


def test_models_that_do_not_state_their_stream_are_refused(gpt: Workload) -> None:
    silent = replace(gpt, stream_elements=0.0)
    with pytest.raises(InputError, match="does not state what flows between its blocks"):
        model_parts(silent, times_of(gpt), schedule_of(2, 1))

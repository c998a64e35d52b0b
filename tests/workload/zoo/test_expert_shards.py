"""What a rank holds of a model of experts, and what it sends, against published formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.workload import Workload, build_model
from perfmodel.workload.layer_calls import LayerCall
from perfmodel.workload.model import ELEMENT_BYTES
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo.decoder_sizes import (
    EXPERT_SHAPES,
    DecoderShape,
    ExpertShape,
    LatentShape,
    RoutedShape,
)
from perfmodel.workload.zoo.expert_decoder import expert_decoder
from perfmodel.workload.zoo.expert_settings import ExpertSettings
from perfmodel.workload.zoo.layers import GATED
from tests.theory import sent_share
from tests.workload.zoo.expert_modules import few_layers


def sent(call: LayerCall) -> float:
    """Elements that one rank sends per sample."""
    return call.times * sent_share(call.op, call.ranks) * call.elements


TOKENS = 64
SMALL = ExpertShape(
    DecoderShape(2, 32, 8, 4, 48, 64, 64), RoutedShape(16, 3, 16, 32, dense_first=1)
)
LATENT = ExpertShape(
    DecoderShape(2, 32, 8, 8, 48, 64, 64, head_width=4),
    RoutedShape(16, 3, 16, 32),
    LatentShape(16, 8, 8, 4, 8),
)


def made(shape: ExpertShape, shard: Shard, how: ExpertSettings | None = None) -> Workload:
    family = "DeepseekV3ForCausalLM" if shape.latent else "Qwen3MoeForCausalLM"
    return expert_decoder(
        "small",
        dtype="bf16",
        sequence_length=TOKENS,
        shape=shape,
        family=family,
        shard=shard,
        settings=how,
    )


def parallel_layout(tensor: int, expert: int, context: int = 1, library: str = "megatron") -> Shard:
    return Shard(
        tensor=tensor,
        sequence_parallel=tensor > 1,
        expert=expert,
        context=context,
        library=library,  # type: ignore[arg-type]
    )


DEGREES = st.sampled_from([1, 2, 4])


@settings(max_examples=25, deadline=None)
@given(DEGREES, st.sampled_from([1, 2, 4, 8, 16]), DEGREES, st.booleans())
def test_all_to_all_sends_what_published_formulas_say(
    tensor: int, expert: int, context: int, whole_experts: bool
) -> None:
    """Four all-to-alls a layer, each of s / (t c) x k x h (E - 1) / E elements."""
    how = ExpertSettings(tensor=1 if whole_experts else tensor)
    workload = made(SMALL, parallel_layout(tensor, expert, context), how)
    calls = [call for layer in workload.layers for call in layer.calls if call.group == "expert"]
    tokens = [call for call in calls if call.op == "all_to_all" and call.dtype is None]
    assert len(tokens) == (4 if expert > 1 else 0)
    formula = 4 * TOKENS / (tensor * context) * 3 * 32 * (expert - 1) / expert
    assert sum(map(sent, tokens)) == pytest.approx(formula)
    assert [(call.phase, call.place) for call in tokens][:2] == [
        ("forward", "before"),
        ("backward", "after"),
    ][: len(tokens)]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([SMALL, LATENT]), DEGREES, st.sampled_from([1, 2, 4, 8, 16]), st.booleans())
def test_ranks_hold_the_model_once(
    shape: ExpertShape, tensor: int, expert: int, whole_experts: bool
) -> None:
    """Experts / expert (/ tensor) of each layer, maps / tensor, norms and routers whole."""
    etp = 1 if whole_experts else tensor
    part = made(shape, parallel_layout(tensor, expert), ExpertSettings(tensor=etp))
    whole = {tensor_.name: tensor_ for tensor_ in made(shape, Shard()).tensors}
    assert [tensor_.name for tensor_ in part.tensors] == list(whole)
    narrow = ("norm", "mlp.gate.weight", "_a_proj", "router")
    for tensor_ in part.tensors:
        parts = tensor
        if tensor_.of_experts:
            parts = expert * etp
        elif any(word in tensor_.name for word in narrow):
            parts = 1
        assert tensor_.numel * parts == whole[tensor_.name].numel, tensor_.name


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([SMALL, LATENT]), DEGREES, st.sampled_from([1, 4, 16]))
def test_operations_of_all_ranks_are_those_of_the_model(
    shape: ExpertShape, tensor: int, expert: int
) -> None:
    """But for narrow maps that each rank of a group without sequence parallelism would repeat."""
    part = made(shape, parallel_layout(tensor, expert), ExpertSettings(tensor=1))
    whole = made(shape, Shard())
    assert part.training_flops * tensor == pytest.approx(whole.training_flops, rel=1e-12)


def test_degrees_of_one_are_the_plain_model() -> None:
    assert made(SMALL, parallel_layout(1, 1)) == made(SMALL, Shard())
    assert not any(layer.calls for layer in made(LATENT, Shard()).layers)


def test_the_busiest_rank_bounds_rows_and_bytes() -> None:
    even, uneven = (
        made(SMALL, Shard(expert=4), ExpertSettings(imbalance=variation))
        for variation in (0.0, 1.0)
    )
    load = ExpertSettings(imbalance=1.0).busiest(SMALL.routed, 4)
    assert load > 1.2
    for before, after in zip(even.layers, uneven.layers, strict=True):
        if "experts." in before.name and "shared" not in before.name:
            assert after.matrix.rows == pytest.approx(load * before.matrix.rows)
            moved = [
                sum(sent(c) for c in layer.calls if c.op == "all_to_all")
                for layer in (before, after)
            ]
            assert moved[1] == pytest.approx(load * moved[0])
        else:
            assert before == after


@pytest.mark.parametrize(
    ("expert", "how", "rows"),
    [
        (1, {}, 1),
        (4, {}, 2),  # gathered, then sorted once more where they arrive (Megatron-Core, torchtitan)
        (16, {}, 1),  # all that arrive are of one expert
        (4, {"dispatcher": "all_gather"}, 1),
        (4, {"dispatcher": "deduplicated"}, 1),
        (4, {"buffer_factor": 4.0}, 1 + 4),
        (4, {"buffer_factor": 4.0, "dispatcher": "deduplicated"}, 4),
    ],
)
def test_rows_are_copied_wherever_they_change_their_order(
    expert: int, how: dict[str, Any], rows: int
) -> None:
    """Read and written on the way there, and as often on the way back."""
    widen, narrow = (
        next(
            layer
            for layer in made(SMALL, Shard(expert=expert), ExpertSettings(**how)).layers
            if layer.name.endswith(f"experts.{name}")
        )
        for name in ("gate_up_proj", "down_proj")
    )
    pairs, width, inner = TOKENS * 3, 32, 16
    there = ELEMENT_BYTES * 2 * rows * pairs * width
    assert widen.vector_bytes == there
    filled = how.get("buffer_factor", 1.0) * pairs
    gated, weighed, summed = 5 * filled * inner, 2 * pairs * width, (pairs + 3 * TOKENS) * width
    assert narrow.vector_bytes == there + ELEMENT_BYTES * (gated + weighed + summed)
    assert widen.saved_elements == filled * width


def test_kernels_fused_with_the_activation_leave_it_no_kernel_of_its_own() -> None:
    apart, fused = (
        made(SMALL, Shard(expert=4), ExpertSettings(implementation=how)).layers
        for how in ("grouped", "fused")
    )
    for before, after in zip(apart, fused, strict=True):
        if "experts.down_proj" in before.name and "shared" not in before.name:
            activated = ELEMENT_BYTES * 5 * TOKENS * 3 * 16
            assert before.vector_bytes - after.vector_bytes == activated
            assert before.kernels - after.kernels == GATED.kernels
        else:
            assert before.vector_bytes == after.vector_bytes


def deepseek_calls(how: ExpertSettings, expert: int = 64) -> list[LayerCall]:
    """All-to-alls of tokens of one layer of DeepSeek-V3."""
    workload = expert_decoder(
        "deepseek-v3",
        dtype="bf16",
        sequence_length=4096,
        shape=few_layers(EXPERT_SHAPES["deepseek-v3"], 1, dense_first=0),
        shard=Shard(expert=expert),
        settings=how,
    )
    calls = (call for layer in workload.layers for call in layer.calls)
    return [call for call in calls if call.op == "all_to_all" and call.dtype in {None, "fp8"}]


def each_token(calls: list[LayerCall], group: str) -> list[float]:
    return [call.elements / 4096 / 7168 for call in calls if call.group == group]


NODES = 4 * (1 - math.comb(96, 8) / math.comb(128, 8))
"""Of 8 nodes with a group of 32 experts each, those that a token's 8 experts of 4 groups are in."""


def test_a_token_goes_once_to_each_node_in_fp8() -> None:
    """DeepSeek-V3 on 64 ranks of 8 nodes: 3.63 of at most four nodes, and a scale for 128."""
    assert each_token(deepseek_calls(ExpertSettings()), "expert") == [8, 8, 8, 8]
    how = ExpertSettings(dispatcher="deduplicated", dispatch_dtype="fp8", ranks_per_node=8)
    calls = deepseek_calls(how)
    scaled = [1 + 4 / 128, 1, 1, 1 + 4 / 128]
    assert each_token(calls, "expert_rail") == pytest.approx([NODES * by for by in scaled])
    # then to each of the ranks there with 4 experts of the 128 that it chooses from
    ranks = 32 * (1 - math.comb(124, 8) / math.comb(128, 8))
    assert each_token(calls, "expert_node") == pytest.approx([ranks * by for by in scaled])
    assert [call.ranks for call in calls[:2]] == [8, 8]
    assert [call.joins_previous for call in calls] == [False, True] * 4


def test_one_gpu_of_each_node_passes_nothing_on() -> None:
    how = ExpertSettings(dispatcher="deduplicated", ranks_per_node=1)
    calls = deepseek_calls(how, expert=8)
    assert {call.group for call in calls} == {"expert_rail"}
    assert each_token(calls, "expert_rail") == pytest.approx([NODES] * 4)


# Ranks, and GB/s between nodes of dispatch in fp8 and of combine in bf16, each token counted once
# for each node that it is for, its own included: normal kernels on H800 with 8 x 400 Gbit/s, 4,096
# tokens of DeepSeek-V3 (deepseek-ai/DeepEP, README of 2025, later kernels; NVLink reaches 160).
DEEP_EP = ((16, 47, 62), (32, 59, 60), (64, 49, 51))


@pytest.mark.parametrize(("ranks", "dispatch", "combine"), DEEP_EP)
def test_the_slower_leg_explains_measured_rates(ranks: int, dispatch: int, combine: int) -> None:
    """At the rates of the wires no leg is slower than measured, nor above twice as quick."""
    how = ExpertSettings(dispatcher="deduplicated", ranks_per_node=8)
    rail, node = deepseek_calls(how, ranks)[:2]
    between, within = map(sent, (rail, node))
    slower = max(between / 50, within / 160)
    assert (within / 160 > between / 50) == (ranks == 16)  # two nodes are bound by NVLink
    for measured in (dispatch, combine):
        assert measured < rail.elements / slower < 1.5 * measured


def test_gathered_tokens_come_from_all_ranks() -> None:
    workload = made(SMALL, Shard(expert=4), ExpertSettings(dispatcher="all_gather"))
    calls = [call for layer in workload.layers for call in layer.calls]
    assert [(call.op, call.phase) for call in calls] == [
        ("all_gather", "forward"),
        ("reduce_scatter", "backward"),
        ("reduce_scatter", "forward"),
        ("all_gather", "backward"),
    ]
    assert {call.elements for call in calls} == {4 * TOKENS * 32}


@pytest.mark.parametrize(
    ("shard", "how", "parts"),
    [
        (Shard(expert=3), None, ("expert", "3", "divisor of the 8 experts")),
        (Shard(tensor=2), None, ("sequence_parallel", "true")),
        (
            Shard(tensor=2, sequence_parallel=True, expert=2),
            ExpertSettings(tensor=4),
            ("experts.tensor", "4", "1 or 2"),
        ),
        (
            Shard(expert=4),
            ExpertSettings(dispatcher="all_gather", buffer_factor=2),
            ("buffer_factor", "found 2", "1 beside dispatcher all_gather"),
        ),
        (Shard(expert=4), ExpertSettings(ranks_per_node=3), ("ranks_per_node", "divisor of the 4")),
        (
            Shard(),
            ExpertSettings(dispatch_dtype="fp8", imbalance=0.5),
            ("dispatch_dtype", "imbalance", "expert: 1"),
        ),
    ],
)
def test_faults_of_shares(shard: Shard, how: ExpertSettings | None, parts: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as raised:
        build_model("mixtral-8x7b", sequence_length=64, shard=shard, experts=how)
    for part in parts:
        assert part in str(raised.value)


def test_models_without_experts_refuse_them() -> None:
    with pytest.raises(InputError, match="no experts"):
        build_model("llama2-7b", sequence_length=64, shard=Shard(expert=2))
    with pytest.raises(InputError, match="without experts"):
        build_model("gpt2", experts=ExpertSettings())

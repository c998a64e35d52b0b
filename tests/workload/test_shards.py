"""Shares of a model against published formulas and against the whole, for all degrees."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload import build_model, layer_times, load_workload
from perfmodel.workload.memory.blocks import repeated_blocks
from perfmodel.workload.memory.recompute import Recompute, input_elements
from perfmodel.workload.model import Layer, Workload
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo.decoder_sizes import DecoderShape
from perfmodel.workload.zoo.llama import llama
from perfmodel.workload.zoo.text_decoder import gpt, gpt_shape
from tests.activations import activation_bytes
from tests.theory import sent_share

TOKENS, WIDTH, HEADS = 256, 128, 16
GPT = gpt_shape(2, WIDTH, HEADS, TOKENS, 512)
LLAMA = DecoderShape(2, WIDTH, HEADS, 8, 192, 512, TOKENS, fused_norms=True)
KV_WIDTH = WIDTH // HEADS * LLAMA.kv_heads

degrees = st.sampled_from([1, 2, 4, 8])


def small_gpt(shard: Shard) -> Workload:
    return gpt("toy", dtype="bf16", sequence_length=TOKENS, shape=GPT, shard=shard)


def small_llama(shard: Shard) -> Workload:
    return llama("toy", dtype="bf16", sequence_length=TOKENS, shape=LLAMA, shard=shard)


MODELS = st.sampled_from([small_gpt, small_llama])


def block_of(model: Workload) -> list[Layer]:
    first = repeated_blocks(model)[0]
    return [model.layers[index] for index in first]


def sent(layers: list[Layer], group: str, **chosen: str) -> float:
    """Elements that a rank sends per sample; `chosen`: phase or operation."""
    return sum(
        call.times * sent_share(call.op, call.ranks) * call.elements
        for layer in layers
        for call in layer.calls
        if call.group == group
        and call.phase != "step"
        and all(getattr(call, name) == value for name, value in chosen.items())
    )


# ---------------------------------------------------------------- bytes


@given(t=degrees, c=st.sampled_from([1, 2, 4]), model=MODELS)
def test_a_block_sends_four_all_reduces(t: int, c: int, model: Any) -> None:
    """Shoeybi et al. 2019, section 3: two in forward and two in backward, of b s h elements."""
    layers = block_of(model(Shard(tensor=t, context=c)))
    for phase in ("forward", "backward"):
        whole = TOKENS // c * WIDTH
        assert sent(layers, "tensor", phase=phase) == pytest.approx(2 * 2 * (t - 1) / t * whole)


@pytest.mark.parametrize(("library", "beside"), [("megatron", True), ("torch", False)])
def test_megatron_sums_gradients_of_inputs_beside_those_of_weights(
    library: Any, beside: bool
) -> None:
    """``linear_with_grad_accumulation_and_async_allreduce``; torch does one after the other."""
    layers = block_of(small_gpt(Shard(tensor=2, library=library)))
    calls = [call for layer in layers for call in layer.calls if call.phase == "backward"]
    assert {(call.op, call.overlap > 0) for call in calls} == {("all_reduce", beside)}


@given(t=st.sampled_from([2, 4, 8]), model=MODELS)
def test_sequence_parallel_blocks_gather_and_scatter(t: int, model: Any) -> None:
    """Korthikanti et al. 2022, section 4.2: as many bytes, and two gathers more in backward."""
    layers = block_of(model(Shard(tensor=t, sequence_parallel=True)))
    each = (t - 1) / t * TOKENS * WIDTH
    counts = {
        ("forward", "all_gather"): 2,
        ("forward", "reduce_scatter"): 2,
        ("backward", "all_gather"): 4,
        ("backward", "reduce_scatter"): 2,
    }
    for (phase, op), count in counts.items():
        assert sent(layers, "tensor", phase=phase, op=op) == pytest.approx(count * each)
    assert not sent(layers, "tensor", op="all_reduce")


@given(c=st.sampled_from([2, 4, 8]), t=st.sampled_from([1, 2, 4]))
def test_keys_and_values_go_around_the_ring(c: int, t: int) -> None:
    """Liu et al. 2023 (arXiv 2310.01889): c - 1 blocks forward; their gradients too in backward."""
    layers = block_of(small_llama(Shard(tensor=t, context=c)))
    block = 2 * TOKENS // c * KV_WIDTH / t
    assert sent(layers, "context", phase="forward") == (c - 1) * block
    assert sent(layers, "context", phase="backward") == 2 * (c - 1) * block


@given(c=st.sampled_from([2, 4, 8]))
def test_ulysses_sends_four_all_to_alls_each_way(c: int) -> None:
    """Jacobs et al. 2023, section 3.2: 4 M / P per rank, of which it keeps one part in P itself."""
    layers = block_of(small_gpt(Shard(context=c, context_kind="ulysses")))
    for phase in ("forward", "backward"):
        each = TOKENS * WIDTH / c * (c - 1) / c
        assert sent(layers, "context", phase=phase) == pytest.approx(4 * each)
    places = Counter(
        (call.phase, call.place)
        for layer in layers
        for call in layer.calls
        if call.group == "context"
    )
    assert places == {  # query, key and value before attention, its result after it
        ("forward", "before"): 3,
        ("forward", "after"): 1,
        ("backward", "before"): 1,
        ("backward", "after"): 3,
    }


@given(c=st.sampled_from([2, 4, 8]))
def test_gathered_keys_and_values_are_summed_in_backward(c: int) -> None:
    layers = block_of(small_llama(Shard(context=c, context_kind="all_gather")))
    each = (c - 1) / c * TOKENS * KV_WIDTH
    assert sent(layers, "context", phase="forward") == pytest.approx(2 * each)
    assert sent(layers, "context", phase="backward", op="reduce_scatter") == pytest.approx(2 * each)


@pytest.mark.parametrize(("name", "sums"), [("bert-base", {0: 2}), ("t5-small", {0: 2, -1: 3})])
def test_blocks_of_encoders_and_decoders_sum_once_a_branch(name: str, sums: dict[int, int]) -> None:
    """One all-reduce of each branch forward, of each input of maps backward.

    Attention to an encoder has two inputs.
    """
    model = build_model(name, shard=Shard(tensor=2))
    blocks = repeated_blocks(model)
    for block, branches in sums.items():
        layers = [model.layers[index] for index in blocks[block]]
        counts = {
            phase: sum(call.phase == phase for layer in layers for call in layer.calls)
            for phase in ("forward", "backward")
        }
        assert counts == {"forward": branches, "backward": branches + (branches == 3)}
        whole = build_model(name)
        flops = sum(whole.layers[index].matmul_flops for index in repeated_blocks(whole)[block])
        assert 2 * sum(layer.matmul_flops for layer in layers) == pytest.approx(flops)


# ---------------------------------------------------------------- shares


@given(
    t=degrees,
    c=degrees,
    sequence=st.booleans(),
    kind=st.sampled_from(["ring", "all_gather"]),
    library=st.sampled_from(["megatron", "torch"]),
    model=MODELS,
    balanced=st.booleans(),
)
def test_ranks_together_do_the_work_of_the_whole(
    t: int, c: int, sequence: bool, kind: Any, library: Any, model: Any, balanced: bool
) -> None:
    shard = Shard(
        tensor=t,
        context=c,
        sequence_parallel=sequence and t > 1,
        context_kind=kind,
        library=library,
        context_balanced=balanced,
    )
    whole, share = model(Shard()), model(shard)
    assert share.training_flops * t * c == pytest.approx(whole.training_flops, rel=1e-12)
    replicated = sum(x.numel for x in share.tensors if x.shape == shape_in(whole, x.name))
    split = share.parameters - replicated
    assert replicated + t * split == whole.parameters or t == 1


def shape_in(model: Workload, name: str) -> tuple[int, ...]:
    return next(tensor.shape for tensor in model.tensors if tensor.name == name)


def test_the_last_rank_of_an_unbalanced_ring_sees_most() -> None:
    """Of c equal parts, the last one's queries see (c - 1/2) / c of all pairs of theirs."""
    c = 4
    attended = [
        next(layer.matrix for layer in small_gpt(shard).layers if layer.kind == "attention")
        for shard in (Shard(context=c), Shard(context=c, context_balanced=False))
    ]
    assert [each.seen_keys for each in attended] == [TOKENS / 2, TOKENS * (c - 0.5) / c]


@given(name=st.sampled_from(["gpt2", "llama3.2-1b", "t5-small", "bert-base", "gemma2-2b"]))
def test_degrees_of_one_are_the_plain_model(name: str) -> None:
    assert build_model(name, shard=Shard(library="torch", context_kind="ulysses")) == replace(
        build_model(name), shard=Shard(library="torch", context_kind="ulysses")
    )


def test_vocabularies_are_padded_as_megatron_does() -> None:
    """``make_vocab_size_divisible_by`` 128 with 8 ranks: 50257 words become 51200."""
    shard = Shard(tensor=8, vocabulary_multiple=128)
    assert build_model("gpt3-175b", shard=shard).tensors[0].shape == (6400, 12288)


def test_few_heads_of_keys_are_repeated_by_megatron_alone() -> None:
    """Megatron-Core: "num_query_groups" below the tensor degree; torch cannot cut a head."""
    assert shape_in(small_llama(Shard(tensor=16)), "model.layers.0.self_attn.k_proj.weight") == (
        WIDTH // HEADS,
        WIDTH,
    )
    with pytest.raises(InputError, match=r"tensor: found 16.*8 heads of keys and values"):
        small_llama(Shard(tensor=16, library="torch"))


# ---------------------------------------------------------------- memory

FLOWS = 16
"""Bytes per token of the means and deviations of two norms, which the papers leave out."""


def kept_by_a_block(shard: Shard, **options: Any) -> float:
    """Bytes that one block keeps for one sample in half precision."""
    models = (
        gpt("toy", dtype="bf16", sequence_length=TOKENS, shape=replace(GPT, layers=n), shard=shard)
        for n in (1, 2)
    )
    one, two = (activation_bytes(model, 1, "bf16", **options) for model in models)
    return two - one


@given(t=degrees)
def test_kept_activations_are_those_of_the_paper(t: int) -> None:
    """Korthikanti et al. 2022, table 2: s b h (10 + 24 / t + 5 a s / h t), and all of it over t."""
    scores = 5 * HEADS * TOKENS / WIDTH / t
    plain = kept_by_a_block(Shard(tensor=t), fused_attention=False)
    assert plain == pytest.approx(TOKENS * WIDTH * (10 + 24 / t + scores) + FLOWS * TOKENS)
    if t > 1:
        split = Shard(tensor=t, sequence_parallel=True)
        kept = kept_by_a_block(split, fused_attention=False)
        whole = TOKENS * WIDTH * (34 / t + scores) + FLOWS * TOKENS / t
        assert kept == pytest.approx(whole)
        # torch keeps the two gathered inputs whole
        torch_kept = kept_by_a_block(replace(split, library="torch"), fused_attention=False)
        assert torch_kept - kept == pytest.approx(2 * 2 * TOKENS * WIDTH * (1 - 1 / t))


@given(t=degrees, c=degrees)
def test_a_checkpoint_keeps_a_ranks_part_of_the_input(t: int, c: int) -> None:
    """Same table, full recomputation: 2 s b h, with sequence parallelism over t."""
    shard = Shard(tensor=t, sequence_parallel=t > 1, context=c)
    kept = kept_by_a_block(shard, recompute=Recompute("full"))
    assert kept == pytest.approx(2 * TOKENS * WIDTH / (t * c))
    assert input_elements(block_of(small_gpt(shard))[0]) == TOKENS * WIDTH / (t * c)


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("name", "shard", "messages"),
    [
        (
            "gpt2",
            Shard(tensor=5),
            [
                "tensor: found 5; allowed: a divisor of the 12 heads",
                "a divisor of the 3072 columns",
                "a divisor of the 50257 words .*vocabulary_multiple",
            ],
        ),
        ("gpt2", Shard(tensor=0, context=-1), ["tensor: found 0", "context: found -1"]),
        ("gpt2", Shard(sequence_parallel=True), ["sequence_parallel: found true; allowed: false"]),
        ("gpt2", Shard(context=3), ["sequence_length: found 1024 tokens.*a multiple of 6"]),
        ("gpt2", Shard(context=8, context_kind="ulysses"), ["context: found 8.*the 12 heads"]),
        (
            "gpt2",
            Shard(tensor=2, overlap="asynchronous", vocabulary_multiple=8),
            ["overlap: found 'asynchronous'.*without sequence_parallel"],
        ),
        (
            "gpt2",
            Shard(tensor=2, overlap="gradients", library="torch", vocabulary_multiple=8),
            ["overlap: found 'gradients'.*torch"],
        ),
        ("mistral-7b", Shard(context=2), ["context_kind: found 'ring'.*slides"]),
        ("gpt-oss-20b", Shard(context=2), ["context_kind: found 'ring'.*slides"]),
        ("bert-base", Shard(context=2), ["context: found 2; allowed: 1.*pools"]),
        ("t5-base", Shard(context=2), ["context: found 2; allowed: 1.*different numbers"]),
        ("resnet50", Shard(tensor=2, context=2), ["tensor: found 2; allowed: 1", "context: found"]),
    ],
)
def test_impossible_shares_name_what_is_allowed(
    name: str, shard: Shard, messages: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        build_model(name, shard=shard)
    for message in messages:
        assert caught.match(message)


def test_blocks_of_keys_need_fused_attention() -> None:
    model = build_model("gpt2", shard=Shard(context=2))
    with pytest.raises(InputError, match=r"fused_attention: found false; allowed: true"):
        layer_times(
            model, load_gpu("h100-sxm5-80gb"), batch=1, precision="bf16", fused_attention=False
        )


def test_a_model_file_is_not_split(tmp_path: Any) -> None:
    path = tmp_path / "own.csv"
    path.write_text("name,shape\nw,4x4\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"tensor: found 2; allowed: 1 for .*does not state how"):
        load_workload(str(path), shard=Shard(tensor=2))

"""Low-rank adapters beside frozen maps, packed documents, and losses that are not fused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.errors import InputError
from perfmodel.files import validate_document
from perfmodel.scenario import ClusterSize, Scenario, load_scenario
from perfmodel.scenario.sections.model import AdaptersSection
from perfmodel.studies.run.resolve.training_job import resolve_share, resolve_workload
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload.kernels.float8_layers import Float8, float8_layers
from perfmodel.workload.kernels.shapes import Attention
from perfmodel.workload.memory.optimizer_states import optimizer_state_bytes
from perfmodel.workload.model_changes import (
    add_adapters,
    pack_documents,
)
from perfmodel.workload.roofline import layer_times
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo.decoder_sizes import SHAPES
from perfmodel.workload.zoo.llama import llama
from tests.activations import activation_bytes

TOKENS = 512
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
SMALL = replace(SHAPES["llama2-7b"], layers=2)


def small(shard: Shard | None = None, tokens: int = TOKENS):
    kwargs = {} if shard is None else {"shard": shard}
    return llama("small", dtype="bf16", sequence_length=tokens, shape=SMALL, **kwargs)


def trained(workload) -> int:
    return sum(workload.tensors[index].numel for index in workload.ready_order)


# What peft's `print_trainable_parameters` says of Llama-2 7B: 4,194,304 of 6,742,609,920 with rank
# 8 on queries and values; 16,777,216 with rank 16 on all maps of attention.
@pytest.mark.parametrize(
    ("rank", "targets", "count"),
    [(8, ("q_proj", "v_proj"), 4_194_304), (16, ATTENTION, 16_777_216)],
)
def test_as_many_parameters_are_trained_as_peft_counts(rank, targets, count):
    model = llama("llama2-7b", dtype="bf16", sequence_length=128)
    adapted = add_adapters(model, AdaptersSection(rank=rank, targets=targets))
    assert trained(adapted) == count
    assert adapted.parameters == 6_738_415_616 + count
    assert optimizer_state_bytes(adapted, "adamw") == 12 * count


def test_one_adapter_of_three_joined_maps_has_one_narrow_side():
    adapted = add_adapters(small(), AdaptersSection(rank=8, targets=("qkv_proj",)))
    assert trained(adapted) == 2 * 8 * (4096 + 3 * 4096)
    part = small(Shard(tensor=2))
    assert trained(add_adapters(part, AdaptersSection(rank=8, targets=("qkv_proj",)))) == 2 * 8 * (
        4096 + 3 * 2048
    )


def test_a_frozen_model_makes_no_gradients_of_weights_and_keeps_less():
    gpu, whole = load_gpu("h100-sxm5-80gb"), small()
    adapted = add_adapters(whole, AdaptersSection(rank=16, targets=ATTENTION))
    full, lora = (
        layer_times(each, gpu, batch=8, precision="bf16", compiled=True)
        for each in (whole, adapted)
    )
    # products of backward are halved; attention, norms and the loss are as before
    assert 0.5 < lora.backward_s.sum() / full.backward_s.sum() < 0.75
    assert lora.forward_s.sum() > full.forward_s.sum()
    assert lora.backward_s[0] == 0.0  # the table
    kept = [activation_bytes(each, 8, "bf16") for each in (whole, adapted)]
    assert 0.6 * kept[0] < kept[1] < kept[0]


def test_frozen_maps_run_in_fp8_and_adapters_do_not():
    adapted = add_adapters(small(), AdaptersSection(rank=16, targets=ATTENTION))
    narrow = {adapted.layers[place].name for place in float8_layers(adapted, Float8())}
    assert "model.layers.0.mlp.up_proj" in narrow
    assert not any("lora" in name for name in narrow)
    gpu = load_gpu("h100-sxm5-80gb")
    wide, fp8 = (layer_times(adapted, gpu, batch=8, precision=each) for each in ("bf16", "fp8"))
    assert fp8.backward_s.sum() < wide.backward_s.sum()


def test_targets_that_no_map_has_are_refused():
    with pytest.raises(InputError, match="q_prj") as caught:
        add_adapters(small(), AdaptersSection(rank=8, targets=("q_prj", "v_proj")))
    assert len(caught.value.faults) == 1
    assert "q_proj" in caught.value.faults[0].allowed


@given(st.sampled_from([64, 128, 256, 512]))
def test_documents_share_a_sequence(tokens):
    whole, packed = small(), pack_documents(small(), tokens)
    for before, after in zip(whole.layers, packed.layers, strict=True):
        if isinstance(before.matrix, Attention):
            assert isinstance(after.matrix, Attention)
            assert after.matrix.flops == pytest.approx(before.matrix.flops * tokens / 512)
            assert after.matrix.elements == before.matrix.elements
            assert after.matmul_flops == pytest.approx(before.matmul_flops * tokens / 512)
        else:
            assert after == before


def test_documents_longer_than_a_sequence_are_refused():
    with pytest.raises(InputError, match="at most the 512 tokens"):
        pack_documents(small(), 513)
    with pytest.raises(InputError, match="self-attention of whole sequences"):
        pack_documents(small(Shard(context=2)), 64)


def test_a_scenario_states_adapters_and_documents():
    document = {
        "perfmodel": 1,
        "model": {
            "name": "llama2-7b",
            "dtype": "bf16",
            "sequence_length": 512,
            "document_length": 128,
            "adapters": {"rank": 8, "targets": ["q_proj", "v_proj"]},
        },
        "compute": {"precision": "bf16", "optimizer": "adamw"},
        "strategy": {"kind": "ddp"},
        "parallel": {"tensor": 2},
        "cluster": {"node": "dgx-h100", "nodes": 1, "gpus_per_node": 8},
        "training": {"batch_per_gpu": 1},
    }
    scenario = validate_document(Scenario, document)
    whole = resolve_workload(scenario)
    assert trained(whole) == 4_194_304
    share = resolve_share(scenario, whole, ClusterSize(8, 1, 8))
    assert trained(share) < trained(whole)
    attention = [each.matrix for each in share.layers if isinstance(each.matrix, Attention)]
    assert {(each.tokens, each.sequences) for each in attention} == {(128, 4)}
    document["model"]["adapters"]["targets"] = ["gate"]
    with pytest.raises(InputError, match=r"adapters\.targets\.0"):
        resolve_workload(validate_document(Scenario, document))


def calls_of(workload, name: str) -> list[tuple[str, str, float, float]]:
    layer = next(each for each in workload.layers if each.name == f"model.layers.1.{name}")
    return [(call.op, call.phase, call.elements, call.overlap) for call in layer.calls]


def test_frozen_maps_gather_nothing_again_and_reduce_without_a_product_beside():
    shard = Shard(tensor=2, sequence_parallel=True, overlap="asynchronous")
    adapted = add_adapters(small(shard), AdaptersSection(rank=8, targets=("qkv_proj", "o_proj")))
    wide = 4096.0 * TOKENS
    assert calls_of(adapted, "mlp.gate_up_proj") == [
        ("all_gather", "forward", wide, 0.5),
        ("reduce_scatter", "backward", wide, 0.0),
    ]
    assert calls_of(adapted, "mlp.down_proj") == [
        ("reduce_scatter", "forward", wide, 0.5),
        ("all_gather", "backward", wide, 0.5),
    ]
    # with the map's gather cut up, A has one of its own
    assert [each[:3] for each in calls_of(adapted, "self_attn.qkv_proj.lora_A")] == [
        ("all_reduce", "backward", 8.0 * TOKENS),
        ("all_gather", "forward", wide),
        ("reduce_scatter", "backward", wide),
    ]


@pytest.mark.parametrize(
    ("by_tokens", "expected"), [(False, ("all_gather", 1.0)), (True, ("all_to_all", 0.5))]
)
def test_results_beside_maps_cut_by_rows_are_exchanged_whole(by_tokens, expected):
    shard = Shard(tensor=2, sequence_parallel=True)
    adapters = AdaptersSection(rank=8, targets=("qkv_proj", "o_proj"), a2a_experimental=by_tokens)
    adapted = add_adapters(small(shard), adapters)
    op, share = expected
    assert [each[:3] for each in calls_of(adapted, "self_attn.o_proj.lora_B")] == [
        (op, phase, share * 4096.0 * TOKENS) for phase in ("forward", "backward")
    ]
    assert len(calls_of(adapted, "self_attn.qkv_proj.lora_A")) == 1
    assert not calls_of(adapted, "self_attn.qkv_proj.lora_B")


@pytest.mark.parametrize("kind", ["ddp", "megatron", "fsdp", "{kind: zero, stage: 3}"])
def test_a_stage_without_adapters_is_refused(kind: str) -> None:
    """Embedding and head have none, and stand alone where they count as blocks."""
    changes = [
        "training.batch_per_gpu=1",
        f"strategy={kind}",
        "model={name: llama3.2-1b, adapters: {}}",
        "parallel={pipeline: {stages: 6, embedding_as_block: true, loss_as_block: true}}",
        "parallel.pipeline.blocks_per_part=[0, 4, 4, 4, 4, 0]",
        "cluster={node: dgx-h100, nodes: 3, fabric: rail-optimised}",
        "scale.gpus=[24]",
    ]
    with pytest.raises(
        InputError, match=r"parallel\.pipeline\S*: found nothing to train in .*part 1"
    ):
        pm.run(load_scenario("llama2-7b-fsdp-h100", changes))

"""Fields of real configurations that no contract has: each acts, is harmless, named, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.errors import InputError
from perfmodel.workload.configs.hugging_face import read_config
from perfmodel.workload.zoo import build_model
from perfmodel.workload.zoo.buildable import Buildable, build

GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "output_router_logits": False,
    "pad_token_id": 199999,
    "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-5,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0},
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "transformers_version": "4.55.0.dev0",
    "use_cache": True,
    "vocab_size": 201088,
}
"""Fields as the published file of the 20B has them."""
GEMMA4_EXPERTS = {
    "hidden_size_per_layer_input": 0,
    "enable_moe_block": True,
    "num_experts": 128,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
}
GEMMA4 = {
    "model_type": "gemma4_text",
    **GEMMA4_EXPERTS,
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
}
"""The text model of gemma-4-26B-A4B."""
PRE_TRAINING = {"architectures": ["Wav2Vec2ForPreTraining"]}
LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 100}


def read(folder: Path, fields: dict[str, Any]) -> Buildable:
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return read_config(path)


def test_a_published_file_is_the_model_of_the_zoo(tmp_path: Path) -> None:
    model = read(tmp_path, GPT_OSS)
    ours, theirs = build(model, sequence_length=64), build_model("gpt-oss-20b", sequence_length=64)
    assert [(t.name, t.shape) for t in ours.tensors] == [(t.name, t.shape) for t in theirs.tensors]
    assert ours.training_flops == theirs.training_flops
    assert model.dtype == "bf16"
    assert model.notes == (
        "Its weights are stored as mxfp4; trained in bf16, as they are dequantised.",
    )


def test_a_stated_dtype_goes_before_that_of_stored_weights(tmp_path: Path) -> None:
    assert read(tmp_path, {**GPT_OSS, "torch_dtype": "float32"}).dtype == "fp32"


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"banana": 3, "apple": [1]}, "Fields that are not read: apple, banana."),
        ({"banana": None, "apple": 0, "rope_theta": 5e5, "auto_map": {}}, ""),
        ({"gradient_checkpointing": True}, "memory.recompute"),
        ({"output_router_logits": True}, "experts.auxiliary_loss"),
        ({"num_nextn_predict_layers": 1}, "further tokens"),
        ({"auto_map": {"AutoModel": "modeling_x.X"}}, "auto_map"),
    ],
)
def test_what_is_not_read_is_said(extra: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert words in " ".join(read(tmp_path, LLAMA | extra).notes)
    if not words:
        assert read(tmp_path, LLAMA | extra).notes == ()


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"moe_layer_freq": 2}, "moe_layer_freq", "1"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type", "absolute"),
        ({"model_type": "mamba"}, "model_type", "perfmodel capture"),
        ({"model_type": "lama"}, "model_type", "did you mean 'llama'"),
    ],
)
def test_models_that_the_zoo_has_not_are_refused_in_their_field(
    changes: dict[str, Any], field: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as raised:
        read(tmp_path, LLAMA | changes)
    (fault,) = raised.value.faults
    assert fault.field == field
    assert words in fault.allowed


@pytest.mark.parametrize(
    ("kind", "changes", "field"),
    [
        ("swin", {"depths": [2, 2]}, "num_heads"),
        ("swin", {"num_heads": [5, 6, 12, 24]}, "num_heads"),
        ("wav2vec2", {"conv_dim": [8]}, "conv_dim"),
        ("wav2vec2", {"num_conv_pos_embedding_groups": 7}, "num_conv_pos_embedding_groups"),
        ("wav2vec2", PRE_TRAINING | {"codevector_dim": 255}, "num_codevector_groups"),
        ("gemma4_text", {"num_kv_shared_layers": 30}, "num_kv_shared_layers"),
        ("gemma4_text", {"num_kv_shared_layers": 25}, "num_kv_shared_layers"),
        ("gemma4_text", {"layer_types": ["full_attention"]}, "layer_types"),
        ("gemma4_text", {"num_key_value_heads": 3}, "num_key_value_heads"),
        ("gemma4_text", GEMMA4_EXPERTS | {"top_k_experts": None}, "top_k_experts"),
        ("gemma4_text", GEMMA4_EXPERTS | {"top_k_experts": 129}, "top_k_experts"),
        ("deepseek_v4", {"o_groups": 7}, "o_groups"),
        ("deepseek_v4", {"compress_ratios": [4]}, "layer_types"),
        ("deberta", {"relative_attention": True}, "pos_att_type"),
        ("deberta-v2", {"relative_attention": False}, "relative_attention"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_their_field(
    kind: str, changes: dict[str, Any], field: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as raised:
        read(tmp_path, {"model_type": kind, **changes})
    assert field in {fault.field for fault in raised.value.faults}


def test_no_window_is_written_as_zero(tmp_path: Path) -> None:
    """As transformers 5 writes Qwen's."""
    fields = LLAMA | {
        "model_type": "qwen2",
        "sliding_window": 0,
        "use_sliding_window": True,
        "max_window_layers": 0,
        "num_key_value_heads": 4,
        "num_attention_heads": 4,
    }
    ours = build(read(tmp_path, fields), sequence_length=16)
    assert all(layer.matrix.window is None for layer in ours.layers if layer.kind == "attention")


def test_a_class_alone_does_not_say_how_large_a_model_is(tmp_path: Path) -> None:
    """Files of older code have its class, and sizes by other names: Phi 1.5's, as published."""
    older = {
        "model_type": "phi-msft",
        "architectures": ["PhiForCausalLM"],
        "n_embd": 2560,
        "n_layer": 32,
        "n_head": 32,
        "rotary_dim": 32,
        "vocab_size": 51200,
    }
    with pytest.raises(InputError) as caught:
        read(tmp_path, older)
    fields = {fault.field for fault in caught.value.faults}
    assert fields == {"hidden_size", "num_hidden_layers", "num_attention_heads"}
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    assert build(read(tmp_path, {**older, **sizes}), sequence_length=8).layers


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "opt", "do_layer_norm_before": False},
        {"model_type": "phi", "qk_layernorm": True},
        {"model_type": "bert", "architectures": ["BertForTokenClassification"]},
        {"model_type": "falcon", "alibi": True},
        {"model_type": "wav2vec2", "add_adapter": True},
        {"model_type": "gemma4_text", "enable_moe_block": True},
        {"model_type": "mamba"},
    ],
)
def test_what_no_reader_takes_is_sent_to_capture(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="`perfmodel capture"):
        read(tmp_path, fields)


@pytest.mark.parametrize(
    ("fields", "millions"),
    [
        (
            {
                "model_type": "phi",
                "hidden_size": 2560,
                "num_hidden_layers": 32,
                "intermediate_size": 10240,
            },
            2779.7,
        ),
        (
            {
                "model_type": "opt",
                "hidden_size": 2048,
                "num_hidden_layers": 24,
                "num_attention_heads": 32,
                "ffn_dim": 8192,
            },
            1315.8,
        ),
        ({"model_type": "roberta", "max_position_embeddings": 514, "type_vocab_size": 1}, 124.7),
        ({"model_type": "distilbert"}, 67.0),
        ({"model_type": "bloom", "n_layer": 24, "n_head": 16, "n_embed": 1024}, 559.2),
        ({"model_type": "bart"}, 406.3),
        ({"model_type": "glm_moe_dsa"}, 744e3),
        ({"model_type": "swin", "num_labels": 1000}, 28.288),
        ({"model_type": "wav2vec2"}, 94.396),
        ({"model_type": "wav2vec2", **PRE_TRAINING}, 95.0446),
        (GEMMA4, 25_233.14),
        (
            {
                "model_type": "deberta-v2",
                "hidden_size": 768,
                "intermediate_size": 3072,
                "num_hidden_layers": 12,
                "num_attention_heads": 12,
                "position_biased_input": False,
                "position_buckets": 256,
                "relative_attention": True,
                "share_att_key": True,
                "norm_rel_ebd": "layer_norm",
                "pos_att_type": "p2c|c2p",
            },
            184.5,
        ),
    ],
)
def test_parameters_of_published_models(
    tmp_path: Path, fields: dict[str, Any], millions: float
) -> None:
    """As huggingface.co counts them.

    Phi-2, OPT-1.3b, roberta-base, distilbert-base, bloom-560m, bart-large, GLM-5 (in 1e9),
    swin-tiny, wav2vec2-base-960h and deberta-v3-base. As transformers 5.24 builds them on the meta
    device: wav2vec2-base, and the text model of gemma-4-26B-A4B, whose card says 25.2B.
    """
    model = build(read(tmp_path, fields))
    assert model.parameters / 1e6 == pytest.approx(millions, rel=1e-3)

"""Small configurations of each family, and the real modules of them, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfmodel.workload.configs.decoder_models import expert_model
from perfmodel.workload.configs.hugging_face import FAMILIES, read_config
from perfmodel.workload.kernels.shapes import Scan
from perfmodel.workload.model import Layer
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.t5 import target_tokens

BATCH, TOKENS, PIXELS = 2, 128, 64


def sized(model_type: str, **more: Any) -> dict[str, Any]:
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 160,
        "vocab_size": 400,
        "pad_token_id": 0,
    }
    return {"model_type": model_type, **sizes, **more}


def decoder(model_type: str, **more: Any) -> dict[str, Any]:
    return sized(model_type, **{"num_key_value_heads": 4, **more})


def falcon(**more: Any) -> dict[str, Any]:
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    fields = {**sized("falcon", **ids), **more}
    return {name: value for name, value in fields.items() if name != "intermediate_size"}


MODERN = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
}
INDEXER = {"index_topk": 16, "index_head_dim": 24, "index_n_heads": 2}
COMPRESSED = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "q_lora_rank": 24,
    "o_groups": 2,
    "o_lora_rank": 12,
    "index_n_heads": 3,
    "index_head_dim": 16,
    "index_topk": 4,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 48,
    "moe_intermediate_size": 48,
}
SHARED_EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
}
MAMBA2 = {
    "model_type": "mamba2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 16,
    "vocab_size": 400,
    "pad_token_id": 0,
}
NEMOTRON_H = {
    "model_type": "nemotron_h",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 160,
    "mamba_num_heads": 6,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 2,
    "chunk_size": 64,
    "vocab_size": 400,
}
DELTA = {
    "head_dim": 32,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "vocab_size": 400,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OPT = {
    "model_type": "opt",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 160,
    "vocab_size": 400,
    "word_embed_proj_dim": 64,
}
T5 = {
    "model_type": "t5",
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 160,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 400,
    "decoder_start_token_id": 0,
}
STACK = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 160,
}

RELATIVE = {"relative_attention": True, "pos_att_type": "p2c|c2p"}
SHARED_KEYS = {"share_att_key": True, "norm_rel_ebd": "layer_norm"}
WAV2VEC2 = {
    "model_type": "wav2vec2",
    **STACK,
    "layerdrop": 0.0,
    "mask_time_length": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": decoder("llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama, wide heads": decoder(
        "llama", head_dim=32, attention_dropout=0.1, num_key_value_heads=1
    ),
    "mistral": decoder("mistral", sliding_window=600),
    "qwen2": decoder("qwen2", use_sliding_window=True, max_window_layers=1, sliding_window=600),
    "qwen3": decoder("qwen3", head_dim=24, attention_bias=True),
    "gemma": decoder("gemma", head_dim=24),
    "gemma2": decoder("gemma2", head_dim=16, num_key_value_heads=2),
    "gemma2, not capped": decoder(
        "gemma2", head_dim=16, final_logit_softcapping=None, attn_logit_softcapping=None
    ),
    "gemma3_text": decoder(
        "gemma3_text",
        head_dim=16,
        layer_types=["full_attention", "sliding_attention"],
    ),
    "gemma4_text": decoder(
        "gemma4_text",
        head_dim=16,
        num_hidden_layers=6,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 3,
        use_double_wide_mlp=True,
        global_head_dim=32,
        num_key_value_heads=1,
        hidden_size_per_layer_input=24,
        vocab_size_per_layer_input=300,
        final_logit_softcapping=30.0,
    ),
    "gemma4_text, keys as values": decoder(
        "gemma4_text",
        head_dim=24,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "full_attention", "full_attention"],
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        global_head_dim=32,
        num_key_value_heads=2,
        hidden_size_per_layer_input=0,
        sliding_window=600,
        tie_word_embeddings=False,
    ),
    "gemma4_text, sizes by layer": decoder(
        "gemma4_text",
        head_dim=16,
        layer_types=["sliding_attention", "full_attention"],
        num_key_value_heads=2,
        hidden_size_per_layer_input=0,
        per_layer_config={"01": {"head_dim": 24, "num_key_value_heads": 1}},
    ),
    "gemma4_text, experts": decoder(
        "gemma4_text",
        head_dim=16,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "full_attention", "full_attention"],
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        global_head_dim=32,
        num_key_value_heads=2,
        hidden_size_per_layer_input=0,
        sliding_window=600,
        enable_moe_block=True,
        num_experts=8,
        top_k_experts=2,
        moe_intermediate_size=48,
    ),
    "nemotron": decoder("nemotron", attention_bias=True, mlp_bias=True),
    "ministral3": decoder("ministral3", head_dim=24, num_key_value_heads=2),
    "phi3": decoder("phi3", num_key_value_heads=2, resid_pdrop=0.1),
    "glm": decoder("glm", head_dim=24, num_key_value_heads=2),
    "glm4": decoder("glm4", head_dim=16, attention_bias=False),
    "granite": decoder("granite", attention_bias=True, num_key_value_heads=2),
    "smollm3": decoder("smollm3", no_rope_layer_interval=2),
    "seed_oss": decoder("seed_oss", head_dim=24, mlp_bias=True),
    "ernie4_5": decoder("ernie4_5", use_bias=True, head_dim=16),
    "cohere": decoder("cohere", num_key_value_heads=2, attention_bias=True),
    "cohere2": decoder("cohere2", layer_types=["full_attention", "sliding_attention"]),
    "olmo": decoder("olmo", num_key_value_heads=2, attention_bias=True),
    "olmo2": decoder("olmo2", num_key_value_heads=2),
    "olmo3": decoder("olmo3", sliding_window=600),
    "starcoder2": decoder("starcoder2", residual_dropout=0.1, num_key_value_heads=2),
    "stablelm": decoder("stablelm", use_qkv_bias=True),
    "mixtral": decoder("mixtral", num_local_experts=4),
    "qwen2_moe": decoder("qwen2_moe", shared_expert_intermediate_size=96, **EXPERTS),
    "qwen3_moe": decoder("qwen3_moe", mlp_only_layers=[0], head_dim=16, **EXPERTS),
    "deepseek_v2": decoder("deepseek_v2", q_lora_rank=None, **LATENT),
    "deepseek_v3": decoder("deepseek_v3", q_lora_rank=32, n_group=4, topk_group=2, **LATENT),
    "deepseek_v32": decoder(
        "deepseek_v32", q_lora_rank=32, n_group=4, topk_group=2, **LATENT, **INDEXER
    ),
    "glm_moe_dsa": decoder(
        "glm_moe_dsa",
        q_lora_rank=32,
        mlp_layer_types=["sparse", "dense", "sparse"],
        **{**LATENT, "num_hidden_layers": 3, "first_k_dense_replace": 3},
        **INDEXER,
    ),
    "deepseek_v4": decoder(
        "deepseek_v4",
        **COMPRESSED,
        layer_types=[
            "sliding_attention",
            "heavily_compressed_attention",
            "compressed_sparse_attention",
        ],
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        mlp_layer_types=["hash_moe", "moe", "moe"],
    ),
    "deepseek_v4, as older files have it": decoder(
        "deepseek_v4",
        **COMPRESSED,
        compress_ratios=[128, 4, 0, 4],
        num_hash_layers=0,
        qk_rope_head_dim=16,
        tie_word_embeddings=True,
    ),
    "kimi_k2": decoder("kimi_k2", q_lora_rank=32, n_group=1, topk_group=1, **LATENT),
    "minimax_m2": decoder(
        "minimax_m2",
        num_local_experts=8,
        num_experts_per_tok=2,
        head_dim=24,
        num_key_value_heads=2,
        rotary_dim=12,
    ),
    "glm4_moe": decoder(
        "glm4_moe",
        **SHARED_EXPERTS,
        use_qk_norm=True,
        n_group=2,
        topk_group=1,
        head_dim=24,
        num_key_value_heads=2,
    ),
    "olmoe": decoder("olmoe", num_experts=8, num_experts_per_tok=2, num_key_value_heads=2),
    "gpt_oss": decoder("gpt_oss", num_local_experts=8, num_experts_per_tok=2, head_dim=24),
    "llama4_text": decoder(
        "llama4_text",
        num_local_experts=4,
        head_dim=16,
        intermediate_size_mlp=96,
        interleave_moe_layer_step=2,
    ),
    "mamba2": {**MAMBA2, "n_groups": 2, "chunk_size": 64},
    "mamba2, a group for each head, tied": {
        **MAMBA2,
        "n_groups": 8,
        "chunk_size": 32,
        "tie_word_embeddings": True,
        "use_conv_bias": False,
        "residual_in_fp32": False,
    },
    "nemotron_h": {
        **NEMOTRON_H,
        "layers_block_type": ["mamba", "moe", "attention", "mlp"],
        "n_routed_experts": 8,
        "moe_intermediate_size": 48,
        "moe_shared_expert_intermediate_size": 96,
    },
    "nemotron_h, by a pattern": {**NEMOTRON_H, "hybrid_override_pattern": "M-M*-", "head_dim": 24},
    "qwen3_next": decoder(
        "qwen3_next",
        **{**DELTA, "linear_value_head_dim": 24},
        **EXPERTS,
        num_hidden_layers=4,
        shared_expert_intermediate_size=96,
        mlp_only_layers=[0],
    ),
    "qwen3_5_text": decoder(
        "qwen3_5_text",
        **DELTA,
        num_hidden_layers=3,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
    ),
    "qwen3_5_moe_text": decoder(
        "qwen3_5_moe_text",
        **DELTA,
        **EXPERTS,
        shared_expert_intermediate_size=96,
        layer_types=["linear_attention", "full_attention"],
    ),
    "jamba": decoder(
        "jamba",
        num_hidden_layers=4,
        num_key_value_heads=2,
        num_experts=4,
        attn_layer_period=4,
        attn_layer_offset=2,
    ),
    "jamba, dense": decoder("jamba", num_experts=1, mamba_dt_rank=6, mamba_conv_bias=False),
    "bamba": decoder(
        "bamba",
        num_hidden_layers=3,
        attn_layer_indices=[1],
        mamba_n_heads=8,
        mamba_n_groups=2,
        mamba_d_state=16,
        mamba_chunk_size=64,
    ),
    "gpt2": GPT2,
    "gpt2, ReLU, untied": {
        **GPT2,
        "n_inner": 96,
        "activation_function": "relu",
        "resid_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": False,
    },
    "gpt_neox": sized("gpt_neox", hidden_dropout=0.1),
    "gpt_neox, one after the other": sized(
        "gpt_neox",
        use_parallel_residual=False,
        attention_bias=False,
        rotary_pct=1.0,
        tie_word_embeddings=True,
    ),
    "bloom": sized("bloom", hidden_dropout=0.1),
    "bloom, by its own names": {
        "model_type": "bloom",
        "n_embed": 96,
        "n_layer": 3,
        "n_head": 4,
        "vocab_size": 400,
        "attention_dropout": 0.1,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "falcon": falcon(),
    "falcon, own keys": falcon(multi_query=False, ffn_hidden_size=96),
    "falcon, newer": falcon(new_decoder_architecture=True, num_kv_heads=2),
    "falcon, newer, one norm": falcon(
        new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1
    ),
    "mpt": {
        "model_type": "mpt",
        "d_model": 64,
        "n_layers": 2,
        "n_heads": 4,
        "vocab_size": 400,
        "attn_config": {"attn_impl": "torch", "alibi": True},
    },
    "phi": sized("phi", resid_pdrop=0.1),
    "phi, not dropped out": sized(
        "phi",
        embd_pdrop=0.1,
        hidden_act="gelu",
        tie_word_embeddings=True,
        partial_rotary_factor=1.0,
    ),
    "opt": OPT,
    "opt, GELU, untied": {
        **OPT,
        "dropout": 0.0,
        "activation_function": "gelu",
        "attention_dropout": 0.1,
        "tie_word_embeddings": False,
    },
    "bert": sized("bert", hidden_act="gelu_new", attention_probs_dropout_prob=0.0),
    "bert, encoder": sized("bert", architectures=["BertModel"]),
    "bert, pre-training": sized("bert", architectures=["BertForPreTraining"], type_vocab_size=3),
    "roberta": sized("roberta", type_vocab_size=1, max_position_embeddings=150, pad_token_id=1),
    "roberta, not dropped out": sized("roberta", hidden_dropout_prob=0.0, hidden_act="gelu_new"),
    "xlm-roberta": sized("xlm-roberta"),
    "camembert": sized("camembert", attention_probs_dropout_prob=0.0),
    "modernbert": sized("modernbert", local_attention=16, **MODERN),
    "modernbert, biased": sized(
        "modernbert",
        norm_bias=True,
        attention_bias=True,
        mlp_bias=True,
        decoder_bias=False,
        tie_word_embeddings=False,
        layer_types=["full_attention"] * 2,
        **MODERN,
    ),
    "deberta": sized("deberta", **RELATIVE, max_position_embeddings=150),
    "deberta, short": sized(
        "deberta", **RELATIVE, max_relative_positions=20, position_biased_input=False
    ),
    "deberta-v2": sized("deberta-v2", **RELATIVE, **SHARED_KEYS, position_buckets=24),
    "deberta-v2, convolved": sized(
        "deberta-v2",
        **RELATIVE,
        **SHARED_KEYS,
        conv_kernel_size=3,
        conv_act="gelu",
        max_position_embeddings=140,
        position_biased_input=False,
        hidden_dropout_prob=0.0,
    ),
    "distilbert": {
        "model_type": "distilbert",
        "dim": 64,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 160,
        "vocab_size": 400,
        "activation": "relu",
    },
    "t5": {**T5, "num_decoder_layers": 1, "relative_attention_num_buckets": 8},
    "t5, gated": {**T5, "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0},
    "bart": {
        "model_type": "bart",
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 160,
        "decoder_ffn_dim": 96,
        "vocab_size": 400,
        "activation_dropout": 0.1,
    },
    "bart, not dropped out": {
        "model_type": "bart",
        "d_model": 64,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "vocab_size": 400,
        "dropout": 0.0,
        "attention_dropout": 0.1,
        "activation_function": "relu",
    },
    "vit": {
        "model_type": "vit",
        **STACK,
        "hidden_dropout_prob": 0.1,
        "qkv_bias": False,
        "image_size": PIXELS,
    },
    "vit, encoder": {
        "model_type": "vit",
        "architectures": ["ViTModel"],
        **STACK,
        "image_size": PIXELS,
        "patch_size": 8,
        "pooler_output_size": 32,
    },
    "dinov2": {
        "model_type": "dinov2",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "attention_probs_dropout_prob": 0.1,
        "image_size": PIXELS,
        "patch_size": 16,
    },
    "dinov2, encoder": {
        "model_type": "dinov2",
        "architectures": ["Dinov2Model"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "mlp_ratio": 3,
        "qkv_bias": False,
        "use_mask_token": False,
        "image_size": PIXELS,
        "patch_size": 8,
    },
    "resnet": {
        "model_type": "resnet",
        "embedding_size": 16,
        "hidden_sizes": [32, 64, 96],
        "depths": [2, 1, 2],
        "id2label": {number: str(number) for number in range(5)},
    },
    "resnet, basic": {
        "model_type": "resnet",
        "embedding_size": 16,
        "hidden_sizes": [16, 32],
        "depths": [1, 2],
        "layer_type": "basic",
    },
    "convnext": {
        "model_type": "convnext",
        "hidden_sizes": [16, 32, 64, 96],
        "depths": [4, 4, 9, 3],
        "patch_size": 2,
        "image_size": PIXELS,
    },
    "swin": {
        "model_type": "swin",
        "embed_dim": 16,
        "depths": [2, 3],
        "num_heads": [2, 4],
        "window_size": 4,
        "patch_size": 4,
        "image_size": PIXELS,
        "drop_path_rate": 0.2,
        "attention_probs_dropout_prob": 0.1,
    },
    "swin, encoder of padded windows": {
        "model_type": "swin",
        "architectures": ["SwinModel"],
        "embed_dim": 24,
        "depths": [1, 2, 1],
        "num_heads": [1, 2, 3],
        "window_size": 3,
        "mlp_ratio": 2.5,
        "qkv_bias": False,
        "patch_size": 2,
        "image_size": PIXELS,
        "drop_path_rate": 0.0,
        "hidden_dropout_prob": 0.1,
    },
    "clip": {
        "model_type": "clip",
        "projection_dim": 32,
        "text_config": {**STACK, "vocab_size": 400},
        "vision_config": {**STACK, "hidden_size": 96, "patch_size": 8, "image_size": PIXELS},
    },
    "siglip": {
        "model_type": "siglip",
        "text_config": {**STACK, "vocab_size": 400, "projection_size": 96, **MODERN},
        "vision_config": {**STACK, "hidden_size": 96, "patch_size": 8, "image_size": PIXELS},
    },
    "whisper": {
        "model_type": "whisper",
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 160,
        "decoder_ffn_dim": 96,
        "vocab_size": 400,
        "max_source_positions": 100,
        "dropout": 0.1,
        "activation_dropout": 0.1,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    },
    "wav2vec2": {
        **WAV2VEC2,
        "conv_dim": [32, 48, 32],
        "conv_stride": [5, 2, 2],
        "conv_kernel": [10, 3, 2],
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
    },
    "wav2vec2, stable": {
        **WAV2VEC2,
        "architectures": ["Wav2Vec2Model"],
        "conv_dim": [32, 48],
        "conv_stride": [5, 2],
        "conv_kernel": [10, 3],
        "conv_bias": True,
        "feat_extract_norm": "layer",
        "do_stable_layer_norm": True,
        "num_conv_pos_embeddings": 15,
        "num_conv_pos_embedding_groups": 2,
        "mask_time_prob": 0.0,
        "hidden_dropout": 0.0,
    },
    "wav2vec2, pre-training": {
        **WAV2VEC2,
        "architectures": ["Wav2Vec2ForPreTraining"],
        "conv_dim": [32, 48],
        "conv_stride": [5, 2],
        "conv_kernel": [10, 3],
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
        "num_codevectors_per_group": 20,
        "num_codevector_groups": 3,
        "codevector_dim": 24,
        "proj_codevector_dim": 40,
        "num_negatives": 10,
        "feat_quantizer_dropout": 0.1,
    },
}
"""Each says something that its family need not have."""

IMAGES = ("vit", "dinov2", "resnet", "convnext", "swin")
ENCODERS = (
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "distilbert",
    "deberta",
    "deberta-v2",
)
SAME_CLASS = {"kimi_k2": "deepseek_v3"}
"""Families that transformers reads by another's class (``Kimi_K25Config``)."""
MIXED = frozenset(
    label
    for label, each in CONFIGS.items()
    if FAMILIES[each["model_type"]].make is expert_model
    or each.keys() & {"moe_intermediate_size", "num_experts"}
)
"""Labels of decoders with experts."""
SCANNING = frozenset(label for label, each in CONFIGS.items() if FAMILIES[each["model_type"]].mixer)
"""Labels of models whose layers scan the sequence."""


def scan_apart(layer: Layer, shapes: Mapping[str, tuple[int, ...]]) -> float:
    """Operations of a sample that transformers' own scan has more than the algorithm, or less.

    It convolves (over the padding, too); repeats keys for the heads that share them and mixes the
    states of all chunks; or solves the system of a chunk, which FlopCounterMode does not count.
    """
    scan = layer.matrix
    if not isinstance(scan, Scan):
        return 0.0
    channels, _, kernel = shapes[layer.name.replace(".scan", ".conv1d.weight")]
    convolved = 2 * channels * kernel * (scan.tokens + kernel - 1)
    if scan.rule == "selective":
        return float(convolved)
    pairs, state = scan.tokens * scan.chunk, scan.heads * scan.value_size * scan.key_size
    if scan.rule == "gated_delta":
        return float(convolved - 2 * pairs * scan.heads * (scan.value_size + scan.key_size))
    repeated = 2 * pairs * (scan.heads - scan.groups) * scan.key_size
    return float(convolved + repeated + 2 * (scan.tokens // scan.chunk + 1) ** 2 * state)


def written(folder: Path, label: str) -> Buildable:
    """Read a configuration, as a user's file."""
    path = folder / f"{label}.json"
    path.write_text(json.dumps(CONFIGS[label], indent=2))
    return read_config(path)


def sample_of(model: Buildable) -> dict[str, int]:
    """The size of a sample of `batch`, as `build` takes it."""
    return {"image_size": PIXELS} if model.kind == "image" else {"sequence_length": TOKENS}


def real_module(label: str, attention: str) -> Any:
    """Hugging Face's module of a configuration, of random or no weights."""
    import transformers as hf

    fields = CONFIGS[label]
    kind = SAME_CLASS.get(fields["model_type"], fields["model_type"])
    config = hf.AutoConfig.for_model(**{**fields, "model_type": kind})
    config._attn_implementation = attention
    if label in MIXED:
        config._experts_implementation = "batched_mm"
    head = fields.get("architectures", [FAMILIES[fields["model_type"]].name])[0]
    return getattr(hf, head)(config)


def batch(label: str, tokens: int = TOKENS) -> dict[str, Any]:
    """What a module is called with."""
    import torch

    kind = CONFIGS[label]["model_type"]
    words = torch.zeros(BATCH, tokens, dtype=torch.long)
    image = torch.zeros(BATCH, 3, PIXELS, PIXELS)
    if kind in IMAGES:
        return {"pixel_values": image}
    if kind in {"clip", "siglip"}:
        return {
            "input_ids": words[:, : 77 if kind == "clip" else 64],
            "pixel_values": image,
            "return_loss": True,
        }
    if kind == "whisper":
        sound = torch.zeros(BATCH, 80, 2 * CONFIGS[label]["max_source_positions"])
        return {"input_features": sound, "labels": words, "use_cache": False}
    if kind == "wav2vec2":
        samples = tokens
        kernels = zip(CONFIGS[label]["conv_kernel"], CONFIGS[label]["conv_stride"], strict=True)
        for kernel, stride in reversed([*kernels]):
            samples = (samples - 1) * stride + kernel
        sound = {"input_values": torch.zeros(BATCH, samples)}
        if "num_negatives" not in CONFIGS[label]:
            return sound
        masked = torch.arange(tokens).expand(BATCH, tokens) < tokens // 2
        others = torch.arange(BATCH * tokens * 10).reshape(BATCH, tokens, 10) % (BATCH * tokens)
        return {**sound, "mask_time_indices": masked, "sampled_negative_indices": others}
    if kind == "t5":
        targets = torch.zeros(BATCH, target_tokens(tokens), dtype=torch.long)
        return {"input_ids": words, "labels": targets, "use_cache": False}
    if kind == "modernbert":
        return {"input_ids": words, "labels": words}
    if kind in ENCODERS:
        return {"input_ids": words}
    return {"input_ids": words, "labels": words, "use_cache": False}


def loss_of(module: Any, inputs: dict[str, Any]) -> Any:
    """Run a module; its loss, or what one would be computed from."""
    import torch

    answer = module(**inputs)
    if getattr(answer, "loss", None) is not None:
        return answer.loss
    logits = getattr(answer, "logits", None)
    if logits is None:
        logits = getattr(answer, "prediction_logits", None)
    if logits is None:
        pooled = getattr(answer, "pooler_output", None)
        return (answer.last_hidden_state if pooled is None else pooled).sum()
    scores = logits.flatten(0, -2)
    loss = torch.nn.functional.cross_entropy(scores, torch.zeros_like(scores[:, 0]).long())
    relation = getattr(answer, "seq_relationship_logits", None)
    return loss if relation is None else loss + relation.sum()

"""Dense decoders that differ from Llama by little: what files of each family state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from perfmodel.workload.configs.decoder_models import decoder_model
from perfmodel.workload.configs.family import Family, Flag, Function, Gate, Nothing
from perfmodel.workload.zoo.decoder_sizes import DECODER_NAMES

DECODER = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
}
"""Fields that all of these families state, and Llama's values of them."""
LLAMA = {**DECODER, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
MISTRAL = {
    **DECODER,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "sliding_window": 4096,
}
QWEN2 = {
    **DECODER,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "hidden_act": "silu",
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
QWEN3 = {
    **DECODER,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "hidden_act": "silu",
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
GEMMA2 = {
    **DECODER,
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "sliding_window": 4096,
    "layer_types": None,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
GLM = {
    **DECODER,
    "vocab_size": 151552,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "attention_bias": True,
    "partial_rotary_factor": None,
    "rope_parameters": None,
}
COHERE = {
    **DECODER,
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "use_qk_norm": False,
}
OLMO2 = {**DECODER, "vocab_size": 50304, "hidden_act": "silu", "attention_bias": False}
QWEN2_VL = {
    **QWEN2,
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_window_layers": 80,
}
GLM_SHAPE = {"names": DECODER_NAMES["glm"], "biased_output": False, "turned_apart": True}
GEMMA2_SHAPE = {"scaled_embedding": True, "branch_norms": True}
COHERE_SHAPE = {"names": DECODER_NAMES["cohere"], "mean_norms": True, "parallel": True}
OLMO2_SHAPE = {
    "names": DECODER_NAMES["olmo2"],
    "head_norms": True,
    "wide_head_norms": True,
    "wide_gains": True,
}
KERNEL_NORMS = {"fused_norms": True, "layer_norms": True}
"""Layer normalisation, one kernel each."""
ALL_BIASES = dict.fromkeys(("biased_attention", "biased_output", "biased_mlp"), "use_bias")
"""All maps have a bias, or none."""
DENSE_FAMILIES: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM", decoder_model, LLAMA),
    "mistral": Family("MistralForCausalLM", decoder_model, MISTRAL),
    "qwen2": Family("Qwen2ForCausalLM", decoder_model, QWEN2, shape={"biased_attention": True}),
    "qwen3": Family("Qwen3ForCausalLM", decoder_model, QWEN3, shape={"head_norms": True}),
    "gemma": Family(
        "GemmaForCausalLM",
        decoder_model,
        {
            **DECODER,
            "vocab_size": 256000,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 256,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
            "hidden_act": "gelu_pytorch_tanh",
            "attention_bias": False,
        },
        types={"hidden_act": Gate | None},
        shape={"scaled_embedding": True},
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        decoder_model,
        GEMMA2,
        fixed={"sliding_window_pattern": 2},
        shape=GEMMA2_SHAPE,
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        decoder_model,
        {
            **GEMMA2,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "final_logit_softcapping": None,
            "attn_logit_softcapping": None,
            "sliding_window_pattern": 6,
        },
        shape={**GEMMA2_SHAPE, "head_norms": True, "own_rotaries": True},
    ),
    "nemotron": Family(
        "NemotronForCausalLM",
        decoder_model,
        {
            **DECODER,
            "vocab_size": 256000,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_attention_heads": 48,
            "max_position_embeddings": 4096,
            "hidden_act": "relu2",
            "attention_bias": False,
            "mlp_bias": False,
            "partial_rotary_factor": None,
            "rope_parameters": None,
        },
        types={"hidden_act": Function},
        fixed={"gated": False, "usual_rotary_share": 0.5},
        shape={**KERNEL_NORMS, "gains_from_one": True, "turned_apart": True},
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        decoder_model,
        {
            **DECODER,
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
            "hidden_act": "silu",
            "resid_pdrop": 0.0,
            "sliding_window": None,
            "partial_rotary_factor": None,
            "rope_parameters": None,
        },
        # the rest of a head is joined even where positions turn all of it
        shape={"names": DECODER_NAMES["phi3"], "turned_apart": True},
    ),
    "glm": Family(
        "GlmForCausalLM", decoder_model, GLM, fixed={"usual_rotary_share": 0.5}, shape=GLM_SHAPE
    ),
    "glm4": Family(
        "Glm4ForCausalLM",
        decoder_model,
        GLM,
        fixed={"usual_rotary_share": 0.5},
        shape={**GLM_SHAPE, "names": DECODER_NAMES["glm4"]},
    ),
    "granite": Family("GraniteForCausalLM", decoder_model, LLAMA, shape={"scaled_branches": True}),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        decoder_model,
        {
            **LLAMA,
            "vocab_size": 128256,
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "sliding_window": None,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
            "layer_types": None,
        },
        fixed={"slides_where_unturned": True},
    ),
    "seed_oss": Family(
        "SeedOssForCausalLM",
        decoder_model,
        {
            **DECODER,
            "vocab_size": 155136,
            "intermediate_size": 27648,
            "num_hidden_layers": 64,
            "num_attention_heads": 80,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 524288,
            "attention_dropout": 0.1,
            "hidden_act": "silu",
            "attention_bias": True,
            "attention_out_bias": False,
            "residual_dropout": 0.1,
            "mlp_bias": False,
        },
        stated={"biased_output": "attention_out_bias"},
    ),
    "ernie4_5": Family(
        "Ernie4_5ForCausalLM",
        decoder_model,
        {
            **DECODER,
            "vocab_size": 103424,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 18,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
            "hidden_act": "silu",
            "use_bias": False,
        },
        types={"use_bias": Flag | None},
        # scores are not dropped out, whatever the file states
        shape={"score_dropout": False},
        stated=ALL_BIASES,
    ),
    "cohere": Family(
        "CohereForCausalLM",  # R+ with norms of its heads is left
        decoder_model,
        COHERE,
        types={"head_dim": None, "use_qk_norm": Literal[False]},
        shape=COHERE_SHAPE,
    ),
    "cohere2": Family(
        "Cohere2ForCausalLM",
        decoder_model,
        {**COHERE, "sliding_window": 4096, "sliding_window_pattern": 4, "layer_types": None},
        types={"head_dim": None, "use_qk_norm": Literal[False]},
        fixed={"turns_where_it_slides": True},
        shape=COHERE_SHAPE,
    ),
    "olmo": Family(
        "OlmoForCausalLM",
        decoder_model,
        {
            **DECODER,
            "vocab_size": 50304,
            "hidden_act": "silu",
            "attention_bias": False,
            "clip_qkv": None,
        },
        shape={**KERNEL_NORMS, "plain_norms": True},
    ),
    "olmo2": Family("Olmo2ForCausalLM", decoder_model, OLMO2, shape=OLMO2_SHAPE),
    "olmo3": Family(
        "Olmo3ForCausalLM",
        decoder_model,
        {**OLMO2, "sliding_window": 4096, "layer_types": None},
        fixed={"sliding_window_pattern": 4},
        shape={**OLMO2_SHAPE, "own_rotaries": True},
    ),
    "starcoder2": Family(
        "Starcoder2ForCausalLM",
        decoder_model,
        {
            **DECODER,
            "vocab_size": 49152,
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_hidden_layers": 30,
            "num_attention_heads": 24,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
            "hidden_act": "gelu_pytorch_tanh",
            "sliding_window": None,
            "residual_dropout": 0.0,
            "embedding_dropout": 0.0,
            "use_bias": True,
        },
        types={"hidden_act": Function},
        fixed={"gated": False},
        shape={**KERNEL_NORMS, "names": DECODER_NAMES["starcoder"]},
        stated=ALL_BIASES,
    ),
    "stablelm": Family(
        "StableLmForCausalLM",
        decoder_model,
        {
            **DECODER,
            "vocab_size": 50304,
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "hidden_act": "silu",
            "use_qkv_bias": False,
            "qk_layernorm": False,
            "use_parallel_residual": False,
            "hidden_dropout": 0.0,
            "partial_rotary_factor": None,
            "rope_parameters": None,
        },
        types={
            "head_dim": None,
            "use_parallel_residual": Literal[False],
            "hidden_dropout": Nothing,
        },
        fixed={"usual_rotary_share": 0.25},
        shape={**KERNEL_NORMS, "turned_apart": True},
        stated={"biased_attention": "use_qkv_bias"},
    ),
}
"""By `model_type`; what stands between the blocks' maps and Llama's."""

IMAGE_TEXT_FAMILIES: Mapping[str, Family] = {
    "qwen2_vl_text": Family(
        "Qwen2ForCausalLM", decoder_model, QWEN2_VL, shape={"biased_attention": True}
    ),
    "qwen2_5_vl_text": Family(
        "Qwen2ForCausalLM", decoder_model, QWEN2_VL, shape={"biased_attention": True}
    ),
    "qwen3_vl_text": Family(
        "Qwen3ForCausalLM",
        decoder_model,
        {**QWEN3, "max_position_embeddings": 128000},
        shape={"head_norms": True},
    ),
    "ministral3": Family(
        "Ministral3ForCausalLM",
        decoder_model,
        {
            **MISTRAL,
            "vocab_size": 131072,
            "num_hidden_layers": 34,
            "head_dim": 128,
            "max_position_embeddings": 262144,
            "sliding_window": None,
        },
    ),
}
"""Text models of families that also see images."""

"""What families of decoders call the modules of a block, and in which order they register them."""

from __future__ import annotations

from dataclasses import dataclass, replace

MAPS = tuple(f"self_attn.{part}_proj" for part in "qkvo")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
_GATES = ("mlp.gate_proj", "mlp.up_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True, slots=True)
class DecoderNames:
    """Names of a block's modules, by their path in it.

    `norm`, `before_mlp`: of the normalisation before each part; "": it has none.
    `after_attention`, `after_mlp`: of that of what a part adds to the stream; "": it has none.
    `qkv`, `gate_up`: of one map for queries, keys and values, and for the gate and what it gates;
        "": each has its own.
    `up`, `down`: of the maps of the feed-forward part.
    `registered`: modules in the order in which the family registers them.
    """

    norm: str = "input_layernorm"
    after_attention: str = ""
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str = ""
    qkv: str = ""
    gate_up: str = ""
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    registered: tuple[str, ...] = (*MAPS, *HEAD_NORMS, *_GATES, "mlp.down_proj", *_NORMS)


LLAMA_NAMES = DecoderNames()
GEMMA_NAMES = replace(
    LLAMA_NAMES,
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
    registered=(
        *LLAMA_NAMES.registered,
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
)
"""Gemma 2 and 3, which normalise before and after each part."""
COHERE_NAMES = replace(LLAMA_NAMES, before_mlp="")
OLMO2_NAMES = replace(
    GEMMA_NAMES,
    norm="",
    before_mlp="",
)
"""OLMo 2 and 3, which normalise what a part adds alone."""
PHI3_NAMES = replace(
    LLAMA_NAMES,
    qkv="self_attn.qkv_proj",
    gate_up="mlp.gate_up_proj",
    registered=(
        "self_attn.o_proj",
        "self_attn.qkv_proj",
        "mlp.gate_up_proj",
        "mlp.down_proj",
        *_NORMS,
    ),
)
GLM_NAMES = replace(
    LLAMA_NAMES,
    gate_up="mlp.gate_up_proj",
    registered=(*MAPS, "mlp.gate_up_proj", "mlp.down_proj", *_NORMS),
)
GLM4_NAMES = replace(
    GLM_NAMES,
    after_attention="post_self_attn_layernorm",
    after_mlp="post_mlp_layernorm",
    registered=(*GLM_NAMES.registered, "post_self_attn_layernorm", "post_mlp_layernorm"),
)
STARCODER_NAMES = replace(
    LLAMA_NAMES,
    up="mlp.c_fc",
    down="mlp.c_proj",
    registered=(*MAPS, "mlp.c_fc", "mlp.c_proj", *_NORMS),
)

"""Sizes of published decoders alike Llama: what their ``config.json`` on huggingface.co states."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from perfmodel.workload.zoo.layers import ACTIVATIONS, ActivationFunction

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


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes of a model, and where it differs from Llama.

    `kv_heads` < `heads` is grouped-query attention.
    `positions`: tokens of a sequence that it was mostly pre-trained with.
    `head_width`: of a head, where it is not the width over the heads.
    `tied`: whether the head shares the embedding's weight.
    `biased_attention`: whether query, key and value have a bias (Qwen 2).
    `biased_output`, `biased_mlp`: whether the map after attention has one, and those of the
        feed-forward part.
    `head_norms`: whether each head's query and key are normalised (Qwen 3, Gemma 3).
    `wide_head_norms`: whether these norms are of all heads at once (OLMo 2).
    `late_head_norms`: whether these run after the maps of queries, keys and values (GLM 4.5); with
        `branch_norms` they do.
    `branch_norms`: whether what a branch adds to the stream is normalised, too (Gemma 2 and 3).
    `names`: of a block's modules, where they are not Llama's or Gemma's.
    `window`: tokens that a query sees at most where attention slides; each `full_every`-th layer
        sees all (0: none does).
    `windows`: instead, of each layer.
    `scaled_embedding`: whether embeddings are multiplied by a buffer (Gemma).
    `capped`, `capped_logits`: whether scores pass a tanh, and logits (Gemma 2).
    `sinks`: whether each head has a score that no token stands for (gpt-oss).
    `dropout`, `score_dropout`: whether what joins the stream is dropped out, and scores.
    `embedding_dropout`: whether embeddings are; None: as what joins the stream.
    `scaled_branches`: whether embeddings, what joins the stream and logits are multiplied by a
        number (Granite).
    `fused_norms`: whether a norm is one kernel (``torch.nn.RMSNorm``), as in torchtitan, instead of
        Hugging Face's operations.
    `layer_norms`: whether norms are layer normalisation, with a bias, each one kernel (Nemotron).
    `plain_norms`: whether norms have neither gain nor bias, and read a copy in fp32 (OLMo 1).
    `mean_norms`: whether norms are layer normalisation without a bias, in single operations in
        fp32 (Cohere).
    `parallel`: whether both parts of a block read one norm (Cohere).
    `wide_gains`: whether norms multiply by their gain in fp32 (OLMo 2, gpt-oss; Gemma in any case).
    `gains_from_one`: whether gains are added to one (Nemotron), so that the gradient of the bias is
        complete before theirs.
    `ungated`: function between the two maps of a feed-forward part without a gate (Nemotron).
    `rotary_share`: of a head's elements, which positions turn; `unturned`: layers without.
    `own_rotaries`: whether sliding and full attention turn at rates of their own (Gemma 3, OLMo 3).
    `turned_apart`: whether turned elements are joined with the rest anew; None: where there is one.
    `learned_positions`: whether a table of `positions` rows is added to the embeddings.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    mlp_width: int
    vocabulary: int
    positions: int
    head_width: int | None = None
    tied: bool = False
    biased_attention: bool = False
    biased_output: bool = False
    biased_mlp: bool = False
    head_norms: bool = False
    wide_head_norms: bool = False
    late_head_norms: bool = False
    branch_norms: bool = False
    window: int | None = None
    full_every: int = 0
    windows: tuple[int | None, ...] | None = None
    scaled_embedding: bool = False
    capped: bool = False
    capped_logits: bool = False
    dropout: bool = False
    sinks: bool = False
    score_dropout: bool = False
    embedding_dropout: bool | None = None
    scaled_branches: bool = False
    fused_norms: bool = False
    layer_norms: bool = False
    plain_norms: bool = False
    mean_norms: bool = False
    parallel: bool = False
    wide_gains: bool = False
    gains_from_one: bool = False
    ungated: ActivationFunction | None = None
    rotary_share: float = 1.0
    unturned: frozenset[int] = frozenset()
    own_rotaries: bool = False
    turned_apart: bool | None = None
    learned_positions: bool = False
    names: DecoderNames | None = None

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.head_width or self.width // self.heads

    @property
    def block_names(self) -> DecoderNames:
        """Names of a block's modules."""
        return self.names or (GEMMA_NAMES if self.branch_norms else LLAMA_NAMES)

    def window_of(self, layer: int) -> int | None:
        """Tokens that a query of a layer (from 0) sees at most, or None: all before it."""
        if self.windows is not None:
            return self.windows[layer]
        return None if self.full_every and (layer + 1) % self.full_every == 0 else self.window


LLAMA_2, LLAMA_3 = 32000, 128256
"""Vocabularies."""
_LLAMA_3_8B = DecoderShape(32, 4096, 32, 8, 14336, LLAMA_3, 8192)
_LLAMA_3_70B = DecoderShape(80, 8192, 64, 8, 28672, LLAMA_3, 8192)

LLAMA = {
    "llama-7b": DecoderShape(32, 4096, 32, 32, 11008, LLAMA_2, 2048),
    "llama-65b": DecoderShape(80, 8192, 64, 64, 22016, LLAMA_2, 2048),
    "llama2-7b": DecoderShape(32, 4096, 32, 32, 11008, LLAMA_2, 4096),
    "llama2-13b": DecoderShape(40, 5120, 40, 40, 13824, LLAMA_2, 4096),
    "llama2-70b": DecoderShape(80, 8192, 64, 8, 28672, LLAMA_2, 4096),
    "codellama-34b": DecoderShape(48, 8192, 64, 8, 22016, LLAMA_2, 16384),
    "tinyllama-1.1b": DecoderShape(22, 2048, 32, 4, 5632, LLAMA_2, 2048),
    "internlm-7b": DecoderShape(32, 4096, 32, 32, 11008, 103168, 2048),
    "llama3-8b": _LLAMA_3_8B,
    "llama3-70b": _LLAMA_3_70B,
    "llama3.1-8b": _LLAMA_3_8B,
    "llama3.1-70b": _LLAMA_3_70B,
    "llama3.1-405b": DecoderShape(126, 16384, 128, 8, 53248, LLAMA_3, 8192),
    "llama3.2-1b": DecoderShape(16, 2048, 32, 8, 8192, LLAMA_3, 8192, tied=True),
    "llama3.2-3b": DecoderShape(28, 3072, 24, 8, 8192, LLAMA_3, 8192, tied=True),
}
"""meta-llama; TinyLlama; InternLM's first 7B, whose biases of attention are left out. Llama 3.1 was
pre-trained with 8,192 tokens before its long-context stage (Grattafiori et al. 2024, section 3.4).
"""

_MISTRAL = DecoderShape(32, 4096, 32, 8, 14336, 32000, 8192)
MISTRAL = {
    "mistral-7b": replace(_MISTRAL, window=4096),
    "mistral-7b-v0.3": replace(_MISTRAL, vocabulary=32768),
}
"""mistralai/Mistral-7B-v0.1, whose attention slides, and v0.3."""

QWEN_SMALL, QWEN_LARGE = 151936, 152064
"""Vocabularies, padded."""


_QWEN2_FIELDS: dict[str, Any] = {"positions": 4096, "biased_attention": True}
_QWEN3_FIELDS: dict[str, Any] = {
    "vocabulary": QWEN_SMALL,
    "positions": 4096,
    "head_width": 128,
    "head_norms": True,
}
_QWEN2 = {
    "0.5b": DecoderShape(24, 896, 14, 2, 4864, QWEN_SMALL, tied=True, **_QWEN2_FIELDS),
    "1.5b": DecoderShape(28, 1536, 12, 2, 8960, QWEN_SMALL, tied=True, **_QWEN2_FIELDS),
    "7b": DecoderShape(28, 3584, 28, 4, 18944, QWEN_LARGE, **_QWEN2_FIELDS),
    "72b": DecoderShape(80, 8192, 64, 8, 29568, QWEN_LARGE, **_QWEN2_FIELDS),
}
QWEN2 = {
    **{f"qwen2-{size}": shape for size, shape in _QWEN2.items()},
    **{f"qwen2.5-{size}": shape for size, shape in _QWEN2.items()},
    "qwen2.5-3b": DecoderShape(36, 2048, 16, 2, 11008, QWEN_SMALL, tied=True, **_QWEN2_FIELDS),
    "qwen2.5-14b": DecoderShape(48, 5120, 40, 8, 13824, QWEN_LARGE, **_QWEN2_FIELDS),
    "qwen2.5-32b": DecoderShape(64, 5120, 40, 8, 27648, QWEN_LARGE, **_QWEN2_FIELDS),
}
"""Qwen, dense models, pre-trained with 4,096 tokens before longer ones."""
QWEN3 = {
    "qwen3-0.6b": DecoderShape(28, 1024, 16, 8, 3072, tied=True, **_QWEN3_FIELDS),
    "qwen3-1.7b": DecoderShape(28, 2048, 16, 8, 6144, tied=True, **_QWEN3_FIELDS),
    "qwen3-4b": DecoderShape(36, 2560, 32, 8, 9728, tied=True, **_QWEN3_FIELDS),
    "qwen3-8b": DecoderShape(36, 4096, 32, 8, 12288, **_QWEN3_FIELDS),
    "qwen3-14b": DecoderShape(40, 5120, 40, 8, 17408, **_QWEN3_FIELDS),
    "qwen3-32b": DecoderShape(64, 5120, 64, 8, 25600, **_QWEN3_FIELDS),
}
"""Qwen, dense models, pre-trained with 4,096 tokens (arXiv 2505.09388, section 3.2)."""


_GEMMA: dict[str, Any] = {
    "vocabulary": 256000,
    "positions": 8192,
    "head_width": 256,
    "tied": True,
    "scaled_embedding": True,
}
_GEMMA2: dict[str, Any] = {
    **_GEMMA,
    "branch_norms": True,
    "window": 4096,
    "full_every": 2,
    "capped": True,
    "capped_logits": True,
}
_GEMMA3: dict[str, Any] = {
    **_GEMMA,
    "vocabulary": 262208,
    "positions": 32768,
    "branch_norms": True,
    "head_norms": True,
    "full_every": 6,
    "own_rotaries": True,
}
GEMMA = {
    "gemma-2b": DecoderShape(18, 2048, 8, 1, 16384, **_GEMMA),
    "gemma-7b": DecoderShape(28, 3072, 16, 16, 24576, **_GEMMA),
}
GEMMA2 = {
    "gemma2-2b": DecoderShape(26, 2304, 8, 4, 9216, **_GEMMA2),
    "gemma2-9b": DecoderShape(42, 3584, 16, 8, 14336, **_GEMMA2),
    "gemma2-27b": DecoderShape(46, 4608, 32, 16, 36864, **{**_GEMMA2, "head_width": 128}),
}
GEMMA3 = {
    "gemma3-270m": DecoderShape(
        18, 640, 4, 1, 2048, **{**_GEMMA3, "window": 512, "vocabulary": 262144}
    ),
    "gemma3-1b": DecoderShape(
        26, 1152, 4, 1, 6912, **{**_GEMMA3, "window": 512, "vocabulary": 262144}
    ),
    "gemma3-4b": DecoderShape(34, 2560, 8, 4, 10240, **{**_GEMMA3, "window": 1024}),
    "gemma3-12b": DecoderShape(48, 3840, 16, 8, 15360, **{**_GEMMA3, "window": 1024}),
    "gemma3-27b": DecoderShape(
        62, 5376, 32, 16, 21504, **{**_GEMMA3, "head_width": 128, "window": 1024}
    ),
}
"""google; of Gemma 3 the text model, pre-trained with 32,768 tokens (arXiv 2503.19786)."""


_NEMOTRON: dict[str, Any] = {
    "vocabulary": 256000,
    "positions": 4096,
    "fused_norms": True,
    "layer_norms": True,
    "gains_from_one": True,
    "ungated": ACTIVATIONS["relu2"],
    "rotary_share": 0.5,
}
NEMOTRON = {
    "nemotron4-15b": DecoderShape(32, 6144, 48, 8, 24576, **_NEMOTRON),
    "nemotron4-340b": DecoderShape(96, 18432, 96, 8, 73728, **_NEMOTRON),
}
"""nvidia, pre-trained with 4,096 tokens (arXiv 2402.16819 and 2406.11704, table 1)."""

FAMILIES = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "GemmaForCausalLM": GEMMA,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "NemotronForCausalLM": NEMOTRON,
}
"""Hugging Face's class, and the sizes of its models."""
SHAPES = {name: shape for family in FAMILIES.values() for name, shape in family.items()}

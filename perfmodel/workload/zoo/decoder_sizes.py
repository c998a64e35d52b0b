"""What sets decoders alike Llama apart: sizes, names of modules, experts, latent attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from perfmodel.workload.zoo.published import module_names, published_sizes


@dataclass(frozen=True, slots=True)
class DecoderNames:
    """Names of a block's modules, by their path in it.

    `registered`: modules in the order in which the family registers them.
    `norm`, `before_mlp`: of the normalisation before each part; "": it has none.
    `after_attention`, `after_mlp`: of that of what a part adds to the stream; "": it has none.
    `qkv`, `gate_up`: of one map for queries, keys and values, and for the gate and what it gates;
        "": each has its own.
    `up`, `down`: of the maps of the feed-forward part.
    `replaced`: patterns in Llama's names, and what stands for them, one after the other.
    """

    registered: Sequence[str]
    norm: str = "input_layernorm"
    after_attention: str = ""
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str = ""
    qkv: str = ""
    gate_up: str = ""
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    replaced: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, slots=True)
class MixerNames:
    """Names and maps of a mixer, which runs along a sequence in place of attention.

    `rule`: of its `Scan`; `path`: in the block, `out`: of its last map, `norm`: of the one before.
    `maps`: of its input: how many numbers, keys and values of all heads each puts out.
    `vectors`: parameters with a number for each head.
    `ready`: parameters but for the maps', in the order in which their gradients are complete.
    `whole_norm`: whether the norm has a gain for each value, not for those of one head.
    `copied`: keys and values that are laid out anew after the maps, read and written.
    """

    rule: str
    path: str
    maps: Mapping[str, Mapping[str, int]]
    ready: Sequence[str]
    vectors: Sequence[str] = ("dt_bias", "A_log")
    whole_norm: bool = False
    copied: Mapping[str, int] = field(default_factory=dict)
    norm: str = "norm"
    out: str = "out_proj"


MIXER_NAMES = {name: MixerNames(**fields) for name, fields in module_names("mixers").items()}


@dataclass(frozen=True, slots=True)
class MixerShape:
    """Sizes of a mixer; `names`: row of `MIXER_NAMES`, the others as in `Scan`.

    `kernel`: tokens of the convolution before the scan; `biased`: whether it has a bias.
    `rank`: of the maps to the step sizes of each value, and keys, which Mamba 1 has behind its
        convolution; 0: these come from the first maps, and are convolved, too.
    """

    names: str
    heads: int
    groups: int
    value_size: int
    key_size: int
    chunk: int = 64
    kernel: int = 4
    biased: bool = False
    rank: int = 0


DECODER_NAMES = {name: DecoderNames(**fields) for name, fields in module_names("decoders").items()}


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
    `names`: row of `DECODER_NAMES`, where that is not Llama's or Gemma's.
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
    `rotary_share`: of a head's elements, which positions turn.
    `by_layer`: fields that some layers, counted from 0, have other values of.
    `value_norms`: whether values are normalised head by head, without gains (Gemma 4).
    `one_map`: whether keys are values, too; `reads_pairs`: whether a layer has neither, and reads
        those of one before it.
    `side_width`, `side_words`: elements that each layer is given of a token beside the stream, and
        the rows of their table; 0: nothing.
    `own_rotaries`: whether sliding and full attention turn at rates of their own (Gemma 3, OLMo 3).
    `turned_apart`: whether turned elements are joined with the rest anew; None: where there is one.
    `learned_positions`: whether a table of `positions` rows is added to the embeddings.
    `gated_attention`: whether the map of queries has a gate, too, of what attention puts out (Qwen
        3 Next).
    `mixer`: what a layer has in place of attention; `part`: the one of its two parts that it has.
    `wide_stream`: whether what flows between blocks is fp32 in any precision (Mamba 2).
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
    ungated: str | None = None
    rotary_share: float = 1.0
    by_layer: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    value_norms: bool = False
    one_map: bool = False
    reads_pairs: bool = False
    side_width: int = 0
    side_words: int = 0
    own_rotaries: bool = False
    turned_apart: bool | None = None
    learned_positions: bool = False
    gated_attention: bool = False
    mixer: MixerShape | None = None
    part: Literal["both", "tokens", "features"] = "both"
    wide_stream: bool = False
    names: str | None = None

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.head_width or self.width // self.heads

    @property
    def block_names(self) -> DecoderNames:
        """Names of a block's modules."""
        return DECODER_NAMES[self.names or ("gemma" if self.branch_norms else "llama")]

    def window_of(self, layer: int) -> int | None:
        """Tokens that a query of a layer (from 0) sees at most, or None: all before it."""
        if self.windows is not None:
            return self.windows[layer]
        return None if self.full_every and (layer + 1) % self.full_every == 0 else self.window


FAMILIES = {
    family: {name: DecoderShape(**fields) for name, fields in models.items()}
    for family, models in published_sizes("decoders").items()
}
"""Hugging Face's class, and the sizes of its models."""
SHAPES = {name: shape for family in FAMILIES.values() for name, shape in family.items()}


# ---------------------------------------------------------------- experts


@dataclass(frozen=True, slots=True)
class RoutedShape:
    """Experts of a layer, and how a token finds its own.

    `experts`, `top_k`: how many there are, and how many a token takes.
    `width`: of one of them; `shared_width`: of those that every token takes, together.
    `dense_first`: layers before the first with experts; `every`: of the others, each so-manyth,
        but for `dense_layers`.
    `scores`: what becomes of the router's logits ("top": softmax of those chosen);
        `wide_router`: whether its product is in fp32.
    `score_bias`: whether a buffer balances the loads (DeepSeek-V3).
    `groups`, `top_groups`: where a token's experts come from so many of the groups of experts.
    `shared_gate`: whether each token weighs what the shared experts say (Qwen 2).
    `weighs_input`: whether a score weighs what an expert reads, not what it says (Llama 4).
    `biased`: whether router and experts have biases; `clamped`: whether the gate and what it gates
        are clamped, and the latter has one added (gpt-oss).
    `beside`: whether experts stand beside the dense part, both read the stream, and the router's
        norm has a scale, and each expert another (Gemma 4).
    """

    experts: int
    top_k: int
    width: int
    shared_width: int = 0
    dense_first: int = 0
    every: int = 1
    dense_layers: tuple[int, ...] = ()
    scores: Literal["softmax", "sigmoid", "top"] = "softmax"
    wide_router: bool = False
    score_bias: bool = False
    groups: int = 1
    top_groups: int = 1
    shared_gate: bool = False
    weighs_input: bool = False
    biased: bool = False
    clamped: bool = False
    beside: bool = False

    def is_routed(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has experts."""
        is_late = layer >= self.dense_first and layer not in self.dense_layers
        return is_late and (layer + 1) % self.every == 0


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Multi-head latent attention: ranks of its maps, sizes of a head.

    `query_rank`: None, where queries have one map.
    `plain`, `rotary`: of a query and a key, without and with positions; `value`: of a value.
    `index_heads`, `index_size`: of the indexer, which chooses the keys that queries see; 0: there
        is none (DeepSeek-V3.2, GLM 5).
    """

    query_rank: int | None
    key_value_rank: int
    plain: int = 128
    rotary: int = 64
    value: int = 128
    index_heads: int = 0
    index_size: int = 0


@dataclass(frozen=True, slots=True)
class CompressedShape:
    """Attention to near keys and to compressed ones, and streams beside each other (DeepSeek-V4).

    `query_rank`, `groups`, `out_rank`: of the narrow maps of queries, and of each group of heads.
    `layers`: of each layer, how many tokens become one key (0: it has none such), and whether an
        indexer chooses among these, of `index_heads` and `index_size`.
    `streams`, `iterations`: how many there are, and how often weights that mix them are balanced.
    `hashed`: first layers, whose experts follow from the word alone.
    """

    query_rank: int
    groups: int
    out_rank: int
    layers: tuple[tuple[int, bool], ...]
    index_heads: int
    index_size: int
    streams: int
    iterations: int
    hashed: int


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names of a family's experts, and the order in which it registers them.

    `path`, `router`: of the part in a block ("": the block itself), and of the router in the part.
    `router_first`: whether the router is registered before the experts.
    `transposed`: whether a weight's inputs stand before its outputs.
    """

    path: str = "mlp"
    router: str = "gate"
    router_first: bool = False
    transposed: bool = False


USUAL_NAMES = ExpertNames()
EXPERT_NAMES = {family: ExpertNames(**names) for family, names in module_names("experts").items()}
"""By Hugging Face's class, where they differ from those of most."""


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A decoder, its experts, and its attention where that is latent or compressed."""

    decoder: DecoderShape
    routed: RoutedShape
    latent: LatentShape | CompressedShape | None = None


EXPERT_FAMILIES = {
    family: {
        name: ExpertShape(
            DecoderShape(**parts["decoder"]),
            RoutedShape(**parts["routed"]),
            LatentShape(**parts["latent"]) if "latent" in parts else None,
        )
        for name, parts in models.items()
    }
    for family, models in published_sizes("experts").items()
}
"""Hugging Face's class, and the sizes of its models."""
EXPERT_SHAPES = {
    name: shape for family in EXPERT_FAMILIES.values() for name, shape in family.items()
}


def expert_family(name: str) -> str:
    """Hugging Face's class of a model; Mixtral's, where it is none of the zoo."""
    return next(
        (family for family, models in EXPERT_FAMILIES.items() if name in models),
        "MixtralForCausalLM",
    )

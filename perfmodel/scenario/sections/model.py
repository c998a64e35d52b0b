"""Section ``model``: what is trained, by name, by its shape, or by a file."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema

from perfmodel.files import Count, FileModel, check_rows
from perfmodel.scenario.sections.base import (
    Name,
    Row,
    Rules,
    Section,
    Switch,
    expand_number,
    mistakes,
)

Dtype = Literal["fp32", "fp16", "bf16"]

_SCALES = {"": 1, "k": 1_000, "K": 1_000, "M": 1_000_000, "Ki": 1_024}
_AMOUNT = re.compile(r"\s*(\d{1,9}(?:\.\d{1,6})?)\s*(k|K|M|Ki|)\s*", re.ASCII)
_GROUPED = re.compile(r"\s*\d{1,3}(?:[,_]\d{3}){1,3}\s*", re.ASCII)
"""Digits in groups of three, as in 50,257."""


def _parse_amount(value: object) -> object:
    """Read a number with a letter, such as "50k"; what is no text is left to be checked."""
    if not isinstance(value, str):
        return value
    text = value if len(value) < 30 else ""
    match = _AMOUNT.fullmatch(re.sub("[,_]", "", text) if _GROUPED.fullmatch(text) else text)
    if match is None:
        raise ValueError("a whole number above zero, such as 50257, 50k or 32Ki")
    number = float(match[1]) * _SCALES[match[2]]
    check_rows((number != int(number), "a whole number, such as 50257 or 50k"))
    return int(number)


def _amount(most: int) -> tuple[BeforeValidator, WithJsonSchema]:
    schema = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": most}, {"type": "string"}]}
    return BeforeValidator(_parse_amount), WithJsonSchema(schema)


MOST_LAYERS, MOST_WIDTH, MOST_WORDS, MOST_EXPERTS = 2_000, 2_000_000, 20_000_000, 20_000
"""Some times what the largest models have: a million layers would fill any memory."""
Amount = Annotated[int, Field(strict=True, gt=0, le=MOST_WIDTH), *_amount(MOST_WIDTH)]
"""A width or a number of heads."""
Words = Annotated[int, Field(strict=True, gt=0, le=MOST_WORDS), *_amount(MOST_WORDS)]
Layers = Annotated[int, Field(strict=True, gt=0, le=MOST_LAYERS)]
ExpertCount = Annotated[int, Field(strict=True, gt=0, le=MOST_EXPERTS)]

USUAL_HEAD = 128
"""Elements of a head, as most large models have; 64 where that does not divide the width."""
PADDED_GPT2 = 50_304
"""GPT-2's vocabulary, padded to a multiple of 64."""
WIDTH_MULTIPLE = 256
"""Llama's feed-forward width is two thirds of four times the width, rounded up to a multiple."""


_SYNONYMS = {
    "rope": "rotary",
    "absolute": "learned",
    "rmsnorm": "rms",
    "rms_norm": "rms",
    "layernorm": "layer",
    "layer_norm": "layer",
}


def _usual_word(value: object) -> object:
    """Read a word in any case, and by another name that many have for it."""
    word = value.lower() if isinstance(value, str) else value
    return _SYNONYMS.get(word, word) if isinstance(word, str) else word


_WORD = BeforeValidator(_usual_word)


class ExpertShapeSection(FileModel):
    """Experts in place of the feed-forward part of layers."""

    count: ExpertCount
    top_k: ExpertCount = Field(default=2, description="experts that a token takes")
    hidden: Amount | None = Field(
        default=None, description="width of one; default: that of the feed-forward part"
    )
    shared: Annotated[int, Field(strict=True, ge=0, le=1000)] = Field(
        default=0, description="experts beside these that every token takes"
    )
    every: Layers = Field(default=1, description="each so-manyth layer has them")
    dense_first: Annotated[int, Field(strict=True, ge=0, le=MOST_LAYERS)] = Field(
        default=0, description="layers before the first that may have them"
    )


class TransformerSection(FileModel):
    """A decoder-only transformer by its sizes.

    Normalisations run as one kernel each, as torch.nn's do.
    """

    hidden: Amount
    layers: Layers
    heads: Amount | None = Field(
        default=None, description="default: of 128 elements, or of 64 where 128 does not divide"
    )
    kv_heads: Amount | None = Field(
        default=None, description="heads of keys and values; default: as many as of queries"
    )
    head_dim: Amount | None = Field(default=None, description="default: hidden / heads")
    vocab: Words = Field(default=PADDED_GPT2, description="a number, or such as 50k")
    mlp: Annotated[Literal["swiglu", "geglu", "gelu", "relu", "relu2"], _WORD] = Field(
        default="swiglu", description="feed-forward part: gated (three maps), or plain (two)"
    )
    mlp_hidden: Amount | None = Field(
        default=None,
        description="default: gated, 8/3 of hidden rounded up to a multiple of 256; else 4 hidden",
    )
    norm: Annotated[Literal["rms", "layer"], _WORD] = "rms"
    bias: Switch = Field(default=False, description="of all maps but the head")
    positions: Annotated[Literal["rotary", "learned", "none"], _WORD] = Field(
        default="rotary", description="learned: a table as long as a sample"
    )
    qk_norm: Switch = Field(default=False, description="each head's queries and keys, as RMS")
    tied: Switch = Field(default=False, description="the head has the embedding's weight")
    window: Amount | None = Field(
        default=None, description="tokens that a query sees at most; default: all before it"
    )
    full_every: Layers | None = Field(
        default=None, description="with window: each so-manyth layer sees all tokens"
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="of embeddings, of what joins the stream, and of scores"
    )
    experts: Annotated[ExpertShapeSection | None, expand_number("count")] = Field(
        default=None, description="a section, or their number alone"
    )

    @property
    def head_count(self) -> int:
        """Heads of queries."""
        usual = (size for size in (USUAL_HEAD, USUAL_HEAD // 2) if self.hidden % size == 0)
        size = self.head_dim or next(usual, self.hidden)
        return self.heads or max(1, self.hidden // size)

    @property
    def gated(self) -> bool:
        """Whether the feed-forward part has three maps."""
        return self.mlp in ("swiglu", "geglu")

    @property
    def wide(self) -> int:
        """Width of the feed-forward part."""
        gated = -(-self.hidden * 8 // (3 * WIDTH_MULTIPLE)) * WIDTH_MULTIPLE
        return self.mlp_hidden or (gated if self.gated else 4 * self.hidden)


def transformer_findings(section: TransformerSection) -> Iterator[tuple[str, str, str]]:
    """Find sizes that do not fit each other: field within it, what was found, what is allowed."""
    return mistakes((*_attention_rows(section), *_expert_rows(section)))


def _attention_rows(section: TransformerSection) -> tuple[Row, ...]:
    heads, hidden = section.head_count, section.hidden
    size = section.head_dim or USUAL_HEAD // 2
    undivided = section.heads is None and hidden > size and hidden % size
    return (
        (
            undivided,
            "heads",
            "nothing",
            f"a number: heads of {size} do not divide hidden, {hidden}",
        ),
        (
            not undivided and section.head_dim is None and hidden % heads,
            "heads",
            heads,
            f"a divisor of hidden, {hidden}; or head_dim",
        ),
        (
            heads % (section.kv_heads or 1),
            "kv_heads",
            section.kv_heads,
            f"a divisor of the {heads} heads",
        ),
        (
            section.full_every is not None and section.window is None,
            "full_every",
            section.full_every,
            "nothing without a window",
        ),
    )


def _expert_rows(section: TransformerSection) -> tuple[Row, ...]:
    experts, layers = section.experts, section.layers
    if experts is None:
        return ()
    have_experts = (at % experts.every == 0 for at in range(experts.dense_first + 1, layers + 1))
    is_dense = experts.dense_first >= layers
    return (
        (not section.gated, "mlp", repr(section.mlp), "'swiglu' or 'geglu' with experts"),
        (
            experts.top_k > experts.count,
            "experts.top_k",
            experts.top_k,
            f"at most {experts.count}, the experts",
        ),
        (
            is_dense,
            "experts.dense_first",
            experts.dense_first,
            f"0 to {layers - 1}: some layers have experts",
        ),
        (
            not is_dense and not any(have_experts),
            "experts.every",
            experts.every,
            f"at most {layers}: some layers have experts",
        ),
    )


class ExpertsSection(FileModel):
    """How the experts of a model run; `parallel.expert` says how many GPUs share them."""

    implementation: Literal["grouped", "fused", "per-expert"] = Field(
        default="grouped",
        description="one kernel for the products of all experts (torch._grouped_mm); one that is "
        "fused with their activation and its casts (cuDNN's for mxfp8 and nvfp4, as in Transformer "
        "Engine from 2.15 on); or one each (Transformer Engine's grouped linear, in Megatron-LM)",
    )
    capacity: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="an expert takes at most so many times the mean load and drops the rest; "
        "default: it takes all",
    )
    pad_to_capacity: Switch = Field(
        default=False, description="each expert's rows are filled up to its capacity"
    )
    imbalance: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="coefficient of variation of experts' loads, Dirichlet distributed; the "
        "busiest GPU's expected load bounds the step. 0: all alike, as benchmarks force them to be",
    )
    auxiliary_loss: Switch = Field(
        default=False, description="each layer computes a loss of its balance"
    )
    dispatcher: Literal["all_to_all", "all_gather", "deduplicated"] = Field(
        default="all_to_all",
        description="a row for each expert of a token; all tokens to all GPUs; or a token once to "
        "each node that has experts for it (DeepEP, HybridEP)",
    )
    dispatch_dtype: Literal["bf16", "fp8"] | None = Field(
        default=None, description="of tokens on their way to experts; default: of the compute"
    )
    buffer_factor: Annotated[float, Field(ge=1, le=1e5)] = Field(
        default=1.0,
        description="rows of the buffers that take what arrives, over those that do: a compiler of "
        "fixed shapes copies, activates and keeps them all (MaxText's ragged_buffer_factor; its "
        "-1, for the worst case, is parallel.expert)",
    )
    overlap: Switch = Field(
        default=False,
        description="tokens travel beside the products of another micro-batch (Megatron's "
        "--overlap-moe-expert-parallel-comm)",
    )
    tensor: Count = Field(
        default=1, description="GPUs that share each expert: 1, or as many as parallel.tensor"
    )
    router_padding: Switch = Field(
        default=False,
        description="the router fills each expert's rows up to the multiple that fp8 wants, which "
        "spares Transformer Engine a copy (Megatron's --moe-router-padding-for-quantization)",
    )
    second_token: Switch = Field(
        default=False,
        description="a further block predicts the token after the next (multi-token prediction "
        "of DeepSeek-V3), with the model's own table and head",
    )


class AdaptersSection(FileModel):
    """Low-rank adapters (LoRA) beside frozen maps: they alone are trained."""

    rank: Count = Field(default=8, description="width between both maps of an adapter")
    targets: Annotated[tuple[Name, ...], Field(min_length=1)] = Field(
        default=("q_proj", "v_proj"),
        description="ends of names of the maps that have one; 'qkv_proj': one for all three",
    )
    dropout: Switch = Field(default=False, description="their input is dropped out")
    a2a_experimental: Switch = Field(
        default=False,
        description="beside maps cut by rows: from columns to tokens by all-to-all (NeMo)",
    )


MegatronArguments = Annotated[
    str, StringConstraints(min_length=1, max_length=20_000, strip_whitespace=True)
]
SOURCES = ("name", "file", "transformer", "config", "megatron")
NAMED = ("transformer", "config", "megatron")
"""Sources beside which `name` is what reports call the model."""


class ModelSection(Section):
    """What is trained: a model of the zoo, or one that is stated by its sizes or in a file.

    `dtype` is that of parameters and gradients (default fp32; a configuration and a file may state
    theirs); `compute.precision` is that of the arithmetic.
    """

    name: Name | None = Field(
        default=None,
        description="a model of the zoo: see `perfmodel models`; beside transformer, config and "
        "megatron: what reports call the model",
    )
    file: Name | None = Field(
        default=None,
        description="CSV or YAML of parameter tensors, or safetensors, relative to the scenario's "
        "folder",
    )
    transformer: TransformerSection | None = Field(
        default=None, description="a decoder by its sizes"
    )
    config: Name | None = Field(
        default=None,
        description="config.json of Hugging Face, or its folder, relative to the scenario's folder",
    )
    megatron: MegatronArguments | None = Field(
        default=None,
        description="arguments of Megatron-LM such as '--num-layers 24 --hidden-size 2048', or a "
        "file of them, relative to the scenario's folder",
    )
    dtype: Dtype | None = None
    sequence_length: Count | None = Field(
        default=None, description="tokens per sample, for transformers"
    )
    tokens: Count | None = Field(default=None, description="sequence_length by a shorter name")
    image_size: Count | None = Field(default=None, description="pixels per side, for vision models")
    experts: ExpertsSection | None = Field(
        default=None, description="how experts run, for models that have some"
    )

    adapters: AdaptersSection | None = Field(
        default=None, description="low-rank adapters (LoRA): all else is frozen"
    )
    document_length: Count | None = Field(
        default=None,
        description="tokens of each of the documents that a sequence is packed from, which do not "
        "see each other; default: one fills it",
    )

    def _rules(self) -> Rules:
        stated = [name for name in SOURCES if getattr(self, name) is not None]
        is_named = len(stated) == 2 and stated[0] == "name" and stated[1] in NAMED
        return (
            (
                len(stated) != 1 and not is_named,
                (
                    "either 'name' (of the zoo), 'transformer' (its sizes), 'config' (of Hugging "
                    "Face), 'megatron' (its arguments) or 'file' (of parameters), exactly one; "
                    "beside 'transformer', 'config' or 'megatron', 'name' is what reports call it"
                ),
            ),
            (
                self.tokens is not None and self.sequence_length is not None,
                "'tokens' or 'sequence_length', which are the same, not both",
            ),
        )

    @property
    def source(self) -> str:
        """The field that states the model."""
        return next(field for field in reversed(SOURCES) if getattr(self, field) is not None)

    @property
    def length(self) -> int | None:
        """Tokens per sample, if stated."""
        return self.sequence_length if self.tokens is None else self.tokens

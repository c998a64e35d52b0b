"""A model from arguments of Megatron-LM: as typed, in a script, or in YAML.

Names and defaults are those of Megatron-Core 0.16, ``training/arguments.py`` and
``transformer_config.py``. Arguments that say nothing about the model are not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from perfmodel.errors import Fault, InputError, failed, raise_faults
from perfmodel.files import FileModel, validate_document
from perfmodel.scenario.sections.base import Switch
from perfmodel.scenario.sections.model import MOST_LAYERS, ExpertCount, Layers
from perfmodel.workload.configs.decoder_models import (
    EXPERT_FAMILY,
    choice_faults,
    decoder_workload,
    with_table,
)
from perfmodel.workload.configs.family import (
    LONGEST_DEFAULT,
    Rate,
    Share,
    Tokens,
    Width,
    Words,
    divides,
)
from perfmodel.workload.configs.file_text import read_arguments, typed_arguments
from perfmodel.workload.model import Workload
from perfmodel.workload.shard import WHOLE, Shard
from perfmodel.workload.zoo import text_decoder
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.decoder_sizes import (
    DecoderShape,
    LatentShape,
    RoutedShape,
)
from perfmodel.workload.zoo.expert_settings import ExpertSettings

VOCABULARY_MULTIPLE = 128
"""--make-vocab-size-divisible-by, which is multiplied by the tensor-parallel size."""
TOKENIZERS = {"GPT2BPETokenizer": 50257}
"""Vocabularies of tokenizers that need no file to be counted."""


def _parse_layers(value: object) -> object:
    """Read which layers have experts: each so-manyth, or such as "([0]*3+[1]*58)"."""
    if isinstance(value, str):
        text = value.replace(" ", "").strip("()")
        if re.fullmatch(r"\d{1,4}", text):
            return int(text)
        if re.fullmatch(r"\[[01](,[01])*\](\*\d{1,4})?(\+\[[01](,[01])*\](\*\d{1,4})?)*", text):
            pattern: list[int] = []
            for part in text.split("+"):
                ones, _, times = part.partition("*")
                pattern += [int(bit) for bit in ones.strip("[]").split(",")] * int(times or 1)
            return pattern
    return value


LayerPattern = Annotated[
    Annotated[int, Field(strict=True, gt=0, le=MOST_LAYERS)]
    | tuple[Annotated[int, Field(strict=True, ge=0, le=1)], ...],
    BeforeValidator(_parse_layers),
]


class MegatronArguments(FileModel):
    """Arguments that say what the model is; the rest says how it is trained."""

    model_config = ConfigDict(extra="ignore")

    num_layers: Layers
    hidden_size: Width
    num_attention_heads: Width
    ffn_hidden_size: Width | None = None
    kv_channels: Width | None = None
    group_query_attention: Switch = False
    num_query_groups: Width = 1
    seq_length: Tokens | None = None
    max_position_embeddings: Tokens | None = None
    vocab_size: Words | None = None
    padded_vocab_size: Words | None = None
    make_vocab_size_divisible_by: Words = VOCABULARY_MULTIPLE
    tokenizer_type: str | None = None
    swiglu: Switch = False
    squared_relu: Switch = False
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    position_embedding_type: Literal["learned_absolute", "rope", "yarn", "none"] = (
        "learned_absolute"
    )
    use_rotary_position_embeddings: Switch = False
    rotary_percent: Share = 1.0
    untie_embeddings_and_output_weights: Switch = False
    disable_bias_linear: Switch = False
    add_qkv_bias: Switch = False
    qk_layernorm: Switch = False
    hidden_dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    multi_latent_attention: Switch = False
    q_lora_rank: Width | None = None
    kv_lora_rank: Width = 32
    qk_head_dim: Width = 128
    qk_pos_emb_head_dim: Width = 64
    v_head_dim: Width = 128
    num_experts: ExpertCount | None = None
    moe_router_topk: ExpertCount = 2
    moe_ffn_hidden_size: Width | None = None
    moe_shared_expert_intermediate_size: Width | None = None
    moe_layer_freq: LayerPattern = 1
    moe_router_score_function: Literal["softmax", "sigmoid"] = "softmax"
    moe_router_enable_expert_bias: Switch = False
    moe_router_num_groups: ExpertCount | None = None
    moe_router_group_topk: ExpertCount | None = None
    bf16: Switch = False
    fp16: Switch = False


REFUSED = frozenset(
    {
        "encoder_num_layers",
        "decoder_num_layers",
        "mtp_num_layers",
        "window_size",
        "window_attn_skip_freq",
        "quick_geglu",
        "retro_add_retriever",
        "hybrid_attention_ratio",
        "hybrid_override_pattern",
        "is_hybrid_model",
        "heterogeneous_layers_config_path",
        "linear_attention_freq",
        "apply_residual_connection_post_layernorm",
        "experimental_attention_variant",
        "num_channels_per_head",
    }
)
"""Arguments of models that are built otherwise."""


def megatron_model(stated: str | Path, name: str | None = None) -> Buildable:
    """Return the model that arguments describe; a path is that of a file of them.

    `name`: as reports call it.
    Raises `InputError`: with every fault.
    """
    read = read_arguments(stated) if isinstance(stated, Path) else typed_arguments(stated)
    try:
        raise_faults(_refused(read.values))
        arguments = validate_document(
            MegatronArguments, {key: read.values[key] for key in read.values if key in _FIELDS}
        )
        raise_faults(_faults(arguments))
    except InputError as error:
        raise InputError(
            replace(fault, field=_flag(fault.field), file=read.file) for fault in error.faults
        ) from None
    unread = [_flag(key) for key in read.values if key not in _FIELDS]
    rest = f"; not of the model, and not read: {', '.join(unread)}" if unread else ""
    title, longest = name or "megatron", arguments.max_position_embeddings
    return Buildable(
        title,
        partial(
            _build,
            title,
            f"arguments of Megatron-LM{rest}",
            arguments,
            _shape(arguments),
            0 if arguments.padded_vocab_size else arguments.make_vocab_size_divisible_by,
        ),
        (
            arguments.seq_length
            or (longest if _is_learned(arguments) else None)
            or min(LONGEST_DEFAULT, longest or LONGEST_DEFAULT)
        ),
        longest=longest if _is_learned(arguments) else None,
        has_experts=arguments.num_experts is not None,
        dtype="bf16" if arguments.bf16 else "fp16" if arguments.fp16 else "fp32",
    )


_FIELDS = frozenset(MegatronArguments.model_fields)


def _flag(field: str) -> str:
    return "megatron" if field == "document" else f"--{field.replace('_', '-')}"


def _refused(values: Mapping[str, Any]) -> list[Fault]:
    """Return faults of arguments of models that are built otherwise."""
    return [
        Fault(name, "a model that is built otherwise", "nothing: the zoo has no such layers")
        for name, value in values.items()
        if name in REFUSED and value not in (None, False, 0)
    ]


def _faults(stated: MegatronArguments) -> list[Fault]:
    heads, width, experts = stated.num_attention_heads, stated.hidden_size, stated.num_experts
    learned, longest = _is_learned(stated), stated.max_position_embeddings
    groups = stated.num_query_groups if stated.group_query_attention else 1
    of_width = divides(width, heads, "num_attention_heads", "the hidden size")
    return [
        *(of_width if stated.kv_channels is None else ()),
        *divides(heads, groups, "num_query_groups", "the heads"),
        *failed(
            (
                _vocabulary(stated) is None,
                "vocab_size",
                "nothing",
                "a number of words: tokenizers are not read",
            ),
            (
                learned and longest is None and stated.seq_length is None,
                "max_position_embeddings",
                "nothing",
                "rows of the table of positions",
            ),
            (
                learned and longest is not None and (stated.seq_length or 0) > longest,
                "seq_length",
                str(stated.seq_length),
                f"at most {longest}, the positions",
            ),
            (
                stated.swiglu and stated.squared_relu,
                "squared_relu",
                "beside --swiglu",
                "one of both",
            ),
            (
                stated.multi_latent_attention and experts is None,
                "multi_latent_attention",
                "without --num-experts",
                "models of experts, which alone the zoo has with it",
            ),
        ),
        *(_expert_faults(stated) if experts is not None else ()),
    ]


def _expert_faults(stated: MegatronArguments) -> list[Fault]:
    frequency, layers = stated.moe_layer_freq, stated.num_layers
    pattern = frequency if isinstance(frequency, tuple) else (1,) * layers
    every = frequency if isinstance(frequency, int) else 1
    fields = ("moe_router_topk", "moe_router_num_groups", "moe_router_group_topk")
    return [
        *failed(
            (not stated.swiglu, "swiglu", "nothing beside --num-experts", "experts with gates")
        ),
        *choice_faults(_routed(stated), *fields),
        *failed(
            (
                len(pattern) != layers or not any(pattern),
                "moe_layer_freq",
                f"{len(pattern)} layers, {sum(pattern)} with experts",
                f"one of {layers} layers each, some of them with experts",
            ),
            (every > layers, "moe_layer_freq", str(every), f"at most {layers}, the layers"),
        ),
    ]


def _vocabulary(arguments: MegatronArguments) -> int | None:
    return (
        arguments.padded_vocab_size
        or arguments.vocab_size
        or TOKENIZERS.get(arguments.tokenizer_type or "")
    )


def _is_learned(arguments: MegatronArguments) -> bool:
    kind, is_rotary = arguments.position_embedding_type, arguments.use_rotary_position_embeddings
    return kind == "learned_absolute" and not is_rotary


def _shape(arguments: MegatronArguments) -> DecoderShape:
    heads, width = arguments.num_attention_heads, arguments.hidden_size
    is_rope = not _is_learned(arguments) and arguments.position_embedding_type != "none"
    biased = not arguments.disable_bias_linear
    return DecoderShape(
        arguments.num_layers,
        width,
        heads,
        arguments.num_query_groups if arguments.group_query_attention else heads,
        _wide(arguments),
        _vocabulary(arguments) or 0,
        arguments.max_position_embeddings or arguments.seq_length or LONGEST_DEFAULT,
        head_width=arguments.kv_channels,
        tied=not arguments.untie_embeddings_and_output_weights,
        biased_attention=biased or arguments.add_qkv_bias,
        biased_output=biased,
        biased_mlp=biased,
        head_norms=arguments.qk_layernorm,
        dropout=arguments.hidden_dropout > 0,
        score_dropout=arguments.attention_dropout > 0,
        fused_norms=True,
        layer_norms=arguments.normalization == "LayerNorm",
        ungated=None if arguments.swiglu else ("relu2" if arguments.squared_relu else "gelu"),
        rotary_share=arguments.rotary_percent if is_rope else 0.0,
        learned_positions=_is_learned(arguments),
    )


def _wide(arguments: MegatronArguments) -> int:
    """Width of the feed-forward part: two thirds of four times, in 64s, where it is gated."""
    if arguments.ffn_hidden_size is not None:
        return arguments.ffn_hidden_size
    whole = 4 * arguments.hidden_size
    return max(64, whole * 2 // 3 // 64 * 64) if arguments.swiglu else whole


def _build(
    name: str,
    source: str,
    arguments: MegatronArguments,
    stated: DecoderShape,
    multiple: int,
    *,
    sequence_length: int,
    shard: Shard = WHOLE,
    settings: ExpertSettings | None = None,
    **sizes: Any,
) -> Workload:
    """Build it with the vocabulary padded as Megatron pads it for these ranks."""
    each = max(1, multiple * shard.tensor)
    shape = replace(stated, vocabulary=-(-stated.vocabulary // each) * each)
    if arguments.max_position_embeddings is None:
        shape = with_table(shape, sequence_length)
    sizes |= {"sequence_length": sequence_length, "shard": shard}
    if arguments.num_experts is None and _is_gpt(arguments):
        sizes["shape"] = text_decoder.gpt_shape(
            shape.layers,
            shape.width,
            shape.heads,
            shape.positions,
            shape.vocabulary,
            mlp_width=shape.mlp_width,
            untied=not shape.tied,
        )
        return replace(
            text_decoder.gpt(
                name, dropout=shape.dropout, score_dropout=shape.score_dropout, **sizes
            ),
            source=source,
        )
    latent = None
    if arguments.multi_latent_attention:
        shape = replace(shape, kv_heads=shape.heads, head_width=arguments.qk_pos_emb_head_dim)
        latent = LatentShape(
            arguments.q_lora_rank,
            arguments.kv_lora_rank,
            arguments.qk_head_dim,
            arguments.qk_pos_emb_head_dim,
            arguments.v_head_dim,
        )
    experts = None if arguments.num_experts is None else (_routed(arguments), latent)
    sizes |= {"settings": settings, "family": "DeepseekV3ForCausalLM" if latent else EXPERT_FAMILY}
    return replace(decoder_workload(name, shape, experts, **sizes), source=source)


def _is_gpt(arguments: MegatronArguments) -> bool:
    """Whether the model is GPT-2's, but for its sizes."""
    others = (
        arguments.swiglu,
        arguments.squared_relu,
        arguments.disable_bias_linear,
        arguments.qk_layernorm,
        arguments.group_query_attention,
        arguments.kv_channels is not None,
        arguments.normalization != "LayerNorm",
        not _is_learned(arguments),
    )
    return not any(others)


def _routed(arguments: MegatronArguments) -> RoutedShape:
    pattern = arguments.moe_layer_freq
    if isinstance(pattern, int):  # the first of so many has experts, not the last
        pattern = tuple(int(layer % pattern == 0) for layer in range(arguments.num_layers))
    top_groups = arguments.moe_router_group_topk  # without it all groups are taken
    return RoutedShape(
        arguments.num_experts or 1,
        arguments.moe_router_topk,
        arguments.moe_ffn_hidden_size or _wide(arguments),
        arguments.moe_shared_expert_intermediate_size or 0,
        dense_layers=tuple(layer for layer, routed in enumerate(pattern) if not routed),
        scores=arguments.moe_router_score_function,
        score_bias=arguments.moe_router_enable_expert_bias,
        groups=(arguments.moe_router_num_groups or 1) if top_groups else 1,
        top_groups=top_groups or 1,
    )

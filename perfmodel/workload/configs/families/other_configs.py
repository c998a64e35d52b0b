"""Models of text that are no decoders as Llama: GPT-2, GPT-NeoX, Phi, OPT and T5."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Literal

from perfmodel.workload.configs.config_types import (
    LONGEST_DEFAULT,
    Finding,
    Flag,
    Function,
    HubConfig,
    Layers,
    Nothing,
    Rate,
    RopeParameters,
    Share,
    Tokens,
    Width,
    Words,
    divides,
    head_of,
    heads_divide,
    is_on,
    raise_findings,
    rotary_share,
)
from perfmodel.workload.zoo import gpt, t5
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.stacks.activation_functions import ACTIVATIONS
from perfmodel.workload.zoo.stacks.stack_block import StackShape
from perfmodel.workload.zoo.stacks.text_decoder import (
    NEOX_BLOCK,
    NEOX_ENDS,
    OPT_BLOCK,
    OPT_ENDS,
    PHI_BLOCK,
    PHI_ENDS,
    TextDecoderShape,
    text_decoder,
)


class Gpt2Config(HubConfig):
    """GPT-2."""

    vocab_size: Words = 50257
    n_positions: Tokens = 1024
    n_embd: Width = 768
    n_layer: Layers = 12
    n_head: Width = 12
    n_inner: Width | None = None
    activation_function: Function = "gelu_new"
    resid_pdrop: Rate = 0.1
    embd_pdrop: Rate = 0.1
    attn_pdrop: Rate = 0.1
    add_cross_attention: Literal[False] = False
    tie_word_embeddings: Flag = True


def gpt2_model(name: str, config: Gpt2Config, family: str) -> Buildable:
    """Return the model of a configuration."""
    head_of(config, (family,))
    raise_findings(divides(config.n_embd, config.n_head, "n_head", "n_embd"))
    shape = gpt.GptShape(
        config.n_layer,
        config.n_embd,
        config.n_head,
        config.n_positions,
        config.vocab_size,
        mlp_width=config.n_inner,
        activation=ACTIVATIONS[config.activation_function],
        untied=not config.tie_word_embeddings,
    )
    make = partial(
        gpt.gpt,
        name,
        shape=shape,
        dropout=is_on(config.resid_pdrop),
        embedding_dropout=is_on(config.embd_pdrop),
        score_dropout=is_on(config.attn_pdrop),
    )
    return Buildable(name, make, shape.positions, longest=shape.positions)


class GptNeoxConfig(HubConfig):
    """GPT-NeoX and Pythia."""

    vocab_size: Words = 50432
    hidden_size: Width = 6144
    num_hidden_layers: Layers = 44
    num_attention_heads: Width = 64
    intermediate_size: Width = 24576
    hidden_act: Function = "gelu"
    attention_dropout: Rate = 0.0
    hidden_dropout: Rate = 0.0
    max_position_embeddings: Tokens = 2048
    tie_word_embeddings: Flag = False
    use_parallel_residual: Flag = True
    attention_bias: Flag = True
    rotary_pct: Share | None = None
    partial_rotary_factor: Share | None = None
    rope_parameters: RopeParameters | None = None

    @property
    def rotary_share(self) -> float:
        """Share of a head that positions turn."""
        older = (self.partial_rotary_factor, self.rotary_pct)
        return rotary_share(self.rope_parameters, *older, usual=0.25)


def gpt_neox_model(name: str, config: GptNeoxConfig, family: str) -> Buildable:
    """Return the model of a configuration."""
    head_of(config, (family,))
    raise_findings(heads_divide(config.hidden_size, config.num_attention_heads))
    block = StackShape(
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        NEOX_BLOCK,
        causal=True,
        activation=ACTIVATIONS[config.hidden_act],
        dropout=is_on(config.hidden_dropout),
        score_dropout=is_on(config.attention_dropout),
        biases=(config.attention_bias,) * 3,
        output_bias=config.attention_bias,
        rotary_share=config.rotary_share,
        parallel=config.use_parallel_residual,
    )
    shape = TextDecoderShape(
        config.num_hidden_layers,
        config.vocab_size,
        block,
        NEOX_ENDS,
        tied=config.tie_word_embeddings,
        embedding_dropout=is_on(config.hidden_dropout),
    )
    make = partial(text_decoder, name, shape=shape, source=NEOX_SOURCE)
    return Buildable(name, make, min(config.max_position_embeddings, LONGEST_DEFAULT))


NEOX_SOURCE = "Hugging Face GPTNeoXForCausalLM; Black et al. 2022, arXiv 2204.06745"


class PhiConfig(HubConfig):
    """Phi 1 and 2, whose two branches read the same norm."""

    vocab_size: Words = 51200
    hidden_size: Width = 2048
    intermediate_size: Width = 8192
    num_hidden_layers: Layers = 24
    num_attention_heads: Width = 32
    num_key_value_heads: Width | None = None
    resid_pdrop: Rate = 0.0
    embd_pdrop: Rate = 0.0
    attention_dropout: Rate | None = 0.0
    hidden_act: Function = "gelu_new"
    max_position_embeddings: Tokens = 2048
    tie_word_embeddings: Flag = False
    qk_layernorm: Literal[False] = False
    partial_rotary_factor: Share | None = None
    rope_parameters: RopeParameters | None = None


def phi_model(name: str, config: PhiConfig, family: str) -> Buildable:
    """Return the model of a configuration."""
    head_of(config, (family,))
    heads = config.num_attention_heads
    raise_findings(
        chain(
            heads_divide(config.hidden_size, heads),
            _pair_findings(config.num_key_value_heads, heads),
        )
    )
    block = StackShape(
        config.hidden_size,
        heads,
        config.intermediate_size,
        PHI_BLOCK,
        causal=True,
        activation=ACTIVATIONS[config.hidden_act],
        dropout=is_on(config.resid_pdrop),
        score_dropout=is_on(config.attention_dropout or 0.0),
        rotary_share=rotary_share(config.rope_parameters, config.partial_rotary_factor, usual=0.5),
        parallel=True,
    )
    shape = TextDecoderShape(
        config.num_hidden_layers,
        config.vocab_size,
        block,
        PHI_ENDS,
        tied=config.tie_word_embeddings,
        biased_head=True,
        embedding_dropout=is_on(config.embd_pdrop),
    )
    make = partial(text_decoder, name, shape=shape, source="Hugging Face PhiForCausalLM")
    return Buildable(name, make, min(config.max_position_embeddings, LONGEST_DEFAULT))


def _pair_findings(pairs: int | None, heads: int) -> Iterator[Finding]:
    """Find grouped queries, which no model of the family has."""
    if pairs not in (None, heads):
        yield "num_key_value_heads", str(pairs), f"{heads}, as many as num_attention_heads"


class OptConfig(HubConfig):
    """OPT with norms before its parts: all published sizes but 350m."""

    vocab_size: Words = 50272
    hidden_size: Width = 768
    num_hidden_layers: Layers = 12
    ffn_dim: Width = 3072
    max_position_embeddings: Tokens = 2048
    do_layer_norm_before: Literal[True] = True
    word_embed_proj_dim: Width | None = None
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    num_attention_heads: Width = 12
    activation_function: Function = "relu"
    layerdrop: Nothing = 0.0
    enable_bias: Literal[True] = True
    layer_norm_elementwise_affine: Literal[True] = True
    tie_word_embeddings: Flag = True


OPT_OFFSET = 2
"""Rows of the table of positions before the first (``OPTLearnedPositionalEmbedding``)."""


def opt_model(name: str, config: OptConfig, family: str) -> Buildable:
    """Return the model of a configuration."""
    head_of(config, (family,))
    raise_findings(
        chain(
            heads_divide(config.hidden_size, config.num_attention_heads),
            _projection_findings(config),
        )
    )
    block = StackShape(
        config.hidden_size,
        config.num_attention_heads,
        config.ffn_dim,
        OPT_BLOCK,
        causal=True,
        activation=ACTIVATIONS[config.activation_function],
        dropout=is_on(config.dropout),
        score_dropout=is_on(config.attention_dropout),
        wide_scores=True,
        scaled_queries=True,
    )
    positions = config.max_position_embeddings
    shape = TextDecoderShape(
        config.num_hidden_layers,
        config.vocab_size,
        block,
        OPT_ENDS,
        tied=config.tie_word_embeddings,
        positions=positions + OPT_OFFSET,
    )
    source = "Hugging Face OPTForCausalLM; Zhang et al. 2022, arXiv 2205.01068"
    make = partial(text_decoder, name, shape=shape, source=source)
    return Buildable(name, make, positions, longest=positions)


def _projection_findings(config: OptConfig) -> Iterator[Finding]:
    """Find embeddings of another width, which are mapped (OPT 350m alone)."""
    width = config.word_embed_proj_dim
    if width not in (None, config.hidden_size):
        yield "word_embed_proj_dim", str(width), f"{config.hidden_size}, as hidden_size"


class T5Config(HubConfig):
    """T5 and T5 v1.1."""

    vocab_size: Words = 32128
    d_model: Width = 512
    d_kv: Width = 64
    d_ff: Width = 2048
    num_layers: Layers = 6
    num_decoder_layers: Layers | None = None
    num_heads: Width = 8
    relative_attention_num_buckets: Words = 32
    dropout_rate: Rate = 0.1
    feed_forward_proj: Literal["relu", "gated-gelu"] = "relu"
    tie_word_embeddings: Flag = True
    n_positions: Tokens = t5.INPUTS


def t5_model(name: str, config: T5Config, family: str) -> Buildable:
    """Return the model of a configuration; untied heads are those of published weights."""
    head_of(config, (family, "T5WithLMHeadModel"))
    shape = t5.T5Shape(
        config.num_layers,
        config.d_model,
        config.num_heads,
        config.d_kv,
        config.d_ff,
        gated=config.feed_forward_proj == "gated-gelu",
        untied=not config.tie_word_embeddings,
        decoder_layers=config.num_decoder_layers,
        vocabulary=config.vocab_size,
        buckets=config.relative_attention_num_buckets,
        dropout=is_on(config.dropout_rate),
    )
    return Buildable(name, partial(t5.t5, name, shape=shape), config.n_positions)

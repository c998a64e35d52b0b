"""Models of text that are no decoders as Llama: GPT-2, GPT-NeoX, BERT and T5."""

from __future__ import annotations

from functools import partial
from typing import Literal

from perfmodel.workload.configs.config_types import (
    LONGEST_DEFAULT,
    Flag,
    Function,
    HubConfig,
    Layers,
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
from perfmodel.workload.zoo import bert, gpt, t5
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.stacks.activation_functions import ACTIVATIONS
from perfmodel.workload.zoo.stacks.gpt_neox import NEOX_BLOCK, NeoxShape, gpt_neox
from perfmodel.workload.zoo.stacks.stack_block import StackShape


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
    shape = NeoxShape(
        config.num_hidden_layers, config.vocab_size, block, tied=config.tie_word_embeddings
    )
    make = partial(gpt_neox, name, shape=shape)
    return Buildable(name, make, min(config.max_position_embeddings, LONGEST_DEFAULT))


class BertConfig(HubConfig):
    """BERT."""

    vocab_size: Words = 30522
    hidden_size: Width = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: Width = 12
    intermediate_size: Width = 3072
    hidden_act: Function = "gelu"
    hidden_dropout_prob: Rate = 0.1
    attention_probs_dropout_prob: Rate = 0.1
    max_position_embeddings: Tokens = 512
    type_vocab_size: Words = 2
    is_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False
    tie_word_embeddings: Literal[True] = True


BERT_HEADS: dict[str, bert.Head] = {
    "BertForMaskedLM": "masked", "BertForPreTraining": "pre-training", "BertModel": "pooler",
}  # fmt: skip


def bert_model(name: str, config: BertConfig, _family: str) -> Buildable:
    """Return the model of a configuration."""
    head = BERT_HEADS[head_of(config, tuple(BERT_HEADS))]
    raise_findings(heads_divide(config.hidden_size, config.num_attention_heads))
    shape = bert.BertShape(
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        config.vocab_size,
        config.max_position_embeddings,
        config.type_vocab_size,
        activation=ACTIVATIONS[config.hidden_act],
        dropout=is_on(config.hidden_dropout_prob),
        score_dropout=is_on(config.attention_probs_dropout_prob),
    )
    make = partial(bert.bert, name, shape=shape, head=head)
    return Buildable(name, make, shape.positions, longest=shape.positions)


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

"""Encoders of text: BERT, and its kin RoBERTa, XLM-RoBERTa, CamemBERT and DistilBERT."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Literal

from perfmodel.workload.configs.config_types import (
    Finding,
    Function,
    HubConfig,
    Layers,
    Rate,
    Tokens,
    Width,
    Window,
    Words,
    divides,
    head_of,
    heads_divide,
    is_on,
    raise_findings,
)
from perfmodel.workload.zoo import bert
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.stacks.activation_functions import ACTIVATIONS, ONE_KERNEL


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
    "BertForMaskedLM": "masked",
    "BertForPreTraining": "pre-training",
    "BertModel": "pooler",
}


def bert_model(name: str, config: BertConfig, _family: str) -> Buildable:
    """Return the model of a configuration."""
    head = BERT_HEADS[head_of(config, tuple(BERT_HEADS))]
    raise_findings(heads_divide(config.hidden_size, config.num_attention_heads))
    make = partial(bert.bert, name, shape=_bert_shape(config, bert.BERT_NAMES), head=head)
    positions = config.max_position_embeddings
    return Buildable(name, make, positions, longest=positions)


def _bert_shape(config: BertConfig, names: bert.BertNames) -> bert.BertShape:
    return bert.BertShape(
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
        names=names,
    )


ROBERTA = "RobertaForMaskedLM"


class XlmRobertaConfig(BertConfig):
    """XLM-RoBERTa and CamemBERT, whose positions begin behind that of padding."""

    pad_token_id: Window | None = 1

    @property
    def longest(self) -> int:
        """Tokens that the table of positions has place for."""
        return self.max_position_embeddings - (self.pad_token_id or 0) - 1


class RobertaConfig(XlmRobertaConfig):
    """RoBERTa."""

    vocab_size: Words = 50265


def roberta_model(name: str, config: XlmRobertaConfig, family: str) -> Buildable:
    """Return the model of a configuration."""
    head_of(config, (family,))
    raise_findings(
        chain(
            heads_divide(config.hidden_size, config.num_attention_heads),
            _position_findings(config),
        )
    )
    own = bert.ROBERTA_NAMES if family == ROBERTA else bert.XLM_ROBERTA_NAMES
    shape = replace(_bert_shape(config, own), head_activation=ONE_KERNEL)  # GELU in any case
    make = partial(bert.bert, name, shape=shape, head="masked")
    return Buildable(name, make, config.longest, longest=config.longest)


def _position_findings(config: XlmRobertaConfig) -> Iterator[Finding]:
    if config.longest < 1:
        allowed = f"more than pad_token_id + 1, {(config.pad_token_id or 0) + 1}"
        yield "max_position_embeddings", str(config.max_position_embeddings), allowed


class DistilBertConfig(HubConfig):
    """DistilBERT."""

    vocab_size: Words = 30522
    max_position_embeddings: Tokens = 512
    sinusoidal_pos_embds: Literal[False] = False
    n_layers: Layers = 6
    n_heads: Width = 12
    dim: Width = 768
    hidden_dim: Width = 3072
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    activation: Function = "gelu"
    tie_word_embeddings: Literal[True] = True


def distilbert_model(name: str, config: DistilBertConfig, family: str) -> Buildable:
    """Return the model of a configuration."""
    head_of(config, (family,))
    raise_findings(divides(config.dim, config.n_heads, "n_heads", "dim"))
    shape = bert.BertShape(
        config.n_layers,
        config.dim,
        config.n_heads,
        config.hidden_dim,
        config.vocab_size,
        config.max_position_embeddings,
        segments=0,
        activation=ACTIVATIONS[config.activation],
        dropout=is_on(config.dropout),
        score_dropout=is_on(config.attention_dropout),
        attention_dropout=False,
        names=bert.DISTILBERT_NAMES,
    )
    make = partial(bert.bert, name, shape=shape, head="masked")
    return Buildable(name, make, shape.positions, longest=shape.positions)

"""A decoder by its sizes, as section ``model.transformer`` of a scenario states them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from perfmodel.errors import Fault, raise_faults
from perfmodel.scenario.sections.model import TransformerSection, transformer_findings
from perfmodel.workload.configs.family import LONGEST_DEFAULT
from perfmodel.workload.model import Workload
from perfmodel.workload.shards.shard import WHOLE, Shard
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.decoder_sizes import DecoderShape
from perfmodel.workload.zoo.expert_decoder import expert_decoder
from perfmodel.workload.zoo.expert_settings import ExpertSettings
from perfmodel.workload.zoo.expert_sizes import ExpertShape, RoutedShape
from perfmodel.workload.zoo.layers import ACTIVATIONS
from perfmodel.workload.zoo.llama import llama

EXPERT_FAMILY = "MixtralForCausalLM"
"""Whose names tensors of experts have; others have Llama's."""
SOURCE = "sizes that the scenario states; tensors are named as in Hugging Face's Llama"


def transformer_model(section: TransformerSection, name: str | None = None) -> Buildable:
    """Return the model of a section.

    Raises `InputError`: sizes that do not fit each other; fields as in the section.
    """
    raise_faults(Fault(*finding) for finding in transformer_findings(section))
    shape, title = section_shape(section), name or "transformer"
    if section.experts is None:
        return Buildable(title, partial(_dense, title, shape), LONGEST_DEFAULT)
    experts = section.experts
    width = experts.hidden or section.wide
    routed = RoutedShape(
        experts.count,
        experts.top_k,
        width,
        experts.shared * width,
        dense_first=experts.dense_first,
        every=experts.every,
    )
    make = partial(_routed, title, ExpertShape(shape, routed))
    return Buildable(title, make, LONGEST_DEFAULT, has_experts=True)


def section_shape(section: TransformerSection) -> DecoderShape:
    """Sizes of the decoder that a section states."""
    heads = section.head_count
    return DecoderShape(
        section.layers,
        section.hidden,
        heads,
        section.kv_heads or heads,
        section.wide,
        section.vocab,
        LONGEST_DEFAULT,
        head_width=section.head_dim,
        tied=section.tied,
        biased_attention=section.bias,
        biased_output=section.bias,
        biased_mlp=section.bias,
        head_norms=section.qk_norm,
        window=section.window,
        full_every=section.full_every or 0,
        dropout=section.dropout > 0,
        score_dropout=section.dropout > 0,
        fused_norms=True,
        layer_norms=section.norm == "layer",
        ungated=None if section.gated else ACTIVATIONS[section.mlp],
        rotary_share=float(section.positions == "rotary"),
        learned_positions=section.positions == "learned",
    )


def with_table(shape: DecoderShape, tokens: int) -> DecoderShape:
    """Return the shape with a table of positions as long as a sample."""
    return replace(shape, positions=tokens) if shape.learned_positions else shape


def _dense(
    name: str, shape: DecoderShape, *, dtype: str, sequence_length: int, shard: Shard = WHOLE
) -> Workload:
    workload = llama(
        name,
        dtype=dtype,
        sequence_length=sequence_length,
        shape=with_table(shape, sequence_length),
        shard=shard,
    )
    return replace(workload, source=SOURCE)


def _routed(
    name: str,
    shape: ExpertShape,
    *,
    dtype: str,
    sequence_length: int,
    shard: Shard = WHOLE,
    settings: ExpertSettings | None = None,
) -> Workload:
    decoder = with_table(shape.decoder, sequence_length)
    workload = expert_decoder(
        name,
        dtype=dtype,
        sequence_length=sequence_length,
        shape=replace(shape, decoder=decoder),
        family=EXPERT_FAMILY,
        settings=settings,
        shard=shard,
    )
    return replace(workload, source=SOURCE)

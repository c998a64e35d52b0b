"""Models of text that are no decoders as Llama: GPT-2, NeoX, Phi, OPT, T5, BERT and its kin.

And of sound: Whisper and Wav2Vec2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

from perfmodel.errors import failed, raise_faults
from perfmodel.workload.configs.family import (
    LONGEST_DEFAULT,
    Family,
    divides,
    heads_divide,
    is_on,
    rotary_share,
)
from perfmodel.workload.zoo import bert, t5
from perfmodel.workload.zoo.bart import BART_BLOCK, bart
from perfmodel.workload.zoo.bert_block import BertShape
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.layers import ACTIVATIONS, GATED
from perfmodel.workload.zoo.stack_block import BLOCK_NAMES, StackShape
from perfmodel.workload.zoo.text_decoder import (
    ENDS,
    TextDecoderShape,
    text_decoder,
)
from perfmodel.workload.zoo.wav2vec2 import wav2vec2
from perfmodel.workload.zoo.whisper import WHISPER_BLOCK, WhisperShape, whisper

ALIBI = (
    "Biases of distances are added to scores in no time of their own; attention is fused where the "
    "scenario's is, though transformers does not fuse this family's."
)


STACK: Mapping[str, Any] = {
    "attention_bias": True,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "num_key_value_heads": None,
    "partial_rotary_factor": None,
    "rope_parameters": None,
    "use_parallel_residual": False,
    "usual_rotary_share": 0.0,
    "word_embed_proj_dim": None,
    "position_offset": 0,
}
"""Values of fields that a family does not have."""


def stack_model(name: str, config: SimpleNamespace, family: Family) -> Buildable:
    """Return the model of a configuration of GPT-2, GPT-NeoX, Phi, OPT, Bloom or MPT.

    Phi's two branches read one norm, and it has no grouped queries; OPT 350m alone maps embeddings.
    """
    config = SimpleNamespace(**{**STACK, **vars(config)})
    width, heads, longest = config.hidden_size, config.num_attention_heads, None
    pairs, mapped, biased = (
        config.num_key_value_heads,
        config.word_embed_proj_dim,
        config.attention_bias,
    )
    raise_faults(
        heads_divide(width, heads)
        + failed(
            (
                pairs not in (None, heads),
                "num_key_value_heads",
                str(pairs),
                f"{heads}, as many as num_attention_heads",
            ),
            (
                mapped not in (None, width),
                "word_embed_proj_dim",
                str(mapped),
                f"{width}, as hidden_size",
            ),
        )
    )
    follows = {
        "biases": (biased,) * 3,
        "output_bias": biased,
        "rotary_share": rotary_share(config, usual=config.usual_rotary_share),
        "parallel": config.use_parallel_residual,
    }
    block = StackShape(
        width,
        heads,
        config.intermediate_size or 4 * width,
        BLOCK_NAMES[config.names],
        causal=True,
        activation=ACTIVATIONS[config.hidden_act],
        dropout=is_on(config.hidden_dropout),
        score_dropout=is_on(config.attention_dropout),
        **{**follows, **family.block},
    )
    more = {place: bool(getattr(config, source)) for place, source in family.stated.items()}
    if ENDS[family.shape["ends"]].positions:
        longest = config.max_position_embeddings
        more["positions"] = longest + config.position_offset
    model = _decoder(name, config, block, {**more, **family.shape})
    notes = (ALIBI,) * (not (block.rotary_share or longest))
    return replace(model, default=longest or model.default, longest=longest, notes=notes)


def falcon_model(name: str, config: SimpleNamespace, family: Family) -> Buildable:
    """Return the model of a configuration of Falcon, whose two branches read one input."""
    heads, newer = config.num_attention_heads, config.new_decoder_architecture
    pairs, norms = config.num_key_value_heads or heads, config.num_ln_in_parallel_attn or 1 + newer
    raise_faults(
        divides(heads, pairs, "num_key_value_heads", "the heads of queries")
        + failed((norms > 1 + newer, "num_ln_in_parallel_attn", str(norms), "1 of older ones"))
    )
    config.names = f"falcon-{norms}"
    block = {
        **family.block,
        "kv_heads": pairs if newer else 1 if config.multi_query else heads,
        "spread": newer,
        "held": 0.0 if newer or config.multi_query else 2.0,
    }
    config.num_key_value_heads = None
    return stack_model(name, config, replace(family, block=block))


def modernbert_model(name: str, config: SimpleNamespace, family: Family) -> Buildable:
    """Return the model of a configuration of ModernBERT."""
    layers, kinds = range(config.num_hidden_layers), config.layer_types
    every, half = config.global_attn_every_n_layers, config.local_attention // 2
    raise_faults(
        heads_divide(config.hidden_size, config.num_attention_heads)
        + failed(
            (
                kinds is not None and len(kinds) != len(layers),
                "layer_types",
                f"{len(kinds or ())} values",
                f"one value for each of the {len(layers)} layers",
            )
        )
    )
    slides = [kind == "sliding_attention" for kind in kinds or ()] or [at % every for at in layers]
    block = StackShape(
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        BLOCK_NAMES["modernbert"],
        activation=GATED,
        gated=True,
        biases=(config.attention_bias,) * 3,
        output_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        norm_bias=config.norm_bias,
        rotary_share=1.0,
        held=2.0,
        bare_first=True,
        windows=tuple(2 * half + 1 if each else None for each in slides),
    )
    return _decoder(name, config, block, {**family.shape, "biased_head": config.decoder_bias})


POSITION_OFFSET = 2
"""Rows of the table of positions before the first (``OPTLearnedPositionalEmbedding``, BART's)."""


def _decoder(
    name: str, config: SimpleNamespace, block: StackShape, more: Mapping[str, Any]
) -> Buildable:
    """Return the decoder of a stack; `more`: its ends and its source, what else is not usual."""
    rest = dict(more)
    source = rest.pop("source")
    shape = TextDecoderShape(
        config.num_hidden_layers,
        config.vocab_size,
        block,
        tied=config.tie_word_embeddings,
        **rest,
    )
    return Buildable(
        name,
        partial(text_decoder, name, shape=shape, source=source),
        min(config.max_position_embeddings, LONGEST_DEFAULT),
    )


def t5_model(name: str, config: SimpleNamespace, _family: Family) -> Buildable:
    """Return the model of a configuration; untied heads are those of published weights."""
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


RELATIVE = (
    "Attention is fused where the scenario's is, though transformers does not fuse this family's."
)
BERT_HEADS: Mapping[str, bert.Head] = {
    "BertForMaskedLM": "masked",
    "BertForPreTraining": "pre-training",
    "BertModel": "pooler",
}


def bert_model(name: str, config: SimpleNamespace, family: Family) -> Buildable:
    """Return the model of a configuration of BERT or its kin; RoBERTa's places follow padding."""
    positions, allowed = config.max_position_embeddings, ""
    if hasattr(config, "pad_token_id"):
        first = (config.pad_token_id or 0) + 1
        positions, allowed = positions - first, f"more than pad_token_id + 1, {first}"
    raise_faults(
        heads_divide(config.hidden_size, config.num_attention_heads)
        + failed(
            (positions < 1, "max_position_embeddings", str(config.max_position_embeddings), allowed)
        )
    )
    shape = BertShape(
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
        **family.shape,
        **_relative(config),
    )
    make = partial(bert.bert, name, shape=shape, head=BERT_HEADS.get(config.head, "masked"))
    notes = (RELATIVE,) * bool(shape.relative)
    return Buildable(name, make, positions, longest=positions, notes=notes)


def _relative(config: SimpleNamespace) -> dict[str, Any]:
    """Sizes of relative positions, which DeBERTa alone has: buckets of them, or all."""
    if not hasattr(config, "relative_attention"):
        return {}
    stated = (getattr(config, "position_buckets", 0), config.max_relative_positions)
    rows = next((each for each in stated if each > 0), config.max_position_embeddings)
    return {
        "relative": 2 * rows,
        "has_positions": config.position_biased_input,
        "kernel": getattr(config, "conv_kernel_size", 0),
    }


def bart_model(name: str, config: SimpleNamespace, _family: Family) -> Buildable:
    """Return the model of a configuration of BART."""
    longest = config.max_position_embeddings
    make = partial(
        bart,
        name,
        layers=(config.encoder_layers, config.decoder_layers),
        blocks=_both_blocks(config, BART_BLOCK),
        vocabulary=config.vocab_size,
        positions=longest + POSITION_OFFSET,
    )
    return Buildable(name, make, longest, longest=longest)


def _both_blocks(config: SimpleNamespace, usual: StackShape) -> tuple[StackShape, StackShape]:
    """Return the blocks of an encoder and a decoder; `usual`: what blocks of all sizes have.

    Raises `InputError`: heads that do not divide the width.
    """
    raise_faults(
        chain.from_iterable(
            divides(config.d_model, getattr(config, field), field, "d_model")
            for field in ("encoder_attention_heads", "decoder_attention_heads")
        )
    )
    encoder = replace(
        usual,
        width=config.d_model,
        heads=config.encoder_attention_heads,
        mlp_width=config.encoder_ffn_dim,
        activation=ACTIVATIONS[config.activation_function],
        dropout=is_on(config.dropout),
        inner_dropout=is_on(config.activation_dropout),
        score_dropout=is_on(config.attention_dropout),
    )
    return encoder, replace(
        encoder,
        heads=config.decoder_attention_heads,
        mlp_width=config.decoder_ffn_dim,
        names=BLOCK_NAMES["whisper-decoder"],
        causal=True,
    )


def whisper_model(name: str, config: SimpleNamespace, _family: Family) -> Buildable:
    """Return the model of a configuration of Whisper."""
    encoder, decoder = _both_blocks(config, WHISPER_BLOCK)
    shape = WhisperShape(
        config.encoder_layers,
        encoder,
        config.decoder_layers,
        decoder,
        config.vocab_size,
        config.num_mel_bins,
        config.max_source_positions,
        config.max_target_positions,
        tied=config.tie_word_embeddings,
    )
    longest = config.max_target_positions
    return Buildable(name, partial(whisper, name, shape=shape), longest, longest=longest)


SOUND_FRAMES = 499
"""Of ten seconds, where nobody says how many: each of Wav2Vec2's stands for 20 ms."""
KEPT_LAYERS = "No layer is left out (layerdrop), which a step of training does at random."


CODES = (
    "num_codevector_groups",
    "num_codevectors_per_group",
    "codevector_dim",
    "proj_codevector_dim",
    "num_negatives",
)
"""Fields that state what the head is for, which is pre-trained (see `contrastive_parts`)."""


def wav2vec2_model(name: str, config: SimpleNamespace, family: Family) -> Buildable:
    """Return the model of a configuration of Wav2Vec2, with one of its heads or none."""
    convolutions = config.conv_dim, config.conv_kernel, config.conv_stride
    width, groups = config.hidden_size, config.num_conv_pos_embedding_groups
    codes = [getattr(config, field) for field in CODES] * (config.head == "Wav2Vec2ForPreTraining")
    lengths, allowed = [len(each) for each in convolutions], "as many values in each"
    raise_faults(
        [
            *failed(
                (
                    len({*lengths}) > 1 or not all(lengths),
                    "conv_dim",
                    repr(lengths),
                    allowed,
                )
            ),
            *heads_divide(width, config.num_attention_heads),
            *divides(width, groups, "num_conv_pos_embedding_groups", "the hidden size"),
            *(divides(codes[2], codes[0], CODES[0], CODES[2]) if codes else []),
        ]
    )
    block = StackShape(
        width,
        config.num_attention_heads,
        config.intermediate_size,
        BLOCK_NAMES["wav2vec2"],
        activation=ACTIVATIONS[config.hidden_act],
        dropout=is_on(config.hidden_dropout),
        inner_dropout=is_on(config.activation_dropout),
        score_dropout=is_on(config.attention_dropout),
        wide_scores=False,
        late_norms=not config.do_stable_layer_norm,
    )
    make = partial(
        wav2vec2,
        name,
        convolutions=tuple(zip(*convolutions, strict=True)),
        layers=config.num_hidden_layers,
        block=block,
        normed=config.feat_extract_norm == "layer",
        biased=config.conv_bias,
        positions=(config.num_conv_pos_embeddings, groups),
        masked=is_on(config.mask_time_prob) or is_on(config.mask_feature_prob),
        vocabulary=config.vocab_size if config.head == family.name else None,
        codes=tuple(codes) or None,
        codes_dropout=is_on(config.feat_quantizer_dropout),
    )
    return Buildable(name, make, SOUND_FRAMES, notes=(KEPT_LAYERS,) * is_on(config.layerdrop))

"""Llama, and decoders alike it (Mistral, Qwen, Gemma), with Hugging Face's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

from perfmodel.errors import raise_faults
from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.layer_calls import column_calls, loss_calls, norm_calls
from perfmodel.workload.model import ELEMENT_BYTES, Buffers, Kept, Workload, sequence_of
from perfmodel.workload.shard import (
    WHOLE,
    Shard,
    SharedSizes,
    check_shard,
    shard_faults,
    whole_faults,
)
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.decoder_block import (
    BlockPlace,
    check_norms,
    feed_forward_part,
    kept_by_norm,
    norm_ready,
    norm_work,
    projection,
    shape_of_layer,
)
from perfmodel.workload.zoo.decoder_sizes import FAMILIES, SHAPES, DecoderShape
from perfmodel.workload.zoo.layers import (
    Module,
    Parameter,
    assemble,
    in_order,
    linear,
    more_work,
    names,
    numels,
    renamed,
    weight_and_bias,
)
from perfmodel.workload.zoo.mixers import NOTE, check_mixers, mixers_of, token_part
from perfmodel.workload.zoo.transformer import token_tables


def named(shape: DecoderShape, part: Module) -> Module:
    """Return a part with the names of its family."""
    return renamed(part, shape.block_names.replaced) if shape.block_names.replaced else part


def rotary_buffers(shape: DecoderShape) -> tuple[Buffers, ...]:
    """Rotary frequencies, twice, for sliding and full attention where these differ; scales."""
    if not shape.rotary_share:
        return ()
    layers, kinds = range(shape.layers), {True: shape.head_size}
    if shape.own_rotaries:
        kinds = {
            shape.window_of(layer) is None: shape_of_layer(shape, layer).head_size
            for layer in layers
        }
    pairs = sum(int(size * shape.rotary_share) // 2 for size in kinds.values())
    scales = shape.scaled_embedding + shape.value_norms * (shape.layers + bool(shape.side_width))
    return (
        Buffers("fp32", 2 * len(kinds), 2 * 4 * pairs),
        *(Buffers("fp32", scales, 4 * scales),) * bool(scales),
    )


def token_embedding(shape: DecoderShape, s: int, shard: Shard = WHOLE) -> Module:
    """Gather the rows of tokens, and scale them where the model does.

    `shard`: which part of the table a rank holds.
    """
    own_vocabulary, h = shard.words(shape.vocabulary), shape.width
    positions = (("model.embed_positions.weight", (shape.positions, h)),)
    tables = (
        ("model.embed_tokens.weight", (own_vocabulary, h)),
        *(positions if shape.learned_positions else ()),
    )
    part = token_tables(
        "model.embed_tokens",
        tables,
        s,
        h,
        dropout=shape.dropout if shape.embedding_dropout is None else shape.embedding_dropout,
        indexed=len(tables),
        shard=shard,
    )
    part = named(shape, part)
    if not (shape.scaled_embedding or shape.scaled_branches):
        return part
    moved = float(ELEMENT_BYTES * passes_of("activation") * shard.stream_tokens(s) * h)
    return more_work(part, vector_bytes=moved, kernels=1)


def head_and_loss(
    shape: DecoderShape,
    s: int,
    shard: Shard = WHOLE,
    *,
    name: str = "lm_head",
    is_shared: bool = False,
) -> Module:
    """Last norm, logits and loss; a tied weight gets its gradient in the embedding's backward.

    `shard`: which part of the vocabulary a rank holds; it may score all of it.
    `is_shared`: whether another head has the weight, whose norm is not this one's.
    """
    norm_name = f"{name}.norm" if is_shared else "model.norm"
    h, gain = shape.width, weight_and_bias(norm_name, shape.width, bias=shape.layer_norms)
    norm = () if shape.plain_norms else gain
    vocabulary = shard.padded(shape.vocabulary)
    own_vocabulary = shard.words(shape.vocabulary)
    own_weight = not (shape.tied or is_shared)
    head = weight_and_bias(name, own_vocabulary, h, bias=False) if own_weight else ()
    rows, stream = shard.map_tokens(s), shard.stream_tokens(s) * h
    logits = rows * (own_vocabulary if shard.parallel_loss else vocabulary)
    passes, _ = norm_work(shape)
    saved = kept_by_norm(stream, shard.stream_tokens(s), shape, logits)
    saved["saved_elements"] += float(shard.kept_tokens(s) * h + shape.capped_logits * logits)
    scored = linear(
        name,
        rows,
        h,
        own_vocabulary,
        parameters=norm + head,
        ready=names(head) + norm_ready(norm, shape),
        norm_elements=float(passes * stream),
        vector_elements=float(
            (
                passes_of("loss")
                + shape.capped_logits * passes_of("logit_cap")
                + shape.scaled_branches * passes_of("activation")
            )
            * logits
        ),
        wide_norm=not shape.fused_norms,
        wide_elements=float(passes_of("loss") * logits),
        fused_elements=float(passes_of("fused_norm") * stream + passes_of("fused_loss") * logits),
        **saved,
        fused_kept=Kept(float(shard.kept_tokens(s) * h + logits), float(stream)),
        kernels=4 + 3 * shape.capped_logits + shape.scaled_branches,
        calls=column_calls(shard, rows * h)
        + loss_calls(shard, rows, vocabulary)
        + norm_calls(shard, numels(norm)),
    )
    return named(shape, scored)


def llama(
    name: str,
    *,
    dtype: str,
    sequence_length: int,
    shape: DecoderShape | None = None,
    family: str | None = None,
    shard: Shard = WHOLE,
) -> Workload:
    """Decoder-only transformer with rotary positions, RMS normalisation and gated feed-forward.

    `shape`: of a model that is not in the zoo; `family`: Hugging Face's class of it.
    `shard`: which part of it a rank holds.
    """
    shape, s = shape or SHAPES[name], sequence_length
    check_shard(
        shard,
        SharedSizes(
            name,
            shape.heads,
            shape.kv_heads,
            shape.mlp_width,
            shape.vocabulary,
            s,
            window=any(shape.window_of(layer) for layer in range(shape.layers)),
        ),
    )
    own = next((own for own in FAMILIES if name in FAMILIES[own]), "LlamaForCausalLM")
    first, last = token_embedding(shape, s, shard), head_and_loss(shape, s, shard)
    check_norms(name, shape, shard)
    check_mixers(name, shape, shard)
    weight = [each for each in last.parameters if each[0] == "lm_head.weight"]
    if shape.side_width:
        raise_faults(
            shard_faults(shard) or whole_faults(shard, name, "a table of its layers is not split")
        )
    side = side_inputs(shape, s) if shape.side_width else []
    blocks = [_block(i, s, shape, shard) for i in range(shape.layers)]
    return assemble(
        name,
        [first, *side, *chain.from_iterable(blocks), last],
        dtype=dtype,
        sample=sequence_of(s),
        source=f"Hugging Face {family or own}",
        input_elements=s,
        output_elements=s * shape.vocabulary,
        registered=[
            *first.parameters,
            *chain.from_iterable(
                in_order(block, shape.block_names.registered, 3) for block in blocks
            ),
            *(each for each in last.parameters if each not in weight),
            *(each for part in side for each in part.parameters),
            *weight,
        ],
        buffers=rotary_buffers(shape),
        notes=(_CAP_NOTE,) * shape.capped
        + (_SIDE_NOTE,) * bool(shape.side_width)
        + (NOTE,) * bool(mixers_of(shape)),
        shard=shard,
        stream_elements=float(shard.stream_tokens(s) * shape.width),
    )


_SIDE_NOTE = (
    "Between stages of a pipeline the stream alone is sent: not what layers are given beside it, "
    "nor keys and values that several read."
)
_CAP_NOTE = "The cap of attention's scores (a tanh) takes no time of its own, fused or not."


def _block(number: int, s: int, shape: DecoderShape, shard: Shard) -> list[Module]:
    """Attention part, then feed-forward part."""
    place = BlockPlace(f"model.layers.{number}", s, shape_of_layer(shape, number), shard)
    parts = [
        *token_part(place, shape.window_of(number)),
        *(
            feed_forward_part(place, normed=not shape.parallel)
            if place.shape.part != "tokens"
            else ()
        ),
        *(side_part(place) if shape.side_width else ()),
    ]
    return [named(shape, part) for part in block_scaled(place, parts)]


def block_scaled(place: BlockPlace, parts: Sequence[Module]) -> list[Module]:
    """Parts of a block, of which Gemma 4 multiplies what they put out by a number in a buffer."""
    if not place.shape.value_norms:
        return [*parts]
    elements = place.shard.stream_tokens(place.tokens) * place.shape.width
    moved = float(ELEMENT_BYTES * passes_of("activation") * elements)
    return [*parts[:-1], more_work(parts[-1], vector_bytes=moved, kernels=1)]


def side_inputs(shape: DecoderShape, s: int) -> list[Module]:
    """What all layers are given beside the stream: of a table, and of a map of the embeddings."""
    elements, outputs = s * shape.layers * shape.side_width, shape.layers * shape.side_width
    table: tuple[Parameter, ...] = (
        ("model.embed_tokens_per_layer.weight", (shape.side_words, outputs)),
    )
    own = weight_and_bias("model.per_layer_model_projection", outputs, shape.width, bias=False)
    norm = weight_and_bias("model.per_layer_projection_norm", shape.side_width, bias=False)
    passes, kernels = norm_work(shape)
    saved = kept_by_norm(elements, s * shape.layers, shape, results=elements)
    saved["saved_elements"] += float(s * shape.width)
    gathered = token_tables(
        "model.embed_tokens_per_layer", table, s, outputs, dropout=False, indexed=1
    )
    return [
        gathered,
        linear(
            "model.per_layer_model_projection",
            s,
            shape.width,
            outputs,
            parameters=own + norm,
            ready=names(norm) + names(own),
            vector_elements=float((passes_of("side_input") + passes_of("activation")) * elements),
            norm_elements=float(passes * elements),
            wide_norm=True,
            fused_elements=float((passes_of("addition") + passes_of("fused_norm")) * elements),
            kernels=5 + kernels,
            **saved,
        ),
    ]


def side_part(place: BlockPlace) -> list[Module]:
    """Gate what a layer is given beside the stream, map it, normalise, add."""
    h, width = place.shape.width, place.shape.side_width
    after, gate = "post_per_layer_input_norm", "per_layer_input_gate"
    return [
        projection(place, gate, h, width, begins=True),
        projection(place, "per_layer_projection", width, h, after=after, added=True, gated=True),
    ]


MODELS = {
    name: Buildable(name, partial(llama, name), shape.positions) for name, shape in SHAPES.items()
}
"""Models of the zoo, with the sequence that their authors trained with; none has a longest one."""

"""Layers that transformers share: attention, tables of tokens, the last norm and the head.

Assumption: normalisations and activations run as one kernel each, as PyTorch's own modules do.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.kernels.shapes import WIDE_BYTES, Attention
from perfmodel.workload.layer_calls import (
    LayerCall,
    attention_calls,
    column_calls,
    loss_calls,
    norm_calls,
    table_calls,
)
from perfmodel.workload.model import ELEMENT_BYTES, Kept, Layer
from perfmodel.workload.shard import WHOLE, Shard, is_balanced
from perfmodel.workload.zoo.layers import (
    INDEX_BYTES,
    MASK_BYTES,
    NORM_BYTES,
    Module,
    Parameter,
    linear,
    names,
    names_reversed,
    numels,
    weight_and_bias,
)


def attention(
    name: str,
    tokens: int,
    width: int,
    *,
    heads: int,
    kv_width: int | None = None,
    causal: bool,
    keys: int | None = None,
    window: int | None = None,
    dropout: bool = True,
    wide_scores: bool = False,
    capped_scores: bool = False,
    value_width: int | None = None,
    kept_values: int | None = None,
    held: float = 0.0,
    shard: Shard = WHOLE,
) -> Module:
    """Scores, softmax and weighted sum; it has no parameters.

    Multiply-accumulates: tokens x keys x width for the scores and as many for the sum, so
    4 x tokens^2 x width operations forward, causal or not. Kept for backward: query, key, value
    and the output. Ranks that share a sample keep those of their own tokens; results of blocks of
    keys are added up, scaled, each in a kernel.

    `width`: of the queries of all heads; `kv_width`: of keys and values, if heads share them.
    `keys`: tokens that queries look at, where these are others (cross attention).
    `window`: tokens that a query sees at most.
    `dropout`, `wide_scores`, `capped_scores`: of the scores, where it is not fused (see `Layer`).
    `shard`: which part of it a rank runs; the sizes are those of the whole.
    `value_width`: of the result of all heads, where values are not as wide as keys.
    `kept_values`: elements of a token that are kept with its values, where these are part of more.
    `held`: times the queries' elements that are held beside where it is fused (see `Layer`).
    """
    attended = replace(
        _attended(shard, tokens, keys or tokens, width, heads, kv_width or width, causal, window),
        value_head_size=value_width and value_width // heads,
    )
    size, value_size = attended.head_size, attended.value_size
    split = shard.context_kind != "ulysses" and shard.context > 1
    queries = attended.tokens * attended.heads * size
    pairs = attended.all_keys // (shard.context if split else 1) * attended.kv_heads * size
    moved = (queries + pairs) * (size + value_size) // size
    kept_value = kept_values // heads if kept_values else value_size
    merged = float(ELEMENT_BYTES * passes_of("addition") * (attended.blocks - 1) * queries)
    layer = Layer(
        name=name,
        matmul_flops=attended.flops,
        matmul_bytes=float(ELEMENT_BYTES * moved),
        vector_bytes=merged,
        fused_bytes=merged,
        saved_elements=float(moved + pairs // size * (kept_value - value_size)),
        held_elements=float(held * queries),
        kind="attention",
        kernels=2 * attended.blocks - 1,
        fused_kernels=2 * attended.blocks - 1,
        score_elements=float(attended.heads * attended.tokens * attended.all_keys),
        score_dropout=dropout,
        wide_scores=wide_scores,
        capped_scores=capped_scores,
        matrix=attended,
        calls=attention_calls(shard, queries, pairs),
    )
    return Module(layer)


def _attended(
    shard: Shard,
    tokens: int,
    keys: int,
    width: int,
    heads: int,
    kv_width: int,
    causal: bool,
    window: int | None,
) -> Attention:
    """Return the attention of one rank: some of the heads over all tokens, or all over its own."""
    size, c = width // heads, shard.context
    ranks = shard.tensor * (c if shard.context_kind == "ulysses" else 1)
    own, own_pairs = heads // ranks, max(1, kv_width // size // ranks)
    window = window if window is not None and window < keys else None
    crossed = None if keys == tokens else keys
    if c == 1 or shard.context_kind == "ulysses":
        return Attention(tokens, own, own_pairs, size, causal, keys=crossed, window=window)
    return Attention(
        tokens // c,
        own,
        own_pairs,
        size,
        causal,
        keys=keys,
        window=window,
        blocks=c if shard.context_kind == "ring" or shard.library == "torch" else 1,
        last=causal and not is_balanced(shard, causal=causal),
    )


def embedding(
    name: str,
    parameters: tuple[Parameter, ...],
    ready: tuple[str, ...],
    *,
    vector_elements: float,
    fused_elements: float | None = None,
    saved_elements: float = 0.0,
    stream_elements: float = 0.0,
    saved_bytes: float = 0.0,
    kernels: int,
    calls: tuple[LayerCall, ...] = (),
) -> Module:
    """Gather rows of tables; backward writes a dense gradient of each table."""
    return Module(
        Layer(
            name=name,
            vector_bytes=ELEMENT_BYTES * vector_elements,
            fused_bytes=None if fused_elements is None else ELEMENT_BYTES * fused_elements,
            weight_elements=float(sum(shape[0] * shape[-1] for _, shape in parameters)),
            saved_elements=saved_elements,
            stream_elements=stream_elements,
            saved_bytes=saved_bytes,
            kernels=kernels,
            calls=calls,
        ),
        parameters,
        ready,
    )


def token_tables(
    name: str,
    tables: tuple[Parameter, ...],
    tokens: int,
    width: int,
    *,
    dropout: bool,
    indexed: int,
    shard: Shard = WHOLE,
) -> Module:
    """Gather rows of a table of tokens, and add those of a table of positions if there is one.

    `indexed`: tables whose indices are kept (a table of which a slice is added needs none).
    """
    rows, own = shard.map_tokens(tokens), shard.stream_tokens(tokens)
    added = len(tables) > 1
    elements = float(
        (len(tables) * passes_of("activation") + added * passes_of("addition")) * rows * width
    )
    return embedding(
        name,
        tables,
        names_reversed(tables),
        vector_elements=elements + dropout * passes_of("dropout") * own * width,
        fused_elements=float(
            (passes_of("fused_addition") if added else passes_of("activation")) * rows * width
        ),
        saved_bytes=float(indexed * INDEX_BYTES * rows + dropout * MASK_BYTES * own * width),
        kernels=len(tables) + added + dropout,
        calls=table_calls(shard, rows * width, whole_first=added),
    )


def last_norm(
    name: str,
    tokens: int,
    width: int,
    *,
    kept_result: bool = False,
    bias: bool = True,
    shard: Shard = WHOLE,
) -> Module:
    """Normalise what a stack puts out.

    `kept_result`: whether its result is kept by nobody else. `bias`: whether it has one.
    """
    own, parameters = shard.stream_tokens(tokens), weight_and_bias(name, width, bias=bias)
    norm_bytes = float(ELEMENT_BYTES * passes_of("norm") * own * width)
    return Module(
        Layer(
            name,
            vector_bytes=norm_bytes,
            norm_bytes=norm_bytes,
            fused_bytes=float(ELEMENT_BYTES * passes_of("fused_norm") * own * width),
            stream_elements=float(own * width),
            saved_elements=float(kept_result * own * width),
            saved_bytes=float(NORM_BYTES * own),
            calls=norm_calls(shard, numels(parameters)),
        ),
        parameters,
        names(parameters),
    )


def vocabulary_head(
    name: str,
    tokens: int,
    width: int,
    vocabulary: int,
    *,
    norm: tuple[Parameter, ...],
    tied: bool,
    wide_loss: bool,
    shard: Shard,
    biased: bool = False,
    keeps_rows: bool = True,
) -> Module:
    """Last norm, if there is one, logits and loss of a rank's part of the vocabulary, or of all.

    `tied`: whether the weight is that of the embedding, in whose backward its gradient is ready.
    `biased`: whether there is a bias.
    `wide_loss`: whether logits are cast to fp32 in any precision.
    `keeps_rows`: whether mean and deviation of each row count among what is kept.
    """
    rows, own = shard.map_tokens(tokens), shard.stream_tokens(tokens)
    padded, own_words = shard.padded(vocabulary), shard.words(vocabulary)
    head = weight_and_bias(name, own_words, width, bias=biased)[tied:]
    scored = rows * (own_words if shard.parallel_loss else padded)
    kept_input, normed = shard.kept_tokens(tokens) * width, bool(norm) * own * width
    return linear(
        name,
        rows,
        width,
        own_words,
        parameters=norm + head,
        ready=names_reversed(head) + names(norm),
        norm_elements=float(normed * passes_of("norm")),
        vector_elements=float(passes_of("loss") * scored),
        wide_elements=float(passes_of("loss") * scored),
        fused_elements=float(passes_of("fused_norm") * normed + passes_of("fused_loss") * scored),
        saved_elements=float(kept_input),
        stream_elements=float(normed + (not wide_loss) * scored),
        saved_bytes=float(
            keeps_rows * bool(norm) * NORM_BYTES * own + wide_loss * WIDE_BYTES * scored
        ),
        kernels=4 + bool(norm),
        fused_kept=Kept(float(kept_input + scored), float(normed)),
        calls=column_calls(shard, rows * width)
        + loss_calls(shard, rows, padded)
        + norm_calls(shard, numels(norm)),
    )

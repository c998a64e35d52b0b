"""Multi-token prediction: a further block that predicts the token after the next (DeepSeek-V3).

As the report has it (arXiv 2412.19437, section 2.2): what the last block said and the embedding of
the next token, each normalised, are joined and mapped to the width of the model; a block of the
model's own kind and the head that predicts the next token follow. Table and head are the model's,
so that the head runs a second time and its gradient is complete after both.

Ranks of a tensor group share the map by columns, and make its result whole before the block
(Megatron-Core 0.16 ``transformer/multi_token_prediction.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.workload.shards.map_calls import (
    column_calls,
    joined_calls,
    norm_calls,
    table_calls,
)
from perfmodel.workload.zoo.decoders.decoder_block import BlockPlace
from perfmodel.workload.zoo.decoders.decoder_ends import head_and_loss
from perfmodel.workload.zoo.decoders.rms_norm import NORM_KERNELS, kept_by_norm, norm_weight
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    FUSED_NORM_PASSES,
    INDEX_BYTES,
    Module,
    linear,
    names,
    numels,
    weight_and_bias,
)

PREFIX = "model.layers.mtp"
"""Without a number, as no stage of a pipeline is dealt this block: it follows the head."""

SHARED_NOTE = (
    "The block that predicts a second token follows the head, on the last stage of a pipeline; the "
    "table that it shares with the embedding is not held there a second time."
)


def joined_tokens(place: BlockPlace) -> Module:
    """Gather embeddings, normalise both streams, put them beside each other, and map them."""
    shape, shard = place.shape, place.shard
    s, rows = shard.stream_tokens(place.tokens), shard.map_tokens(place.tokens)
    h, both = shape.width, 2 * s * shape.width
    columns, whole = h // shard.tensor, float(rows * h)
    norms = norm_weight(f"{PREFIX}.enorm", h) + norm_weight(f"{PREFIX}.hnorm", h)
    own = weight_and_bias(f"{PREFIX}.eh_proj", columns, 2 * h, bias=False)
    passes, kernels = NORM_KERNELS[shape.fused_norms]
    saved = kept_by_norm(both, 2 * s, shape)
    saved["saved_elements"] += float(2 * shard.kept_tokens(place.tokens) * h)  # the product's
    saved["saved_bytes"] += float(INDEX_BYTES * s)
    return linear(
        f"{PREFIX}.eh_proj",
        rows,
        2 * h,
        columns,
        parameters=norms + own,
        ready=names(own) + names(norms),
        # ranks' columns are put beside each other after the gather
        vector_elements=ACTIVATION_PASSES * (s * h + both + whole * (shard.tensor > 1)),
        norm_elements=float(passes * both),
        wide_norm=not shape.fused_norms,
        fused_elements=float(ACTIVATION_PASSES * s * h + FUSED_NORM_PASSES * both),
        kernels=3 + 2 * kernels + (shard.tensor > 1),
        **saved,
        calls=(
            *table_calls(shard, whole, whole_first=False),
            *column_calls(shard, 2 * whole),
            *joined_calls(shard, whole),
            *norm_calls(shard, numels(norms)),
        ),
    )


def second_token_part(place: BlockPlace, block: Sequence[Module]) -> list[Module]:
    """Modules in the order of forward, around `block`, which stands at `place`."""
    head = head_and_loss(
        place.shape, place.tokens, place.shard, name=f"{PREFIX}.shared_head", is_shared=True
    )
    return [joined_tokens(place), *block, head]

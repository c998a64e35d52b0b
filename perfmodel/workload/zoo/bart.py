"""BART with Hugging Face's tensors: encoder and decoder that normalise last, and share a table."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.errors import raise_faults
from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.model import ELEMENT_BYTES, Buffers, Workload, sequence_of
from perfmodel.workload.shard import WHOLE, Shard, shard_faults, whole_faults
from perfmodel.workload.zoo.layers import MASK_BYTES, Module, Parameter, assemble, more_work
from perfmodel.workload.zoo.stack_block import BLOCK_NAMES, StackShape, stack_blocks
from perfmodel.workload.zoo.transformer import last_norm, token_tables, vocabulary_head

BART_BLOCK = StackShape(
    0, 0, 0, BLOCK_NAMES["whisper-encoder"], wide_scores=False, late_norms=True, held=0.0
)
"""What blocks of all sizes have in common."""
TABLE = "model.shared.weight"
NOTE = "The decoder predicts as many tokens as the encoder reads."


def bart(
    name: str,
    *,
    dtype: str,
    sequence_length: int,
    layers: tuple[int, int],
    blocks: tuple[StackShape, StackShape],
    vocabulary: int,
    positions: int,
    shard: Shard = WHOLE,
) -> Workload:
    """Encoder and decoder of `sequence_length` tokens each.

    `layers`, `blocks`: of the encoder and of the decoder.
    `positions`: rows of the table of positions that each has.
    Raises `InputError`: a share of it, which nobody's library has.
    """
    s, h, tables = sequence_length, blocks[0].width, (vocabulary, positions)
    raise_faults(shard_faults(shard) or whole_faults(shard, name, "its encoder is not split"))
    table: Parameter = (TABLE, (vocabulary, h))
    encoder, first = _stack("encoder", layers[0], blocks[0], tables, s, None)
    decoder, second = _stack("decoder", layers[1], blocks[1], tables, s, s)
    # the gradient of the table is complete when the encoder's use of it is done
    gathered = encoder[0]
    encoder[0] = replace(
        gathered, parameters=(table, *gathered.parameters), ready=(*gathered.ready, TABLE)
    )
    head = vocabulary_head(
        "lm_head", s, h, vocabulary, norm=(), tied=True, wide_loss=False, shard=WHOLE
    )
    return assemble(
        name,
        [*encoder, *decoder, head],
        dtype=dtype,
        sample=sequence_of(s),
        source="Hugging Face BartForConditionalGeneration; Lewis et al. 2019, arXiv 1910.13461",
        input_elements=2 * s,
        output_elements=s * vocabulary,
        registered=[table, *first, *second],
        buffers=(Buffers("fp32", 1, 4 * vocabulary),),  # a bias of logits
        notes=(NOTE,),
        shard=shard,
    )


def _stack(
    stack: str, layers: int, block: StackShape, sizes: tuple[int, int], s: int, source: int | None
) -> tuple[list[Module], list[Parameter]]:
    """Parts in the order of forward, and parameters but the shared table in that of registration.

    Embeddings are scaled, added to positions, normalised and dropped out.
    """
    root, h, elements = f"model.{stack}", block.width, s * block.width
    tables: tuple[Parameter, ...] = (
        (TABLE, (sizes[0], h)),
        (f"{root}.embed_positions.weight", (sizes[1], h)),
    )
    first = more_work(
        token_tables(f"{root}.embed_tokens", tables, s, h, dropout=False, indexed=2),
        vector_bytes=ELEMENT_BYTES * passes_of("activation") * elements,
        kernels=1,
    )
    first = replace(first, parameters=tables[1:], ready=(tables[1][0],))
    norm = more_work(
        last_norm(f"{root}.layernorm_embedding", s, h),
        vector_bytes=ELEMENT_BYTES * block.dropout * passes_of("dropout") * elements,
        saved_bytes=MASK_BYTES * block.dropout * elements,
        kernels=block.dropout,
    )
    blocks, ordered = stack_blocks(f"{root}.layers", layers, block, s, source=source)
    return [first, norm, *blocks], [*tables[1:], *ordered, *norm.parameters]

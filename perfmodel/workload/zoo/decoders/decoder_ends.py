"""What stands before and after the blocks of a decoder: token embedding, head, rotary buffers."""

from __future__ import annotations

from perfmodel.workload.model import Buffers
from perfmodel.workload.zoo.decoders.decoder_sizes import DecoderShape
from perfmodel.workload.zoo.decoders.rms_norm import NORM_KERNELS, kept_by_norm, norm_weight
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    FUSED_LOSS_PASSES,
    FUSED_NORM_PASSES,
    INDEX_BYTES,
    LOSS_PASSES,
    Module,
    linear,
    names,
    weight_and_bias,
)
from perfmodel.workload.zoo.transformer import embedding

CAP_PASSES = 3 * ACTIVATION_PASSES
"""Logits over the cap, tanh, times the cap: three operations."""


def rotary_buffers(shape: DecoderShape) -> tuple[Buffers, ...]:
    """Rotary frequencies, twice, for sliding and full attention where these differ; a scale."""
    kinds = 2 if shape.head_norms and shape.window else 1
    rotary = Buffers("fp32", 2 * kinds, 2 * kinds * 4 * (shape.head_size // 2))
    return (rotary, *(Buffers("fp32", 1, 4),) * shape.scaled_embedding)


def token_embedding(shape: DecoderShape, s: int) -> Module:
    """Gather the rows of tokens, and scale them where the model does."""
    table = (("model.embed_tokens.weight", (shape.vocabulary, shape.width)),)
    passes = ACTIVATION_PASSES * (1 + shape.scaled_embedding)
    return embedding(
        "model.embed_tokens", table, names(table),
        vector_elements=float(passes * s * shape.width),
        fused_elements=float(ACTIVATION_PASSES * s * shape.width),
        saved_bytes=float(INDEX_BYTES * s),
        kernels=1 + shape.scaled_embedding,
    )  # fmt: skip


def head_and_loss(shape: DecoderShape, s: int) -> Module:
    """Last norm, logits and loss; a tied weight gets its gradient in the embedding's backward."""
    h, norm = shape.width, norm_weight("model.norm", shape.width)
    head = () if shape.tied else weight_and_bias("lm_head", shape.vocabulary, h, bias=False)
    logits = s * shape.vocabulary
    passes, _ = NORM_KERNELS[shape.fused_norms]
    return linear(
        "lm_head", s, h, shape.vocabulary, parameters=norm + head, ready=names(head) + names(norm),
        norm_elements=float(passes * s * h),
        vector_elements=float((LOSS_PASSES + shape.capped * CAP_PASSES) * logits),
        wide_norm=not shape.fused_norms, wide_elements=float(LOSS_PASSES * logits),
        fused_elements=float(FUSED_NORM_PASSES * s * h + FUSED_LOSS_PASSES * logits),
        saved_elements=float(s * h + shape.capped * logits), **kept_by_norm(s * h, shape, logits),
        kernels=4 + 3 * shape.capped,
    )  # fmt: skip

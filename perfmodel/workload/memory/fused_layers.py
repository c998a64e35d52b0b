"""What the layers of a model are where kernels written by hand fuse, or documents are packed."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.errors import refuse_if
from perfmodel.workload.kernels.shapes import Attention
from perfmodel.workload.memory.recompute import result_elements
from perfmodel.workload.model import Layer, Workload
from perfmodel.workload.zoo.layers import ELEMENT_BYTES, FUSED_LOSS_PASSES, WIDE_BYTES

MEGATRON_LOSS_PASSES = 26 * 3 / 8
"""Passes of forward over logits in half precision, where backward is taken to make 5/3 as many, of
the 26 of both: Megatron-LM's loss casts them to fp32 (1.5 passes in fp32), takes the greatest (1),
subtracts it (2), exponentiates (2), adds up (1) and divides (2); backward scales (2) and casts back
(1.5) (megatron/core/tensor_parallel/cross_entropy.py)."""
LOSS_KERNELS = 5
"""Beside one for all: each of the passes above but the cast is a kernel of its own."""


def fuse_by_hand(workload: Workload) -> Workload:
    """Return the workload with what kernels written by hand do not fuse: dropout of scores.

    Megatron's and apex's kernels scale, mask and normalise scores at once; dropout is PyTorch's.
    """
    return replace(
        workload, layers=tuple(replace(layer, dropout_apart=True) for layer in workload.layers)
    )


def keep_loss_apart(workload: Workload) -> Workload:
    """Return the workload fused by hand but for the loss, as Megatron-LM runs it by default.

    It keeps the softmax in fp32 and makes it the gradient, which is cast back.
    """
    apart = fuse_by_hand(workload)
    return replace(apart, layers=tuple(map(_with_loss_apart, apart.layers)))


def _with_loss_apart(layer: Layer) -> Layer:
    fused = layer.fused_kept
    if not layer.wide_bytes or fused is None or layer.fused_bytes is None:
        return layer
    logits = result_elements(layer)
    more = (MEGATRON_LOSS_PASSES - FUSED_LOSS_PASSES) * ELEMENT_BYTES * logits
    return replace(
        layer,
        fused_bytes=layer.fused_bytes + more,
        fused_kept=replace(
            fused,
            saved_elements=max(0.0, fused.saved_elements - logits),
            saved_bytes=fused.saved_bytes + WIDE_BYTES * logits,
        ),
        fused_kernels=layer.fused_kernels + LOSS_KERNELS,
    )


def pack_documents(workload: Workload, tokens: int) -> Workload:
    """Return the model with attention within documents of so many tokens, side by side.

    Of documents of unlike lengths that is the mean of the squares over the mean, which attention's
    work follows.
    Raises `InputError`: a model without attention, whose documents are never apart; documents
        longer than a sequence; attention that ranks share by tokens.
    """
    refuse_if(
        not any(isinstance(layer.matrix, Attention) for layer in workload.layers),
        "document_length",
        str(tokens),
        "nothing: the model has no attention that would tell documents apart",
    )
    return replace(workload, layers=tuple(_packed(layer, tokens) for layer in workload.layers))


def _packed(layer: Layer, tokens: int) -> Layer:
    attention = layer.matrix
    if not isinstance(attention, Attention):
        return layer
    refuse_if(
        attention.keys is not None or attention.blocks > 1,
        "document_length",
        f"{tokens} with keys of other ranks or of another sequence",
        "self-attention of whole sequences",
    )
    refuse_if(
        tokens > attention.tokens,
        "document_length",
        str(tokens),
        f"at most the {attention.tokens} tokens of a sequence",
    )
    documents = round(attention.tokens / tokens)
    share = tokens / attention.tokens
    return replace(
        layer,
        matmul_flops=layer.matmul_flops * share,
        score_elements=layer.score_elements * share,
        matrix=replace(
            attention,
            tokens=attention.tokens // documents,
            sequences=attention.sequences * documents,
        ),
    )
